//! Fetching ranges of segments by single flight: who needs the same bytes shares one GET, and the policy decides how much it asks for.
//!
//! ```text
//! need ─ covered by a GET under way ───────────────────────────────→ wait for it
//!      └ gathered with the needs of the same moment → widened, joined → one GET or a few → windows in memory → disk cache
//! ```
//!
//! GETs run as tasks of their own, so a reader that gives up does not throw away what is on its way. Their bytes in memory are
//! bounded by [`IN_FLIGHT_KIB`], those of GETs that nobody waits for yet ([`Fetcher::fetch_ahead`]) by half of it; who comes
//! later waits. A GET counts as under way until its bytes are in the disk cache, so that nobody asks for them in between.
//!
//! On a line so slow that a wide window would delay the object that is waited for, the window is cut in pieces, and the piece
//! with the object comes first.

mod single_flight;

pub(super) use single_flight::InFlightGets;

use super::{
    disk::DiskCache,
    forwarding::Forwarding,
    link_estimate::LinkEstimate,
    locality::{Arrival, Locality},
    pieces::{assemble, cover, covers, cut},
    plan::{FetchPrices, Terms},
    ranges::RangeSet,
    windows::{Windows, slice_of},
};
use bytes::Bytes;
use firn_env::{Backoff, Env, Monotonic};
use firn_format::{FamilyId, Location, SegmentId};
use firn_store::{ObjectKey, Store, StoreError};
use futures::{channel::oneshot, future::Shared};
use single_flight::{InFlightGet, PlannedGet, land};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Semaphore;
use tracing::Instrument;

/// How much a miss fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FetchPolicy {
    /// The object and nothing else.
    Exact,
    /// The whole segment.
    FullSegment,
    /// As much as is worth its price.
    #[default]
    Adaptive,
}

/// Bytes being fetched or written to the disk cache at a time, in KiB.
const IN_FLIGHT_KIB: u32 = 64 << 10;

/// How often a segment that is not there is looked for again, and after what first wait; it doubles. Together 3 s: longer
/// than any store takes that calls itself eventually consistent, short enough for a client to wait.
const NOT_FOUND_TRIES: u32 = 6;
/// The same for a walk over everything, which has no reason to hope.
const PROBE_TRIES: u32 = 2;
/// The same for what nobody waits for yet.
const AHEAD_TRIES: u32 = 1;
/// Not bounded by itself: the tries are.
const NOT_FOUND_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(10)).without_jitter();

/// How long a segment that was not there is taken to be absent without asking: its readers are answered at once, and whoever
/// brings it back waits no longer than this.
const ABSENT_FOR: Duration = Duration::from_secs(30);

/// Absent segments remembered, of 32 bytes each.
const ABSENT_MAX: usize = 1 << 16;

/// Why a range could not be had.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// The store said so.
    Store(StoreError),
    /// The segment ends before the range does.
    Short,
    /// It was not asked for after all.
    Skipped,
}

/// Bytes of a segment from `offset` on.
#[derive(Clone, Debug)]
struct Fetched {
    offset: u32,
    bytes: Bytes,
}

type Outcome = Result<Fetched, Refusal>;
type Waiting = Shared<oneshot::Receiver<Outcome>>;

/// An object that is waited for.
struct Need {
    range: Range<u32>,
    arrival: Arrival,
    in_flight: oneshot::Sender<Vec<Waiting>>,
}

/// What is fetched for some needs.
struct Window {
    range: Range<u32>,
    /// The first object in it that is waited for.
    first_need: Range<u32>,
}

struct State {
    policy: FetchPolicy,
    in_flight: BTreeMap<SegmentId, Vec<InFlightGet>>,
    next_get: u64,
    gathering: BTreeMap<SegmentId, Vec<Need>>,
    locality: Locality,
    windows: Windows,
    link: LinkEstimate,
    /// Bytes of GETs that were started ahead of their readers and are under way.
    ahead_bytes: u64,
    /// Segments that are not there, and since when.
    absent: BTreeMap<SegmentId, Monotonic>,
    counters: FetchCounters,
}

/// What was fetched since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchCounters {
    pub(super) gets: u64,
    pub(super) fetched_bytes: u64,
    pub(super) shared_gets: u64,
}

/// Fetches from the store.
pub(super) struct Fetcher {
    env: Env,
    store: Arc<dyn Store>,
    family: FamilyId,
    prices: FetchPrices,
    disk: Arc<DiskCache>,
    forwarding: Forwarding,
    budget: Arc<Semaphore>,
    /// Attempts for a segment that is not there, and how long it then counts as absent.
    tries: u32,
    absent_for: Duration,
    state: Mutex<State>,
}

