//! Reading fields out of bytes that may end anywhere or say anything.

use crate::{ByteOrder, Input};

/// A format as its reader sees it: which error it makes of what is wrong.
pub trait Codec {
    /// The format's error.
    type Error;

    /// The byte order of its integers.
    const BYTE_ORDER: ByteOrder = ByteOrder::Little;

    /// At `offset` the next field needs `needed` bytes, and `found` are left.
    fn truncated(&self, offset: usize, needed: usize, found: usize) -> Self::Error;
}

/// A format with fields of variable length: numbers and texts, which have one right form among several.
pub trait VariableCodec: Codec {
    /// What was read up to `offset` cannot be.
    fn malformed(&self, what: &'static str, offset: usize) -> Self::Error;
}

/// A position in bytes being decoded.
#[derive(Clone, Debug)]
pub struct Reader<I, C> {
    codec: C,
    input: I,
    offset: usize,
}

impl<I: Input, C: Codec> Reader<I, C> {
    /// Starts at the first byte.
    pub fn new(codec: C, input: I) -> Self {
        Self {
            codec,
            input,
            offset: 0,
        }
    }

    /// The format.
    pub fn codec(&self) -> &C {
        &self.codec
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.input.bytes().len() - self.offset
    }

    /// What is not read yet, without a copy.
    pub fn rest(&self) -> I::Part {
        self.input.part(self.offset..self.input.bytes().len())
    }

    /// Checks that `needed` more bytes are there; done before anything is allocated for them.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn require(&self, needed: usize) -> Result<(), C::Error> {
        match self.remaining() {
            found if needed > found => Err(self.codec.truncated(self.offset, needed, found)),
            _ => Ok(()),
        }
    }

    /// Reads `length` bytes without a copy.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, length: usize) -> Result<I::Part, C::Error> {
        self.require(length)?;
        let taken = self.input.part(self.offset..self.offset + length);
        self.offset += length;
        Ok(taken)
    }

    /// Reads `length` bytes without a copy, and passes over those behind them that fill the last of `unit` bytes, whatever they
    /// are.
    ///
    /// # Errors
    /// If there are fewer, those that are passed over included.
    pub fn take_padded(&mut self, length: usize, unit: usize) -> Result<I::Part, C::Error> {
        // What no memory can hold is not there either.
        let padded = length.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        self.require(padded)?;
        let taken = self.input.part(self.offset..self.offset + length);
        self.offset += padded;
        Ok(taken)
    }

    /// Passes over `length` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn skip(&mut self, length: usize) -> Result<(), C::Error> {
        self.require(length)?;
        self.offset += length;
        Ok(())
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], C::Error> {
        match self.input.bytes()[self.offset..].first_chunk() {
            Some(array) => {
                self.offset += N;
                Ok(*array)
            }
            None => Err(self.codec.truncated(self.offset, N, self.remaining())),
        }
    }

    /// Reads an integer of one byte.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u8(&mut self) -> Result<u8, C::Error> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads an integer of two bytes.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u16(&mut self) -> Result<u16, C::Error> {
        self.array().map(match C::BYTE_ORDER {
            ByteOrder::Little => u16::from_le_bytes,
            ByteOrder::Big => u16::from_be_bytes,
        })
    }

    /// Reads an integer of four bytes.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u32(&mut self) -> Result<u32, C::Error> {
        self.array().map(match C::BYTE_ORDER {
            ByteOrder::Little => u32::from_le_bytes,
            ByteOrder::Big => u32::from_be_bytes,
        })
    }

    /// Reads an integer of eight bytes.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u64(&mut self) -> Result<u64, C::Error> {
        self.array().map(match C::BYTE_ORDER {
            ByteOrder::Little => u64::from_le_bytes,
            ByteOrder::Big => u64::from_be_bytes,
        })
    }

    /// Reads an integer of eight bytes with a sign.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn i64(&mut self) -> Result<i64, C::Error> {
        self.array().map(match C::BYTE_ORDER {
            ByteOrder::Little => i64::from_le_bytes,
            ByteOrder::Big => i64::from_be_bytes,
        })
    }
}

impl<I: Input, C: VariableCodec> Reader<I, C> {
    /// The error that says `what` of the bytes read so far.
    pub fn malformed(&self, what: &'static str) -> C::Error {
        self.codec.malformed(what, self.offset)
    }

    /// Reads a LEB128 number.
    ///
    /// # Errors
    /// If the bytes end, it is larger than 64 bits, or longer than it need be.
    pub fn number(&mut self) -> Result<u64, C::Error> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.malformed("a number longer than it need be"));
                }
                return Ok(value);
            }
        }
        Err(self.malformed("a number beyond 64 bits"))
    }

    /// Reads a difference: 0, -1, 1, -2, … stand as the numbers 0, 1, 2, 3, …
    ///
    /// # Errors
    /// As [`Reader::number`].
    pub fn difference(&mut self) -> Result<i64, C::Error> {
        let value = self.number()?;
        Ok(((value >> 1) as i64) ^ -((value & 1) as i64))
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If something is.
    pub fn finish(&self) -> Result<(), C::Error> {
        match self.remaining() {
            0 => Ok(()),
            _ => Err(self.malformed("bytes after the end")),
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized, C: VariableCodec> Reader<&'a T, C> {
    /// Reads a text of at most 255 bytes, whose length stands before it in one byte.
    ///
    /// # Errors
    /// If the bytes end, or are not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, C::Error> {
        let length = usize::from(self.u8()?);
        let text = self.take(length)?;
        std::str::from_utf8(text).map_err(|_| self.malformed("a name that is not UTF-8"))
    }
}
