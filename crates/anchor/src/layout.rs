//! Reading and writing the bytes of tuples: little-endian integers, fixed arrays, short texts.

use crate::TupleError;
use bytes::Bytes;

#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn array<const N: usize>(&mut self, value: &[u8; N]) {
        self.bytes.extend_from_slice(value);
    }

    /// # Panics
    /// If the text is longer than 255 bytes; names are checked where they come in.
    pub(crate) fn text(&mut self, value: &str) {
        self.u8(u8::try_from(value.len()).expect("names are bounded"));
        self.bytes.extend_from_slice(value.as_bytes());
    }

    pub(crate) fn finish(self) -> Bytes {
        self.bytes.into()
    }
}

pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Starts behind the two bytes with which every tuple begins.
    pub(crate) fn open(bytes: &'a [u8], layout: u8, kind: u8) -> Result<Self, TupleError> {
        Self::open_versions(bytes, layout, layout, kind).map(|(reader, _)| reader)
    }

    /// The same of a tuple of which several layouts are read; tells which one it is.
    pub(crate) fn open_versions(
        bytes: &'a [u8],
        oldest: u8,
        newest: u8,
        kind: u8,
    ) -> Result<(Self, u8), TupleError> {
        let mut reader = Self::new(bytes);
        let layout = reader.u8()?;
        if layout < oldest || layout > newest {
            return Err(TupleError::UnknownVersion { found: layout });
        }
        if reader.u8()? != kind {
            return Err(reader.malformed("the kind of another tuple"));
        }
        Ok((reader, layout))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], TupleError> {
        let end = self.offset.saturating_add(length);
        let taken = self.bytes.get(self.offset..end).ok_or(TupleError::Truncated {
            offset: self.bytes.len(),
        })?;
        self.offset = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], TupleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, TupleError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TupleError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TupleError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TupleError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, TupleError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn text(&mut self) -> Result<String, TupleError> {
        let length = usize::from(self.u8()?);
        let text = self.take(length)?;
        match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.malformed("a name that is not UTF-8 ends")),
        }
    }

    pub(crate) fn malformed(&self, what: &'static str) -> TupleError {
        TupleError::Malformed {
            what,
            offset: self.offset,
        }
    }

    pub(crate) fn finish(self) -> Result<(), TupleError> {
        if self.offset == self.bytes.len() {
            Ok(())
        } else {
            Err(self.malformed("bytes after the end"))
        }
    }
}
