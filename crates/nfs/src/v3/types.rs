//! Arguments and results of the NFSv3 procedures (RFC 1813 §2.5, §3.3), in wire order.
//!
//! Every structure converts both ways: the server decodes calls and encodes results, the client the opposite. A result is
//! `Result<Success, Failed<Failure>>`: a status, then what the procedure gives in either case.

mod acl;
mod attributes;
mod calls;
mod results;

pub use acl::*;
pub use attributes::{
    Device, FileAttributes, FileType, NewAttributes, NewTime, Time, WccAttributes, WccData,
};
pub use calls::*;
pub use results::*;

use crate::xdr::{Decode, Decoder, Encode, Encoder, Opaque, XdrError};
use bytes::Bytes;

/// Names longer than this are refused by the decoder; names between [`firn_vfs::Name::MAX_BYTES`] and this get the
/// answer `NameTooLong`, as programs that probe the limit expect.
pub const WIRE_NAME_MAX_BYTES: usize = 4096;
/// As for names: the volume's own limit gives the answer.
pub const WIRE_TARGET_MAX_BYTES: usize = 16_384;

/// Eight bytes that change when unstable writes may have been lost.
pub type Verifier = [u8; 8];
/// A file name as it came.
pub type WireName = Opaque<WIRE_NAME_MAX_BYTES>;

/// File data: encoded by reference, decoded as a slice of the message.
#[derive(Clone, Debug, Default)]
pub struct Payload(pub Vec<Bytes>);

impl Payload {
    /// Its length.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

/// Equal bytes, however they are cut.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.0.iter().flatten().eq(other.0.iter().flatten())
    }
}

impl Eq for Payload {}

impl Encode for Payload {
    fn encode(&self, out: &mut Encoder) {
        out.shared(&self.0);
    }
}

impl Decode for Payload {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        // The message is bounded, and so is what can be in it.
        Ok(Self(vec![input.opaque(u32::MAX as usize)?]))
    }
}
