//! A takeover leaves two lines of history; each has a judge.

use super::{Change, Oracle};
use std::collections::BTreeMap;

impl Oracle {
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
