//! `.snapshots`: the snapshots as directories that can only be read, for every protocol.
//!
//! It is one more name at the root of the volume, of a directory that is nowhere stored; each of its entries is the root
//! directory of a snapshot. By default a listing of the root does not show it, so that a backup of the root or an `rm -r` does
//! not walk into it; looking it up always works.
//!
//! Numbers of file systems follow from the volume's and the snapshot's ids, so handles stay valid over restarts. Which of the
//! trees a handle is of stands in [`crate::filesystem::place`].

mod listing;
mod names;

pub(crate) use names::SnapshotNames;

use super::view::snapshot_file_system_id;
use crate::{
    state::Snapshot,
    volume::{Inner, Volume},
};
use firn_format::ROOT_DIRECTORY;
use firn_vfs::{Attributes, FileHandle, FileKind, Timestamp, VfsError};

/// The name at the root of an export under which its snapshots are.
pub const SNAPSHOTS_DIRECTORY: &str = ".snapshots";

/// The inode of `.snapshots`.
const DIRECTORY_INODE: u64 = 1;

/// Everyone may look; nobody may change.
const DIRECTORY_MODE: u32 = 0o555;

impl Volume {
    /// The same volume with `.snapshots` in listings of its root.
    #[must_use]
    pub fn listing_snapshots(&self) -> Self {
        Self {
            lists_snapshots: true,
            ..self.clone()
        }
    }

    /// The same volume with the snapshots under their times, `@GMT-2026.01.31-23.59.59` as SMB clients ask for them; of those made
    /// within one second, the newest. Their own names lead to them as well.
    #[must_use]
    pub fn naming_snapshots_by_time(&self) -> Self {
        Self {
            snapshot_names: SnapshotNames::Time,
            ..self.clone()
        }
    }

    /// The same volume with a snapshot as its root, for a share of its own.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name.
    pub fn rooted_in_snapshot(&self, name: &[u8]) -> Result<Self, VfsError> {
        let state = self.inner.lock();
        let snapshot = state.snapshot_named(name).ok_or(VfsError::NotFound)?;
        Ok(Self {
            root: self.inner.snapshot_root(snapshot),
            ..self.clone()
        })
    }
}

impl Inner {
    pub(crate) fn snapshots_handle(&self) -> FileHandle {
        FileHandle {
            file_system: self.snapshots.directory_file_system,
            inode: DIRECTORY_INODE,
        }
    }

    pub(crate) fn snapshots_attributes(&self) -> Result<Attributes, VfsError> {
        self.check_serving()?;
        let state = self.lock();
        let newest = state.snapshots().iter().map(|snapshot| snapshot.created_ms).max();
        let changed = Timestamp::from_nanos(newest.unwrap_or(0).saturating_mul(1_000_000));
        Ok(Attributes {
            inode: DIRECTORY_INODE,
            kind: FileKind::Directory,
            mode: DIRECTORY_MODE,
            links: 2 + u32::try_from(state.snapshots().len()).unwrap_or(u32::MAX - 2),
            uid: 0,
            gid: 0,
            size_bytes: 4096,
            used_bytes: 0,
            accessed: changed,
            modified: changed,
            changed,
            born: Timestamp::default(),
            // Differs whenever the list does: a creation changes the sum of ids, and so does a deletion.
            change: state
                .snapshots()
                .iter()
                .fold(1, |sum, snapshot| snapshot.id.wrapping_add(sum)),
            file_system: self.snapshots.directory_file_system,
        })
    }

    /// The root directory of the snapshot of this name.
    pub(crate) async fn snapshot_by_name(
        &self,
        name: &[u8],
        names: SnapshotNames,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let found = {
            let state = self.lock();
            let named = state.snapshot_named(name);
            named.or_else(|| names.find(state.snapshots(), name)).cloned()
        };
        self.see_snapshot(&found.ok_or(VfsError::NotFound)?).await
    }

    async fn see_snapshot(&self, snapshot: &Snapshot) -> Result<(FileHandle, Attributes), VfsError> {
        let handle = self.snapshot_root(snapshot);
        self.check_serving()?;
        let view = self.view(handle.file_system)?;
        Ok((handle, self.read_view_in(&view).see(handle).await?))
    }

    fn snapshot_root(&self, snapshot: &Snapshot) -> FileHandle {
        FileHandle {
            file_system: snapshot_file_system_id(self.volume, snapshot.id),
            inode: ROOT_DIRECTORY,
        }
    }
}
