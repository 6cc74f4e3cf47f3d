//! The manifest: which segments must exist in the bucket, and what is in them.
//!
//! A leaf is an object of kind Block at the place (4, 0, index) whose *plain* section tells of 128 consecutive segments of one
//! writer; its sealed payload is empty. Index and slot are those of the usage map ([`usage_slot`](crate::usage_slot)), and above the leaves stand nodes
//! as in every map. The newest entries wait in the checkpoint itself, and go into the tree sixteen at a time, so that a volume
//! that trickles does not write a leaf with each commit.
//!
//! ```text
//! entry (76)        0  length u32
//!                   4  BLAKE3 of the segment [32]
//!                  36  BLAKE3 of its index and footer [32]
//!                  68  birth u64                                 the version that was packed in it; 0: a cleaner wrote it
//!
//! listed (92)       0  writer u64 | sequence u64
//!                  16  entry (76)
//!
//! leaf plain        0  version u8 | reserved u8 | features u16
//!                   4  bitmap [16]                               bit k of byte k / 8: slot k has an entry
//!                  20  entry (76) × as many as bits are set
//!
//! part of a         0  manifest_level u8 | listed_count u8       0: there is no tree; at most 16
//! checkpoint        2  reserved [6]
//!                   8  newest_round u64                          the newest retirement that was taken in
//!                  16  listed (92) × listed_count                in order of their names
//!                   …  how far it is gathered (96)               with bit 1 of the checkpoint's features (`gathering.rs`)
//! ```
//!
//! A hash of the whole segment of zeros beside a length is not known: such an entry was gathered from the trees, of a segment that is
//! longer than [`WHOLE_SEGMENT_BYTES`], which audits read by its index. Its birth is 0, too.
//!
//! An entry of no bytes and hashes of zeros is of a segment that must exist and that nobody could read when it was entered. The one
//! segment that is in neither tree nor list is that in which the newest checkpoint itself lies: it cannot have its own hash, and
//! whoever has the root knows its name.

use crate::{
    FOOTER_BYTES, Features, FormatError, Gathering, Kind, MANIFEST, MAX_SEGMENT_BYTES, Place, SegmentId,
    TreeRoot, USAGE_SEGMENTS, VerifiedObject, Version, What, WriterId, cursor::Cursor, decode_footer,
};
use bytes::{BufMut, Bytes, BytesMut};

/// The version of the manifest's leaves that this build writes.
pub const MANIFEST_VERSION: u8 = 1;
pub(crate) const OLDEST_VERSION: u8 = 1;

/// Entries that wait in a checkpoint at most: 1,472 bytes.
pub const MAX_LISTED_SEGMENTS: usize = 16;

/// Up to here a segment is read whole, by who gathers a manifest and by who audits one: it costs what an index and an object cost.
pub const WHOLE_SEGMENT_BYTES: u32 = 256 << 10;

const ENTRY_BYTES: usize = 76;
pub(crate) const LISTED_BYTES: usize = 16 + ENTRY_BYTES;
const BITMAP_BYTES: usize = USAGE_SEGMENTS / 8;

/// What is in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestEntry {
    /// Its bytes; 0: unread.
    pub length: u32,
    /// BLAKE3 of all of it.
    pub segment_hash: [u8; 32],
    /// BLAKE3 of its index and footer.
    pub index_hash: [u8; 32],
    /// The version that was packed in it; 0 of a cleaner's.
    pub birth: Version,
}

/// A segment that must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedSegment {
    /// Its name.
    pub segment: SegmentId,
    /// What is in it.
    pub entry: ManifestEntry,
}

/// A checkpoint's part of the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestPart {
    /// The tree.
    pub root: Option<TreeRoot>,
    /// The newest retirement of the family that was taken in.
    pub newest_round: u64,
    /// What is not in the tree yet, in order of the names; at most [`MAX_LISTED_SEGMENTS`].
    pub listed: Vec<ListedSegment>,
    /// How far it is gathered; `None`: it has every segment that must exist.
    pub gathering: Option<Gathering>,
}

