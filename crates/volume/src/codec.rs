//! Payload codec: what the engine stores inside sealed payloads (inodes, directory pages, journal records, the volume's own
//! counters), field by field: the bounded reader and writer of [`firn_codec`], with a version byte before every payload, byte strings behind a 32-bit
//! length, and options behind a flag.
//!
//! The input has been authenticated before it gets here, but is decoded as if it had not: no panic, no allocation beyond it.

use bytes::Bytes;
use firn_codec::{Codec, Reader, Writer};
use std::ops::{Deref, DerefMut};

/// The bytes are not what this build writes or can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {what}")]
pub struct DecodeError {
    /// The field or structure.
    pub what: &'static str,
}

/// The structure that is read, for its errors.
pub struct What(&'static str);

impl Codec for What {
    type Error = DecodeError;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> DecodeError {
        DecodeError { what: self.0 }
    }
}

/// Writes fields one after the other.
pub struct Encoder(Writer);

impl Encoder {
    /// Starts with the version byte.
    pub fn new(version: u8) -> Self {
        /// Most records and inodes fit, so that their buffer grows once.
        const USUAL_BYTES: usize = 256;
        let mut writer = Writer::with_capacity(USUAL_BYTES);
        writer.u8(version);
        Self(writer)
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.u8(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.u32(value);
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.u64(value);
        self
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.0.i64(value);
        self
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.raw(bytes);
        self
    }

    /// A length and that many bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("no field reaches 4 GiB"));
        self.raw(bytes)
    }

    /// A flag byte, and the value if there is one.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) -> &mut Self {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                write(self, value);
                self
            }
        }
    }

    /// What was written so far, for a checksum.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    pub fn finish(self) -> Bytes {
        self.0.finish().into()
    }
}

/// Reads fields one after the other: a [`Reader`], and what only payloads have. Byte strings are slices of the input, not copies.
pub struct Decoder<'a> {
    input: &'a Bytes,
    reader: Reader<&'a [u8], What>,
}

impl<'a> Deref for Decoder<'a> {
    type Target = Reader<&'a [u8], What>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl DerefMut for Decoder<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.reader
    }
}

impl<'a> Decoder<'a> {
    /// Starts to read `what`; the version byte must be `version`.
    pub fn new(input: &'a Bytes, version: u8, what: &'static str) -> Result<Self, DecodeError> {
        Self::versions(input, version, version, what).map(|(decoder, _)| decoder)
    }

    /// Starts to read `what`, which may be of any version from `oldest` to `newest`; returns which.
    pub fn versions(
        input: &'a Bytes,
        oldest: u8,
        newest: u8,
        what: &'static str,
    ) -> Result<(Self, u8), DecodeError> {
        let mut reader = Reader::new(What(what), &input[..]);
        let version = reader.u8()?;
        if (oldest..=newest).contains(&version) {
            Ok((Self { input, reader }, version))
        } else {
            Err(DecodeError { what })
        }
    }

    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.u32()? as usize;
        let from = self.offset();
        self.take(length)?;
        Ok(self.input.slice(from..from + length))
    }

    /// A count of things that take at least `each_bytes` of the rest, so that nothing is allocated for what is not there.
    pub fn count(&mut self, each_bytes: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        self.require(count.saturating_mul(each_bytes))?;
        Ok(count)
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(self.error()),
        }
    }

    /// What has not been read.
    pub fn rest(self) -> Bytes {
        self.input.slice(self.offset()..)
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            _ => Err(self.error()),
        }
    }

    pub fn error(&self) -> DecodeError {
        DecodeError { what: self.codec().0 }
    }
}
