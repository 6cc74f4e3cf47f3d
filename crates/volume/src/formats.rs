//! Versions of what the engine seals, and of the local state file.
//!
//! Not of version 4 of the checkpoint's payload, nor of version 2 of a journal record, nor of version 3 of the local state: they are in volumes that are shared by inode only, which a build that does not know it refuses by their tuple.

use crate::{checkpoint, inode, local, ownership_statement, record, state};
use firn_format::FormatVersions;

/// See the module.
pub const FORMATS: [FormatVersions; 6] = [
    FormatVersions::new("local state", local::OLDEST_VERSION, local::OWNERS_VERSION),
    FormatVersions::new("journal record", record::VERSION, record::VERSION),
    FormatVersions::new("inode", inode::VERSION, inode::VERSION),
    FormatVersions::new("directory", state::DIRECTORY_VERSION, state::DIRECTORY_VERSION),
    FormatVersions::new(
        "checkpoint payload",
        checkpoint::PAYLOAD_OLDEST_VERSION,
        checkpoint::PAYLOAD_VERSION,
    ),
    FormatVersions::new(
        "ownership statement",
        ownership_statement::PAYLOAD_VERSION,
        ownership_statement::PAYLOAD_VERSION,
    ),
];

/// The newest version of the local state that is read. Members by inode write it; no upgrade is judged by it, since the release before refuses their
/// volumes by the tuple.
pub const LOCAL_STATE_VERSION: u8 = local::VERSION;
