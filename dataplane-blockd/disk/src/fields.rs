//! Field reader of what the disk stores: whole, or nothing. A seal vouches for most of it, and who finds something else
//! looks for another copy, whatever is wrong with this one.

use firn_codec::Codec;

/// Fields of any of the disk's own formats.
pub(crate) struct Fields;

/// The bytes end too early.
pub(crate) struct Truncated;

impl Codec for Fields {
    type Error = Truncated;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> Truncated {
        Truncated
    }
}
