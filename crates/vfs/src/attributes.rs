//! File attributes as POSIX knows them.

/// A calendar time with nanoseconds, as stored in inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z, negative before.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// From nanoseconds since the epoch.
    pub fn from_nanos(nanos: i64) -> Self {
        Self {
            seconds: nanos.div_euclid(1_000_000_000),
            nanoseconds: nanos.rem_euclid(1_000_000_000) as u32,
        }
    }
}

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device node.
    BlockDevice {
        /// Device major number.
        major: u32,
        /// Device minor number.
        minor: u32,
    },
    /// A character device node.
    CharacterDevice {
        /// Device major number.
        major: u32,
        /// Device minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
}

/// Everything `stat` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The file's number, unique within its file system and never reused.
    pub inode: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky: the low 12 bits.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes that hold data; holes count nothing. An upper bound while changes are not checkpointed.
    pub used_bytes: u64,
    /// Last read (kept lazily: never newer than the last change plus a day is guaranteed).
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of content or attributes; strictly increases with every change of one file.
    pub changed: Timestamp,
    /// Creation.
    pub born: Timestamp,
    /// Counts changes; differs whenever content or attributes do (NFSv4 change attribute).
    pub change: u64,
    /// The file system the file is in: volumes and snapshots differ.
    pub file_system: u64,
}

/// Attributes around a change, for weak cache consistency (RFC 1813 §2.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedAttributes {
    /// Before the change, taken at the same instant; `None` if not known.
    pub before: Option<Attributes>,
    /// After the change.
    pub after: Attributes,
}

/// How a time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Left as it is.
    #[default]
    Keep,
    /// The server's clock.
    Now,
    /// The caller's value.
    To(Timestamp),
}

/// Changes to attributes; `None` leaves one as it is.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits, low 12.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length: truncates or extends with a hole.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub accessed: SetTime,
    /// Modification time.
    pub modified: SetTime,
}
