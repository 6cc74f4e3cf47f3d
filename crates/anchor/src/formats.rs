//! Versions of the tuples and of the remembered root.
//!
//! Not of the handover record: a build that does not know it refuses `shared = true`, and in all other volumes nobody writes one.
//! Nor of the hold, for the same reason: a build that does not know it stops at the flag that it has in the cleaner's round.
//! Nor of version 4 of the volume tuple, and of what members write: those are in volumes that are shared by inode only, and a build that does not
//! know them refuses such a volume by its tuple.

use crate::{account, cleaning, proposal, remembered, tuple, writer};
use firn_format::FormatVersions;

/// See the module.
pub const FORMATS: [FormatVersions; 7] = [
    FormatVersions::new("family tuple", tuple::LAYOUT_VERSION, tuple::LAYOUT_VERSION),
    FormatVersions::new("volume tuple", tuple::LAYOUT_VERSION, tuple::VOLUME_VERSION),
    FormatVersions::new("writer tuple", writer::LAYOUT_VERSION, writer::LAYOUT_VERSION),
    FormatVersions::new("proposal", proposal::OLDEST_VERSION, proposal::LAYOUT_VERSION),
    FormatVersions::new(
        "cleaning record",
        cleaning::LAYOUT_VERSION,
        cleaning::LAYOUT_VERSION,
    ),
    FormatVersions::new(
        "cleaning account",
        account::LAYOUT_VERSION,
        account::LAYOUT_VERSION,
    ),
    FormatVersions::new(
        "remembered root",
        remembered::LAYOUT_VERSION,
        remembered::LAYOUT_VERSION,
    ),
];
