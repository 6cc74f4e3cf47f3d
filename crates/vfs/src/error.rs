//! Errors of a call: the POSIX errors that a protocol can express, and the few that need more words.

/// Why a call was refused. Nothing was changed, unless the variant says otherwise ([`VfsError::NotInCloud`], [`VfsError::Unanswered`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VfsError {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EPERM: only the owner or root may.
    #[error("operation not permitted")]
    NotPermitted,
    /// EACCES: the mode or ACL forbids it.
    #[error("permission denied")]
    AccessDenied,
    /// EEXIST.
    #[error("file exists")]
    Exists,
    /// EXDEV.
    #[error("cross-device link")]
    CrossDevice,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// EINVAL.
    #[error("invalid argument")]
    InvalidArgument,
    /// EFBIG.
    #[error("file too large")]
    FileTooLarge,
    /// ENOSPC: the volume (not the journal, which only slows writers down) is full.
    #[error("no space left on the volume")]
    NoSpace,
    /// EDQUOT.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// EROFS.
    #[error("read-only file system")]
    ReadOnly,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// ENAMETOOLONG.
    #[error("name too long")]
    NameTooLong,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// ESTALE: the handle names a file that no longer exists.
    #[error("stale file handle")]
    Stale,
    /// The guard of a guarded SETATTR does not match.
    #[error("the file changed since its attributes were read")]
    NotSynchronised,
    /// The directory cookie was never given out.
    #[error("bad directory cookie")]
    BadCookie,
    /// ENOTSUP.
    #[error("not supported")]
    NotSupported,
    /// ENODATA: no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE / E2BIG: an attribute or list too large.
    #[error("too large")]
    TooLarge,
    /// Cannot be served now but will be: ask again (NFS3ERR_JUKEBOX, I7). Nothing is lost.
    #[error("try again later: {reason}")]
    TryAgain {
        /// What is being waited for.
        reason: &'static str,
    },
    /// Another edge has taken the volume over; this one serves nothing more (I8).
    #[error("this edge no longer owns the volume")]
    Fenced,
    /// The stored bytes are not the ones that were written; names the file (EIO).
    #[error("corrupt data in inode {inode}: {detail}")]
    Corrupt {
        /// The file the damaged object belongs to.
        inode: u64,
        /// What was wrong, and where.
        detail: String,
    },
    /// The cloud did not take in time what was to be answered at level 2 (EIO). A change may stand, at level 1.
    #[error(
        "the cloud does not take what this call asks to be in it; what it changed, if anything, is in the journal"
    )]
    NotInCloud,
    /// The service ended before a change, which stands at level 1, was at level 2. No answer is right: who sends the same request again is
    /// answered by the next start.
    #[error("the service ended before the change was in the cloud; it is in the journal")]
    Unanswered,
    /// Anything else that cannot be served, ever (EIO).
    #[error("input/output error: {0}")]
    Io(String),
}
