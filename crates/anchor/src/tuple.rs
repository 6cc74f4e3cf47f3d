//! The tuples: what the anchor keeps in the table, and their bytes.
//!
//! ```text
//! partition "family/<family>"      sort "family"            one family tuple
//!                                  sort "volume/<volume>"   one volume tuple each
//!                                  sort "name/<name>"       the 16 bytes of the volume that has the name
//!
//! family   = version u8 (1) | kind u8 'F' | flags u8 | next_writer u64 | created_at_ms i64 | change_id [16]
//! volume   = version u8 (2, 3, 4) | kind u8 'V' | flags u8 | epoch u64 | tenure u64 | tenure_owner [16] | grant [16]
//!          | taken_at_ms i64 | change_id [16] | name text | owner? | root? | count u16 | retained* | commits u64
//! flags    = 1 has an owner | 2 has a root | 4 was drained      (any other bit, and any in a family: refused)
//! owner    = id [16] | name text
//! root     = uid [32] | writer u64 | sequence u64 | offset u32 | length u32 | version u64 | epoch u64
//!          | owner | commit_id [16] | committed_at_ms i64 | signed u8 (1: signature [64])      no `signed` below version 3
//! retained = fenced_epoch u64 | tenure u64 | retained_at_ms i64 | root | member u32 (0: of a takeover)                 no `member` below version 4
//! text     = length u8 | UTF-8                                  integers are little-endian
//! ```
//!
//! Version 3 is written as soon as one of the tuple's roots is signed, version 4 of a volume that is shared by inode: what commits to it must know
//! of members, so an older build reads none of it. A volume tuple without retained roots takes about 420 bytes,
//! so a commit costs one write unit.

use crate::{
    MemberNumber,
    layout::{self, Reader, Writer},
};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use firn_format::{FamilyId, Location, OwnershipEpoch, Uid, Version, VolumeId, WriterId};
use firn_table::ItemVersion;
use std::fmt;

/// Bytes of a volume's or an owner's name.
pub const MAX_NAME_BYTES: usize = 255;
/// Roots one volume retains from takeovers at most; each stands for a journal that may still have to be salvaged.
pub const MAX_RETAINED_ROOTS: usize = 32;

pub(crate) const LAYOUT_VERSION: u8 = 1;
/// Version 2 of the volume's tuple added the count of its commits; it is written while no root of it is signed.
const UNSIGNED_VERSION: u8 = 2;
/// Version 3 added the signatures of roots.
pub(crate) const VOLUME_VERSION: u8 = 3;
/// Version 4 is that of a volume which is shared by inode; no other volume's tuple is written in it.
const BY_INODE_VERSION: u8 = 4;
/// Bytes of a root's signature.
pub const ROOT_SIGNATURE_BYTES: usize = 64;
const SIGNATURE_LABEL: &[u8] = b"firn 1 root signature";
const FAMILY_KIND: u8 = b'F';
const VOLUME_KIND: u8 = b'V';
const HAS_OWNER: u8 = 1;
const HAS_ROOT: u8 = 2;
const DRAINED: u8 = 4;

/// Which write made a tuple what it is.
pub type TupleVersion = ItemVersion;

/// An edge as the anchor knows it: random, made once, kept in the edge's state directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub [u8; 16]);

impl fmt::Display for OwnerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", HEXLOWER.encode_display(&self.0))
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "OwnerId({self})")
    }
}

/// An edge and what people call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Which edge.
    pub id: OwnerId,
    /// What people call it; 1 to 255 bytes.
    pub name: String,
}

/// A committed state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The checkpoint object.
    pub uid: Uid,
    /// Where it was when it was committed.
    pub location: Location,
    /// Strictly greater than the one before.
    pub version: Version,
    /// The ownership it was committed under.
    pub epoch: OwnershipEpoch,
    /// Who committed it.
    pub owner: OwnerId,
    /// What people call who committed it.
    pub owner_name: String,
    /// Random, drawn for this commit: tells it from every other after a lost reply.
    pub commit_id: [u8; 16],
    /// By the committer's wall clock, milliseconds since 1970.
    pub committed_at_ms: i64,
    /// Ed25519, by the key that the committer's ownership statement names, of [`Root::signed_message`]. `None`: committed by a
    /// build that did not sign, or entered by a recovery.
    pub signature: Option<[u8; ROOT_SIGNATURE_BYTES]>,
}

