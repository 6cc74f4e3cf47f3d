//! Checkpoints: the state of a volume at one version.
//!
//! A checkpoint is an object whose *plain* section says what the cleaner, an auditor and the anchor must know without a
//! key; the roots themselves are its children, so that their locations can change without a new hash. The engine's own
//! state (journal position, next inode number, names of snapshots) is the sealed payload, opaque here.
//!
//! ```text
//! plain      0  version u8 | reserved u8 | features u16
//!            4  snapshot_count u32
//!            8  family [16]
//!           24  volume [16]
//!           40  version u64
//!           48  epoch u64
//!           56  writer u64
//!           64  cleaner_sequence u64
//!           72  committed_at_ms i64
//!           80  inode_map_level u8 | orphans_level u8 | usage_level u8      0: there is none
//!           83  has u8                                                      1: previous, 2: fork
//!           84  reserved [4]
//!           88  previous uid [32]                                           zeros if there is none
//!          120  fork volume [16] | fork version u64 | fork uid [32]         zeros if there is none
//!          176  snapshot × snapshot_count
//!
//! snapshot (40)  0  id u64
//!                8  version u64
//!               16  created_ms i64
//!               24  protected_until_ms i64
//!               32  inode_map_level u8 | orphans_level u8 | reserved [6]
//!
//! behind them   the part of the manifest (`manifest.rs`), if bit 0 of the features is set; with bit 1, how far it is gathered
//!
//! children      slot 0: inode map   1: orphans   2: usage   3 + 2k, 4 + 2k: inode map and orphans of snapshot k
//!               65535: the manifest
//! ```

use crate::{
    Child, FamilyId, Features, FormatError, Kind, MAX_LEVEL, ManifestPart, OwnershipEpoch, Place, Pointer,
    Uid, VerifiedObject, Version, VolumeId, What, WriterId, cursor::Cursor, place::CHECKPOINTS,
};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;

/// The version of the checkpoint format that this build writes.
pub const CHECKPOINT_VERSION: u8 = 1;
pub(crate) const OLDEST_VERSION: u8 = 1;

const FIXED_BYTES: usize = 176;
const SNAPSHOT_BYTES: usize = 40;

const INODE_MAP_SLOT: u16 = 0;
const ORPHANS_SLOT: u16 = 1;
const USAGE_SLOT: u16 = 2;
const FIRST_SNAPSHOT_SLOT: u16 = 3;
/// Beyond those of the most snapshots.
const MANIFEST_SLOT: u16 = u16::MAX;

/// The most snapshots of one volume: their roots must fit among the children of one object.
pub const MAX_SNAPSHOTS: usize = (crate::MAX_CHILDREN - FIRST_SNAPSHOT_SLOT as usize - 1) / 2;

const HAS_PREVIOUS: u8 = 1;
const HAS_FORK: u8 = 2;

/// Where the checkpoint of a version stands.
pub const fn checkpoint_place(version: Version) -> Place {
    Place {
        inode: CHECKPOINTS,
        level: 0,
        index: version.0,
    }
}

/// The root of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRoot {
    /// The root node.
    pub pointer: Pointer,
    /// Its level; at least 1.
    pub level: u8,
}

/// What a snapshot retains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotRoot {
    /// Its number; its name is sealed.
    pub id: u64,
    /// The version it retains.
    pub version: Version,
    /// When it was taken.
    pub created_ms: i64,
    /// No one may delete it before; 0 if it is not protected.
    pub protected_until_ms: i64,
    /// The volume's inodes at that version.
    pub inode_map: TreeRoot,
    /// Its unlinked but open inodes.
    pub orphans: Option<TreeRoot>,
}

/// Where a branch left another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkPoint {
    /// The volume it was cloned from.
    pub volume: VolumeId,
    /// The version of that volume it began with.
    pub version: Version,
    /// The checkpoint of that version.
    pub uid: Uid,
}

/// The state of a volume at one version: what is plain of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The family.
    pub family: FamilyId,
    /// The volume.
    pub volume: VolumeId,
    /// The version.
    pub version: Version,
    /// The ownership under which it was committed.
    pub epoch: OwnershipEpoch,
    /// The incarnation that wrote it.
    pub writer: WriterId,
    /// The checkpoint before it.
    pub previous: Option<Uid>,
    /// Where the branch began, if it is a clone.
    pub fork: Option<ForkPoint>,
    /// All inodes.
    pub inode_map: Option<TreeRoot>,
    /// Inodes unlinked but open.
    pub orphans: Option<TreeRoot>,
    /// Live bytes per segment, a hint for the cleaner.
    pub usage: Option<TreeRoot>,
    /// What must be kept beside the head, oldest first.
    pub snapshots: Vec<SnapshotRoot>,
    /// The newest proposal of the cleaner that was merged.
    pub cleaner_sequence: u64,
    /// When it was committed, by the writer's clock.
    pub committed_at_ms: i64,
    /// Which segments must exist; volumes that were made before there were manifests have none.
    pub manifest: Option<ManifestPart>,
}

