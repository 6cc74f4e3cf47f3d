//! Snapshots that are being read: for each a state of its own, loaded from the snapshot's tree.
//!
//! A view shares the volume's caches of objects, so what live tree and snapshot have in common is fetched once. Few views are
//! kept, the longest unused is dropped first; opening one again costs nothing but what it loads.

use crate::{
    read,
    read_view::ReadView,
    state::{Snapshot, State},
    volume::Inner,
};
use firn_format::VolumeId;
use firn_vfs::{Caller, FileHandle, ReadReply, VfsError, rules};
use std::sync::{Arc, Mutex, MutexGuard};

/// Views kept open: users look at one or two snapshots at a time, a comparison at a few more.
const VIEWS_MAX: usize = 8;

/// A snapshot being read.
pub(crate) struct View {
    pub id: u64,
    state: Mutex<State>,
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

    /// Forgets all views, as a drop of the caches does.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

impl Inner {
    /// The view of the snapshot whose files have handles of this file system.
    ///
    /// # Errors
    /// `Stale` if there is no such snapshot any more; `TryAgain` while its commit is under way.
    pub(crate) fn view(&self, file_system: u64) -> Result<Arc<View>, VfsError> {
        let snapshot = {
            let state = self.lock();
            let wanted =
                |snapshot: &&Snapshot| snapshot_file_system_id(self.volume, snapshot.id) == file_system;
            state
                .snapshots()
                .iter()
                .find(wanted)
                .cloned()
                .ok_or(VfsError::Stale)?
        };
        self.view_of(&snapshot)
    }

    /// The view of a snapshot.
    ///
    /// # Errors
    /// `TryAgain` while its commit is under way.
    pub(crate) fn view_of(&self, snapshot: &Snapshot) -> Result<Arc<View>, VfsError> {
        let retained = snapshot.retained.ok_or(VfsError::TryAgain {
            reason: "the snapshot is being made",
        })?;
        // By place too: the cleaner may have moved it since the view was opened.
        let same = |view: &View| view.id == snapshot.id && view.lock().inode_map == Some(retained.inode_map);
        if let Some(view) = self.views.find(same) {
            return Ok(view);
        }
        let counters = self.lock().counters.clone();
        let file_system = snapshot_file_system_id(self.volume, snapshot.id);
        let view = Arc::new(View {
            id: snapshot.id,
            state: Mutex::new(State::unchanging(file_system, counters, retained.inode_map)),
        });
        self.views.add(view.clone());
        Ok(view)
    }

    /// A view, to be asked.
    pub(crate) fn shown_in<'a>(&'a self, view: &'a View) -> ReadView<'a> {
        ReadView {
            state: &view.state,
            ..self.shown()
        }
    }
}

impl View {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under a view's lock")
    }
}

impl ReadView<'_> {
    /// Reads a file of a tree that nobody changes; the bytes of `length_bytes` are bounded by the caller.
    pub async fn read_unchanging(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        let number = self.number(file)?;
        let (attributes, end, pieces) = self
            .ask(|state| {
                let seen = state.see(number)?;
                rules::may_read(seen.subject(), &caller.credentials)?;
                let size = seen.attributes.size_bytes;
                let start = offset.min(size);
                let end = offset
                    .saturating_add(u64::from(length_bytes))
                    .min(size)
                    .max(start);
                let entry = state.entry(number)?.ok_or(VfsError::Stale)?;
                let pieces = read::plan(&[&entry.active], &entry.content, start, end);
                Ok((seen.attributes, end, pieces))
            })
            .await?;
        Ok(ReadReply {
            data: self.resolve_committed(number, pieces).await?,
            end_of_file: end >= attributes.size_bytes,
            attributes,
        })
    }
}