/// A root that a takeover found, kept for the journal that the fenced owner may still hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedRoot {
    /// The ownership that the takeover ended.
    pub fenced_epoch: OwnershipEpoch,
    /// The tenure that it ended: the one the fenced owner's journal belongs to.
    pub tenure: OwnershipEpoch,
    /// By the wall clock of who took over, or of who broke the member last, milliseconds since 1970.
    pub retained_at_ms: i64,
    /// The root.
    pub root: Root,
    /// Whose journal it is kept for, of a volume that is shared by inode; `None`: a fenced owner's.
    pub member: Option<MemberNumber>,
}

/// All the anchor knows of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTuple {
    /// What people call it, unique in the family.
    pub name: String,
    /// The current root; `None` until the first commit.
    pub root: Option<Root>,
    /// Raised whenever ownership is given: a commit under a lower one is refused.
    pub epoch: OwnershipEpoch,
    /// The epoch at which [`tenure_owner`](Self::tenure_owner) began to hold the volume with nobody in between, over any
    /// number of its restarts and drains. A journal belongs to a tenure: under another one it must not be replayed into
    /// the volume, only salvaged.
    pub tenure: OwnershipEpoch,
    /// Whose tenure it is: the owner, or after a drain the last one.
    pub tenure_owner: OwnerId,
    /// Random, drawn for each giving of ownership: two incarnations of a table that was rolled back may reach one epoch.
    pub grant: [u8; 16],
    /// Who may commit; `None` before the first owner and after a drain.
    pub owner: Option<Owner>,
    /// When ownership was last given or given up, by the wall clock of who did; milliseconds since 1970.
    pub taken_at_ms: i64,
    /// Whether the last owner gave the volume up with everything committed.
    pub drained: bool,
    /// Roots kept from takeovers, the oldest first.
    pub retained: Vec<RetainedRoot>,
    /// Random, drawn for this state of the tuple: recognised after a lost reply.
    pub change_id: [u8; 16],
    /// Root commits since the tuple was made, whoever made them: what is charged. (A root's version counts births; it may skip.)
    pub commits: u64,
    /// Whether many write it, each what it holds by a lease: then nobody owns it, and its members commit.
    pub by_inode: bool,
}

/// All the anchor knows of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyTuple {
    /// The writer incarnation given next.
    pub next_writer: WriterId,
    /// By the creator's wall clock, milliseconds since 1970.
    pub created_at_ms: i64,
    /// Random, drawn for this state of the tuple: recognised after a lost reply.
    pub change_id: [u8; 16],
}

/// Why bytes are no tuple.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TupleError {
    /// Written by a newer build.
    #[error(
        "layout {found} is unknown; this build reads layouts up to {BY_INODE_VERSION}: a newer build wrote it. Nothing was changed: install \
         that version or a newer one"
    )]
    UnknownVersion {
        /// What its first byte says.
        found: u8,
    },
    /// A flag this build does not know, so it cannot know what it would lose by rewriting the tuple.
    #[error(
        "flags {found:#04x} are unknown: a newer build wrote it. Nothing was changed: install that version or a newer one"
    )]
    UnknownFlags {
        /// All flags.
        found: u8,
    },
    /// It ends too early.
    #[error("it is cut short at byte {offset}")]
    Truncated {
        /// Where more was needed.
        offset: usize,
    },
    /// Something no build writes.
    #[error("{what} at byte {offset}")]
    Malformed {
        /// What it is.
        what: &'static str,
        /// Where.
        offset: usize,
    },
}

/// A name that is empty, too long, or would garble a terminal or a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no name: 1 to {MAX_NAME_BYTES} bytes without '/' and control characters")]
pub struct NameError {
    /// What was given.
    pub name: String,
}

pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    let valid = (1..=MAX_NAME_BYTES).contains(&name.len())
        && !name.contains(['/'])
        && !name.contains(char::is_control);
    if valid {
        Ok(())
    } else {
        Err(NameError {
            name: name.to_owned(),
        })
    }
}