impl Checkpoint {
    /// Its place.
    pub fn place(&self) -> Place {
        checkpoint_place(self.version)
    }

    /// The plain section and the children of the object that holds this checkpoint.
    ///
    /// # Panics
    /// If there are more than [`MAX_SNAPSHOTS`] snapshots or a root has level 0.
    pub fn to_plain_and_children(&self) -> (Bytes, Vec<Child>) {
        assert!(self.snapshots.len() <= MAX_SNAPSHOTS, "too many snapshots");
        let mut plain = BytesMut::with_capacity(FIXED_BYTES + self.snapshots.len() * SNAPSHOT_BYTES);
        let mut children = Vec::with_capacity(3 + 2 * self.snapshots.len());
        plain.put_u8(CHECKPOINT_VERSION);
        plain.put_u8(0);
        plain.put_u16_le(match &self.manifest {
            Some(manifest) if manifest.gathering.is_some() => Features::MANIFEST.0 | Features::GATHERING.0,
            Some(_) => Features::MANIFEST.0,
            None => Features::NONE.0,
        });
        plain.put_u32_le(self.snapshots.len() as u32);
        plain.put_slice(&self.family.0);
        plain.put_slice(&self.volume.0);
        plain.put_u64_le(self.version.0);
        plain.put_u64_le(self.epoch.0);
        plain.put_u64_le(self.writer.0);
        plain.put_u64_le(self.cleaner_sequence);
        plain.put_i64_le(self.committed_at_ms);
        put_root(&mut plain, &mut children, INODE_MAP_SLOT, self.inode_map);
        put_root(&mut plain, &mut children, ORPHANS_SLOT, self.orphans);
        put_root(&mut plain, &mut children, USAGE_SLOT, self.usage);
        let has_previous = if self.previous.is_some() { HAS_PREVIOUS } else { 0 };
        let has_fork = if self.fork.is_some() { HAS_FORK } else { 0 };
        plain.put_u8(has_previous | has_fork);
        plain.put_bytes(0, 4);
        plain.put_slice(&self.previous.unwrap_or(Uid([0; 32])).0);
        let fork = self.fork.unwrap_or(NO_FORK);
        plain.put_slice(&fork.volume.0);
        plain.put_u64_le(fork.version.0);
        plain.put_slice(&fork.uid.0);
        debug_assert_eq!(plain.len(), FIXED_BYTES);
        for (ordinal, snapshot) in self.snapshots.iter().enumerate() {
            let slot = FIRST_SNAPSHOT_SLOT + 2 * ordinal as u16;
            plain.put_u64_le(snapshot.id);
            plain.put_u64_le(snapshot.version.0);
            plain.put_i64_le(snapshot.created_ms);
            plain.put_i64_le(snapshot.protected_until_ms);
            put_root(&mut plain, &mut children, slot, Some(snapshot.inode_map));
            put_root(&mut plain, &mut children, slot + 1, snapshot.orphans);
            plain.put_bytes(0, 6);
        }
        if let Some(manifest) = &self.manifest {
            put_root(&mut plain, &mut children, MANIFEST_SLOT, manifest.root);
            manifest.put_after_level(&mut plain);
        }
        (plain.freeze(), children)
    }

    /// Reads the checkpoint that a verified object holds.
    ///
    /// # Errors
    /// If the object is no checkpoint, is not at the place of its version, or is malformed.
    pub fn from_verified(object: &VerifiedObject) -> Result<Self, FormatError> {
        let header = &object.header;
        if header.kind != Kind::Checkpoint {
            return Err(FormatError::Invalid {
                what: What::Checkpoint,
                field: "kind",
                offset: 9,
                found: header.kind as u64,
                expected: "4, that of a checkpoint",
            });
        }
        let checkpoint = Self::from_plain_and_children(&header.plain, &header.children)?;
        if checkpoint.place() != header.place {
            return Err(FormatError::WrongPlace {
                uid: object.uid(),
                expected: header.place,
                found: checkpoint.place(),
            });
        }
        Ok(checkpoint)
    }

