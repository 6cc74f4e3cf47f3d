//! Reads fields from bytes that may end anywhere or say anything. Integers are little-endian.
//!
//! Crates above define formats of their own (the key ring, the engine's sealed state) and decode them with this too, so
//! that version bytes, feature flags and errors are alike everywhere.

use crate::{Features, FormatError, What};

/// A position in bytes being decoded.
pub struct Cursor<'a> {
    what: What,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte. `what` is named in errors.
    pub fn new(what: What, bytes: &'a [u8]) -> Self {
        Self {
            what,
            bytes,
            offset: 0,
        }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Checks that `needed` more bytes are there; done before anything is allocated for them.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn require(&self, needed: usize) -> Result<(), FormatError> {
        if needed > self.remaining() {
            return Err(FormatError::Truncated {
                what: self.what,
                offset: self.offset,
                needed,
                found: self.remaining(),
            });
        }
        Ok(())
    }

    /// Reads `length` bytes without a copy.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        self.require(length)?;
        let taken = &self.bytes[self.offset..self.offset + length];
        self.offset += length;
        Ok(taken)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn i64(&mut self) -> Result<i64, FormatError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// The error for the field that was read last and took `width` bytes.
    pub fn invalid(
        &self,
        field: &'static str,
        width: usize,
        found: u64,
        expected: &'static str,
    ) -> FormatError {
        FormatError::Invalid {
            what: self.what,
            field,
            offset: self.offset - width,
            found,
            expected,
        }
    }

    /// Reads a magic number.
    ///
    /// # Errors
    /// If it is another.
    pub fn magic(&mut self, magic: &[u8]) -> Result<(), FormatError> {
        let offset = self.offset;
        if self.take(magic.len())? != magic {
            return Err(FormatError::BadMagic {
                what: self.what,
                offset,
            });
        }
        Ok(())
    }

    /// Reads a version byte and refuses any this build cannot read.
    ///
    /// # Errors
    /// If it is another version.
    pub fn version(&mut self, oldest: u8, newest: u8) -> Result<u8, FormatError> {
        let found = self.u8()?;
        if !(oldest..=newest).contains(&found) {
            return Err(FormatError::UnknownVersion {
                what: self.what,
                found,
                oldest,
                newest,
            });
        }
        Ok(found)
    }

    /// Reads feature flags and refuses required ones this build does not know.
    ///
    /// # Errors
    /// If a required one is unknown.
    pub fn features(&mut self) -> Result<Features, FormatError> {
        let features = Features(self.u16()?);
        match features.unknown_required() {
            0 => Ok(features),
            flags => Err(FormatError::UnknownFeatures {
                what: self.what,
                flags,
            }),
        }
    }

    /// Reads bytes kept for later, which must be zero until a flag says otherwise.
    ///
    /// # Errors
    /// If one is not zero.
    pub fn reserved<const N: usize>(&mut self) -> Result<(), FormatError> {
        match self.array::<N>()?.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(&byte) => Err(self.invalid("reserved bytes", N, u64::from(byte), "zero")),
        }
    }

    /// Reads a stored CRC-32C and compares it with that of the bytes it covers.
    ///
    /// # Errors
    /// If they differ.
    pub fn crc32c(&mut self, part: &'static str, found: u32) -> Result<(), FormatError> {
        let offset = self.offset;
        let expected = self.u32()?;
        if expected != found {
            return Err(FormatError::Checksum {
                what: self.what,
                part,
                offset,
                expected,
                found,
            });
        }
        Ok(())
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If something is.
    pub fn end(&self) -> Result<(), FormatError> {
        match self.remaining() {
            0 => Ok(()),
            extra => Err(FormatError::Trailing {
                what: self.what,
                offset: self.offset,
                extra,
            }),
        }
    }
}
