//! The second store of a volume, for whoever keeps it and repairs from it: what this machine has of a segment, and which segments readers
//! and read-back found to be lost or altered.

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

    /// Segments that the store acknowledged and has with other bytes than were put: they are read from this machine.
    pub fn altered_segments(&self) -> Vec<SegmentId> {
        self.inner.checkpointer.packer.progress.uploads.altered()
    }

    /// A segment as it was put, if this machine keeps it until the store was seen to have it; not verified.
    pub async fn pinned_segment(&self, segment: SegmentId) -> Option<Bytes> {
        self.inner.objects.pinned_segment(segment).await
    }

    /// What is needed of it lies elsewhere, or nothing is: nobody asks for it any more.
    pub async fn was_relocated(&self, segment: SegmentId) {
        self.inner.objects.forget_lost(segment);
        self.inner
            .checkpointer
            .packer
            .progress
            .uploads
            .was_retired(segment);
        self.inner.objects.unpin(segment).await;
    }
}
