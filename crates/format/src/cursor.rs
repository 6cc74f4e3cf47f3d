//! Reads fields from bytes that may end anywhere or say anything. Integers are little-endian.
//!
//! Crates above define formats of their own (the key ring, the engine's sealed state) and decode them with this too, so
//! that version bytes, feature flags and errors are alike everywhere.

use crate::{Features, FormatError, What};
use firn_codec::{Codec, Reader};
use std::ops::{Deref, DerefMut};

/// A position in bytes being decoded: a [`Reader`] of the fields that all formats have, and what only ours have.
pub struct Cursor<'a>(Reader<&'a [u8], What>);

impl Codec for What {
    type Error = FormatError;

    fn truncated(&self, offset: usize, needed: usize, found: usize) -> FormatError {
        FormatError::Truncated {
            what: *self,
            offset,
            needed,
            found,
        }
    }
}

impl<'a> Deref for Cursor<'a> {
    type Target = Reader<&'a [u8], What>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Cursor<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte. `what` is named in errors.
    pub fn new(what: What, bytes: &'a [u8]) -> Self {
        Self(Reader::new(what, bytes))
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
            what: *self.codec(),
            field,
            offset: self.offset() - width,
            found,
            expected,
        }
    }

    /// Reads a magic number.
    ///
    /// # Errors
    /// If it is another.
    pub fn magic(&mut self, magic: &[u8]) -> Result<(), FormatError> {
        let offset = self.offset();
        if self.take(magic.len())? != magic {
            return Err(FormatError::BadMagic {
                what: *self.codec(),
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
                what: *self.codec(),
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
        self.features_but(Features::NONE)
    }

    /// The same where this build knows some.
    ///
    /// # Errors
    /// If another required one is set.
    pub fn features_but(&mut self, known: Features) -> Result<Features, FormatError> {
        let features = Features(self.u16()?);
        match features.without(known).unknown_required() {
            0 => Ok(features),
            flags => Err(FormatError::UnknownFeatures {
                what: *self.codec(),
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
        let offset = self.offset();
        let expected = self.u32()?;
        if expected != found {
            return Err(FormatError::Checksum {
                what: *self.codec(),
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
                what: *self.codec(),
                offset: self.offset(),
                extra,
            }),
        }
    }
}
