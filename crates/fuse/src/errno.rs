//! From errors of the file system to those of system calls.

use firn_session::{LockError, OpenError};
use firn_vfs::VfsError;
use rustix::io::Errno;

/// Why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// What the process is told.
    Error(Errno),
    /// The request is to be carried out again in a moment; nothing was changed.
    TryAgain,
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

impl From<VfsError> for Failure {
    fn from(error: VfsError) -> Self {
        Self::Error(match error {
            VfsError::TryAgain { .. } => return Self::TryAgain,
            VfsError::NotFound => Errno::NOENT,
            VfsError::NotPermitted => Errno::PERM,
            VfsError::AccessDenied => Errno::ACCESS,
            VfsError::Exists => Errno::EXIST,
            VfsError::CrossDevice => Errno::XDEV,
            VfsError::NotDirectory => Errno::NOTDIR,
            VfsError::IsDirectory => Errno::ISDIR,
            VfsError::InvalidArgument | VfsError::BadCookie => Errno::INVAL,
            VfsError::FileTooLarge => Errno::FBIG,
            VfsError::NoSpace => Errno::NOSPC,
            VfsError::QuotaExceeded => Errno::DQUOT,
            VfsError::ReadOnly => Errno::ROFS,
            VfsError::TooManyLinks => Errno::MLINK,
            VfsError::NameTooLong => Errno::NAMETOOLONG,
            VfsError::NotEmpty => Errno::NOTEMPTY,
            VfsError::Stale => Errno::STALE,
            VfsError::NotSupported => Errno::OPNOTSUPP,
            VfsError::NoAttribute => Errno::NODATA,
            VfsError::TooLarge => Errno::RANGE,
            VfsError::NotSynchronised
            | VfsError::Fenced
            | VfsError::NotInCloud
            | VfsError::Unanswered
            | VfsError::Corrupt { .. }
            | VfsError::Io(_) => {
                tracing::warn!(%error, "an operation on a mount failed");
                Errno::IO
            }
        })
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Error(match error {
            // In the grace period a lock may be somebody's who has not asked for it again yet.
            LockError::Conflict(_) | LockError::Grace | LockError::GraceOver | LockError::Away => {
                Errno::AGAIN
            }
            LockError::Deadlock { .. } => Errno::DEADLK,
            LockError::TooMany => Errno::NOLCK,
            LockError::Cancelled => Errno::INTR,
        })
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Refused(error) => error.into(),
            OpenError::Share(error) => error.into(),
            OpenError::TooMany => Errno::NFILE.into(),
        }
    }
}
