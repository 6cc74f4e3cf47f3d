//! An inode: everything `stat` shows, and what hangs on the file besides its data.
//!
//! The committed form is an Inode object whose sealed payload is written here and whose one child, if any, is the root of
//! the file's block map (or of the directory's pages). Small files have their content inline and no child.

use crate::codec::{DecodeError, Decoder, Encoder};
use bytes::Bytes;
use firn_vfs::{Acl, AclEntry, AclTag, Attributes, FileKind, Timestamp};
use std::collections::BTreeMap;

pub(crate) const VERSION: u8 = 1;

/// Content up to this long is kept in the inode: an object of its own costs about 200 bytes of header, pointer and index.
pub const INLINE_BYTES: u64 = 1024;

/// Extended attributes of one file together; Linux shows no more than 64 KiB of names, ext4 allows about as much of values.
pub const XATTRS_BYTES: usize = 256 << 10;

/// Shape of a directory's page tree (see `directory`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirectoryShape {
    /// Entries, without `.` and `..`.
    pub entries: u64,
    /// No page is shallower.
    pub min_depth: u8,
    /// No page is deeper.
    pub max_depth: u8,
}

/// An opened inode. `size`, times and the rest are the current ones; where the data is, is kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub number: u64,
    pub kind: FileKind,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub born: Timestamp,
    pub change: u64,
    /// The directory it was last linked or moved into: `..` of a directory, a hint of locality for others.
    pub parent: u64,
    pub exclusive_verifier: Option<[u8; 8]>,
    pub symlink_target: Bytes,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub access_acl: Acl,
    pub default_acl: Acl,
    pub directory: DirectoryShape,
}

impl Inode {
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub fn attributes(&self, file_system: u64) -> Attributes {
        Attributes {
            inode: self.number,
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size_bytes: self.size_bytes,
            used_bytes: self.used_bytes,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: self.born,
            change: self.change,
            file_system,
        }
    }

    /// Marks a change at `now`: the change time strictly increases even when the clock does not.
    pub fn touch(&mut self, now: Timestamp) {
        self.change += 1;
        self.changed = if now > self.changed {
            now
        } else {
            next_nanosecond(self.changed)
        };
    }

    /// Bytes its xattrs take.
    pub fn xattr_bytes(&self) -> usize {
        self.xattrs
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum()
    }

    /// The sealed payload; `inline` is the content of a small regular file.
    pub fn encode(&self, inline: Option<&[u8]>) -> Bytes {
        let mut out = Encoder::new(VERSION);
        out.u64(self.number);
        encode_kind(&mut out, self.kind);
        out.u32(self.mode).u32(self.links).u32(self.uid).u32(self.gid);
        out.u64(self.size_bytes).u64(self.used_bytes);
        for time in [self.accessed, self.modified, self.changed, self.born] {
            encode_time(&mut out, time);
        }
        out.u64(self.change).u64(self.parent);
        out.option(self.exclusive_verifier, |out, verifier| {
            out.raw(&verifier);
        });
        out.bytes(&self.symlink_target);
        out.u32(self.xattrs.len() as u32);
        for (name, value) in &self.xattrs {
            out.bytes(name).bytes(value);
        }
        encode_acl(&mut out, &self.access_acl);
        encode_acl(&mut out, &self.default_acl);
        out.u64(self.directory.entries)
            .u8(self.directory.min_depth)
            .u8(self.directory.max_depth);
        out.option(inline, |out, content| {
            out.bytes(content);
        });
        out.finish()
    }

