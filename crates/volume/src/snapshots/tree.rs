//! The tree of a snapshot, found by the file system of a handle.

use super::view::{View, snapshot_file_system_id};
use crate::{read_view::ReadView, state::Snapshot, volume::Inner};
use firn_vfs::VfsError;
use std::sync::Arc;

impl Inner {
    /// The view of the snapshot whose files have handles of this file system.
    ///
    /// # Errors
    /// `Stale` if there is no such snapshot any more; `TryAgain` while its commit is under way.
    pub(crate) fn view(&self, file_system: u64) -> Result<Arc<View>, VfsError> {
        let (snapshot, counters) = {
            let state = self.lock();
            let wanted =
                |snapshot: &&Snapshot| snapshot_file_system_id(self.volume, snapshot.id) == file_system;
            let found = state.snapshots().iter().find(wanted).cloned();
            (found.ok_or(VfsError::Stale)?, state.counters.clone())
        };
        self.snapshots.views.of(self.volume, &snapshot, &counters)
    }

    /// A view, to be asked.
    pub(crate) fn read_view_in<'a>(&'a self, view: &'a View) -> ReadView<'a> {
        ReadView {
            file_system: view.file_system,
            state: &view.state,
            ..self.read_view()
        }
    }
}
