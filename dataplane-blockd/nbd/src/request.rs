//! Requests of the transmission phase.

use crate::wire::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, cmd, cmd_flag};
use firn_codec::{ByteOrder, Codec, Reader};

/// Bytes of a compact request without its payload.
pub const COMPACT_BYTES: usize = 28;
/// Bytes of an extended one.
pub const EXTENDED_BYTES: usize = 32;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`cmd_flag`].
    pub flags: u16,
    /// One of [`cmd`], or anything else.
    pub command: u16,
    /// The client's mark, sent back with the reply.
    pub cookie: u64,
    /// Where.
    pub offset: u64,
    /// How much of the export, or, in an extended request with a payload, of payload.
    pub length: u64,
    /// Bytes that follow the header.
    pub payload_bytes: u64,
}

/// The bytes are not a request: the stream is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request does not begin with the protocol's magic number")]
pub struct WrongMagic;

impl Request {
    /// Decodes a compact header.
    ///
    /// # Errors
    /// [`WrongMagic`].
    pub fn decode_compact(bytes: &[u8; COMPACT_BYTES]) -> Result<Self, WrongMagic> {
        Self::decode(bytes, REQUEST_MAGIC, |fields| fields.u32().map(u64::from)).map(|request| Self {
            payload_bytes: match request.command {
                cmd::WRITE => request.length,
                _ => 0,
            },
            ..request
        })
    }

    /// Decodes an extended header.
    ///
    /// # Errors
    /// [`WrongMagic`].
    pub fn decode_extended(bytes: &[u8; EXTENDED_BYTES]) -> Result<Self, WrongMagic> {
        Self::decode(bytes, EXTENDED_REQUEST_MAGIC, Reader::u64).map(|request| Self {
            payload_bytes: if request.has(cmd_flag::PAYLOAD_LEN) {
                request.length
            } else {
                0
            },
            ..request
        })
    }

    /// The fields of either header, which differ in magic number and width of the length.
    fn decode<'a>(
        bytes: &'a [u8],
        magic: u32,
        length: impl FnOnce(&mut Reader<&'a [u8], Header>) -> Result<u64, WrongMagic>,
    ) -> Result<Self, WrongMagic> {
        let mut fields = Reader::new(Header, bytes);
        if fields.u32()? != magic {
            return Err(WrongMagic);
        }
        Ok(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: length(&mut fields)?,
            payload_bytes: 0,
        })
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A request's header, as its reader sees it.
struct Header;

impl Codec for Header {
    type Error = WrongMagic;
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    /// Never called for a header of its whole length, which both kinds have by their type.
    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> WrongMagic {
        WrongMagic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_compact_request_is_read_back(
            flags: u16, command: u16, cookie: u64, offset: u64, length: u32, noise in any::<[u8; COMPACT_BYTES]>(),
        ) {
            let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            let request = Request::decode_compact(bytes.as_slice().try_into().unwrap()).unwrap();
            let payload_bytes = if command == cmd::WRITE { u64::from(length) } else { 0 };
            prop_assert_eq!(request, Request { flags, command, cookie, offset, length: length.into(), payload_bytes });
            prop_assert_eq!(Request::decode_compact(&noise).is_ok(), noise.starts_with(&REQUEST_MAGIC.to_be_bytes()));
        }

        #[test]
        fn an_extended_request_is_read_back(flags: u16, command: u16, cookie: u64, offset: u64, length: u64) {
            let mut bytes = EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            let request = Request::decode_extended(bytes.as_slice().try_into().unwrap()).unwrap();
            let payload_bytes = if flags & cmd_flag::PAYLOAD_LEN != 0 { length } else { 0 };
            prop_assert_eq!(request, Request { flags, command, cookie, offset, length, payload_bytes });
        }
    }
}
