//! Following moved objects: from a segment that is gone, or damaged, to where forwarding records say that its objects went.

use super::{
    Inner, Misfit, Object, Objects, ReadError, fetch::Refusal, forwarding::HOPS_MAX, object::trusting,
    read_error,
};
use firn_format::{Location, Place, Pointer, SegmentId};
use firn_store::StoreError;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

impl Objects {
    /// Where the objects of a retired segment went, by its forwarding records; none: nothing of it was needed, or nothing is known.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) async fn forwarded_to(&self, segment: SegmentId) -> Result<BTreeSet<SegmentId>, StoreError> {
        self.inner.fetcher.forwarding().targets(segment).await
    }
}

impl Inner {
    /// The object of a segment that is not there: looked for where the cleaner says it went (`places`: as far as that is known).
    pub(super) async fn load_moved(
        self: &Arc<Self>,
        pointer: &Pointer,
        place: Place,
        places: Vec<Location>,
    ) -> Result<Arc<Object>, ReadError> {
        self.follow(pointer, place, places, false).await
    }

    /// The same also for a segment that is there and damaged (`is_there`).
    pub(super) async fn follow(
        self: &Arc<Self>,
        pointer: &Pointer,
        place: Place,
        mut places: Vec<Location>,
        is_there: bool,
    ) -> Result<Arc<Object>, ReadError> {
        let segment = pointer.location.segment;
        let unavailable = |error: StoreError| ReadError::Unavailable {
            segment,
            detail: error.to_string(),
        };
        let forwarding = self.fetcher.forwarding();
        let mut seen = BTreeSet::from([pointer.location]);
        if places.is_empty() {
            places = forwarding.find(&pointer.location).await.map_err(unavailable)?;
            if places.is_empty() && !is_there && forwarding.remembered(&pointer.location).is_none() {
                self.fetcher.note_absent(segment);
            }
        }
        let mut places = VecDeque::from(places);
        for _ in 0..HOPS_MAX {
            let Some(next) = places.pop_front() else { break };
            if !seen.insert(next) {
                continue;
            }
            let moved = Pointer {
                location: next,
                ..*pointer
            };
            if let Some(object) = self.load_from_disk(&moved, place).await {
                return Ok(object);
            }
            match self.fetcher.fetch_uncached(&next).await {
                Ok(bytes) => {
                    let opened = if firn_env::planted!("volume.forward_unverified") {
                        trusting(&self.opener, bytes.clone())
                    } else {
                        self.open(bytes.clone(), &moved, place).await
                    };
                    match opened {
                        Ok(object) => {
                            self.lock().counters.forwarded += 1;
                            self.disk.write(next.segment, next.offset, vec![bytes]).await;
                            return Ok(object);
                        }
                        Err(Misfit::NoKey { epoch, newest }) => {
                            return Err(ReadError::KeyNotAtHand { place, epoch, newest });
                        }
                        Err(Misfit::Damaged(detail) | Misfit::Unusable(detail)) => {
                            tracing::warn!(%place, %next, detail, "a forwarding record leads to something else; ignored");
                            self.lock().counters.false_forwards += 1;
                        }
                    }
                }
                Err(Refusal::Store(StoreError::NotFound { .. })) => {
                    // Moved on.
                    places.extend(forwarding.find(&next).await.map_err(unavailable)?);
                }
                Err(refusal) => drop(read_error(refusal, &next, place)?),
            }
        }
        Err(ReadError::Missing { segment, place })
    }
}
