//! Sealed bytes as they lie in segments: put into the disk cache and taken out of it, and opened where they were kept elsewhere, such
//! as in the copy of the newest checkpoint.

use super::{
    Object, Objects,
    object::{Misfit, open_object},
};
use bytes::Bytes;
use firn_format::{Location, Place, SegmentId, Uid};
use std::sync::Arc;

impl Objects {
    /// Keeps a segment just built in the disk cache: its pin is what is read there, if it has one.
    pub async fn insert_segment(&self, segment: SegmentId, parts: &[Bytes]) {
        let length: usize = parts.iter().map(Bytes::len).sum();
        if let Ok(end) = u32::try_from(length) {
            self.inner.fetcher.note_end(segment, end);
            if self.inner.pinned.holds(segment) && self.inner.attach(segment, end) {
                return;
            }
        }
        self.inner.disk.write(segment, 0, parts.to_vec()).await;
    }

    /// A segment of this length, if the disk cache has it whole; not verified.
    pub(crate) async fn cached_segment(&self, segment: SegmentId, length: u32) -> Option<Bytes> {
        let whole = Location {
            segment,
            offset: 0,
            length,
        };
        self.inner.disk.read(&whole).await
    }

    /// The sealed bytes of an object, as they lie in its segment; not verified. `None` if neither cache nor store gives them now.
    pub(crate) async fn sealed(&self, location: &Location) -> Option<Bytes> {
        if let (_, Some(bytes)) = self.inner.fetcher.touch(location) {
            return Some(bytes);
        }
        if let Some(bytes) = self.inner.disk.read(location).await {
            return Some(bytes);
        }
        let pinned = match self.inner.reads_pins {
            true => self.inner.pinned.read_object(location).await,
            false => None,
        };
        match pinned {
            Some(bytes) => Some(bytes),
            None => self.inner.fetcher.fetch_uncached(location).await.ok(),
        }
    }

    /// Verifies and opens sealed bytes that were kept elsewhere.
    ///
    /// # Errors
    /// In words, if they are not the object that `uid` names at `place`, or the keys do not open it.
    pub(crate) fn open_kept(&self, bytes: Bytes, uid: &Uid, place: Place) -> Result<Arc<Object>, String> {
        open_object(&self.inner.opener, bytes, uid, Some(place)).map_err(|misfit| match misfit {
            Misfit::Damaged(detail) | Misfit::Unusable(detail) => detail,
            Misfit::NoKey { epoch, .. } => {
                format!("it is sealed under the key of epoch {epoch}, which is not at hand")
            }
        })
    }
}
