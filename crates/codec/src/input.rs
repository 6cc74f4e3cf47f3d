//! Input of a reader: bytes that somebody else keeps, or shared ones.

use bytes::Bytes;
use std::ops::{Deref, Range};

/// Bytes being read.
pub trait Input {
    /// A part of them, without a copy.
    type Part: Deref<Target = [u8]>;

    /// All of them.
    fn bytes(&self) -> &[u8];

    /// A part of them; the reader has checked that it is there.
    fn part(&self, range: Range<usize>) -> Self::Part;
}

/// Borrowed bytes; parts are borrowed from where these are.
impl<'a, T: AsRef<[u8]> + ?Sized> Input for &'a T {
    type Part = &'a [u8];

    fn bytes(&self) -> &[u8] {
        (**self).as_ref()
    }

    fn part(&self, range: Range<usize>) -> &'a [u8] {
        &(**self).as_ref()[range]
    }
}

/// Shared bytes; parts keep all of them in memory.
impl Input for Bytes {
    type Part = Bytes;

    fn bytes(&self) -> &[u8] {
        self
    }

    fn part(&self, range: Range<usize>) -> Bytes {
        self.slice(range)
    }
}
