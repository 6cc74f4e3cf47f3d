//! Snapshots in a checkpoint: journaled at its freeze, answered after its commit.

use super::{
    info::{SnapshotError, SnapshotInfo},
    registry::{Frozen, check_new},
};
use crate::{
    record::{Operation, Record},
    state::State,
    volume::Inner,
};

impl Inner {
    /// Journals the snapshots that are waited for; the caller freezes the state under the same lock.
    pub(crate) fn begin_snapshots(&self, state: &mut State) -> Vec<Frozen> {
        let waiting = self.snapshots.take_waiting();
        let mut frozen = Vec::with_capacity(waiting.len());
        for one in waiting {
            // A volume that stops may have closed its journal already: a record appended now would be lost with the promise
            // that everything before the stop is kept.
            let begun = self.check_serving().map_err(SnapshotError::from);
            if let Err(error) = begun.and_then(|()| check_new(state, &one.name)) {
                // Nobody may be waiting any more.
                let _ = one.answer.send(Err(error));
                continue;
            }
            let id = self.new_snapshot_id(state);
            let made = Operation::CreateSnapshot {
                id,
                name: one.name,
                created_ms: self.env.wall().as_millis(),
                protected_until_ms: one.protected_until_ms,
            };
            let record = Record::new(None, self.now(), made);
            self.journal_and_apply(state, &record, one.reservation, &None);
            self.env.observe("volume.snapshot_created", id);
            frozen.push(Frozen {
                id,
                answer: one.answer,
            });
        }
        frozen
    }

    fn new_snapshot_id(&self, state: &State) -> u64 {
        loop {
            let id = u64::from_le_bytes(self.env.random_bytes());
            if id != 0 && state.snapshots().iter().all(|snapshot| snapshot.id != id) {
                return id;
            }
        }
    }

    /// Tells those who wait that their snapshots are committed.
    pub(crate) fn end_snapshots(&self, frozen: Vec<Frozen>) {
        for one in frozen {
            let state = self.lock();
            let found = state.snapshots().iter().find(|snapshot| snapshot.id == one.id);
            // It may have been deleted since it was frozen.
            let info = found.map(SnapshotInfo::from).ok_or(SnapshotError::Unknown);
            drop(state);
            let _ = one.answer.send(info);
        }
    }
}
