//! Bytes of objects, pointers, segments, checkpoints and journals. Pure: no I/O, no keys.
//!
//! A volume is a Merkle tree of *objects* (blocks, nodes, inodes, checkpoints). A pointer to an object is its [`Uid`], the
//! hash of everything in it but the places of its children, and a [`Location`], a hint where it lies now. So whoever
//! trusts one root can verify all below it, and anyone may move objects without keys and without changing a hash.
//! Objects travel in *segments* of about 4 MiB; the writes that are in no segment yet lie in a *journal*.
//!
//! Everything here decodes bytes that somebody else may have written: no decoder panics, and none allocates more than a
//! small multiple of what it was given. Every format carries a version byte and feature flags; the byte tables are in
//! `docs/formats.md`, and checked-in vectors keep them honest.

mod checkpoint;
mod cursor;
mod error;
mod features;
mod forwarding;
mod gathering;
mod ids;
mod journal;
mod manifest;
mod object;
mod place;
mod pointer;
pub mod radix;
mod segment;
mod usage;
mod versions;

pub use checkpoint::{
    CHECKPOINT_VERSION, Checkpoint, ForkPoint, MAX_SNAPSHOTS, SnapshotRoot, TreeRoot, checkpoint_place,
};
pub use cursor::Cursor;
pub use error::{FormatError, What};
pub use features::Features;
pub use forwarding::{
    FORWARDING_VERSION, ForwardingEntry, ForwardingRecord, MAX_FORWARDING_BYTES, MAX_FORWARDING_ENTRIES,
};
pub use gathering::{Gathering, GatheringStage};
pub use ids::{
    FamilyId, KeyEpoch, OwnershipEpoch, ParseIdError, SegmentId, Uid, Version, VolumeId, WriterId,
};
pub use journal::{
    Framing, JOURNAL_HEADER_BYTES, JOURNAL_VERSION, JournalFileHeader, JournalUse, MAX_RECORD_BYTES,
    RECORD_HEAD_BYTES, RECORD_OVERHEAD_BYTES, RECORD_TAIL_BYTES, RecordFrame, RecordScan,
};
pub use manifest::{
    ListedSegment, MANIFEST_VERSION, MAX_LISTED_SEGMENTS, ManifestEntry, ManifestLeaf, ManifestPart,
    WHOLE_SEGMENT_BYTES,
};
pub use object::{
    Codec, EncodedObject, FetchedObject, Kind, MAX_CHILDREN, MAX_OBJECT_BYTES, MAX_PAYLOAD_BYTES,
    MAX_PLAIN_BYTES, MAX_SEALED_BYTES, MIN_OBJECT_BYTES, OBJECT_VERSION, ObjectDraft, ObjectHeader,
    SEAL_TAG_BYTES, SealHeader, VerifiedObject, authenticated_bytes, claimed_place, decode_object,
    encode_object, relocate_children,
};
pub use place::{
    CHECKPOINTS, FIRST_FREE_INODE, INODE_MAP, MANIFEST, MAX_LEVEL, ORPHAN_MAP, Place, ROOT_DIRECTORY,
    USAGE_MAP,
};
pub use pointer::{Child, Location, Pointer};
pub use segment::{
    FOOTER_BYTES, INDEX_ENTRY_BYTES, MAX_SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_VERSION, Segment,
    SegmentBuilder, SegmentFooter, SegmentIndexEntry, decode_footer, decode_segment,
};
pub use usage::{USAGE_SEGMENTS, USAGE_VERSION, UsageLeaf, usage_segment, usage_slot};
pub use versions::{FORMATS, FormatVersions};
