//! Objects: the nodes of the Merkle tree.
//!
//! ```text
//!   0  magic "FOBJ"                                                             ┐
//!   4  sealed_bytes u32                                                         │
//!   8  version u8 | kind u8 | features u16                    ┐                 │
//!  12  level u8 | codec u8 | child_count u16                  │                 │
//!  16  inode u64                                              │                 │
//!  24  index u64                                              │ authenticated   │ hashed:
//!  32  birth u64                                              │ data of the     │ the uid is
//!  40  key_epoch u32 | slot u32                               │ seal            │ BLAKE3 of
//!  48  opened_bytes u32 | plain_bytes u32                     │                 │ all this
//!  56  salt [32]                                              │                 │
//!  88  plain [plain_bytes]                                    │                 │
//!   …  child × child_count: slot u16 | uid [32]               ┘                 │
//!   …  sealed payload [sealed_bytes]                                            ┘
//!   …  location × child_count: writer u64 | sequence u64 | offset u32 | length u32
//!   …  crc32c of the locations u32
//! ```
//!
//! Little-endian throughout. Locations come last and are not hashed, so that whoever moves the children may replace them
//! ([`relocate_children`]) without a key and without a new uid. They are hints: a wrong one leads to an object with
//! another uid, which is refused. Their checksum is there for the local cache, where a flipped bit in a hint would
//! otherwise look like a damaged child.
//!
//! Types tell what is known about an object: [`FetchedObject`] (well-formed) → [`VerifiedObject`] (has the uid that a
//! trusted parent names, and stands at its place) → opened, in the sealing crate.

mod decode;
mod encode;

pub use decode::{FetchedObject, VerifiedObject, claimed_place, decode_object, relocate_children};
pub use encode::{EncodedObject, ObjectDraft, authenticated_bytes, encode_object};

use crate::{Child, Features, KeyEpoch, Place, Version};
use bytes::Bytes;

/// The version of the object format that this build writes.
pub const OBJECT_VERSION: u8 = 1;
/// The oldest version that this build reads.
pub(crate) const OLDEST_VERSION: u8 = 1;

const MAGIC: &[u8; 4] = b"FOBJ";
/// Bytes before the plain section.
const FIXED_BYTES: usize = 88;
/// Where the authenticated data begins: everything from the version on.
const AUTHENTICATED_START: usize = 8;
/// Encoded bytes of a child's slot and uid.
const CHILD_BYTES: usize = 34;
/// The checksum after the locations.
const CHECKSUM_BYTES: usize = 4;

/// Bytes that sealing adds to a payload: the tag of AES-256-GCM.
pub const SEAL_TAG_BYTES: usize = 16;
/// The largest opened payload: the largest block a volume may be formatted with.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The largest sealed payload. Compression is dropped where it would not save, so sealing adds its tag and no more.
pub const MAX_SEALED_BYTES: usize = MAX_PAYLOAD_BYTES + SEAL_TAG_BYTES;
/// The largest plain section; 1 MiB holds a checkpoint of more snapshots than [`MAX_CHILDREN`] lets it point to.
pub const MAX_PLAIN_BYTES: usize = 1 << 20;
/// The most children of one object. Nodes have at most [`crate::radix::FANOUT`]; a checkpoint has two a snapshot.
pub const MAX_CHILDREN: usize = 8192;
/// The smallest encoded object: a header, and the checksum of no locations.
pub const MIN_OBJECT_BYTES: usize = FIXED_BYTES + CHECKSUM_BYTES;
/// The largest encoded object, about 2.5 MiB: no honest pointer has a greater length, so none need be fetched.
pub const MAX_OBJECT_BYTES: usize =
    FIXED_BYTES + MAX_PLAIN_BYTES + MAX_SEALED_BYTES + MAX_CHILDREN * (CHILD_BYTES + 24) + CHECKSUM_BYTES;

/// What an object is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// File data, or a page of a directory.
    Block = 1,
    /// A node of a tree of pointers.
    Node = 2,
    /// Attributes of a file, and the root of its map.
    Inode = 3,
    /// The state of a whole volume at one version.
    Checkpoint = 4,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Block, Self::Node, Self::Inode, Self::Checkpoint];

    /// The kind that a byte stands for.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// How a payload was made smaller before it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Not at all.
    Raw = 0,
    /// The LZ4 block format.
    Lz4 = 1,
    /// A Zstandard frame.
    Zstd = 2,
}

impl Codec {
    const ALL: [Self; 3] = [Self::Raw, Self::Lz4, Self::Zstd];

    /// The codec that a byte stands for.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| *codec as u8 == byte)
    }
}

/// How to open a payload: all but the key itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealHeader {
    /// Which key of the family.
    pub key_epoch: KeyEpoch,
    /// Drawn afresh for each segment; the payload's key is derived from the epoch key and this.
    pub salt: [u8; 32],
    /// The nonce: counts the payloads sealed under one salt.
    pub slot: u32,
    /// How the payload was compressed.
    pub codec: Codec,
    /// Bytes of the payload once opened and decompressed; at most [`MAX_PAYLOAD_BYTES`].
    pub opened_bytes: u32,
}

/// Everything of an object but its sealed payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHeader {
    /// What it is for.
    pub kind: Kind,
    /// Feature flags ([`Features::NONE`] in new objects).
    pub features: Features,
    /// Where it stands.
    pub place: Place,
    /// The version that first held it.
    pub birth: Version,
    /// How to open it.
    pub seal: SealHeader,
    /// A section that everyone may read and that the uid and the seal vouch for (checkpoints have one).
    pub plain: Bytes,
    /// What it points to, strictly increasing by slot.
    pub children: Vec<Child>,
}

impl ObjectHeader {
    /// Bytes from the start of the object to its sealed payload.
    fn prefix_bytes(&self) -> usize {
        FIXED_BYTES + self.plain.len() + self.children.len() * CHILD_BYTES
    }

    /// Bytes of the whole object around a sealed payload of `sealed_bytes`.
    pub fn encoded_bytes(&self, sealed_bytes: usize) -> usize {
        self.prefix_bytes() + sealed_bytes + self.children.len() * crate::Location::BYTES + CHECKSUM_BYTES
    }
}
