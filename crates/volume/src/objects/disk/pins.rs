//! Pins in the disk cache: a segment that is built here is written to the local disk once.
//!
//! ```text
//! pinned and uploaded ─ attach ─→ read from unconfirmed/<name> ─ unpinned ─→ renamed to <directory>/<name> ─ evicted as any other
//! ```
//!
//! While a segment is pinned, its pin is what the cache reads, and nothing that is fetched is written there: a pin is what the segment
//! is put again from. Pinned no more, the file is the cache's.

use super::DiskCache;
use crate::objects::pinned;
use firn_env::{DiskError, DiskFile, OpenMode};
use firn_format::SegmentId;
use std::sync::Arc;

impl DiskCache {
    /// Opens the file of a segment that was pinned a moment ago, for reading only if it still is.
    pub(super) async fn open_pinned(&self, segment: SegmentId) -> Result<Arc<dyn DiskFile>, DiskError> {
        let disk = self.env.disk();
        match disk.open(&pinned::path(segment), OpenMode::Read).await {
            Err(DiskError::NotFound { .. }) => disk.open(&self.path(segment), OpenMode::ReadWrite).await,
            other => other,
        }
    }

    /// Reads a pinned segment of this length as if it were cached. `false` if the cache has a file of its own for it, or holds nothing.
    pub(in crate::objects) fn attach(&self, segment: SegmentId, length: u32) -> bool {
        self.can_hold_anything() && self.lock().insert_pinned(segment, length)
    }

    /// Forgets a pin that is about to go.
    pub(in crate::objects) fn detach(&self, segment: SegmentId) {
        let mut state = self.lock();
        if state.is_pinned(segment) {
            state.forget(segment);
        }
    }

    /// Keeps the file of what is pinned no more; `false` if it is not wanted, and the caller's to remove.
    pub(in crate::objects) async fn take_over(&self, segment: SegmentId) -> bool {
        if !self.lock().is_pinned(segment) {
            return false;
        }
        self.env.fault_point("objects.before_taking_over").await;
        let (from, to) = (pinned::path(segment), self.path(segment));
        if self.env.disk().rename(&from, &to).await.is_err() {
            self.detach(segment);
            return false;
        }
        let is_kept = self.lock().unpin(segment);
        if !is_kept {
            // Somebody cleared the cache meanwhile.
            let _ = self.env.disk().remove(&to).await;
        }
        self.evict(Some(segment)).await;
        true
    }
}
