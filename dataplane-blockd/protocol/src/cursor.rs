//! Fields in and out of bytes. Integers are little-endian; whatever has a length says it first.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes that are no message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("the message ends inside {field}")]
    Truncated {
        /// What was being read.
        field: &'static str,
    },
    /// Bytes are left over.
    #[error("{bytes} bytes too many")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{field} cannot be {value}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What it said.
        value: u64,
    },
    /// The header or the body does not match its checksum: the stream is damaged and cannot be followed any further.
    #[error("the {part} does not match its checksum")]
    Checksum {
        /// Which part of the frame.
        part: &'static str,
    },
    /// Not a frame of this protocol at all.
    #[error("the stream does not carry this protocol")]
    Magic,
    /// A version this build does not speak.
    #[error("protocol version {version} is not spoken here")]
    Version {
        /// The version of the frame.
        version: u8,
    },
}

/// Reads fields one after the other.
pub(crate) struct Decoder {
    bytes: Bytes,
}

impl Decoder {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    fn require(&self, bytes: usize, field: &'static str) -> Result<(), DecodeError> {
        if self.bytes.len() < bytes {
            return Err(DecodeError::Truncated { field });
        }
        Ok(())
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.require(1, field)?;
        Ok(self.bytes.get_u8())
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.require(2, field)?;
        Ok(self.bytes.get_u16_le())
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.require(4, field)?;
        Ok(self.bytes.get_u32_le())
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.require(8, field)?;
        Ok(self.bytes.get_u64_le())
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.require(8, field)?;
        Ok(self.bytes.get_i64_le())
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Invalid {
                field,
                value: value.into(),
            }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        self.require(N, field)?;
        let mut array = [0; N];
        self.bytes.copy_to_slice(&mut array);
        Ok(array)
    }

    /// A count that is at most `most`.
    pub(crate) fn count(&mut self, field: &'static str, most: usize) -> Result<usize, DecodeError> {
        let count = self.u16(field)?;
        if usize::from(count) > most {
            return Err(DecodeError::Invalid {
                field,
                value: count.into(),
            });
        }
        Ok(count.into())
    }

    /// Bytes with their length before them, at most `most`.
    pub(crate) fn blob(&mut self, field: &'static str, most: usize) -> Result<Bytes, DecodeError> {
        let length = self.count(field, most)?;
        self.require(length, field)?;
        Ok(self.bytes.split_to(length))
    }

    pub(crate) fn text(&mut self, field: &'static str, most: usize) -> Result<String, DecodeError> {
        let bytes = self.blob(field, most)?;
        String::from_utf8(bytes.to_vec()).map_err(|error| DecodeError::Invalid {
            field,
            value: error.utf8_error().valid_up_to() as u64,
        })
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }
}

/// Writes fields one after the other.
#[derive(Default)]
pub(crate) struct Encoder {
    bytes: BytesMut,
}

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.put_u8(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.put_u16_le(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.put_u32_le(value);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.put_u64_le(value);
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes.put_i64_le(value);
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(crate) fn array(&mut self, bytes: &[u8]) {
        self.bytes.put_slice(bytes);
    }

    /// # Panics
    /// If a list is longer than the protocol allows: callers build lists within [`limits`](crate::limits).
    pub(crate) fn count(&mut self, count: usize, most: usize) {
        assert!(count <= most, "a list of {count}, {most} are allowed");
        self.u16(u16::try_from(count).expect("every limit of a list fits 16 bits"));
    }

    pub(crate) fn blob(&mut self, bytes: &[u8], most: usize) {
        self.count(bytes.len(), most);
        self.array(bytes);
    }

    /// Text is cut at `most` bytes, at a character's end.
    pub(crate) fn text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.blob(&text.as_bytes()[..end], most);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}