impl Fetcher {
    pub(super) fn new(
        env: &Env,
        store: Arc<dyn Store>,
        family: FamilyId,
        disk: Arc<DiskCache>,
        policy: FetchPolicy,
        prices: FetchPrices,
        window_bytes: usize,
    ) -> Self {
        Self {
            env: env.clone(),
            forwarding: Forwarding::new(store.clone(), family),
            store,
            family,
            prices,
            disk,
            budget: Arc::new(Semaphore::new(IN_FLIGHT_KIB as usize)),
            tries: NOT_FOUND_TRIES,
            absent_for: ABSENT_FOR,
            state: Mutex::new(State {
                policy,
                in_flight: BTreeMap::new(),
                next_get: 0,
                gathering: BTreeMap::new(),
                locality: Locality::new(),
                windows: Windows::new(window_bytes),
                link: LinkEstimate::default(),
                ahead_bytes: 0,
                absent: BTreeMap::new(),
                counters: FetchCounters::default(),
            }),
        }
    }

    /// Fetches from the same store, past the disk cache and with a memory of its own. A probe does not wait for what is late: a segment
    /// that is not there is asked for twice, and then counts as absent for good.
    pub(super) fn past_the_cache(&self, disk: Arc<DiskCache>, window_bytes: usize, is_probe: bool) -> Self {
        let policy = self.lock().policy;
        let fetcher = Self::new(
            &self.env,
            self.store.clone(),
            self.family,
            disk,
            policy,
            self.prices,
            window_bytes,
        );
        match is_probe {
            false => fetcher,
            true => Self {
                tries: PROBE_TRIES,
                absent_for: Duration::MAX,
                ..fetcher
            },
        }
    }

    /// Whether the segment was looked for a moment ago and was not there, nor anything that says where its objects went.
    pub(super) fn is_absent(&self, segment: SegmentId) -> bool {
        let now = self.env.now();
        let mut state = self.lock();
        match state.absent.get(&segment) {
            Some(since) if now.since(*since) < self.absent_for => true,
            Some(_) => {
                state.absent.remove(&segment);
                false
            }
            None => false,
        }
    }

    /// The segment is not there, nor anything that says where its objects went.
    pub(super) fn note_absent(&self, segment: SegmentId) {
        let now = self.env.now();
        let mut state = self.lock();
        if state.absent.len() < ABSENT_MAX {
            state.absent.entry(segment).or_insert(now);
        }
    }

    pub(super) fn forget_absent(&self) {
        self.lock().absent.clear();
    }

    /// Segments that were found absent and are remembered.
    pub(super) fn absent(&self) -> u64 {
        self.lock().absent.len() as u64
    }

