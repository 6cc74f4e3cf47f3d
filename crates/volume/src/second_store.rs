//! The second store of a volume, for whoever keeps it and repairs from it: what this machine has of a segment, and which segments readers
//! found to be lost.

use crate::{checkpoint::kept_here, objects::SecondReads, volume::Volume};
use bytes::Bytes;
use firn_format::SegmentId;

impl Volume {
    /// A segment as it was put, if this machine has it whole; not verified.
    pub async fn segment_here(&self, segment: SegmentId, bytes: u64) -> Option<Bytes> {
        kept_here(&self.inner.objects, segment, bytes).await
    }

    /// What was read from the second store; `None` without one.
    pub fn second_reads(&self) -> Option<SecondReads> {
        self.inner.objects.second_reads()
    }

    /// Segments that readers found lost or altered since the start, whether the second store answered for them or nobody.
    pub fn lost_segments(&self) -> Vec<SegmentId> {
        self.inner.objects.lost_segments()
    }

    /// It was repaired, or is there again: the first store is asked.
    pub fn forget_lost(&self, segment: SegmentId) {
        self.inner.objects.forget_lost(segment);
    }
}
