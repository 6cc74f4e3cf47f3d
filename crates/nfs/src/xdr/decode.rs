//! Reading XDR out of shared bytes.

use bytes::{Buf, Bytes};

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

/// A position in XDR input. Opaque values come out as slices of the input, not as copies.
#[derive(Clone, Debug)]
pub struct Decoder {
    input: Bytes,
}

impl Decoder {
    /// Starts at the beginning of `input`.
    pub fn new(input: Bytes) -> Self {
        Self { input }
    }

    /// Bytes not yet decoded.
    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    /// What is not yet decoded, shared.
    pub fn rest(&self) -> Bytes {
        self.input.clone()
    }

    fn require(&self, needed_bytes: usize) -> Result<(), XdrError> {
        if self.input.len() < needed_bytes {
            return Err(XdrError::Truncated {
                needed_bytes,
                left_bytes: self.input.len(),
            });
        }
        Ok(())
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// If the input ends.
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.require(4)?;
        Ok(self.input.get_u32())
    }

    /// An unsigned hyper.
    ///
    /// # Errors
    /// If the input ends.
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.require(8)?;
        Ok(self.input.get_u64())
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
        let padded = padded(N);
        self.require(padded)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.input[..N]);
        self.input.advance(padded);
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
        let padded = padded(length);
        self.require(padded)?;
        let bytes = self.input.split_to(length);
        self.input.advance(padded - length);
        Ok(bytes)
    }
}

/// The length rounded up to whole XDR units.
pub(super) fn padded(length: usize) -> usize {
    // Lengths come from 32-bit fields or slices: far from overflow on 64 bits, saturating elsewhere.
    length.saturating_add(3) & !3
}
