//! Volume status, as `status`, `top` and `/metrics` show it.

use crate::{
    checkpoint::{LostSegments, ReadBackStatus},
    cloud_durability::CloudWaitStatus,
    follower::FollowStatus,
    journal::JournalStatistics,
    merge::state::MergeStatus,
    objects::{KnownDamage, ObjectsStatistics},
    serving::ServingState,
    volume::Volume,
};
use std::{sync::atomic::Ordering, time::Duration};

/// A moment of a volume. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// How it stands.
    pub serving_state: ServingState,
    /// It was opened while the cloud was away: nothing is committed before it is opened anew.
    pub detached: bool,
    /// Another edge owns it, and it is only read here.
    pub following: Option<FollowStatus>,
    /// Since it was opened.
    pub up: Duration,
    /// Inodes.
    pub files: u64,
    /// Data, as `df` counts it.
    pub used_bytes: u64,
    /// What `df` shows as the size.
    pub quota_bytes: u64,
    /// What would add data or names is refused ([`Volume::set_quota_reached`]).
    pub quota_reached: bool,
    /// Written since the last freeze: level 1 (journal) only.
    pub dirty_bytes: u64,
    /// Inodes changed since the last freeze.
    pub dirty_inodes: u64,
    /// Written data kept in memory.
    pub dirty_memory_bytes: u64,
    /// Inodes in memory.
    pub loaded_inodes: u64,
    /// Age of the oldest change that is not yet at level 2 (cloud).
    pub oldest_uncommitted: Option<Duration>,
    /// Checkpoints committed since the start.
    pub checkpoints: u64,
    /// When the newest root was committed, milliseconds since 1970.
    pub last_commit_ms: Option<i64>,
    /// A checkpoint is being built or uploaded.
    pub building: bool,
    /// Segments uploaded since the start.
    pub uploaded_segments: u64,
    /// Bytes of them.
    pub uploaded_bytes: u64,
    /// Failed upload tries since the last success.
    pub upload_failures: u64,
    /// Why the last try failed, if it did.
    pub last_error: Option<String>,
    /// What the store acknowledged and turned out not to have.
    pub lost_segments: Option<LostSegments>,
    /// How the read-back of uploads stands.
    pub read_back: ReadBackStatus,
    /// The journal.
    pub journal: JournalStatistics,
    /// Caches and fetches.
    pub objects: ObjectsStatistics,
    /// What is damaged or missing in the store as far as readers met it, and how much more they met.
    pub damages: (Vec<KnownDamage>, u64),
    /// Snapshots.
    pub snapshots: u64,
    /// What was taken over from the cleaner since the start.
    pub merging: MergeStatus,
    /// Calls that are answered at level 2.
    pub cloud_waits: CloudWaitStatus,
}

impl Volume {
    /// A moment of the volume; takes no request and no I/O.
    pub fn status(&self) -> VolumeStatus {
        let inner = &self.inner;
        let now = inner.env.now();
        let times = inner.checkpointer.times().clone();
        let oldest = times.frozen_since.into_iter().chain(times.dirty_since).min();
        let progress = &inner.checkpointer.packer.progress;
        let upload_error = progress
            .last_error
            .lock()
            .expect("no panic under this lock")
            .clone();
        let serving_state = inner.serving.now();
        let cloud_waits = inner.cloud_wait_status();
        let state = inner.lock();
        VolumeStatus {
            serving_state,
            detached: inner.checkpointer.own().is_none()
                && inner.follower.is_none()
                && inner.by_inode.is_none(),
            following: inner.follower.as_ref().map(|follower| follower.status(now)),
            up: now.since(inner.started),
            files: state.counters.files,
            used_bytes: state.counters.used_bytes,
            quota_bytes: inner.config.quota_bytes,
            quota_reached: state.quota_reached,
            dirty_bytes: state.dirty_bytes(),
            dirty_inodes: state.dirty_inodes() as u64,
            dirty_memory_bytes: state.resident().bytes(),
            loaded_inodes: state.loaded_inodes() as u64,
            oldest_uncommitted: oldest.map(|since| now.since(since)),
            checkpoints: times.committed,
            last_commit_ms: times.last_commit_ms,
            building: times.building,
            uploaded_segments: progress.segments.load(Ordering::Relaxed),
            uploaded_bytes: progress.bytes.load(Ordering::Relaxed),
            upload_failures: progress.failures.load(Ordering::Relaxed),
            last_error: upload_error.or(times.last_error),
            lost_segments: progress.uploads.lost(&inner.checkpointer.packer.family),
            read_back: ReadBackStatus {
                pinned_bytes: inner.objects.pinned_bytes(),
                ..progress.uploads.read_back(&inner.checkpointer.packer.family)
            },
            journal: inner.journal.statistics(),
            objects: inner.objects.statistics(),
            damages: inner.objects.damages().known(),
            snapshots: state.snapshots().len() as u64,
            merging: inner.checkpointer.merge_status().clone(),
            cloud_waits,
        }
    }

    /// Waits until the volume stops serving for good, and says why: fenced, failed or stopped.
    pub async fn ended(&self) -> ServingState {
        self.inner.serving.ended().await
    }

    /// Drops every cached copy of what is committed, in memory and on disk, as after a long time: for tests and benchmarks.
    pub async fn drop_caches(&self) {
        self.inner.lock().drop_clean();
        self.inner.snapshots.views.clear();
        self.inner.objects.drop_caches().await;
    }
}
