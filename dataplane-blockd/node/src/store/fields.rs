//! Field reader of what stands on a node's disk.

use super::layout::LAYOUT_VERSION;
use firn_codec::{Codec, Reader};

/// Fields of any of the store's formats; what is wrong with them completes a sentence that names the file.
pub(crate) struct Fields;

impl Codec for Fields {
    type Error = &'static str;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> &'static str {
        "it is too short"
    }
}

/// Why a file of the store cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It is not what was written; the words complete a sentence that names the file.
    Damaged(&'static str),
    /// It is whole, and of a layout that this build does not know.
    Newer {
        /// That layout's version.
        found: u16,
    },
}

impl From<&'static str> for Unfit {
    fn from(reason: &'static str) -> Self {
        Self::Damaged(reason)
    }
}

/// The fields of a file behind its magic number and the version of its layout.
///
/// In every layout a file begins with these two and ends with the CRC-32C of all before it, so that an older build can tell what is
/// newer, and must be left alone, from what is damaged.
pub(crate) fn checked<'a>(
    bytes: &'a [u8],
    magic: [u8; 8],
    other: &'static str,
) -> Result<Reader<&'a [u8], Fields>, Unfit> {
    let Some((covered, checksum)) = bytes.split_last_chunk::<4>() else {
        return Err(Unfit::Damaged("it is too short"));
    };
    if fields(checksum).u32()? != crc32c::crc32c(covered) {
        return Err(Unfit::Damaged("its checksum does not match"));
    }
    let mut fields = fields(covered);
    if fields.array()? != magic {
        return Err(Unfit::Damaged(other));
    }
    match fields.u16()? {
        LAYOUT_VERSION => Ok(fields),
        found => Err(Unfit::Newer { found }),
    }
}

/// Starts to read some of them.
pub(crate) fn fields(bytes: &[u8]) -> Reader<&[u8], Fields> {
    Reader::new(Fields, bytes)
}
