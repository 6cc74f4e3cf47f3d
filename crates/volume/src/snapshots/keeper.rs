//! The keeper: makes and deletes snapshots by a policy.
//!
//! It acts after commits and at no other time, so an idle volume stays idle (I9): what was not written to has nothing new to keep.
//! What goes wrong is tried again after the next commit. The policy may change while the volume is served: the next commit goes by the
//! new one, and deletes what that keeps no longer.

use super::{
    info::SnapshotError,
    retention::{AUTOMATIC, RetentionPolicy},
};
use crate::{
    serving::ServingState,
    volume::{Inner, Volume},
};
use firn_env::{Monotonic, Task};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// The policy by which a volume's snapshots are made and deleted; none: nothing is. Cheap to clone: all clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct KeptPolicy(Arc<Mutex<Option<RetentionPolicy>>>);

impl KeptPolicy {
    /// From the next commit on.
    pub fn set(&self, policy: Option<RetentionPolicy>) {
        *self.0.lock().expect("no panic under this lock") = policy;
    }

    fn get(&self) -> Option<RetentionPolicy> {
        self.0.lock().expect("no panic under this lock").clone()
    }
}

impl Volume {
    /// Makes and deletes snapshots by `policy` until the volume stops serving or the task is dropped with its abort called.
    pub fn keep_snapshots(&self, policy: &KeptPolicy) -> Task<()> {
        let keeper = Keeper {
            inner: self.inner.clone(),
            policy: policy.clone(),
            applied: None,
            last: None,
            written_before: self.inner.lock().written_bytes(),
        };
        self.inner.env.spawn("snapshot keeper", keeper.run())
    }
}

struct Keeper {
    inner: Arc<Inner>,
    policy: KeptPolicy,
    /// The policy that deleted last.
    applied: Option<RetentionPolicy>,
    /// When the last snapshot was made here.
    last: Option<Monotonic>,
    /// Bytes written until then.
    written_before: u64,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let inner = self.inner.clone();
            let committed = inner.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            if !matches!(inner.serving.now(), ServingState::Serving) {
                return;
            }
            committed.await;
            self.after_commit().await;
        }
    }

    async fn after_commit(&mut self) {
        let volume = Volume::new(self.inner.clone());
        let Some(policy) = self.policy.get() else {
            return;
        };
        let written = self.inner.lock().written_bytes();
        let is_due = policy.is_due(self.since_last(), written.saturating_sub(self.written_before));
        if is_due && !self.make(&volume, &policy, written).await {
            return;
        }
        if !is_due && self.applied.as_ref() == Some(&policy) {
            return;
        }
        let all = volume.snapshots();
        for expired in policy.expired(&all, self.inner.env.wall().as_millis()) {
            if let Err(error) = volume.snapshot_delete(&expired.name).await {
                tracing::warn!(%error, "a snapshot that is kept no longer is still there");
            }
        }
        self.applied = Some(policy);
    }

    /// Makes a snapshot; `false` if it has to be tried again before anything is deleted.
    async fn make(&mut self, volume: &Volume, policy: &RetentionPolicy, written: u64) -> bool {
        let name = policy.name(self.inner.env.wall().as_millis());
        match volume.snapshot_create(name.clone(), 0).await {
            Ok(_) | Err(SnapshotError::Exists { .. }) => {
                (self.last, self.written_before) = (Some(self.inner.env.now()), written);
            }
            Err(SnapshotError::TooMany) => {
                tracing::warn!("no snapshot was made: the volume has as many as it can have");
            }
            Err(error) => {
                tracing::warn!(%error, name, "no snapshot was made; tried again after the next commit");
                return false;
            }
        }
        true
    }

    /// How long ago the newest snapshot of the policy was made; by the wall clock if that was before this start.
    fn since_last(&self) -> Duration {
        if let Some(last) = self.last {
            return self.inner.env.now().since(last);
        }
        let state = self.inner.lock();
        let own = state.snapshots().iter().rev();
        let newest = own
            .filter(|one| one.name.starts_with(AUTOMATIC.as_bytes()))
            .map(|one| one.created_ms)
            .max();
        let Some(newest) = newest else {
            return Duration::MAX;
        };
        let ago_ms = self.inner.env.wall().as_millis().saturating_sub(newest);
        // A snapshot from the future: a clock was wrong once. It counts as old, so that snapshots go on.
        u64::try_from(ago_ms).map_or(Duration::MAX, Duration::from_millis)
    }
}
