//! Snapshots that are being read: for each a state of its own, loaded from the snapshot's tree.
//!
//! A view shares the volume's caches of objects, so what live tree and snapshot have in common is fetched once. Few views are
//! kept, the longest unused is dropped first; opening one again costs nothing but what it loads.

use crate::state::{Snapshot, State, VolumeCounters};
use firn_format::VolumeId;
use firn_vfs::VfsError;
use std::sync::{Arc, Mutex, MutexGuard};

/// Views kept open: users look at one or two snapshots at a time, a comparison at a few more.
const VIEWS_MAX: usize = 8;

/// A snapshot being read.
pub(crate) struct View {
    id: u64,
    /// Names the snapshot's tree to protocols.
    pub file_system: u64,
    pub state: Mutex<State>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct SnapshotViews {
    /// Most recently used last.
    open: Mutex<Vec<Arc<View>>>,
}

/// The number by which protocols know a snapshot: stable over restarts, and different for different snapshots.
pub(crate) fn snapshot_file_system_id(volume: VolumeId, id: u64) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("firn snapshot file system id v1");
    hasher.update(&volume.0).update(&id.to_le_bytes());
    u64::from_le_bytes(
        hasher.finalize().as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

/// The number by which protocols know `.snapshots`: stable over restarts.
pub(super) fn directory_file_system_id(volume: VolumeId) -> u64 {
    let hash = blake3::derive_key("firn directory of snapshots file system id v1", &volume.0);
    u64::from_le_bytes(hash[..8].try_into().expect("a hash has 32 bytes"))
}

impl SnapshotViews {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<View>>> {
        self.open.lock().expect("no panic under the lock of the views")
    }

    fn find(&self, wanted: impl Fn(&View) -> bool) -> Option<Arc<View>> {
        let mut open = self.lock();
        let at = open.iter().position(|view| wanted(view))?;
        let view = open.remove(at);
        open.push(view.clone());
        Some(view)
    }

    fn add(&self, view: Arc<View>) {
        let mut open = self.lock();
        if open.len() >= VIEWS_MAX {
            open.remove(0);
        }
        open.push(view);
    }

    /// The view of a snapshot of `volume`, opened if it is not; `counters` are those of the live tree.
    ///
    /// # Errors
    /// `TryAgain` while its commit is under way.
    pub fn of(
        &self,
        volume: VolumeId,
        snapshot: &Snapshot,
        counters: &VolumeCounters,
    ) -> Result<Arc<View>, VfsError> {
        let retained = snapshot.retained.ok_or(VfsError::TryAgain {
            reason: "the snapshot is being made",
        })?;
        // By place too: the cleaner may have moved it since the view was opened.
        let same = |view: &View| view.id == snapshot.id && view.lock().inode_map == Some(retained.inode_map);
        if let Some(view) = self.find(same) {
            return Ok(view);
        }
        let file_system = snapshot_file_system_id(volume, snapshot.id);
        let view = Arc::new(View {
            id: snapshot.id,
            file_system,
            state: Mutex::new(State::unchanging(
                file_system,
                counters.clone(),
                retained.inode_map,
            )),
        });
        self.add(view.clone());
        Ok(view)
    }

    /// Forgets all views, as a drop of the caches does.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

impl View {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under a view's lock")
    }
}