    /// Reads a checkpoint from the parts of its object.
    ///
    /// # Errors
    /// If they are malformed or do not belong together.
    pub fn from_plain_and_children(plain: &[u8], children: &[Child]) -> Result<Self, FormatError> {
        let mut roots = Roots::new(children);
        let mut cursor = Cursor::new(What::Checkpoint, plain);
        cursor.version(OLDEST_VERSION, CHECKPOINT_VERSION)?;
        cursor.reserved::<1>()?;
        let features = cursor.features_but(Features::MANIFEST.and(Features::GATHERING))?;
        if features.has(Features::GATHERING) && !features.has(Features::MANIFEST) {
            return Err(cursor.invalid("features", 2, u64::from(features.0), "bit 1 with bit 0 only"));
        }
        let snapshot_count = cursor.u32()? as usize;
        if snapshot_count > MAX_SNAPSHOTS {
            return Err(cursor.invalid("snapshot_count", 4, snapshot_count as u64, "at most 4094"));
        }
        let family = FamilyId(cursor.array()?);
        let volume = VolumeId(cursor.array()?);
        let version = Version(cursor.u64()?);
        let epoch = OwnershipEpoch(cursor.u64()?);
        let writer = WriterId(cursor.u64()?);
        let cleaner_sequence = cursor.u64()?;
        let committed_at_ms = cursor.i64()?;
        let inode_map = roots.take(&mut cursor, INODE_MAP_SLOT)?;
        let orphans = roots.take(&mut cursor, ORPHANS_SLOT)?;
        let usage = roots.take(&mut cursor, USAGE_SLOT)?;
        let has = cursor.u8()?;
        if has & !(HAS_PREVIOUS | HAS_FORK) != 0 {
            return Err(cursor.invalid("has", 1, u64::from(has), "0 to 3"));
        }
        cursor.reserved::<4>()?;
        let previous = if has & HAS_PREVIOUS == 0 {
            cursor.reserved::<32>()?;
            None
        } else {
            Some(Uid(cursor.array()?))
        };
        let fork = if has & HAS_FORK == 0 {
            cursor.reserved::<56>()?;
            None
        } else {
            Some(ForkPoint {
                volume: VolumeId(cursor.array()?),
                version: Version(cursor.u64()?),
                uid: Uid(cursor.array()?),
            })
        };
        cursor.require(snapshot_count * SNAPSHOT_BYTES)?;
        // Grown as they are found: in memory each is four times its bytes, and the bytes of a manifest might pass for some.
        let mut snapshots = Vec::new();
        for ordinal in 0..snapshot_count {
            let slot = FIRST_SNAPSHOT_SLOT + 2 * ordinal as u16;
            snapshots.push(SnapshotRoot {
                id: cursor.u64()?,
                version: Version(cursor.u64()?),
                created_ms: cursor.i64()?,
                protected_until_ms: cursor.i64()?,
                inode_map: roots
                    .take(&mut cursor, slot)?
                    .ok_or_else(|| cursor.invalid("inode_map_level", 1, 0, "1 to 10 for a snapshot"))?,
                orphans: roots.take(&mut cursor, slot + 1)?,
            });
            cursor.reserved::<6>()?;
        }
        let manifest = if features.has(Features::MANIFEST) {
            let root = roots.take(&mut cursor, MANIFEST_SLOT)?;
            Some(ManifestPart::take_after_level(&mut cursor, root, features)?)
        } else {
            None
        };
        cursor.end()?;
        if let Some(slot) = roots.unused() {
            return Err(cursor.invalid(
                "child slot",
                0,
                u64::from(slot),
                "a slot that the plain section names",
            ));
        }
        Ok(Self {
            family,
            volume,
            version,
            epoch,
            writer,
            previous,
            fork,
            inode_map,
            orphans,
            usage,
            snapshots,
            cleaner_sequence,
            committed_at_ms,
            manifest,
        })
    }
}

const NO_FORK: ForkPoint = ForkPoint {
    volume: VolumeId([0; 16]),
    version: Version(0),
    uid: Uid([0; 32]),
};

fn put_root(plain: &mut BytesMut, children: &mut Vec<Child>, slot: u16, root: Option<TreeRoot>) {
    match root {
        None => plain.put_u8(0),
        Some(TreeRoot { pointer, level }) => {
            assert!((1..=MAX_LEVEL).contains(&level), "a root has a level of 1 to 10");
            plain.put_u8(level);
            children.push(Child { slot, pointer });
        }
    }
}

/// The children not yet matched with a level in the plain section.
struct Roots<'a> {
    children: BTreeMap<u16, &'a Child>,
}

impl<'a> Roots<'a> {
    fn new(children: &'a [Child]) -> Self {
        Self {
            children: children.iter().map(|child| (child.slot, child)).collect(),
        }
    }

    /// Reads a level and takes the child that belongs to it.
    fn take(&mut self, cursor: &mut Cursor<'_>, slot: u16) -> Result<Option<TreeRoot>, FormatError> {
        let level = cursor.u8()?;
        if level > MAX_LEVEL {
            return Err(cursor.invalid("root level", 1, u64::from(level), "at most 10"));
        }
        match (level, self.children.remove(&slot)) {
            (0, None) => Ok(None),
            (0, Some(_)) => Err(cursor.invalid("root level", 1, 0, "1 to 10 for a child that exists")),
            (_, Some(child)) => Ok(Some(TreeRoot {
                pointer: child.pointer,
                level,
            })),
            (_, None) => Err(cursor.invalid(
                "root level",
                1,
                u64::from(level),
                "0 for a child that does not exist",
            )),
        }
    }

    fn unused(&self) -> Option<u16> {
        self.children.keys().next().copied()
    }
}
