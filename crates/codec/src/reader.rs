//! Reading fields out of bytes that may end anywhere or say anything.

/// A format as its reader sees it: which error it makes of what is wrong.
pub trait Codec {
    /// The format's error.
    type Error;

    /// At `offset` the next field needs `needed` bytes, and `found` are left.
    fn truncated(&self, offset: usize, needed: usize, found: usize) -> Self::Error;
}

/// A format with fields of variable length: numbers and texts, which have one right form among several.
pub trait VariableCodec: Codec {
    /// What was read up to `offset` cannot be.
    fn malformed(&self, what: &'static str, offset: usize) -> Self::Error;
}

/// A position in bytes being decoded.
pub struct Reader<'a, C> {
    codec: C,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a, C: Codec> Reader<'a, C> {
    /// Starts at the first byte.
    pub fn new(codec: C, bytes: &'a [u8]) -> Self {
        Self {
            codec,
            bytes,
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
        self.bytes.len() - self.offset
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
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], C::Error> {
        self.require(length)?;
        let taken = &self.bytes[self.offset..self.offset + length];
        self.offset += length;
        Ok(taken)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], C::Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
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
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads an integer of four bytes.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u32(&mut self) -> Result<u32, C::Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads an integer of eight bytes.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn u64(&mut self) -> Result<u64, C::Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads an integer of eight bytes with a sign.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn i64(&mut self) -> Result<i64, C::Error> {
        Ok(i64::from_le_bytes(self.array()?))
    }
}

impl<'a, C: VariableCodec> Reader<'a, C> {
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

    /// Reads a text of at most 255 bytes, whose length stands before it in one byte.
    ///
    /// # Errors
    /// If the bytes end, or are not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, C::Error> {
        let length = usize::from(self.u8()?);
        let text = self.take(length)?;
        std::str::from_utf8(text).map_err(|_| self.malformed("a name that is not UTF-8"))
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