    /// The inode and its inline content.
    pub fn decode(payload: Bytes) -> Result<(Self, Option<Bytes>), DecodeError> {
        let mut input = Decoder::new(&payload, VERSION, "inode")?;
        let number = input.u64()?;
        let kind = decode_kind(&mut input)?;
        let (mode, links, uid, gid) = (input.u32()?, input.u32()?, input.u32()?, input.u32()?);
        let (size_bytes, used_bytes) = (input.u64()?, input.u64()?);
        let accessed = decode_time(&mut input)?;
        let modified = decode_time(&mut input)?;
        let changed = decode_time(&mut input)?;
        let born = decode_time(&mut input)?;
        let (change, parent) = (input.u64()?, input.u64()?);
        let exclusive_verifier = input.option(|input| input.array())?;
        let symlink_target = input.bytes()?;
        let count = input.count(8)?;
        let mut xattrs = BTreeMap::new();
        for _ in 0..count {
            xattrs.insert(input.bytes()?, input.bytes()?);
        }
        let access_acl = decode_acl(&mut input)?;
        let default_acl = decode_acl(&mut input)?;
        let directory = DirectoryShape {
            entries: input.u64()?,
            min_depth: input.u8()?,
            max_depth: input.u8()?,
        };
        let inline = input.option(Decoder::bytes)?;
        input.finish()?;
        let inode = Self {
            number,
            kind,
            mode,
            links,
            uid,
            gid,
            size_bytes,
            used_bytes,
            accessed,
            modified,
            changed,
            born,
            change,
            parent,
            exclusive_verifier,
            symlink_target,
            xattrs,
            access_acl,
            default_acl,
            directory,
        };
        Ok((inode, inline))
    }
}

fn next_nanosecond(time: Timestamp) -> Timestamp {
    if time.nanoseconds == 999_999_999 {
        Timestamp {
            seconds: time.seconds.saturating_add(1),
            nanoseconds: 0,
        }
    } else {
        Timestamp {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds + 1,
        }
    }
}

pub(crate) fn encode_time(out: &mut Encoder, time: Timestamp) {
    out.i64(time.seconds).u32(time.nanoseconds);
}

pub(crate) fn decode_time(input: &mut Decoder<'_>) -> Result<Timestamp, DecodeError> {
    let time = Timestamp {
        seconds: input.i64()?,
        nanoseconds: input.u32()?,
    };
    if time.nanoseconds < 1_000_000_000 {
        Ok(time)
    } else {
        Err(input.error())
    }
}

pub(crate) fn encode_kind(out: &mut Encoder, kind: FileKind) {
    let (tag, major, minor) = match kind {
        FileKind::Regular => (1, 0, 0),
        FileKind::Directory => (2, 0, 0),
        FileKind::Symlink => (3, 0, 0),
        FileKind::BlockDevice { major, minor } => (4, major, minor),
        FileKind::CharacterDevice { major, minor } => (5, major, minor),
        FileKind::Fifo => (6, 0, 0),
        FileKind::Socket => (7, 0, 0),
    };
    out.u8(tag).u32(major).u32(minor);
}

pub(crate) fn decode_kind(input: &mut Decoder<'_>) -> Result<FileKind, DecodeError> {
    let (tag, major, minor) = (input.u8()?, input.u32()?, input.u32()?);
    Ok(match tag {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::BlockDevice { major, minor },
        5 => FileKind::CharacterDevice { major, minor },
        6 => FileKind::Fifo,
        7 => FileKind::Socket,
        _ => return Err(input.error()),
    })
}

pub(crate) fn encode_acl(out: &mut Encoder, acl: &Acl) {
    out.u32(acl.entries.len() as u32);
    for entry in &acl.entries {
        let (tag, id) = match entry.tag {
            AclTag::UserObject => (1, 0),
            AclTag::User(uid) => (2, uid),
            AclTag::GroupObject => (3, 0),
            AclTag::Group(gid) => (4, gid),
            AclTag::Mask => (5, 0),
            AclTag::Other => (6, 0),
        };
        out.u8(tag).u32(id).u8(entry.permissions);
    }
}

pub(crate) fn decode_acl(input: &mut Decoder<'_>) -> Result<Acl, DecodeError> {
    let count = input.count(6)?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let (tag, id, permissions) = (input.u8()?, input.u32()?, input.u8()?);
        let tag = match tag {
            1 => AclTag::UserObject,
            2 => AclTag::User(id),
            3 => AclTag::GroupObject,
            4 => AclTag::Group(id),
            5 => AclTag::Mask,
            6 => AclTag::Other,
            _ => return Err(input.error()),
        };
        entries.push(AclEntry { tag, permissions });
    }
    Ok(Acl { entries })
}
