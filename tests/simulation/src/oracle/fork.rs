//! A takeover leaves two lines of history, and so does a clone; each has a judge.

use super::{Change, Oracle, read_model};
use std::collections::{BTreeMap, BTreeSet};

impl Oracle {
    /// A judge of the clone that is made of a snapshot now: it shows what the snapshot shows, and goes on from there.
    pub fn of_clone(&self, snapshot: u64) -> Option<Self> {
        let change = self.made_with(snapshot)?;
        let there = self.candidate(change);
        let exists: BTreeSet<u64> = read_model(&there)
            .nodes
            .values()
            .map(|(handle, _)| handle.inode)
            .collect();
        let mut clone = self.fork();
        clone.base = there.snapshot();
        clone.model.restore(&clone.base);
        clone.changes.clear();
        // Numbers of files that are not in it were given elsewhere, and may be given here.
        clone.pairing.keep(|model| exists.contains(&model), |_| true);
        clone.begins_anew();
        Some(clone)
    }

    /// What is there now is in the cloud, and a branch without snapshots or a past.
    pub fn begins_anew(&mut self) {
        self.snapshots.clear();
        self.acknowledged.clear();
        self.floor = self.changes.len();
        self.cloud_floor = self.changes.len();
    }

    /// A second judge in the same state, for the branch that a takeover leaves behind.
    pub fn fork(&self) -> Self {
        Self {
            env: self.env.clone(),
            model: self.model.fork(),
            pairing: self.pairing.clone(),
            base: self.base.clone(),
            changes: self
                .changes
                .iter()
                .map(|change| Change {
                    after: change.after.clone(),
                    request: change.request,
                    created: change.created,
                    written: change.written,
                    client: change.client,
                    description: change.description.clone(),
                })
                .collect(),
            snapshots: self.snapshots.clone(),
            floor: self.floor,
            cloud_floor: self.cloud_floor,
            pending: BTreeMap::new(),
            next_call: self.next_call + 1_000_000,
            acknowledged: self.acknowledged.clone(),
            requests_remembered: self.requests_remembered,
            failures: Vec::new(),
            log: self.log.as_ref().map(|_| Vec::new()),
            counts: BTreeMap::new(),
        }
    }
}
