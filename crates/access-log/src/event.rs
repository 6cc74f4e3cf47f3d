//! Events: operations of clients, and what the log says of itself.

use firn_env::WallTime;
use firn_vfs::{FileHandle, SetAttributes, VfsError};
use std::{net::IpAddr, sync::Arc};

/// How a client came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// NFS, from the network.
    Nfs,
    /// A process of this machine, through a mount.
    Local,
    /// SMB, from the network, through Samba.
    Smb,
}

impl Protocol {
    /// As lines have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nfs => "nfs",
            Self::Local => "local",
            Self::Smb => "smb",
        }
    }
}

/// A client, and the user of it that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// How it came.
    pub protocol: Protocol,
    /// From where; absent for a process of this machine, and where it is not known.
    pub address: Option<IpAddr>,
    /// The user, as the client says; absent if it said nothing.
    pub uid: Option<u32>,
    /// The user whose rights counted, after squashing.
    pub effective_uid: Option<u32>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// POSIX's name of the error.
    Refused(&'static str),
    /// Its client went away before it was answered, or was not answered at the level that it asks for: it was done, or not.
    Unknown,
}

impl Outcome {
    /// Of an error; `None` if the call is asked again and nothing happened yet.
    pub(crate) fn of(error: &VfsError) -> Option<Self> {
        Some(Self::Refused(match error {
            VfsError::TryAgain { .. } => return None,
            VfsError::NotFound => "ENOENT",
            VfsError::NotPermitted => "EPERM",
            VfsError::AccessDenied => "EACCES",
            VfsError::Exists => "EEXIST",
            VfsError::CrossDevice => "EXDEV",
            VfsError::NotDirectory => "ENOTDIR",
            VfsError::IsDirectory => "EISDIR",
            VfsError::InvalidArgument | VfsError::BadCookie => "EINVAL",
            VfsError::FileTooLarge => "EFBIG",
            VfsError::NoSpace => "ENOSPC",
            VfsError::QuotaExceeded => "EDQUOT",
            VfsError::ReadOnly => "EROFS",
            VfsError::TooManyLinks => "EMLINK",
            VfsError::NameTooLong => "ENAMETOOLONG",
            VfsError::NotEmpty => "ENOTEMPTY",
            VfsError::Stale => "ESTALE",
            VfsError::NotSynchronised => "EAGAIN",
            VfsError::NotSupported => "EOPNOTSUPP",
            VfsError::NoAttribute => "ENODATA",
            VfsError::TooLarge => "ERANGE",
            VfsError::NotInCloud | VfsError::Unanswered => return Some(Self::Unknown),
            VfsError::Fenced | VfsError::Corrupt { .. } | VfsError::Io(_) => "EIO",
        }))
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Refused(code) => code,
            Self::Unknown => "unknown",
        }
    }
}

/// A path as far as it is known without asking the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// The file that the known part is below, if that part does not begin at the root.
    pub(crate) above: Option<FileHandle>,
    /// Empty, or names each with a slash before it.
    pub(crate) below: String,
}

/// What an operation was about, beside the file.
#[derive(Clone, Debug, Default)]
pub(crate) enum Detail {
    #[default]
    None,
    /// The attributes that were set.
    Attributes(SetAttributes),
    /// The extended attribute that was set or removed.
    Xattr(Vec<u8>),
    /// Where a symbolic link points.
    Target(Vec<u8>),
    /// What a file was opened for.
    Open { read: bool, write: bool },
}

/// Whose export or mount it was.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) number: u32,
    pub(crate) volume: String,
    pub(crate) export: Option<String>,
}

/// One line to be.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: WallTime,
    /// When the last of several calls was.
    pub(crate) until: Option<WallTime>,
    pub(crate) operation: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) who: Who,
    pub(crate) share: Arc<Share>,
    pub(crate) path: Option<Located>,
    pub(crate) to: Option<Located>,
    pub(crate) inode: Option<u64>,
    /// Calls and bytes of a summary.
    pub(crate) sum: Option<(u64, u64)>,
    pub(crate) detail: Detail,
}

/// What an event takes beside its texts.
const EVENT_BYTES: usize = size_of::<Event>();

impl Event {
    /// Memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let path = |path: &Option<Located>| path.as_ref().map_or(0, |path| path.below.len());
        let detail = match &self.detail {
            Detail::Xattr(bytes) | Detail::Target(bytes) => bytes.len(),
            Detail::None | Detail::Attributes(_) | Detail::Open { .. } => 0,
        };
        EVENT_BYTES + path(&self.path) + path(&self.to) + detail
    }
}
