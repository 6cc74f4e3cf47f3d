//! Writing XDR as a list of segments, so that large data is passed on by reference.

use super::decode::padded;
use bytes::{BufMut, Bytes, BytesMut};

/// Data below this is copied into the running buffer: one more entry in a vectored write costs more than the copy.
const SHARE_FROM_BYTES: usize = 2048;

/// XDR being written.
#[derive(Debug, Default)]
pub struct Encoder {
    done: Vec<Bytes>,
    done_bytes: usize,
    tail: BytesMut,
}

impl Encoder {
    /// An empty one. Room for an ordinary reply is taken at once.
    pub fn new() -> Self {
        Self::with_capacity(256)
    }

    /// An empty one with room for `bytes` of small fields.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            done: Vec::new(),
            done_bytes: 0,
            tail: BytesMut::with_capacity(bytes),
        }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.done_bytes + self.tail.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.tail.put_u32(value);
    }

    /// An unsigned hyper.
    pub fn u64(&mut self, value: u64) {
        self.tail.put_u64(value);
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Opaque data of a length both sides know.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.tail.put_slice(bytes);
        self.pad(bytes.len());
    }

    /// Opaque data or a string with its length before it, copied.
    ///
    /// # Panics
    /// If it is 4 GiB or longer, which nothing here ever is.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.fixed(bytes);
    }

    /// Opaque data in parts with the length of all before it; large parts are taken by reference.
    ///
    /// # Panics
    /// If it is 4 GiB or longer, which nothing here ever is.
    pub fn shared(&mut self, parts: &[Bytes]) {
        let length = parts.iter().map(Bytes::len).sum();
        self.length(length);
        for part in parts {
            if part.len() < SHARE_FROM_BYTES {
                self.tail.put_slice(part);
            } else {
                self.seal_tail();
                self.done_bytes += part.len();
                self.done.push(part.clone());
            }
        }
        self.pad(length);
    }

    /// XDR that was encoded before, by reference.
    pub fn raw(&mut self, bytes: Bytes) {
        self.seal_tail();
        self.done_bytes += bytes.len();
        self.done.push(bytes);
    }

    /// What `other` holds, after what this one holds.
    pub fn append(&mut self, other: Self) {
        if other.done.is_empty() {
            self.tail.put_slice(&other.tail);
            return;
        }
        self.seal_tail();
        self.done_bytes += other.done_bytes;
        self.done.extend(other.done);
        self.tail = other.tail;
    }

    /// The finished bytes, in order.
    pub fn into_segments(mut self) -> Vec<Bytes> {
        self.seal_tail();
        self.done
    }

    /// The finished bytes in one piece (copied if they are in several).
    pub fn into_bytes(self) -> Bytes {
        let length = self.len();
        let mut segments = self.into_segments();
        if segments.len() == 1 {
            return segments.remove(0);
        }
        let mut whole = BytesMut::with_capacity(length);
        for segment in segments {
            whole.put_slice(&segment);
        }
        whole.freeze()
    }

    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).expect("XDR lengths are 32 bits; messages are far smaller"));
    }

    fn pad(&mut self, length: usize) {
        self.tail.put_bytes(0, padded(length) - length);
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.done_bytes += self.tail.len();
            self.done.push(self.tail.split().freeze());
        }
    }
}
