//! Reading many objects at once, such as the blocks of one read of a file.
//!
//! What is in memory or was fetched a moment ago is taken from there. Of the rest, what lies side by side in the disk cache is
//! read by one call and opened in the buffers it was read into, on the reader's own task: a task for each object, with its
//! wake-ups, takes as long as reading and opening a block of 32 KiB. What is on its way from the store is waited for and opened
//! there, too. The rest is loaded as by [`Objects::get`], side by side. Two readers of the same run may both read it from the disk; nothing is fetched twice from the store.

use super::{
    Asked, Inner, Object, Objects, ReadError,
    ahead::{Run, location_range, runs},
    fetch::{FetchPolicy, InFlightGets, Refusal},
    locality::Arrival,
    object::{Loading, at_place, loaded},
    read_error,
};
use firn_env::Wait;
use firn_format::{Place, Pointer, SegmentId};
use firn_store::StoreError;
use std::{collections::BTreeMap, sync::Arc};

/// One of the objects that are wanted.
enum Wanted {
    Found(Arc<Object>),
    Loading(Loading),
    /// Its bytes are on their way.
    Arriving(InFlightGets),
    Absent(Option<Arrival>),
}

impl Objects {
    /// The objects that trusted pointers name, each at its place, in this order; the caller bounds how many. Cancel-safe, as
    /// [`Objects::get`] is.
    ///
    /// # Errors
    /// The first of those that [`Objects::get`] would give.
    pub async fn get_all(&self, wanted: &[(Pointer, Place)]) -> Result<Vec<Arc<Object>>, ReadError> {
        self.get_all_keeping(wanted, 0).await
    }

    /// The same for who will not ask again for those before `kept_from`: if the disk cache has them, they are not kept in memory, where
    /// they would push out what others ask for, and each buffer of a large file would be memory that no processor's cache holds.
    ///
    /// # Errors
    /// As [`Objects::get_all`].
    pub async fn get_all_keeping(
        &self,
        wanted: &[(Pointer, Place)],
        kept_from: usize,
    ) -> Result<Vec<Arc<Object>>, ReadError> {
        let kept_from = match self.inner.disk.can_hold_anything() {
            true => kept_from,
            false => 0,
        };
        let mut all = self.in_memory(wanted);
        let is_there = all.iter().all(|one| matches!(one, Wanted::Found(_)));
        let _waiting = (!is_there).then(|| self.inner.env.waits_for(Wait::Objects));
        self.inner.read_near(wanted, kept_from, &mut all).await;
        self.inner.fetch_runs(wanted, &all).await;
        self.load_absent(wanted, &mut all);
        let mut objects = Vec::with_capacity(all.len());
        for (index, (one, (pointer, place))) in all.into_iter().zip(wanted).enumerate() {
            objects.push(match one {
                Wanted::Found(object) => at_place(object, pointer, *place)?,
                Wanted::Loading(loading) => loaded(loading, pointer, *place).await?,
                Wanted::Arriving(gets) => match self
                    .inner
                    .arrived(gets, pointer, *place, index >= kept_from)
                    .await
                {
                    Ok(object) => object,
                    Err(Refusal::Store(StoreError::NotFound { .. })) => {
                        self.load_again(pointer, *place, Some(Asked::StoreHasNot)).await?
                    }
                    Err(refusal) => {
                        read_error(refusal, &pointer.location, *place)?;
                        self.load_again(pointer, *place, None).await?
                    }
                },
                Wanted::Absent(_) => unreachable!("what was absent is being loaded"),
            });
        }
        Ok(objects)
    }

    fn in_memory(&self, wanted: &[(Pointer, Place)]) -> Vec<Wanted> {
        let mut state = self.inner.lock();
        let state = &mut *state;
        let one = |(pointer, _): &(Pointer, Place)| {
            if let Some(object) = state.memory.get(pointer) {
                state.counters.memory_hits += 1;
                Wanted::Found(object)
            } else if let Some(loading) = state.loads.get(pointer) {
                state.counters.shared_loads += 1;
                Wanted::Loading(loading.clone())
            } else {
                Wanted::Absent(None)
            }
        };
        wanted.iter().map(one).collect()
    }

    /// Loads what did not come as it was expected to.
    async fn load_again(
        &self,
        pointer: &Pointer,
        place: Place,
        asked: Option<Asked>,
    ) -> Result<Arc<Object>, ReadError> {
        let loading = {
            let mut state = self.inner.lock();
            let loading = state.loads.get(pointer).cloned();
            loading.unwrap_or_else(|| self.start_load(&mut state, pointer, place, asked))
        };
        loaded(loading, pointer, place).await
    }

