//! The copy of the newest checkpoint object beside the journal, from which a start goes out while the cloud is away.
//!
//! The copy is the sealed object as it lies in its segment, so the remembered root's uid verifies it. Its name is its version: the
//! new copy is durable before the local state names it, and the old one goes only after that.
//!
//! ```text
//! checkpoint/<version, 16 hex digits>
//! ```
//!
//! **The journal never begins behind it.** Records that a newer root covers may be trimmed only once that root is remembered, or
//! once there is no copy at all: otherwise a start without the cloud would show an old state, and number its records like ones that
//! the newer root covers. Whoever knows that the journal is not to be continued (a drain, a fence) removes the copy first.

use bytes::Bytes;
use firn_env::{Disk, DiskError, OpenMode};
use firn_format::Version;

const DIRECTORY: &str = "checkpoint";
/// Being written; no version's name.
const NEW: &str = "checkpoint/new";

/// A checkpoint has its 1,024 newest requests, 64 commits and at most a thousand snapshots' names: less than 1 MiB.
const BYTES_MAX: u64 = 16 << 20;

fn name_of(version: Version) -> String {
    format!("{:016x}", version.0)
}

fn path_of(version: Version) -> String {
    format!("{DIRECTORY}/{}", name_of(version))
}

/// Keeps the copy of a version; durable (level 1) when it returns.
pub(crate) async fn keep(disk: &dyn Disk, version: Version, copy: &Bytes) -> Result<(), DiskError> {
    disk.create_directory(DIRECTORY).await?;
    disk.sync_directory("").await?;
    remove(disk, NEW).await?;
    let file = disk.open(NEW, OpenMode::CreateNew).await?;
    file.write_at(0, vec![copy.clone()]).await?;
    file.sync_data().await?;
    disk.rename(NEW, &path_of(version)).await?;
    disk.sync_directory(DIRECTORY).await
}

/// The copy of a version, not verified; `None` if there is none.
pub(crate) async fn load(disk: &dyn Disk, version: Version) -> Result<Option<Bytes>, DiskError> {
    let file = match disk.open(&path_of(version), OpenMode::Read).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.length().await?;
    if length > BYTES_MAX {
        return Ok(None);
    }
    let bytes = file.read_at(0, usize::try_from(length).unwrap_or(0)).await?;
    Ok(Some(bytes))
}

/// Removes all copies but that of `version`.
pub(crate) async fn forget_others(disk: &dyn Disk, version: Option<Version>) -> Result<(), DiskError> {
    let kept = version.map(name_of);
    let names = match disk.list(DIRECTORY).await {
        Ok(names) => names,
        Err(DiskError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in names.iter().filter(|name| Some(*name) != kept.as_ref()) {
        remove(disk, &format!("{DIRECTORY}/{name}")).await?;
    }
    Ok(())
}

/// Removes all copies; durable (level 1) when it returns. From then on no start goes out from one.
pub(crate) async fn forget(disk: &dyn Disk) -> Result<(), DiskError> {
    forget_others(disk, None).await?;
    match disk.sync_directory(DIRECTORY).await {
        Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn remove(disk: &dyn Disk, path: &str) -> Result<(), DiskError> {
    match disk.remove(path).await {
        Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
