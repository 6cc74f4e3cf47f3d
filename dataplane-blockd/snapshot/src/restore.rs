//! Restoring a snapshot into a disk that was never written.

use crate::{
    catalogue::Catalogue,
    error::SnapshotError,
    format::{PAGE_TRACTS, Root, Uid, decode_tract},
    seal::Kind,
    take::Progress,
};
use firn_blockd_nbd::{BlockDevice, Durability};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::sync::atomic::Ordering::Relaxed;

/// Tracts under way at once: 4 × 8 MiB, sealed and opened.
const TRACTS_AT_ONCE: usize = 4;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The snapshot.
    pub root: Root,
    /// Tracts that held something.
    pub tracts: u64,
    /// Bytes written to the disk.
    pub written_bytes: u64,
}

/// Writes what a snapshot holds to a disk of zeroes, and makes it durable. Each object is verified before anything of it is
/// written.
///
/// # Errors
/// [`SnapshotError`]: then the disk holds a part. [`SnapshotError::Deleted`]: and there is nothing to go on with.
pub async fn restore<D: BlockDevice>(
    catalogue: &Catalogue,
    name: &str,
    disk: &D,
    progress: &Progress,
) -> Result<Restored, SnapshotError> {
    let listed = catalogue.find(name).await?;
    let restored = async {
        let root = catalogue.root_of(&listed).await?;
        restore_root(catalogue, root, disk, progress).await
    };
    match restored.await {
        Err(error) => Err(catalogue.explain(&listed, error).await),
        other => other,
    }
}

async fn restore_root<D: BlockDevice>(
    catalogue: &Catalogue,
    root: Root,
    disk: &D,
    progress: &Progress,
) -> Result<Restored, SnapshotError> {
    let disk_bytes = disk.geometry().size_bytes;
    if disk_bytes < root.size_bytes {
        return Err(SnapshotError::TooSmall {
            snapshot_bytes: root.size_bytes,
            disk_bytes,
        });
    }
    progress.total.store(root.tracts(), Relaxed);
    let (mut tracts, mut written_bytes) = (0, 0);
    for page in 0..root.pages.len() {
        let stored = catalogue.page(&root, page).await?;
        let first = (page * PAGE_TRACTS) as u64;
        let written: Vec<u64> = stream::iter((first..).zip(stored))
            .map(|(tract, uid)| restore_tract(catalogue, &root, (tract, uid), disk, progress))
            .buffer_unordered(TRACTS_AT_ONCE)
            .try_collect()
            .await?;
        tracts += written.iter().filter(|bytes| **bytes > 0).count() as u64;
        written_bytes += written.iter().sum::<u64>();
    }
    disk.flush().await?;
    Ok(Restored {
        root,
        tracts,
        written_bytes,
    })
}

async fn restore_tract<D: BlockDevice>(
    catalogue: &Catalogue,
    root: &Root,
    (tract, uid): (u64, Uid),
    disk: &D,
    progress: &Progress,
) -> Result<u64, SnapshotError> {
    progress.done.fetch_add(1, Relaxed);
    if uid == Uid::NONE {
        return Ok(0);
    }
    let payload = catalogue.get(Kind::Tract, uid).await?;
    progress.bytes.fetch_add(payload.len() as u64, Relaxed);
    let runs =
        decode_tract(&payload, root.length(tract)).map_err(|reason| catalogue.damaged_tract(uid, reason))?;
    let geometry = disk.geometry();
    let once = (geometry.payload_bytes_max / geometry.block_bytes * geometry.block_bytes) as usize;
    let mut written = 0;
    for (at, data) in runs {
        let begin = tract * u64::from(root.tract_bytes) + at;
        for from in (0..data.len()).step_by(once) {
            let part = data.slice(from..data.len().min(from + once));
            let length = part.len() as u64;
            disk.write(begin + from as u64, part, Durability::Acknowledged)
                .await?;
            written += length;
        }
    }
    Ok(written)
}
