//! A small bounded byte codec for what the engine stores inside sealed payloads: inodes, directory pages, journal
//! records, the volume's own counters.
//!
//! Integers are little-endian; byte strings carry a 32-bit length. Every payload starts with a version byte. The input
//! has been authenticated before it gets here, but is decoded as if it had not: no panic, no allocation beyond the input.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The bytes are not what this build writes or can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {what}")]
pub struct DecodeError {
    /// The field or structure.
    pub what: &'static str,
}

/// Writes fields one after the other.
#[derive(Default)]
pub struct Encoder {
    buffer: BytesMut,
}

impl Encoder {
    /// Starts with the version byte.
    pub fn new(version: u8) -> Self {
        let mut buffer = BytesMut::with_capacity(256);
        buffer.put_u8(version);
        Self { buffer }
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.buffer.put_u8(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.buffer.put_u32_le(value);
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.buffer.put_u64_le(value);
        self
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.buffer.put_i64_le(value);
        self
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.put_slice(bytes);
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
    pub fn snapshot(&self) -> Bytes {
        Bytes::copy_from_slice(&self.buffer)
    }

    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }
}

/// Reads fields one after the other.
pub struct Decoder {
    rest: Bytes,
    what: &'static str,
}

impl Decoder {
    /// Starts to read `what`; the version byte must be `version`.
    pub fn new(bytes: Bytes, version: u8, what: &'static str) -> Result<Self, DecodeError> {
        let mut decoder = Self { rest: bytes, what };
        if decoder.u8()? == version {
            Ok(decoder)
        } else {
            Err(DecodeError { what })
        }
    }

    /// Starts to read `what`, which may be of any version from `oldest` to `newest`; returns which.
    pub fn versions(
        bytes: Bytes,
        oldest: u8,
        newest: u8,
        what: &'static str,
    ) -> Result<(Self, u8), DecodeError> {
        let mut decoder = Self { rest: bytes, what };
        let version = decoder.u8()?;
        if (oldest..=newest).contains(&version) {
            Ok((decoder, version))
        } else {
            Err(DecodeError { what })
        }
    }

    fn need(&self, count: usize) -> Result<(), DecodeError> {
        if self.rest.len() >= count {
            Ok(())
        } else {
            Err(DecodeError { what: self.what })
        }
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.need(1)?;
        Ok(self.rest.get_u8())
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.need(4)?;
        Ok(self.rest.get_u32_le())
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.need(8)?;
        Ok(self.rest.get_u64_le())
    }

    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.need(8)?;
        Ok(self.rest.get_i64_le())
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.need(N)?;
        let mut array = [0; N];
        self.rest.copy_to_slice(&mut array);
        Ok(array)
    }

    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.u32()? as usize;
        self.need(length)?;
        Ok(self.rest.split_to(length))
    }

    /// A count of things that take at least `each_bytes` of the rest, so that nothing is allocated for what is not there.
    pub fn count(&mut self, each_bytes: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        if count.saturating_mul(each_bytes) <= self.rest.len() {
            Ok(count)
        } else {
            Err(self.error())
        }
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
        self.rest
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.error())
        }
    }

    pub fn error(&self) -> DecodeError {
        DecodeError { what: self.what }
    }
}
