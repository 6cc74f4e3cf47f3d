//! Field reader of what a snapshot stores.

use firn_codec::{Codec, Reader, VariableCodec};

/// Fields of any of its formats; what is wrong with them completes a sentence that names the object.
pub(crate) struct Fields;

impl Codec for Fields {
    type Error = &'static str;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> &'static str {
        "it is too short"
    }
}

impl VariableCodec for Fields {
    fn malformed(&self, what: &'static str, _offset: usize) -> &'static str {
        what
    }
}

/// Reads the eight bytes with which an object begins: magic number, version, and three that are kept for later.
///
/// # Errors
/// `other` if the magic number is another one.
pub(crate) fn head(
    fields: &mut Reader<&[u8], Fields>,
    magic: [u8; 4],
    version: u8,
    other: &'static str,
) -> Result<(), &'static str> {
    if fields.array()? != magic {
        return Err(other);
    }
    if fields.u8()? != version {
        return Err("it is of a later build");
    }
    fields.skip(3)
}
