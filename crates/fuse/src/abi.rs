//! Numbers of the FUSE protocol, version 7, as `linux/fuse.h` defines them.

/// A module of named numbers of one type.
macro_rules! numbers {
    ($(#[$about:meta])* $module:ident: $type:ty { $($(#[$meta:meta])* $name:ident = $value:expr;)* }) => {
        $(#[$about])*
        pub(crate) mod $module {
            $($(#[$meta])* pub(crate) const $name: $type = $value;)*
        }
    };
}

/// The version spoken: 7.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures are known here; the kernel takes the lower of its own and this.
pub(crate) const MINOR: u32 = 41;
/// The oldest kernel served: 7.36 (Linux 5.16) has the second word of flags.
pub(crate) const MINOR_MIN: u32 = 36;
/// The kernel that came with it: major and minor number.
pub const KERNEL_OLDEST: (u32, u32) = (5, 16);

/// Bytes of the header of a request.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Bytes of the header of a reply.
pub(crate) const OUT_HEADER_BYTES: usize = 16;

/// The node of the root.
pub(crate) const ROOT_NODE: u64 = 1;

numbers! {
    /// What is asked; the numbers of the kernel.
    opcode: u32 {
        LOOKUP = 1;
        FORGET = 2;
        GETATTR = 3;
        SETATTR = 4;
        READLINK = 5;
        SYMLINK = 6;
        MKNOD = 8;
        MKDIR = 9;
        UNLINK = 10;
        RMDIR = 11;
        RENAME = 12;
        LINK = 13;
        OPEN = 14;
        READ = 15;
        WRITE = 16;
        STATFS = 17;
        RELEASE = 18;
        FSYNC = 20;
        SETXATTR = 21;
        GETXATTR = 22;
        LISTXATTR = 23;
        REMOVEXATTR = 24;
        FLUSH = 25;
        INIT = 26;
        OPENDIR = 27;
        READDIR = 28;
        RELEASEDIR = 29;
        FSYNCDIR = 30;
        GETLK = 31;
        SETLK = 32;
        SETLKW = 33;
        CREATE = 35;
        INTERRUPT = 36;
        DESTROY = 38;
        BATCH_FORGET = 42;
        FALLOCATE = 43;
        READDIRPLUS = 44;
        RENAME2 = 45;
        LSEEK = 46;
        COPY_FILE_RANGE = 47;
    }
}

numbers! {
    /// What the two sides can do (`FUSE_INIT`).
    init: u64 {
        ASYNC_READ = 1 << 0;
        POSIX_LOCKS = 1 << 1;
        BIG_WRITES = 1 << 5;
        DONT_MASK = 1 << 6;
        FLOCK_LOCKS = 1 << 10;
        AUTO_INVAL_DATA = 1 << 12;
        DO_READDIRPLUS = 1 << 13;
        READDIRPLUS_AUTO = 1 << 14;
        ASYNC_DIO = 1 << 15;
        PARALLEL_DIROPS = 1 << 18;
        POSIX_ACL = 1 << 20;
        MAX_PAGES = 1 << 22;
        CACHE_SYMLINKS = 1 << 23;
        HANDLE_KILLPRIV_V2 = 1 << 28;
        SETXATTR_EXT = 1 << 29;
        INIT_EXT = 1 << 30;

        /// What is asked for where the kernel offers it. Not `WRITEBACK_CACHE`: with it the kernel keeps size and times for itself,
        /// which other protocols change too. With `AUTO_INVAL_DATA` it looks at the length before a read if that was invalidated; without,
        /// it reads by the length it knows, and gives zeros for what is not there. With `HANDLE_KILLPRIV_V2` set-uid and set-gid bits are
        /// dropped here when the kernel says so, and it remembers that a file has no capabilities; without, it asks before each write.
        WANTED = ASYNC_READ
            | POSIX_LOCKS
            | BIG_WRITES
            | DONT_MASK
            | FLOCK_LOCKS
            | AUTO_INVAL_DATA
            | DO_READDIRPLUS
            | READDIRPLUS_AUTO
            | ASYNC_DIO
            | PARALLEL_DIROPS
            | POSIX_ACL
            | MAX_PAGES
            | CACHE_SYMLINKS
            | HANDLE_KILLPRIV_V2
            | SETXATTR_EXT
            | INIT_EXT;
        /// Without these it would not be served as documented.
        NEEDED = POSIX_LOCKS | DONT_MASK | FLOCK_LOCKS | AUTO_INVAL_DATA | POSIX_ACL | MAX_PAGES | SETXATTR_EXT;
    }
}

numbers! {
    /// Which fields of a SETATTR count.
    set: u32 {
        MODE = 1 << 0;
        UID = 1 << 1;
        GID = 1 << 2;
        SIZE = 1 << 3;
        ATIME = 1 << 4;
        MTIME = 1 << 5;
        ATIME_NOW = 1 << 7;
        MTIME_NOW = 1 << 8;
        KILL_SET_ID = 1 << 11;
    }
}

/// Of the reply to OPEN: the pages that the kernel has of the file are still right.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// Of the reply to OPEN: writes that go past the page cache need not wait for each other.
pub(crate) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Of WRITE: mapped pages are written back, by whatever descriptor the kernel finds.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// Of WRITE: whoever writes may not keep set-uid and set-gid bits.
pub(crate) const WRITE_KILL_SET_ID: u32 = 1 << 2;
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

numbers! {
    /// Notifications to the kernel.
    notify: i32 {
        INVAL_INODE = 2;
        INVAL_ENTRY = 3;
        /// All names at once; older kernels do not know it.
        INC_EPOCH = 8;
    }
}

numbers! {
    /// Kinds of files in a mode.
    mode: u32 {
        KIND = 0o170_000;
        FIFO = 0o010_000;
        CHARACTER = 0o020_000;
        DIRECTORY = 0o040_000;
        BLOCK = 0o060_000;
        REGULAR = 0o100_000;
        LINK = 0o120_000;
        SOCKET = 0o140_000;
    }
}

numbers! {
    /// Modes of fallocate(2).
    allocate: u32 {
        KEEP_SIZE = 1 << 0;
        PUNCH_HOLE = 1 << 1;
        ZERO_RANGE = 1 << 4;
    }
}

numbers! {
    /// What lseek(2) is relative to, beside what the kernel answers itself.
    whence: u32 {
        DATA = 3;
        HOLE = 4;
    }
}

numbers! {
    /// Flags of open(2), as on every architecture Firn is built for.
    open: u32 {
        ACCESS_MODE = 0o3;
        WRITE_ONLY = 0o1;
        READ_WRITE = 0o2;
        EXCLUSIVE = 0o200;
        DATA_SYNC = 0o10_000;
        SYNC = 0o4_010_000;
    }
}