    /// Where the objects of retired segments went.
    pub(super) fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the fetcher's lock")
    }

    pub(super) fn set_policy(&self, policy: FetchPolicy) {
        self.lock().policy = policy;
    }

    pub(super) fn policy(&self) -> FetchPolicy {
        self.lock().policy
    }

    /// Bytes between two objects that cost less than a GET of their own, the time of it included.
    pub(super) fn gap_bytes(&self) -> u32 {
        self.terms(&self.lock()).later_get_bytes()
    }

    fn terms(&self, state: &State) -> Terms {
        Terms {
            prices: self.prices,
            latency_ms: state.link.latency_ms(),
        }
    }

    pub(super) fn counters(&self) -> FetchCounters {
        self.lock().counters
    }

    /// Nothing is under way, nor being written to the disk cache.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.lock().in_flight.is_empty()
    }

    pub(super) fn drop_windows(&self) {
        self.lock().windows.clear();
    }

    /// Notes that an object was asked for, and returns its bytes if they were fetched a moment ago.
    pub(super) fn touch(&self, location: &Location) -> (Arrival, Option<Bytes>) {
        let mut state = self.lock();
        let arrival = state.locality.touch(location.segment, &range_of(location));
        (arrival, state.windows.get(location))
    }

    /// A segment of this length was written here.
    pub(super) fn note_end(&self, segment: SegmentId, end: u32) {
        self.lock().locality.note_end(segment, end);
    }

    /// Fetches exactly one object's bytes, whatever the policy and whatever is under way.
    pub(super) async fn fetch_uncached(&self, location: &Location) -> Result<Bytes, Refusal> {
        let fetched = self
            .get(location.segment, &range_of(location), false, self.tries)
            .await?;
        slice_of(fetched.offset, &fetched.bytes, location).ok_or(Refusal::Short)
    }

    /// Fetches an object's bytes, and what is worth fetching with it.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        location: &Location,
        arrival: Arrival,
    ) -> Result<Bytes, Refusal> {
        let need = range_of(location);
        let mut waiting = self.join(location.segment, &need);
        if waiting.is_empty() {
            let policy = self.lock().policy;
            waiting = match policy {
                FetchPolicy::Exact => vec![self.launch(location.segment, need.clone(), Vec::new())],
                FetchPolicy::FullSegment => vec![self.launch(location.segment, 0..u32::MAX, Vec::new())],
                FetchPolicy::Adaptive => self.gather(location.segment, need.clone(), arrival).await,
            };
        }
        let mut parts = Vec::with_capacity(waiting.len());
        for outcome in futures::future::join_all(waiting).await {
            match outcome {
                Ok(Ok(fetched)) => parts.push((fetched.offset, fetched.bytes)),
                Ok(Err(Refusal::Store(error))) => return Err(Refusal::Store(error)),
                Ok(Err(Refusal::Short | Refusal::Skipped)) | Err(oneshot::Canceled) => {}
            }
        }
        match assemble(&mut parts, location) {
            Some(bytes) => Ok(bytes),
            // What was under way ended early or was not started after all: asked for by itself.
            None => self.fetch_uncached(location).await,
        }
    }

    /// Starts fetching what is needed now of a segment, widened and joined as a single object's need is; whoever needs a part of it
    /// finds it under way. Cancel-safe: others may count on the plan.
    pub(super) async fn fetch_run(self: &Arc<Self>, segment: SegmentId, need: Range<u32>, arrival: Arrival) {
        if !self.join(segment, &need).is_empty() {
            return;
        }
        let fetcher = self.clone();
        let task = self.env.spawn("run fetch", async move {
            fetcher.gather(segment, need, arrival).await;
        });
        // It ends only with its machine.
        let _ = task.await;
    }

    /// Waits for the needs of the same moment; the first of them plans for all.
    async fn gather(
        self: &Arc<Self>,
        segment: SegmentId,
        need: Range<u32>,
        arrival: Arrival,
    ) -> Vec<Waiting> {
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut state = self.lock();
            let needs = state.gathering.entry(segment).or_default();
            needs.push(Need {
                range: need.clone(),
                arrival,
                in_flight: sender,
            });
            needs.len() == 1
        };
        if first {
            self.env.yield_now().await;
            self.plan(segment);
        }
        match receiver.await {
            Ok(waiting) => waiting,
            Err(oneshot::Canceled) => vec![self.launch(segment, need, Vec::new())],
        }
    }

    fn plan(self: &Arc<Self>, segment: SegmentId) {
        let Some(needs) = self.lock().gathering.remove(&segment) else {
            return;
        };
        // Somebody may have started what is needed while the needs gathered.
        let mut open = Vec::with_capacity(needs.len());
        for need in needs {
            let waiting = self.join(segment, &need.range);
            if waiting.is_empty() {
                open.push(need);
            } else {
                // Its load may have ended with its machine.
                let _ = need.in_flight.send(waiting);
            }
        }
        let (windows, piece_bytes) = self.windows(segment, &open);
        let mut started: Vec<(Range<u32>, Waiting)> = Vec::new();
        for window in windows {
            let mut pieces = cut(&window.range, &window.first_need, piece_bytes).into_iter();
            let Some(first) = pieces.next() else { continue };
            let rest: Vec<(PlannedGet, Waiting)> = pieces.map(|piece| self.promise(segment, piece)).collect();
            let (takeoffs, waits): (Vec<PlannedGet>, Vec<Waiting>) = rest.into_iter().unzip();
            started.extend(takeoffs.iter().map(|planned| planned.range.clone()).zip(waits));
            started.push((first.clone(), self.launch(segment, first, takeoffs)));
        }
        for need in open {
            let waiting = cover(
                started.iter().map(|(range, waiting)| (range, waiting)),
                &need.range,
            );
            let _ = need.in_flight.send(waiting);
        }
    }

    /// The windows to fetch, and how large a piece should be.
    fn windows(&self, segment: SegmentId, needs: &[Need]) -> (Vec<Window>, u32) {
        let mut present = RangeSet::default();
        for range in self.disk.present(segment, &(0..u32::MAX)) {
            present.insert(range);
        }
        let mut state = self.lock();
        for get in state.in_flight.get(&segment).into_iter().flatten() {
            present.insert(get.range.clone());
        }
        for range in state.windows.ranges(segment) {
            present.insert(range);
        }
        let present = present.overlaps(&(0..u32::MAX));
        let terms = self.terms(&state);
        let chances = Arrival::ALL.map(|arrival| state.locality.chances(arrival));
        let widened = needs.iter().map(|need| {
            let end = state.locality.end_of(segment, need.range.end);
            terms.widen(&need.range, &chances[need.arrival as usize], &present, end)
        });
        let windows = terms.join(widened.collect());
        let with_need = windows.into_iter().filter_map(|window| {
            let inside = needs.iter().filter(|need| covers(&window, &need.range));
            let first = inside.min_by_key(|need| need.range.start)?;
            // One anchor for each fetch: what else was needed at this moment is no prediction come true.
            state.locality.anchor(segment, &first.range, first.arrival);
            Some(Window {
                range: window,
                first_need: first.range.clone(),
            })
        });
        (with_need.collect(), state.link.piece_bytes())
    }

    /// Starts a GET; `rest` are the other pieces of its window, which follow if the segment does not end before.
    fn launch(self: &Arc<Self>, segment: SegmentId, range: Range<u32>, rest: Vec<PlannedGet>) -> Waiting {
        let (planned, waiting) = self.promise(segment, range);
        self.start(segment, planned, rest);
        waiting
    }

    fn start(self: &Arc<Self>, segment: SegmentId, planned: PlannedGet, rest: Vec<PlannedGet>) {
        let fetcher = self.clone();
        // In the log the request stands with the call that was the first to need it.
        let get = async move { fetcher.run_get(segment, planned, rest).await }.in_current_span();
        drop(self.env.spawn("segment fetch", get));
    }

    async fn run_get(self: Arc<Self>, segment: SegmentId, planned: PlannedGet, rest: Vec<PlannedGet>) {
        let whole = planned.range.end == u32::MAX;
        let kib = if whole {
            4 << 10
        } else {
            (planned.range.end - planned.range.start)
                .div_ceil(1024)
                .min(IN_FLIGHT_KIB)
        };
        // The semaphore is never closed; if it were, the fetch would go on unbounded rather than fail.
        let _permit = self.budget.clone().acquire_many_owned(kib).await.ok();
        let length = planned.range.end - planned.range.start;
        let outcome = if planned.is_ahead {
            let outcome = self.get(segment, &planned.range, whole, AHEAD_TRIES).await;
            self.lock().ahead_bytes -= u64::from(length);
            if firn_env::planted!("volume.ahead_fails_for_its_reader") {
                outcome
            } else {
                outcome.map_err(|_| Refusal::Skipped)
            }
        } else {
            self.get(segment, &planned.range, whole, self.tries).await
        };
        let fetched = outcome.as_ref().ok().cloned();
        let short = fetched
            .as_ref()
            .is_none_or(|fetched| fetched.bytes.len() < length as usize);
        {
            let mut state = self.lock();
            if let Some(fetched) = &fetched {
                state
                    .windows
                    .insert(segment, fetched.offset, fetched.bytes.clone());
                if short {
                    let end = fetched.offset + fetched.bytes.len() as u32;
                    state.locality.note_end(segment, end);
                }
            } else {
                land(&mut state, segment, planned.number);
            }
        }
        let _ = planned.outcome.send(outcome);
        for piece in rest {
            let behind = piece.range.start >= planned.range.end;
            if fetched.is_none() || (short && behind) {
                land(&mut self.lock(), segment, piece.number);
                let _ = piece.outcome.send(Err(Refusal::Skipped));
            } else {
                self.start(segment, piece, Vec::new());
            }
        }
        if let Some(fetched) = fetched {
            self.disk
                .write(segment, fetched.offset, vec![fetched.bytes])
                .await;
            land(&mut self.lock(), segment, planned.number);
        }
    }

    /// One GET, repeated only if the segment is not there (yet).
    async fn get(
        &self,
        segment: SegmentId,
        range: &Range<u32>,
        whole: bool,
        tries_max: u32,
    ) -> Result<Fetched, Refusal> {
        let key = ObjectKey::new(&segment.key(&self.family));
        let mut tries = 0;
        loop {
            self.env.fault_point("objects.before_get").await;
            let started = self.env.now();
            let result = if whole {
                self.store.get(&key).await
            } else {
                let length = u64::from(range.end - range.start);
                self.store.get_range(&key, u64::from(range.start), length).await
            };
            self.env.fault_point("objects.after_get").await;
            tries += 1;
            self.lock().counters.gets += 1;
            match result {
                Ok(bytes) => {
                    let mut state = self.lock();
                    state.counters.fetched_bytes += bytes.len() as u64;
                    state.link.observe(bytes.len(), self.env.now().since(started));
                    return Ok(Fetched {
                        offset: range.start,
                        bytes,
                    });
                }
                Err(error @ StoreError::NotFound { .. }) if tries < tries_max => {
                    // A segment that was retired does not come back. If that cannot be told, waiting tells.
                    if tries == 1 && self.forwarding.is_retired(segment).await.unwrap_or(false) {
                        return Err(Refusal::Store(error));
                    }
                }
                Err(error) => return Err(Refusal::Store(error)),
            }
            NOT_FOUND_BACKOFF.wait(&self.env, tries).await;
        }
    }
}

/// The bytes a location names; an impossible one (from damaged data) names as many as there can be.
fn range_of(location: &Location) -> Range<u32> {
    location.offset..location.offset.saturating_add(location.length)
}