impl ManifestEntry {
    /// Of a segment as [`SegmentBuilder::finish`](crate::SegmentBuilder::finish) gives it: the index comes last.
    pub fn of_parts(parts: &[Bytes], birth: Version) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Self {
            length: parts.iter().map(|part| part.len() as u32).sum(),
            segment_hash: *hasher.finalize().as_bytes(),
            index_hash: *blake3::hash(parts.last().map_or(&[], |index| &index[..])).as_bytes(),
            birth,
        }
    }

    /// Of a whole segment as a store has it; `None` if it has no footer.
    pub fn of_bytes(bytes: &Bytes, birth: Version) -> Option<Self> {
        let footer = bytes.len().checked_sub(FOOTER_BYTES)?;
        let index = decode_footer(&bytes[footer..]).ok()?.index_offset as usize;
        (index <= footer).then(|| Self::of_parts(&[bytes.slice(..index), bytes.slice(index..)], birth))
    }

    /// Of a segment that must exist and cannot be read.
    pub const fn unread(birth: Version) -> Self {
        Self {
            length: 0,
            segment_hash: [0; 32],
            index_hash: [0; 32],
            birth,
        }
    }

    /// Of a segment of which only the index was read.
    pub fn of_index(length: u32, index_and_footer: &[u8]) -> Self {
        Self {
            length,
            segment_hash: [0; 32],
            index_hash: *blake3::hash(index_and_footer).as_bytes(),
            birth: Version(0),
        }
    }

    /// Whether it has the hash of all of the segment's bytes.
    pub fn has_segment_hash(&self) -> bool {
        self.segment_hash != [0; 32]
    }

    /// Whether it says what is in the segment.
    pub const fn is_read(&self) -> bool {
        self.length > 0
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.length);
        out.put_slice(&self.segment_hash);
        out.put_slice(&self.index_hash);
        out.put_u64_le(self.birth.0);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let length = cursor.u32()?;
        if length as usize > MAX_SEGMENT_BYTES {
            return Err(cursor.invalid("length", 4, u64::from(length), "at most 16 MiB"));
        }
        let entry = Self {
            length,
            segment_hash: cursor.array()?,
            index_hash: cursor.array()?,
            birth: Version(cursor.u64()?),
        };
        if length == 0 && entry != Self::unread(entry.birth) {
            return Err(cursor.invalid("length", ENTRY_BYTES, 0, "more than 0 beside hashes"));
        }
        Ok(entry)
    }
}

impl ListedSegment {
    /// Writes its 92 bytes.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(LISTED_BYTES);
        self.put(&mut out);
        out.freeze()
    }

    /// Reads its 92 bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(What::Manifest, bytes);
        let listed = Self::take(&mut cursor)?;
        cursor.end()?;
        Ok(listed)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.segment.writer.0);
        out.put_u64_le(self.segment.sequence);
        self.entry.put(out);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            segment: SegmentId {
                writer: WriterId(cursor.u64()?),
                sequence: cursor.u64()?,
            },
            entry: ManifestEntry::take(cursor)?,
        })
    }
}

impl ManifestPart {
    /// Writes all of it but the level, which comes with the child.
    pub(crate) fn put_after_level(&self, out: &mut BytesMut) {
        assert!(
            self.listed.len() <= MAX_LISTED_SEGMENTS,
            "the tree takes the others"
        );
        assert!(
            self.listed.is_sorted_by(|one, other| one.segment < other.segment),
            "in order, each once"
        );
        out.put_u8(self.listed.len() as u8);
        out.put_bytes(0, 6);
        out.put_u64_le(self.newest_round);
        for listed in &self.listed {
            listed.put(out);
        }
        if let Some(gathering) = &self.gathering {
            gathering.put(out);
        }
    }

