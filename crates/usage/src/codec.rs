//! Bytes of batches and spool files: little-endian integers, LEB128 numbers, short texts.
//!
//! A decoder of bytes from outside: it neither panics nor allocates by a length it has not checked, and it takes each value
//! in its shortest form only, so that equal batches have equal bytes.

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) what: &'static str,
    pub(crate) offset: usize,
}

#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A difference, small in either direction: 0, -1, 1, -2, … as 0, 1, 2, 3, …
    pub(crate) fn difference(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    /// # Panics
    /// If the text is longer than 255 bytes; names are checked where they come in.
    pub(crate) fn text(&mut self, value: &str) {
        self.u8(u8::try_from(value.len()).expect("names are bounded"));
        self.bytes.extend_from_slice(value.as_bytes());
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

    pub(crate) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed {
            what,
            offset: self.offset,
        }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.offset.saturating_add(length);
        let taken = self
            .bytes
            .get(self.offset..end)
            .ok_or_else(|| self.malformed("cut short"))?;
        self.offset = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.malformed("a number beyond 64 bits"));
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

    pub(crate) fn difference(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok(((value >> 1) as i64) ^ -((value & 1) as i64))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = usize::from(self.u8()?);
        let text = self.take(length)?;
        std::str::from_utf8(text).map_err(|_| self.malformed("a name that is not UTF-8"))
    }

    pub(crate) fn finish(&self) -> Result<(), Malformed> {
        if self.left() == 0 {
            Ok(())
        } else {
            Err(self.malformed("bytes after the end"))
        }
    }
}
