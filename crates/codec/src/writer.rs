//! Writing fields one after the other.

use crate::ByteOrder;

/// Bytes being encoded; what [`Reader`](crate::Reader) reads.
#[derive(Default)]
pub struct Writer {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Writer {
    /// With room for `bytes` before the buffer grows.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            order: ByteOrder::Little,
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// The same of a format whose integers are [big-endian](ByteOrder::Big).
    pub fn big_endian(bytes: usize) -> Self {
        Self {
            order: ByteOrder::Big,
            ..Self::with_capacity(bytes)
        }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes zeros until `length` bytes are written in all; nothing if there are as many.
    pub fn zeros_to(&mut self, length: usize) {
        self.bytes.resize(self.bytes.len().max(length), 0);
    }

    /// Writes an integer in one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes an integer in two bytes.
    pub fn u16(&mut self, value: u16) {
        self.raw(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    /// Writes an integer in four bytes.
    pub fn u32(&mut self, value: u32) {
        self.raw(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    /// Writes an integer in eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.raw(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    /// Writes an integer with a sign in eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.raw(&match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }

    /// Writes a LEB128 number, in its shortest form.
    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Writes a difference, small in either direction.
    pub fn difference(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    /// Writes a text with its length before it in one byte.
    ///
    /// # Panics
    /// If the text is longer than 255 bytes; names are checked where they come in.
    pub fn text(&mut self, value: &str) {
        self.u8(u8::try_from(value.len()).expect("names are bounded"));
        self.raw(value.as_bytes());
    }

    /// What was written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// All that was written.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
