//! Field reader of what stands on a node's disk.

use firn_codec::{Codec, Reader};

/// Fields of any of the store's formats; what is wrong with them completes a sentence that names the file.
pub(crate) struct Fields;

impl Codec for Fields {
    type Error = &'static str;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> &'static str {
        "it is too short"
    }
}

/// Starts to read some of them.
pub(crate) fn fields(bytes: &[u8]) -> Reader<&[u8], Fields> {
    Reader::new(Fields, bytes)
}
