//! Fields in and out of bytes. Integers are little-endian; whatever has a length says it first.

use bytes::Bytes;
use firn_codec::{Codec, Reader, Writer};
use std::ops::{Deref, DerefMut};

/// Bytes that are no message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("the message ends inside the field at byte {offset}: {found} of {needed} bytes are there")]
    Truncated {
        /// Where the field begins.
        offset: usize,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that are there.
        found: usize,
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

/// A message's fields, as their reader sees them.
pub(crate) struct Message;

impl Codec for Message {
    type Error = DecodeError;

    fn truncated(&self, offset: usize, needed: usize, found: usize) -> DecodeError {
        DecodeError::Truncated {
            offset,
            needed,
            found,
        }
    }
}

/// Reads fields one after the other: those that all formats have, and what only messages have.
pub(crate) struct Decoder(Reader<Bytes, Message>);

impl Deref for Decoder {
    type Target = Reader<Bytes, Message>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Decoder {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Decoder {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(Reader::new(Message, bytes))
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Invalid {
                field,
                value: value.into(),
            }),
        }
    }

    /// A count that is at most `most`.
    pub(crate) fn count(&mut self, field: &'static str, most: usize) -> Result<usize, DecodeError> {
        let count = self.u16()?;
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
        self.take(length)
    }

    pub(crate) fn text(&mut self, field: &'static str, most: usize) -> Result<String, DecodeError> {
        let bytes = self.blob(field, most)?;
        String::from_utf8(bytes.to_vec()).map_err(|error| DecodeError::Invalid {
            field,
            value: error.utf8_error().valid_up_to() as u64,
        })
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }
}

/// Writes fields one after the other.
#[derive(Default)]
pub(crate) struct Encoder(Writer);

impl Deref for Encoder {
    type Target = Writer;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Encoder {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Encoder {
    pub(crate) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    /// # Panics
    /// If a list is longer than the protocol allows: callers build lists within [`limits`](crate::limits).
    pub(crate) fn count(&mut self, count: usize, most: usize) {
        assert!(count <= most, "a list of {count}, {most} are allowed");
        self.u16(u16::try_from(count).expect("every limit of a list fits 16 bits"));
    }

    pub(crate) fn blob(&mut self, bytes: &[u8], most: usize) {
        self.count(bytes.len(), most);
        self.raw(bytes);
    }

    /// Text is cut at `most` bytes, at a character's end.
    pub(crate) fn text(&mut self, text: &str, most: usize) {
        self.blob(&text.as_bytes()[..text.floor_char_boundary(most)], most);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.0.finish().into()
    }
}