impl VolumeTuple {
    /// The retained root that the journal of an ended tenure continues.
    pub fn retained_for(&self, tenure: OwnershipEpoch) -> Option<&RetainedRoot> {
        self.retained.iter().find(|retained| retained.tenure == tenure)
    }

    /// The root that a break kept for a member's journal.
    pub fn retained_for_member(&self, member: MemberNumber) -> Option<&RetainedRoot> {
        self.retained
            .iter()
            .find(|retained| retained.member == Some(member))
    }

    /// When anything was last committed, milliseconds since 1970.
    pub fn last_committed_ms(&self) -> Option<i64> {
        self.root.as_ref().map(|root| root.committed_at_ms)
    }

    /// Whether this commit is the current root or was it when a takeover came.
    pub(crate) fn records_commit(&self, commit_id: &[u8; 16]) -> bool {
        let retained = self.retained.iter().map(|retained| &retained.root);
        self.root
            .iter()
            .chain(retained)
            .any(|root| root.commit_id == *commit_id)
    }

    /// Encodes.
    ///
    /// # Panics
    /// If a name or the number of retained roots is over its bound, which the anchor checks before it builds a tuple.
    pub fn to_bytes(&self) -> Bytes {
        assert!(
            self.retained.len() <= MAX_RETAINED_ROOTS,
            "takeovers are refused before"
        );
        let mut writer = Writer::default();
        let mut roots = self
            .root
            .iter()
            .chain(self.retained.iter().map(|retained| &retained.root));
        let is_signed = roots.any(|root| root.signature.is_some());
        let version = match (self.by_inode, is_signed) {
            (true, _) => BY_INODE_VERSION,
            (false, true) => VOLUME_VERSION,
            (false, false) => UNSIGNED_VERSION,
        };
        writer.u8(version);
        writer.u8(VOLUME_KIND);
        let mut flags = 0;
        if self.owner.is_some() {
            flags |= HAS_OWNER;
        }
        if self.root.is_some() {
            flags |= HAS_ROOT;
        }
        if self.drained {
            flags |= DRAINED;
        }
        writer.u8(flags);
        writer.u64(self.epoch.0);
        writer.u64(self.tenure.0);
        writer.raw(&self.tenure_owner.0);
        writer.raw(&self.grant);
        writer.i64(self.taken_at_ms);
        writer.raw(&self.change_id);
        writer.text(&self.name);
        if let Some(owner) = &self.owner {
            writer.raw(&owner.id.0);
            writer.text(&owner.name);
        }
        if let Some(root) = &self.root {
            write_root_of(&mut writer, root, version);
        }
        writer.u16(u16::try_from(self.retained.len()).expect("checked above"));
        for retained in &self.retained {
            writer.u64(retained.fenced_epoch.0);
            writer.u64(retained.tenure.0);
            writer.i64(retained.retained_at_ms);
            write_root_of(&mut writer, &retained.root, version);
            if self.by_inode {
                writer.u32(retained.member.map_or(0, |member| member.0));
            }
        }
        writer.u64(self.commits);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one volume tuple of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let (mut reader, layout) =
            layout::open_versions(bytes, LAYOUT_VERSION, BY_INODE_VERSION, VOLUME_KIND)?;
        let flags = reader.u8()?;
        if flags & !(HAS_OWNER | HAS_ROOT | DRAINED) != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let by_inode = layout == BY_INODE_VERSION;
        if by_inode && flags & HAS_OWNER != 0 {
            return Err(reader.malformed("an owner of a volume that is shared by inode"));
        }
        let epoch = OwnershipEpoch(reader.u64()?);
        let tenure = OwnershipEpoch(reader.u64()?);
        let tenure_owner = OwnerId(reader.array()?);
        let grant = reader.array()?;
        let taken_at_ms = reader.i64()?;
        let change_id = reader.array()?;
        let name = reader.text()?.to_owned();
        let owner = if flags & HAS_OWNER == 0 {
            None
        } else {
            Some(Owner {
                id: OwnerId(reader.array()?),
                name: reader.text()?.to_owned(),
            })
        };
        let root = if flags & HAS_ROOT == 0 {
            None
        } else {
            Some(read_root_of(&mut reader, layout)?)
        };
        let count = usize::from(reader.u16()?);
        if count > MAX_RETAINED_ROOTS {
            return Err(reader.malformed("too many retained roots"));
        }
        let mut retained = Vec::with_capacity(count);
        for _ in 0..count {
            retained.push(RetainedRoot {
                fenced_epoch: OwnershipEpoch(reader.u64()?),
                tenure: OwnershipEpoch(reader.u64()?),
                retained_at_ms: reader.i64()?,
                root: read_root_of(&mut reader, layout)?,
                member: match by_inode {
                    true => Some(MemberNumber(reader.u32()?)).filter(|member| member.0 != 0),
                    false => None,
                },
            });
        }
        let commits = if layout >= UNSIGNED_VERSION {
            reader.u64()?
        } else {
            0
        };
        let mut roots = root.iter().chain(retained.iter().map(|retained| &retained.root));
        if layout == VOLUME_VERSION && !roots.any(|root| root.signature.is_some()) {
            return Err(reader.malformed("a tuple of signed roots without a signature"));
        }
        reader.finish()?;
        Ok(Self {
            name,
            root,
            epoch,
            tenure,
            tenure_owner,
            grant,
            owner,
            taken_at_ms,
            drained: flags & DRAINED != 0,
            retained,
            change_id,
            commits,
            by_inode,
        })
    }
}

