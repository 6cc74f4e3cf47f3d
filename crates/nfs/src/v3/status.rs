//! NFSv3's errors, and which one each refusal of the file system becomes.

use crate::{exports::HandleError, xdr::xdr_enum};
use firn_vfs::VfsError;
use tracing::{debug, error};

xdr_enum! {
    /// How a procedure ended (nfsstat3).
    pub enum Status {
        /// As asked.
        Ok = 0,
        /// Only the owner or root may.
        NotPermitted = 1,
        /// No such file or directory.
        NoEntry = 2,
        /// Input or output failed.
        Io = 5,
        /// No such device or address.
        NoSuchDevice = 6,
        /// Permission denied.
        AccessDenied = 13,
        /// The name exists.
        Exists = 17,
        /// Across file systems.
        CrossDevice = 18,
        /// No such device.
        NoDevice = 19,
        /// Not a directory.
        NotDirectory = 20,
        /// A directory.
        IsDirectory = 21,
        /// Invalid argument.
        Invalid = 22,
        /// File too large.
        FileTooLarge = 27,
        /// No space left.
        NoSpace = 28,
        /// Read-only.
        ReadOnly = 30,
        /// Too many hard links.
        TooManyLinks = 31,
        /// Name too long.
        NameTooLong = 63,
        /// Directory not empty.
        NotEmpty = 66,
        /// Quota exceeded.
        QuotaExceeded = 69,
        /// The file is gone.
        Stale = 70,
        /// Too many levels of remote.
        Remote = 71,
        /// No handle of this server.
        BadHandle = 10_001,
        /// The guard does not match.
        NotSynchronised = 10_002,
        /// No cookie of this directory.
        BadCookie = 10_003,
        /// Not supported.
        NotSupported = 10_004,
        /// Not one entry fits.
        TooSmall = 10_005,
        /// The server failed.
        ServerFault = 10_006,
        /// MKNOD cannot make that.
        BadType = 10_007,
        /// Later.
        Jukebox = 10_008,
        /// Of no reply: the call is not answered.
        Unanswered = 0x7fff_ffff,
    }
}

impl From<HandleError> for Status {
    fn from(error: HandleError) -> Self {
        match error {
            HandleError::Forged => Self::BadHandle,
            HandleError::ExportGone => Self::Stale,
            HandleError::ClientDenied => Self::AccessDenied,
            HandleError::Away => Self::Jukebox,
        }
    }
}

impl From<VfsError> for Status {
    /// Logs what an administrator must see: nobody else does, since a client shows one number.
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::NotFound => Self::NoEntry,
            VfsError::NotPermitted => Self::NotPermitted,
            VfsError::AccessDenied => Self::AccessDenied,
            VfsError::Exists => Self::Exists,
            VfsError::CrossDevice => Self::CrossDevice,
            VfsError::NotDirectory => Self::NotDirectory,
            VfsError::IsDirectory => Self::IsDirectory,
            VfsError::InvalidArgument => Self::Invalid,
            VfsError::FileTooLarge => Self::FileTooLarge,
            VfsError::NoSpace => Self::NoSpace,
            VfsError::QuotaExceeded => Self::QuotaExceeded,
            VfsError::ReadOnly => Self::ReadOnly,
            VfsError::TooManyLinks => Self::TooManyLinks,
            VfsError::NameTooLong => Self::NameTooLong,
            VfsError::NotEmpty => Self::NotEmpty,
            VfsError::Stale => Self::Stale,
            VfsError::NotSynchronised => Self::NotSynchronised,
            VfsError::BadCookie => Self::BadCookie,
            VfsError::NotSupported => Self::NotSupported,
            // Of extended attributes, which this protocol does not have.
            VfsError::NoAttribute | VfsError::TooLarge => Self::Invalid,
            VfsError::TryAgain { reason } => {
                debug!(reason, "client asked to try again");
                Self::Jukebox
            }
            // The file lives on, but not here. STALE and not IO: it makes clients drop what they have cached of the file,
            // so that nobody goes on reading what another edge is changing; and not silence, which would hang them.
            VfsError::Fenced => Self::Stale,
            VfsError::NotInCloud => {
                debug!("the cloud is away; the client gets an input/output error");
                Self::Io
            }
            VfsError::Unanswered => Self::Unanswered,
            VfsError::Corrupt { inode, detail } => {
                error!(
                    inode,
                    detail, "corrupt data; the client gets an input/output error"
                );
                Self::Io
            }
            VfsError::Io(detail) => {
                error!(detail, "the client gets an input/output error");
                Self::Io
            }
        }
    }
}
