//! Reading XDR out of shared bytes.
//!
//! A [`Reader`] of `firn-codec` finds the fields; here is what is XDR's own: units of four bytes, and limits of lengths.

use bytes::Bytes;
use firn_codec::{ByteOrder, Codec, Reader};

/// Input that is not the XDR it should be. The remote side is at fault; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The input ends before the value does.
    #[error("{needed_bytes} bytes expected, {left_bytes} left")]
    Truncated {
        /// What the value takes.
        needed_bytes: usize,
        /// What there is.
        left_bytes: usize,
    },
    /// A length exceeds what the protocol allows at this place.
    #[error("a length of {length} where at most {limit} is allowed")]
    TooLong {
        /// The length in the input.
        length: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// A boolean, enumeration or union discriminant that the protocol does not know.
    #[error("unknown value {value}")]
    UnknownValue {
        /// The value in the input.
        value: u32,
    },
}

/// The format, as its reader sees it.
#[derive(Clone, Copy, Debug)]
struct Xdr;

impl Codec for Xdr {
    type Error = XdrError;
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    fn truncated(&self, _offset: usize, needed_bytes: usize, left_bytes: usize) -> XdrError {
        XdrError::Truncated {
            needed_bytes,
            left_bytes,
        }
    }
}

/// A position in XDR input. Opaque values come out as slices of the input, not as copies.
#[derive(Clone, Debug)]
pub struct Decoder(Reader<Bytes, Xdr>);

impl Decoder {
    /// Starts at the beginning of `input`.
    pub fn new(input: Bytes) -> Self {
        Self(Reader::new(Xdr, input))
    }

    /// Bytes not yet decoded.
    pub fn remaining(&self) -> usize {
        self.0.remaining()
    }

    /// What is not yet decoded, shared.
    pub fn rest(&self) -> Bytes {
        self.0.rest()
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// If the input ends.
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.0.u32()
    }

    /// An unsigned hyper.
    ///
    /// # Errors
    /// If the input ends.
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.0.u64()
    }

    /// A boolean; anything but 0 and 1 is an error.
    ///
    /// # Errors
    /// If the input ends or holds another number.
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::UnknownValue { value }),
        }
    }

    /// Opaque data of a length known beforehand.
    ///
    /// # Errors
    /// If the input ends.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let bytes = self.0.array()?;
        self.0.skip(padded(N) - N)?;
        Ok(bytes)
    }

    /// Opaque data or a string preceded by its length, shared with the input. Padding bytes are skipped, whatever they
    /// hold: some clients send rubbish there.
    ///
    /// # Errors
    /// If the length exceeds `limit` or the input ends.
    pub fn opaque(&mut self, limit: usize) -> Result<Bytes, XdrError> {
        let length = self.u32()? as usize;
        if length > limit {
            return Err(XdrError::TooLong { length, limit });
        }
        self.0.take_padded(length, UNIT_BYTES)
    }
}

/// Everything in XDR is a multiple of this.
const UNIT_BYTES: usize = 4;

/// The length of encoded data rounded up to whole XDR units.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(UNIT_BYTES)
}