impl Root {
    /// Encodes, as within a volume's tuple; a signature follows without a mark.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        write_root(&mut writer, self);
        if let Some(signature) = &self.signature {
            writer.raw(signature);
        }
        writer.finish().into()
    }

    /// What the signature is of: the whole root under one grant of one volume, so that it counts for no other.
    pub fn signed_message(&self, family: &FamilyId, volume: &VolumeId, grant: &[u8; 16]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(SIGNATURE_LABEL);
        writer.raw(&family.0);
        writer.raw(&volume.0);
        writer.raw(grant);
        write_root(&mut writer, self);
        writer.finish()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one root.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = Reader::new(layout::Tuple, bytes);
        let mut root = read_root(&mut reader)?;
        if reader.remaining() > 0 {
            root.signature = Some(reader.array()?);
        }
        reader.finish()?;
        Ok(root)
    }
}

impl FamilyTuple {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(FAMILY_KIND);
        writer.u8(0);
        writer.u64(self.next_writer.0);
        writer.i64(self.created_at_ms);
        writer.raw(&self.change_id);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one family tuple of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, FAMILY_KIND)?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let tuple = Self {
            next_writer: WriterId(reader.u64()?),
            created_at_ms: reader.i64()?,
            change_id: reader.array()?,
        };
        reader.finish()?;
        Ok(tuple)
    }
}

fn write_root(writer: &mut Writer, root: &Root) {
    writer.raw(&root.uid.0);
    layout::write_location(writer, &root.location);
    writer.u64(root.version.0);
    writer.u64(root.epoch.0);
    writer.raw(&root.owner.0);
    writer.text(&root.owner_name);
    writer.raw(&root.commit_id);
    writer.i64(root.committed_at_ms);
}

fn write_root_of(writer: &mut Writer, root: &Root, layout: u8) {
    write_root(writer, root);
    if layout > UNSIGNED_VERSION {
        writer.u8(u8::from(root.signature.is_some()));
        writer.raw(root.signature.as_ref().map_or(&[][..], |signature| signature));
    }
}

fn read_root_of(reader: &mut Reader<'_>, layout: u8) -> Result<Root, TupleError> {
    let mut root = read_root(reader)?;
    if layout > UNSIGNED_VERSION {
        root.signature = match reader.u8()? {
            0 => None,
            1 => Some(reader.array()?),
            _ => return Err(reader.malformed("a root that is neither signed nor not")),
        };
    }
    Ok(root)
}

fn read_root(reader: &mut Reader<'_>) -> Result<Root, TupleError> {
    Ok(Root {
        uid: Uid(reader.array()?),
        location: layout::read_location(reader)?,
        version: Version(reader.u64()?),
        epoch: OwnershipEpoch(reader.u64()?),
        owner: OwnerId(reader.array()?),
        owner_name: reader.text()?.to_owned(),
        commit_id: reader.array()?,
        committed_at_ms: reader.i64()?,
        signature: None,
    })
}
