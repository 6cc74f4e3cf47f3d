//! Bytes of batches and spool files, as [`firn_codec`] reads and writes them.

use firn_codec::{Codec, VariableCodec};

pub(crate) use firn_codec::Writer;

/// The format of batches and spool files.
pub(crate) struct Usage;

/// Reads one of them.
pub(crate) type Reader<'a> = firn_codec::Reader<&'a [u8], Usage>;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) what: &'static str,
    pub(crate) offset: usize,
}

impl Codec for Usage {
    type Error = Malformed;

    fn truncated(&self, offset: usize, _needed: usize, _found: usize) -> Malformed {
        Malformed {
            what: "cut short",
            offset,
        }
    }
}

impl VariableCodec for Usage {
    fn malformed(&self, what: &'static str, offset: usize) -> Malformed {
        Malformed { what, offset }
    }
}
