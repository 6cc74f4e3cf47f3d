//! Numbers of the FUSE protocol, version 7, as `linux/fuse.h` defines them.

/// The version spoken: 7.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures are known here; the kernel takes the lower of its own and this.
pub(crate) const MINOR: u32 = 41;
/// The oldest kernel served: 7.36 (Linux 5.16) has the second word of flags.
pub(crate) const MINOR_MIN: u32 = 36;

/// Bytes of the header of a request.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Bytes of the header of a reply.
pub(crate) const OUT_HEADER_BYTES: usize = 16;

/// The node of the root.
pub(crate) const ROOT_NODE: u64 = 1;

/// What is asked; the numbers of the kernel.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
}

/// What the two sides can do (`FUSE_INIT`).
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;

    /// What is asked for where the kernel offers it. Not `WRITEBACK_CACHE`: with it the kernel keeps size and times for itself,
    /// which other protocols change too.
    pub(crate) const WANTED: u64 = ASYNC_READ
        | POSIX_LOCKS
        | BIG_WRITES
        | DONT_MASK
        | FLOCK_LOCKS
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | POSIX_ACL
        | MAX_PAGES
        | CACHE_SYMLINKS
        | SETXATTR_EXT
        | INIT_EXT;
    /// Without these it would not be served as documented.
    pub(crate) const NEEDED: u64 =
        POSIX_LOCKS | DONT_MASK | FLOCK_LOCKS | POSIX_ACL | MAX_PAGES | SETXATTR_EXT;
}

/// Which fields of a SETATTR count.
pub(crate) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// Of the reply to OPEN: the pages that the kernel has of the file are still right.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// Of the reply to OPEN: writes that go past the page cache need not wait for each other.
pub(crate) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Of RELEASE: the owner named had the file locked by flock.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Of locks: by flock.
pub(crate) const LOCK_FLOCK: u32 = 1 << 0;
/// Of SETXATTR: an ACL is set by somebody who is not in the file's group.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Kinds of locks.
pub(crate) const F_RDLCK: u32 = 0;
pub(crate) const F_WRLCK: u32 = 1;
pub(crate) const F_UNLCK: u32 = 2;

/// Notifications to the kernel.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    /// All names at once; older kernels do not know it.
    pub(crate) const INC_EPOCH: i32 = 8;
}

/// Kinds of files in a mode.
pub(crate) mod mode {
    pub(crate) const KIND: u32 = 0o170_000;
    pub(crate) const FIFO: u32 = 0o010_000;
    pub(crate) const CHARACTER: u32 = 0o020_000;
    pub(crate) const DIRECTORY: u32 = 0o040_000;
    pub(crate) const BLOCK: u32 = 0o060_000;
    pub(crate) const REGULAR: u32 = 0o100_000;
    pub(crate) const LINK: u32 = 0o120_000;
    pub(crate) const SOCKET: u32 = 0o140_000;
}

/// Flags of open(2), as on every architecture Firn is built for.
pub(crate) mod open {
    pub(crate) const ACCESS_MODE: u32 = 0o3;
    pub(crate) const WRITE_ONLY: u32 = 0o1;
    pub(crate) const READ_WRITE: u32 = 0o2;
    pub(crate) const EXCLUSIVE: u32 = 0o200;
    pub(crate) const DATA_SYNC: u32 = 0o10_000;
    pub(crate) const SYNC: u32 = 0o4_010_000;
}
