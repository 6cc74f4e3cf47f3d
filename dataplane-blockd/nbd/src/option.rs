//! Options of the negotiation: what a client sends before it may read or write.

use crate::wire::{IHAVEOPT, STRING_BYTES_MAX};
use firn_codec::{ByteOrder, Codec, Reader};

/// Queries in one metadata request; more is answered with "too big".
pub const QUERIES_MAX: usize = 64;

/// The start of an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which.
    pub option: u32,
    /// Bytes that follow.
    pub length: u32,
}

/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER_BYTES: usize = 16;

/// What is wrong with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Not the protocol: nothing after it can be understood.
    #[error("an option does not begin with the protocol's magic number")]
    Magic,
    /// A length within the data points beyond the data, or leaves bytes over.
    #[error("the option's lengths do not add up")]
    Malformed,
    /// A string is too long, not UTF-8, or contains NUL.
    #[error("a string in the option is longer than 4096 bytes, not UTF-8, or contains NUL")]
    BadString,
    /// More queries than anybody needs.
    #[error("more than {QUERIES_MAX} metadata queries")]
    TooMany,
    /// A query without the colon that ends its namespace.
    #[error("a metadata query has no namespace")]
    NoNamespace,
}

impl OptionHeader {
    /// Decodes the start of an option.
    ///
    /// # Errors
    /// [`OptionError::Magic`].
    pub fn decode(bytes: &[u8; OPTION_HEADER_BYTES]) -> Result<Self, OptionError> {
        let mut fields = Reader::new(OptionData, bytes);
        if fields.u64()? != IHAVEOPT {
            return Err(OptionError::Magic);
        }
        Ok(Self {
            option: fields.u32()?,
            length: fields.u32()?,
        })
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest {
    /// Export; empty for the default one.
    pub name: String,
    /// Items asked for.
    pub items: Vec<u16>,
}

impl InfoRequest {
    /// Decodes the data.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn decode(data: &[u8]) -> Result<Self, OptionError> {
        let mut fields = Reader::new(OptionData, data);
        let name = string(&mut fields)?;
        let count = fields.u16()?;
        if fields.remaining() != usize::from(count) * 2 {
            return Err(OptionError::Malformed);
        }
        let items = (0..count).map(|_| fields.u16()).collect::<Result<_, _>>()?;
        Ok(Self { name, items })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// Export.
    pub name: String,
    /// Queries, each `namespace:leaf`.
    pub queries: Vec<String>,
}

impl MetaRequest {
    /// Decodes the data.
    ///
    /// # Errors
    /// If it is malformed or has too many queries.
    pub fn decode(data: &[u8]) -> Result<Self, OptionError> {
        let mut fields = Reader::new(OptionData, data);
        let name = string(&mut fields)?;
        let count = fields.u32()? as usize;
        // Each query has a length of four bytes at least, so a larger count is a lie rather than a long list.
        if count > fields.remaining() / 4 {
            return Err(OptionError::Malformed);
        }
        if count > QUERIES_MAX {
            return Err(OptionError::TooMany);
        }
        let queries = (0..count)
            .map(|_| string(&mut fields))
            .collect::<Result<Vec<_>, _>>()?;
        if fields.remaining() > 0 {
            return Err(OptionError::Malformed);
        }
        if queries
            .iter()
            .any(|query| query.find(':').is_none_or(|colon| colon == 0))
        {
            return Err(OptionError::NoNamespace);
        }
        Ok(Self { name, queries })
    }
}

/// Checks a name that is the whole data of an option.
///
/// # Errors
/// [`OptionError::BadString`].
pub fn decode_name(data: &[u8]) -> Result<String, OptionError> {
    if data.len() > STRING_BYTES_MAX || data.contains(&0) {
        return Err(OptionError::BadString);
    }
    String::from_utf8(data.to_vec()).map_err(|_| OptionError::BadString)
}

/// The data of an option, as its reader sees it.
struct OptionData;

impl Codec for OptionData {
    type Error = OptionError;
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> OptionError {
        OptionError::Malformed
    }
}

/// A string with its length before it.
fn string(fields: &mut Reader<&[u8], OptionData>) -> Result<String, OptionError> {
    let length = fields.u32()? as usize;
    fields.take(length).and_then(decode_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = InfoRequest::decode(&data);
            let _ = MetaRequest::decode(&data);
            let _ = decode_name(&data);
            if let Some(head) = data.first_chunk() {
                let _ = OptionHeader::decode(head);
            }
        }

        #[test]
        fn an_info_request_is_read_back(name in "[a-z]{0,40}", items in proptest::collection::vec(any::<u16>(), 0..20)) {
            let mut data = string(&name);
            data.extend((items.len() as u16).to_be_bytes());
            data.extend(items.iter().flat_map(|item| item.to_be_bytes()));
            prop_assert_eq!(InfoRequest::decode(&data), Ok(InfoRequest { name: name.clone(), items: items.clone() }));
            for cut in 0..data.len() {
                prop_assert!(InfoRequest::decode(&data[..cut]).is_err());
            }
            data.push(0);
            prop_assert!(InfoRequest::decode(&data).is_err());
        }

        #[test]
        fn a_metadata_request_is_read_back(name in "[a-z]{0,40}", queries in proptest::collection::vec("[a-z]{1,9}:[a-z]{0,9}", 0..10)) {
            let mut data = string(&name);
            data.extend((queries.len() as u32).to_be_bytes());
            data.extend(queries.iter().flat_map(|query| string(query)));
            prop_assert_eq!(MetaRequest::decode(&data), Ok(MetaRequest { name: name.clone(), queries: queries.clone() }));
            for cut in 0..data.len() {
                prop_assert!(MetaRequest::decode(&data[..cut]).is_err());
            }
        }
    }

    #[test]
    fn a_count_of_four_thousand_million_queries_allocates_nothing() {
        let mut data = string("x");
        data.extend(u32::MAX.to_be_bytes());
        assert_eq!(MetaRequest::decode(&data), Err(OptionError::Malformed));
    }

    #[test]
    fn names_with_nul_or_broken_utf8_or_too_long_are_refused() {
        assert_eq!(decode_name(b"a\0b"), Err(OptionError::BadString));
        assert_eq!(decode_name(&[0xff]), Err(OptionError::BadString));
        assert_eq!(decode_name(&[b'a'; 4097]), Err(OptionError::BadString));
        assert!(decode_name(&[b'a'; 4096]).is_ok());
    }
}