    /// Starts loading what is nowhere near, nor on its way.
    fn load_absent(&self, wanted: &[(Pointer, Place)], all: &mut [Wanted]) {
        for (one, (pointer, _)) in all.iter_mut().zip(wanted) {
            if matches!(one, Wanted::Absent(_))
                && let Some(gets) = self.inner.fetcher.under_way(&pointer.location)
            {
                *one = Wanted::Arriving(gets);
            }
        }
        let mut state = self.inner.lock();
        for (one, (pointer, place)) in all.iter_mut().zip(wanted) {
            let Wanted::Absent(arrival) = *one else { continue };
            // Somebody may have begun meanwhile.
            let loading = state.loads.get(pointer).cloned();
            let loading = loading.unwrap_or_else(|| {
                let asked = arrival.map(Asked::Caches);
                self.start_load(&mut state, pointer, *place, asked)
            });
            *one = Wanted::Loading(loading);
        }
    }
}

impl Inner {
    /// Starts fetching what is absent and lies side by side in segments, one need for all of it rather than one for each object.
    async fn fetch_runs(self: &Arc<Self>, wanted: &[(Pointer, Place)], all: &[Wanted]) {
        if self.fetcher.policy() != FetchPolicy::Adaptive {
            return;
        }
        let mut by_segment: BTreeMap<SegmentId, Vec<_>> = BTreeMap::new();
        for (at, (one, (pointer, _))) in (0..).zip(all.iter().zip(wanted)) {
            let location = pointer.location;
            if matches!(one, Wanted::Absent(_))
                && let Some(range) = location_range(&location)
                && !self.is_near(&location)
            {
                by_segment.entry(location.segment).or_default().push((range, at));
            }
        }
        let gap_bytes = self.fetcher.gap_bytes();
        let mut started = Vec::new();
        for (segment, needs) in by_segment {
            for Run { range, first, .. } in runs(segment, needs, gap_bytes) {
                let Wanted::Absent(Some(arrival)) = all[first as usize] else {
                    continue;
                };
                started.push(self.fetcher.fetch_run(segment, range, arrival));
            }
        }
        futures::future::join_all(started).await;
    }

    /// Opens what was on its way, and keeps it in memory if that is wanted.
    async fn arrived(
        &self,
        gets: InFlightGets,
        pointer: &Pointer,
        place: Place,
        is_kept: bool,
    ) -> Result<Arc<Object>, Refusal> {
        let bytes = gets.bytes(&pointer.location).await?;
        let opened = self.open(bytes, pointer, place).await;
        // Whoever loads it finds out what is wrong with it.
        let object = opened.map_err(|_| Refusal::Skipped)?;
        let mut state = self.lock();
        state.counters.window_hits += 1;
        state.counters.asked_bytes += u64::from(pointer.location.length);
        if is_kept {
            state.memory.insert(pointer, object.clone());
        }
        Ok(object)
    }

    /// Opens what is absent from bytes fetched a moment ago and from the disk cache, and keeps those from `kept_from` on in memory.
    async fn read_near(&self, wanted: &[(Pointer, Place)], kept_from: usize, all: &mut [Wanted]) {
        let mut asked = Vec::with_capacity(wanted.len());
        let mut opened = Vec::new();
        for (index, (pointer, place)) in wanted.iter().enumerate() {
            if !matches!(all[index], Wanted::Absent(_)) {
                continue;
            }
            let (arrival, object) = self.touch(pointer, *place).await;
            match object {
                Some(object) => opened.push((index, object)),
                None => {
                    all[index] = Wanted::Absent(Some(arrival));
                    asked.push(index);
                }
            }
        }
        let locations: Vec<_> = asked.iter().map(|index| wanted[*index].0.location).collect();
        let mut disk_hits = 0;
        for (index, bytes) in asked.iter().zip(self.disk.read_all(&locations).await) {
            let (pointer, place) = &wanted[*index];
            let Some(bytes) = bytes else { continue };
            if let Some(object) = self.open_cached(bytes, pointer, *place).await {
                disk_hits += 1;
                opened.push((*index, object));
            }
        }
        let mut state = self.lock();
        state.counters.disk_hits += disk_hits;

        for (index, object) in opened {
            let pointer = &wanted[index].0;
            state.counters.asked_bytes += u64::from(pointer.location.length);
            if index >= kept_from {
                state.memory.insert(pointer, object.clone());
            }
            all[index] = Wanted::Found(object);
        }
    }
}
