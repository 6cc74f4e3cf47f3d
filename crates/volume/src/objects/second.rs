//! The second store: where a reader looks for an object that the first has lost or altered, after everything else.
//!
//! ```text
//! caches → first store (twice) → forwarding records → second store: at its place, then where its records lead → damage
//! ```
//!
//! What is read is verified by its uid like anything else, and kept in the disk cache under the place of the pointer. A segment that had to be
//! read from here is remembered for [`LOST_FOR`], so that its other objects do not wait for the first store to show it. A second store that
//! does not answer within [`ANSWER_WITHIN`] is left alone for [`AWAY_FOR`]: then damage is an error at once, as it is without one.

use super::{Inner, Object, ReadError, forwarding::Forwarding, object::Misfit};
use bytes::Bytes;
use firn_env::{Env, Monotonic};
use firn_format::{FamilyId, Location, Place, Pointer, SegmentId};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Longer than any store takes that is there; within what a client waits for.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long nobody asks a second store that did not answer.
const AWAY_FOR: Duration = Duration::from_secs(30);

/// How long the first store is not asked for a segment that it had lost: whoever brings it back waits no longer than this.
const LOST_FOR: Duration = Duration::from_secs(600);

/// Lost segments remembered, of some 40 bytes each.
const SEGMENTS_MAX: usize = 1 << 14;

/// Places looked at for one object.
const PLACES_MAX: usize = 8;

/// What was read from the second store since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecondReads {
    /// Objects that only it had.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that it did not have, either.
    pub failures: u64,
    /// Segments of the first store that they belong to.
    pub segments: u64,
}

#[derive(Default)]
struct State {
    reads: SecondReads,
    /// With the time of the last object that was read of each.
    lost: BTreeMap<SegmentId, Monotonic>,
    away_until: Option<Monotonic>,
}

/// See the module.
pub(super) struct Second {
    env: Env,
    store: Arc<dyn Store>,
    family: FamilyId,
    forwarding: Forwarding,
    state: Mutex<State>,
}

impl Second {
    pub(super) fn new(env: &Env, store: Arc<dyn Store>, family: FamilyId) -> Self {
        Self {
            env: env.clone(),
            forwarding: Forwarding::new(store.clone(), family),
            store,
            family,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the second store's lock")
    }

    pub(super) fn reads(&self) -> SecondReads {
        let state = self.lock();
        SecondReads {
            segments: state.lost.len() as u64,
            ..state.reads.clone()
        }
    }

    /// Segments that had to be read from here.
    pub(super) fn lost(&self) -> Vec<SegmentId> {
        self.lock().lost.keys().copied().collect()
    }

    /// It was repaired.
    pub(super) fn forget(&self, segment: SegmentId) {
        self.lock().lost.remove(&segment);
    }

    /// Whether the first store need not be asked.
    pub(super) fn is_lost(&self, segment: SegmentId) -> bool {
        let now = self.env.now();
        let lost = self.lock().lost.get(&segment).copied();
        lost.is_some_and(|at| now.since(at) < LOST_FOR)
    }

    fn is_away(&self) -> bool {
        let now = self.env.now();
        self.lock().away_until.is_some_and(|until| now < until)
    }

    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
        match self.env.timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(StoreError::NotFound { .. })) => None,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the second store does not answer for what the first has lost");
                None
            }
            Err(_) => {
                self.lock().away_until = Some(self.env.now().after(AWAY_FOR));
                tracing::warn!(
                    "the second store does not answer within {ANSWER_WITHIN:?}; it is left alone for {AWAY_FOR:?}"
                );
                None
            }
        }
    }

    async fn read(&self, location: &Location) -> Option<Bytes> {
        let key = ObjectKey::new(&location.segment.key(&self.family));
        let (offset, length) = (u64::from(location.offset), u64::from(location.length));
        let bytes = self.in_time(self.store.get_range(&key, offset, length)).await?;
        (bytes.len() as u64 == length).then_some(bytes)
    }

    /// One object of a segment was had from here.
    fn note(&self, segment: SegmentId, bytes: u64) {
        let now = self.env.now();
        let mut state = self.lock();
        state.reads.objects += 1;
        state.reads.bytes += bytes;
        let is_new = !state.lost.contains_key(&segment);
        if !is_new || state.lost.len() < SEGMENTS_MAX {
            state.lost.insert(segment, now);
        }
        drop(state);
        if is_new {
            tracing::warn!(%segment, "the first store has lost or altered this segment; it is read from the second. `firn-edge repair` writes it anew");
        }
    }
}

impl Inner {
    /// The object from the second store, if there is one that has it.
    pub(super) async fn load_second(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let second = self.second.as_ref()?;
        if second.is_away() || firn_env::planted!("volume.second_store_not_read") {
            return None;
        }
        let location = pointer.location;
        let mut places = vec![location];
        let known = self.fetcher.forwarding().remembered(&location);
        places.extend(known.unwrap_or_default());
        let mut has_asked = false;
        let mut at = 0;
        while let Some(next) = places.get(at).copied() {
            at += 1;
            if let Some(bytes) = second.read(&next).await {
                let moved = Pointer {
                    location: next,
                    ..*pointer
                };
                let opened = if firn_env::planted!("volume.second_store_trusted") {
                    super::object::trusting(&self.opener, bytes.clone())
                } else {
                    self.open(bytes.clone(), &moved, place).await
                };
                match opened {
                    Ok(object) => {
                        second.note(location.segment, u64::from(location.length));
                        self.disk.write(next.segment, next.offset, vec![bytes]).await;
                        return Some(object);
                    }
                    Err(Misfit::NoKey { .. } | Misfit::Damaged(_) | Misfit::Unusable(_)) => {
                        tracing::debug!(%place, %next, "the second store has something else there");
                    }
                }
            }
            // Its records are asked for last: an object that was not moved has none.
            if at == places.len() && !has_asked && !second.is_away() {
                has_asked = true;
                let found = second.in_time(second.forwarding.find(&location)).await;
                for place in found.unwrap_or_default() {
                    if places.len() < PLACES_MAX && !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
        second.lock().reads.failures += 1;
        None
    }

    /// The same for an object of a segment that the first store is known to have lost.
    pub(super) async fn load_lost(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let second = self.second.as_ref()?;
        match second.is_lost(pointer.location.segment) {
            true => self.load_second(pointer, place).await,
            false => None,
        }
    }
}

impl super::Objects {
    /// What was read from the second store; `None` without one.
    pub fn second_reads(&self) -> Option<SecondReads> {
        self.inner.second.as_ref().map(|second| second.reads())
    }

    /// Segments that the first store was found to have lost or altered: those that were read from the second, and those of known damages.
    pub fn lost_segments(&self) -> Vec<SegmentId> {
        let mut lost = self
            .inner
            .second
            .as_ref()
            .map(|second| second.lost())
            .unwrap_or_default();
        lost.extend(
            self.inner
                .damages
                .known()
                .0
                .into_iter()
                .map(|known| known.segment),
        );
        lost.sort_unstable();
        lost.dedup();
        lost
    }

    /// It was repaired, or is there again: the first store is asked.
    pub fn forget_lost(&self, segment: SegmentId) {
        if let Some(second) = &self.inner.second {
            second.forget(segment);
        }
        self.inner.damages.forget_segment(segment);
        self.inner.fetcher.forget_absent();
    }
}

/// Whether a second store may have what could not be read.
pub(super) fn is_damage(error: &ReadError) -> bool {
    match error {
        ReadError::Corrupt { .. } | ReadError::Missing { .. } => true,
        ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. } => false,
    }
}
