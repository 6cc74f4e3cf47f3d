//! Segments that this incarnation of a writer has packed to their end, by whichever packer, until the manifest takes them.

use firn_format::ListedSegment;
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

/// Shared by the packers of one incarnation.
#[derive(Clone, Default)]
pub struct FinishedSegments {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Hashing costs a millisecond a segment, and a volume without a manifest has no use for it.
    is_wanted: AtomicBool,
    listed: Mutex<Vec<ListedSegment>>,
}

impl FinishedSegments {
    fn lock(&self) -> MutexGuard<'_, Vec<ListedSegment>> {
        self.shared.listed.lock().expect("no panic under this lock")
    }

    /// From now on they are noted.
    pub fn want(&self) {
        self.shared.is_wanted.store(true, Ordering::Relaxed);
    }

    /// From now on they are not.
    pub fn unwant(&self) {
        self.shared.is_wanted.store(false, Ordering::Relaxed);
        self.lock().clear();
    }

    pub fn is_wanted(&self) -> bool {
        self.shared.is_wanted.load(Ordering::Relaxed)
    }

    pub fn note(&self, listed: ListedSegment) {
        self.lock().push(listed);
    }

    /// All that were noted since the last time.
    pub fn take(&self) -> Vec<ListedSegment> {
        std::mem::take(&mut self.lock())
    }
}
