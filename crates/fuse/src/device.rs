//! `/dev/fuse` and the mount itself, by mount(2), or by `fusermount3` for a user who may not.
//!
//! The mount never honours set-uid bits and device nodes: whoever may write through another protocol must not become root
//! on this machine.

use crate::{fusermount, staging::Staging};
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};
use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

const DEVICE: &str = "/dev/fuse";
/// The type of file system that /proc/mounts shows; how mounts of an earlier run are recognised.
const KIND: &str = "fuse.firn";
/// Mounts on one directory that are taken away before it is given up.
const STALE_MAX: usize = 16;

/// Why a directory was not mounted on. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container was not given the device.
    #[error(
        "{DEVICE} is missing ({0}): load the kernel's module (`modprobe fuse`), or give the container the device"
    )]
    NoDevice(io::Error),
    /// Mounting needs privileges.
    #[error(
        "mounting on {path} was refused ({source}): firn-edge needs the capability CAP_SYS_ADMIN for [[mount]]"
    )]
    NotPermitted {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An ordinary user, and nothing that mounts for one.
    #[error(
        "mounting on {path} needs root, or for another user the program fusermount3, which is not installed (Debian: apt install fuse3)"
    )]
    NoHelper {
        /// Where.
        path: PathBuf,
    },
    /// What mounts for an ordinary user does not.
    #[error(
        "mounting on {path} was refused: {said}. For a user who is not root fusermount3 wants a directory of this user's, {DEVICE} with mode 666 (as \
         udev makes it), and for all users of the machine (allow_other) the line user_allow_other in /etc/fuse.conf"
    )]
    Refused {
        /// Where.
        path: PathBuf,
        /// In the words of `fusermount3`.
        said: String,
    },
    /// There is no such directory.
    #[error("cannot mount on {path} ({source}): it must be a directory that exists")]
    NoDirectory {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process serves a volume there.
    #[error(
        "a volume is mounted on {path} by another process that is alive; unmount it first (umount {path})"
    )]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// The kernel is older than what is needed, or of another kind.
    #[error("this kernel's FUSE cannot be used: {0}. Linux 5.16 or newer is needed")]
    Kernel(String),
    /// Anything else.
    #[error("mounting on {path} failed: {source}")]
    Failed {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Whether this machine has the device at all.
pub fn is_available() -> bool {
    Path::new(DEVICE).exists()
}

/// Mounts, to be published on `path`, after what a killed process of ours left there was taken away. Without a [`Staging`] it is there already. Blocks.
pub(crate) fn mount(
    path: &Path,
    source: &str,
    read_only: bool,
    allow_other: bool,
) -> Result<(OwnedFd, Option<Staging>), MountError> {
    unmount_stale(path)?;
    let status = fs::metadata(path).and_then(|status| match status.is_dir() {
        true => Ok(()),
        false => Err(Errno::NOTDIR.into()),
    });
    status.map_err(|source| MountError::NoDirectory {
        path: path.to_owned(),
        source,
    })?;
    let staging = Staging::new()
        .inspect_err(|error| tracing::debug!(%error, "no directory to mount in before anybody sees it"))
        .ok();
    let at = staging.as_ref().map_or(path, Staging::path);
    // A container may give its root no such capability: fusermount3 would have it neither.
    match mount_by_itself((path, at), source, read_only, allow_other) {
        Err(MountError::NotPermitted { .. }) if !rustix::process::geteuid().is_root() => {
            Ok((fusermount::mount(path, source, read_only, allow_other)?, None))
        }
        mounted => Ok((mounted?, staging)),
    }
}

/// `at`: where it is mounted, for `path`.
fn mount_by_itself(
    (path, at): (&Path, &Path),
    source: &str,
    read_only: bool,
    allow_other: bool,
) -> Result<OwnedFd, MountError> {
    let failed = |error: Errno| classify(path, error);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::openat(CWD, DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice(error.into()),
        other => failed(other),
    })?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no zero in it");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount(source, at, KIND, flags, Some(data.as_c_str())).map_err(failed)?;
    Ok(device)
}

pub(crate) fn classify(path: &Path, error: Errno) -> MountError {
    let path = path.to_owned();
    match error {
        Errno::PERM | Errno::ACCESS => MountError::NotPermitted {
            path,
            source: error.into(),
        },
        Errno::NODEV => MountError::NoDevice(error.into()),
        _ => MountError::Failed {
            path,
            source: error.into(),
        },
    }
}

/// Takes away mounts of ours on `path` whose process is gone: every access to them fails with ENOTCONN.
fn unmount_stale(path: &Path) -> Result<(), MountError> {
    for _ in 0..STALE_MAX {
        if !is_mounted(path) {
            return Ok(());
        }
        match rustix::fs::statvfs(path) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => {
                tracing::warn!(path = %path.display(), "a mount that a killed process left is taken away");
                detach(path).map_err(|source| MountError::Failed {
                    path: path.to_owned(),
                    source,
                })?;
            }
            _ => {
                return Err(MountError::InUse {
                    path: path.to_owned(),
                });
            }
        }
    }
    Err(MountError::InUse {
        path: path.to_owned(),
    })
}

/// Whether a mount of ours is the topmost on `path`.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let Ok(table) = fs::read("/proc/self/mountinfo") else {
        return false;
    };
    let path = absolute(path);
    let mut last = None;
    for line in table.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-");
        if let (Some(at), Some(separator)) = (fields.get(4), separator)
            && unescape(at) == path.as_os_str().as_bytes()
        {
            last = fields.get(separator + 1).copied();
        }
    }
    last == Some(KIND.as_bytes())
}

/// Without asking the directory itself, which may be a mount that answers no more.
fn absolute(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(*byte);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into_vec()
}

/// Writes what mapped files have in memory back to us, and unmounts; a mount in use is detached, so that no new access finds it.
/// Blocks. True if nobody used it any more.
pub(crate) fn unmount(path: &Path) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(root) = rustix::fs::openat(CWD, path, flags, Mode::empty())
        && let Err(error) = rustix::fs::syncfs(&root)
    {
        tracing::warn!(path = %path.display(), %error, "not all that mapped files had in memory was written back");
    }
    match rustix::mount::unmount(path, UnmountFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => detach(path).map(|()| false),
        // Somebody was faster.
        Err(Errno::INVAL) => Ok(true),
        Err(Errno::PERM) => match fusermount::unmount(path, false) {
            Ok(()) => Ok(true),
            Err(_) => detach(path).map(|()| false),
        },
        Err(error) => Err(error.into()),
    }
}

/// Takes a mount away from new accesses. Blocks.
pub(crate) fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH) {
        Err(Errno::PERM) => fusermount::unmount(path, true),
        detached => Ok(detached?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_table_of_mounts_are_read_as_they_are() {
        assert_eq!(unescape(br"/a\040b\134c\x"), br"/a b\c\x");
        assert!(!is_mounted(Path::new("/")), "of another kind");
    }

    #[test]
    fn a_directory_that_is_not_there_is_said_so() {
        let missing = mount(Path::new("/proc/no such directory"), "firn", false, true);
        let message = missing.expect_err("missing").to_string();
        assert!(message.contains("must be a directory that exists"), "{message}");
    }
}
