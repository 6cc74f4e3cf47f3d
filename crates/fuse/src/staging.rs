//! A mount that nobody sees yet, and how it comes to where it is wanted.
//!
//! The kernel makes the root of a mount before it has agreed with us that there are access control lists, and never keeps that one's in its cache:
//! each access of whoever does not own the root would begin with a question for its list. So it is mounted in a directory of our own first; there
//! this process, which alone is answered that name, finds the root once more, under a number like any other file's, and mounts that where it is
//! wanted (decision 0119).

use crate::device::{self, MountError};
use rustix::mount::UnmountFlags;
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// The name by which this process finds the root in itself.
pub(crate) const ENTRANCE: &str = "root";

static MADE: AtomicU64 = AtomicU64::new(0);

/// A directory that nobody else may enter; what is mounted there is taken away with it.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
}

impl Staging {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("firn-mount-{}-{number}", process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts what is mounted here on `path`: the root as it is found by [`ENTRANCE`], or as the kernel made it where the rights of this process do not
    /// reach beyond. Blocks while the kernel asks for it.
    ///
    /// # Errors
    /// If neither can be; nothing is mounted there.
    pub(crate) fn publish(&self, path: &Path) -> Result<(), MountError> {
        let entered = rustix::mount::mount_bind(self.path.join(ENTRANCE), path);
        if let Err(error) = entered {
            tracing::debug!(%error, "the root is that which the kernel made, and its list is asked for at each access");
            rustix::mount::mount_bind(&self.path, path).map_err(|error| device::classify(path, error))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // It may never have been mounted on.
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an empty directory is left behind");
        }
    }
}