    pub(crate) fn take_after_level(
        cursor: &mut Cursor<'_>,
        root: Option<TreeRoot>,
        features: Features,
    ) -> Result<Self, FormatError> {
        let count = cursor.u8()?;
        if usize::from(count) > MAX_LISTED_SEGMENTS {
            return Err(cursor.invalid("listed_count", 1, u64::from(count), "at most 16"));
        }
        cursor.reserved::<6>()?;
        let newest_round = cursor.u64()?;
        cursor.require(usize::from(count) * LISTED_BYTES)?;
        let mut listed: Vec<ListedSegment> = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let next = ListedSegment::take(cursor)?;
            if listed.last().is_some_and(|last| last.segment >= next.segment) {
                let sequence = next.segment.sequence;
                return Err(cursor.invalid(
                    "listed",
                    LISTED_BYTES,
                    sequence,
                    "a segment after the one before",
                ));
            }
            listed.push(next);
        }
        let gathering = match features.has(Features::GATHERING) {
            true => Some(Gathering::take(cursor)?),
            false => None,
        };
        Ok(Self {
            root,
            newest_round,
            listed,
            gathering,
        })
    }
}

/// What must exist of 128 consecutive segments of one writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestLeaf {
    /// In order of the slots, each once and below [`USAGE_SEGMENTS`].
    entries: Vec<(u8, ManifestEntry)>,
}

impl ManifestLeaf {
    /// The place of a leaf.
    pub const fn place(index: u64) -> Place {
        Place {
            inode: MANIFEST,
            level: 0,
            index,
        }
    }

    /// The entries in order of their slots.
    pub fn entries(&self) -> &[(u8, ManifestEntry)] {
        &self.entries
    }

    /// What must exist of this slot from now on.
    ///
    /// # Panics
    /// If it is beyond the last slot.
    pub fn insert(&mut self, slot: usize, entry: ManifestEntry) {
        assert!(slot < USAGE_SEGMENTS, "a leaf has 128 slots");
        let slot = slot as u8;
        match self.entries.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(at) => self.entries[at].1 = entry,
            Err(at) => self.entries.insert(at, (slot, entry)),
        }
    }

    /// Takes the entry of a slot out; whether there was one.
    pub fn remove(&mut self, slot: usize) -> bool {
        let found = self
            .entries
            .binary_search_by_key(&slot, |(slot, _)| usize::from(*slot));
        if let Ok(at) = found {
            self.entries.remove(at);
        }
        found.is_ok()
    }

    /// The plain section of the object that holds this leaf.
    pub fn to_plain(&self) -> Bytes {
        let mut bitmap = [0_u8; BITMAP_BYTES];
        for (slot, _) in &self.entries {
            bitmap[usize::from(*slot) / 8] |= 1 << (slot % 8);
        }
        let mut plain = BytesMut::with_capacity(4 + BITMAP_BYTES + self.entries.len() * ENTRY_BYTES);
        plain.put_u8(MANIFEST_VERSION);
        plain.put_u8(0);
        plain.put_u16_le(Features::NONE.0);
        plain.put_slice(&bitmap);
        for (_, entry) in &self.entries {
            entry.put(&mut plain);
        }
        plain.freeze()
    }

    /// Reads a plain section.
    ///
    /// # Errors
    /// If it is not one that this build can read.
    pub fn from_plain(plain: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(What::Manifest, plain);
        cursor.version(OLDEST_VERSION, MANIFEST_VERSION)?;
        cursor.reserved::<1>()?;
        cursor.features()?;
        let bitmap: [u8; BITMAP_BYTES] = cursor.array()?;
        let has = |slot: &u8| bitmap[usize::from(*slot) / 8] & (1 << (slot % 8)) != 0;
        let slots = (0..USAGE_SEGMENTS as u8).filter(has);
        let count = slots.clone().count();
        cursor.require(count * ENTRY_BYTES)?;
        let mut entries = Vec::with_capacity(count);
        for slot in slots {
            entries.push((slot, ManifestEntry::take(&mut cursor)?));
        }
        cursor.end()?;
        Ok(Self { entries })
    }

    /// Reads the leaf that a verified object holds.
    ///
    /// # Errors
    /// If the object is not a leaf of the manifest, or is malformed.
    pub fn from_verified(object: &VerifiedObject) -> Result<Self, FormatError> {
        let header = &object.header;
        if header.kind != Kind::Block || header.place.inode != MANIFEST {
            return Err(FormatError::Invalid {
                what: What::Manifest,
                field: "inode",
                offset: 16,
                found: header.place.inode,
                expected: "4, in a block",
            });
        }
        Self::from_plain(&header.plain)
    }
}
