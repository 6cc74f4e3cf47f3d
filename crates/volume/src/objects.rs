//! Reading objects: from a pointer to an opened object, by the cheapest way there is.
//!
//! ```text
//! memory (opened, by uid) → a load of the same object under way → bytes fetched a moment ago → disk cache → pins → store
//!                                                                  └─────── decode → verify uid and place → open ────────┘
//! ```
//!
//! The uid decides, not where bytes come from: whatever does not verify is a miss of that place and is looked for in the next. What the disk cache has
//! is hashed once a process: after that it is known by the tag of its seal ([`known`]).
//! Before the store's own bytes are believed to be damaged they are asked for once more, exactly. Each object is loaded by
//! one task at a time, whoever and how many ask for it; a reader that gives up leaves the load running for the next. What lies
//! side by side in the disk cache, or is on its way from the store, is opened by the reader itself ([`runs`]). What somebody will
//! ask for is fetched before ([`ahead`]).
//!
//! Everything is bounded: opened objects and bytes just fetched by memory, the disk cache by its capacity, GETs under way by
//! their bytes.

mod ahead;
mod config;
mod damages;
mod disk;
mod error;
mod existence_probe;
mod fetch;
mod forwarding;
mod kept;
mod known;
mod link_estimate;
mod locality;
mod memory;
mod moved;
mod object;
mod opening;
mod pieces;
mod pinned;
mod plan;
mod ranges;
mod relocated;
mod relocations;
mod runs;
mod second;
mod statistics;
#[cfg(test)]
mod tests;
mod windows;

pub use config::ObjectsConfig;
pub use damages::{DamageCounters, DamageKind, Damages, KnownDamage};
pub use error::{ObjectsError, ReadError};
pub use fetch::FetchPolicy;
pub use object::Object;
pub use plan::FetchPrices;
pub use second::SecondReads;
pub use statistics::ObjectsStatistics;

use crate::journal::Reclaimer;
use disk::DiskCache;
use fetch::{Fetcher, Refusal};
use firn_env::{Env, Wait};
use firn_format::{FamilyId, Location, Place, Pointer, SEAL_TAG_BYTES, SegmentId};
use firn_seal::{Keys, ObjectOpener};
use firn_store::{Store, StoreError};
use futures::{FutureExt, channel::oneshot};
use known::KnownObjects;
use locality::Arrival;
use memory::MemoryCache;
use object::{Loading, Misfit, at_place, loaded};
pub(crate) use pinned::PinShare;
use pinned::Pinned;
pub(crate) use relocations::Relocation;
use relocations::Relocations;
use second::{Second, is_damage};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};
use tracing::Instrument;

/// What a walk past the caches may remember, so that it does not fetch each node once for each of its children.
const UNCACHED_BYTES: usize = 16 << 20;

/// Who was asked for an object already, without success.
#[derive(Clone, Copy)]
enum Asked {
    /// The caches.
    Caches(Arrival),
    /// The store as well, for as long as it may take until an object is seen there.
    StoreHasNot,
}

struct State {
    memory: MemoryCache,
    known: KnownObjects,
    loads: BTreeMap<Pointer, Loading>,
    counters: ObjectsStatistics,
}

struct Inner {
    env: Env,
    opener: Arc<ObjectOpener>,
    disk: Arc<DiskCache>,
    pinned: Arc<Pinned>,
    /// Not so of what looks at the store alone.
    reads_pins: bool,
    fetcher: Arc<Fetcher>,
    /// Asked last for what the store has lost; not by what looks at the store alone.
    second: Option<Arc<Second>>,
    relocations: Relocations,
    damages: Arc<Damages>,
    absent_is_away: bool,
    state: Mutex<State>,
}

/// The objects of one family; cheap to clone.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
}

impl Objects {
    /// Opens the caches; `cache_directory` (made if absent) belongs to this volume on this machine.
    ///
    /// # Errors
    /// If the directory cannot be made or listed.
    pub async fn open(
        env: &Env,
        store: Arc<dyn Store>,
        family: FamilyId,
        keys: Keys,
        cache_directory: &str,
        config: ObjectsConfig,
    ) -> Result<Self, ObjectsError> {
        let disk = DiskCache::open(
            env,
            cache_directory,
            config.disk_cache_bytes,
            config.disk_headroom_bytes,
        );
        let disk = Arc::new(disk.await?);
        let pinned = Arc::new(Pinned::open(env, config.disk_cache_bytes).await?);
        disk.set_pinned_bytes(pinned.taken_bytes());
        // An eighth of the memory, at least one segment and at most eight.
        let window_bytes = (config.memory_cache_bytes / 8).clamp(4 << 20, 32 << 20);
        let second = config
            .second
            .map(|store| Arc::new(Second::new(env, store, family)));
        let fetcher = Fetcher::new(
            env,
            store,
            family,
            disk.clone(),
            config.fetch,
            config.prices,
            window_bytes as usize,
        );
        let objects = Self {
            inner: Arc::new(Inner {
                env: env.clone(),
                opener: Arc::new(ObjectOpener::new(keys)),
                disk,
                pinned,
                reads_pins: true,
                fetcher: Arc::new(fetcher),
                second,
                relocations: Relocations::default(),
                damages: Arc::default(),
                absent_is_away: config.absent_is_away,
                state: Mutex::new(State {
                    memory: MemoryCache::new(config.memory_cache_bytes),
                    known: KnownObjects::default(),
                    loads: BTreeMap::new(),
                    counters: ObjectsStatistics::default(),
                }),
            }),
        };
        for (segment, bytes) in objects.pinned_segments() {
            if let Ok(length) = u32::try_from(bytes) {
                objects.inner.attach(segment, length);
            }
        }
        Ok(objects)
    }

    /// The same objects read from the store alone, for verification: nothing comes from the caches, and nothing goes there.
    #[must_use]
    pub fn uncached(&self) -> Self {
        self.without_caches(true)
    }

    /// The same for who needs what is read: waits as any reader does for what the store shows late, and reads what is pinned.
    pub fn past_the_caches(&self) -> Self {
        self.without_caches(false)
    }

    fn without_caches(&self, is_probe: bool) -> Self {
        let disk = Arc::new(DiskCache::none(&self.inner.env));
        let fetcher = &self.inner.fetcher;
        let fetcher = fetcher.past_the_cache(disk.clone(), UNCACHED_BYTES, is_probe);
        Self {
            inner: Arc::new(Inner {
                env: self.inner.env.clone(),
                opener: self.inner.opener.clone(),
                disk,
                pinned: self.inner.pinned.clone(),
                reads_pins: !is_probe,
                fetcher: Arc::new(fetcher),
                second: self.inner.second.clone().filter(|_| !is_probe),
                relocations: Relocations::default(),
                damages: self.inner.damages.clone(),
                absent_is_away: self.inner.absent_is_away,
                state: Mutex::new(State {
                    memory: MemoryCache::new(UNCACHED_BYTES as u64),
                    known: KnownObjects::default(),
                    loads: BTreeMap::new(),
                    counters: ObjectsStatistics::default(),
                }),
            }),
        }
    }

    /// The object a trusted pointer names, which must stand at `place`. Cancel-safe: a load goes on without its reader.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] is worth trying again, [`ReadError::KeyNotAtHand`] with a newer key ring; the others are damage.
    pub async fn get(&self, pointer: &Pointer, place: Place) -> Result<Arc<Object>, ReadError> {
        let loading = {
            let mut state = self.inner.lock();
            if let Some(object) = state.memory.get(pointer) {
                state.counters.memory_hits += 1;
                drop(state);
                return at_place(object, pointer, place);
            }
            match state.loads.get(pointer).cloned() {
                Some(loading) => {
                    state.counters.shared_loads += 1;
                    loading
                }
                None => self.start_load(&mut state, pointer, place, None),
            }
        };
        let _waiting = self.inner.env.waits_for(Wait::Objects);
        loaded(loading, pointer, place).await
    }

    /// Starts a load; `asked` if some were already asked.
    fn start_load(
        &self,
        state: &mut State,
        pointer: &Pointer,
        place: Place,
        asked: Option<Asked>,
    ) -> Loading {
        let (sender, receiver) = oneshot::channel();
        let loading = receiver.shared();
        state.loads.insert(*pointer, loading.clone());
        let inner = self.inner.clone();
        let pointer = *pointer;
        let load = async move {
            let loaded = match inner.load(&pointer, place, asked).await {
                Err(error) if is_damage(&error) => inner.load_second(&pointer, place).await.ok_or(error),
                other => other,
            };
            let result = match loaded {
                Err(error @ ReadError::Missing { segment, .. }) if inner.absent_is_away => {
                    let detail = error.to_string();
                    Err(ReadError::Unavailable { segment, detail })
                }
                other => other,
            };
            let outcome = result.as_ref().map(|_| ());
            inner.damages.note(place, inner.env.wall(), outcome);
            {
                let mut state = inner.lock();
                state.loads.remove(&pointer);
                if let Ok(object) = &result {
                    state.counters.asked_bytes += u64::from(pointer.location.length);
                    state.memory.insert(&pointer, object.clone());
                }
            }
            // Nobody may be waiting any more.
            let _ = sender.send(result);
        };
        drop(self.inner.env.spawn("object load", load.in_current_span()));
        loading
    }

    /// The object, if it is in memory.
    #[cfg(test)]
    fn cached(&self, pointer: &Pointer) -> Option<Arc<Object>> {
        self.inner.lock().memory.get(pointer)
    }

    /// Whether the disk cache may hold the object, sealed.
    pub(crate) fn may_have_cached(&self, pointer: &Pointer) -> bool {
        self.inner.disk.may_hold(&pointer.location)
    }

    /// Keeps an object just built in memory.
    pub fn insert(&self, pointer: &Pointer, object: Arc<Object>) {
        self.inner.lock().memory.insert(pointer, object);
    }

    /// Keeps in memory what was sealed here a moment ago, and knows it by its tag from now on.
    pub fn insert_sealed(&self, pointer: &Pointer, tag: Option<[u8; SEAL_TAG_BYTES]>, object: Arc<Object>) {
        let mut state = self.inner.lock();
        if let Some(tag) = tag {
            state.known.note(&pointer.location, &pointer.uid, &tag);
        }
        state.memory.insert(pointer, object);
    }

    /// How many bytes of opened objects are kept in memory at most.
    pub(crate) fn memory_capacity_bytes(&self) -> u64 {
        self.inner.lock().memory.capacity_bytes()
    }

    /// Counters and sizes.
    pub fn statistics(&self) -> ObjectsStatistics {
        let fetched = self.inner.fetcher.counters();
        let state = self.inner.lock();
        ObjectsStatistics {
            damages: self.inner.damages.counters(),
            gets: fetched.gets,
            fetched_bytes: fetched.fetched_bytes,
            shared_gets: fetched.shared_gets,
            memory_objects: state.memory.len() as u64,
            memory_bytes: state.memory.bytes(),
            disk_segments: self.inner.disk.segments(),
            disk_bytes: self.inner.disk.bytes(),
            disk_failures: self.inner.disk.write_failures(),
            disk_given_up_bytes: self.inner.disk.given_up_bytes(),
            ..state.counters
        }
    }

    /// Segments that were found absent.
    pub(crate) fn absent_segments(&self) -> u64 {
        self.inner.fetcher.absent()
    }

    /// What the store gave back wrong.
    pub fn damages(&self) -> &Arc<Damages> {
        &self.inner.damages
    }

    /// Remembers what a cleaner moved and a merge took over.
    pub(crate) fn note_relocation(&self, relocation: Relocation) {
        self.inner.relocations.note(relocation);
    }

    /// Whom a journal on the same disk asks when it finds it full: the disk cache.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer(Some(self.inner.disk.clone()))
    }

    /// Changes how much a miss fetches, from the next one on.
    pub fn set_policy(&self, policy: FetchPolicy) {
        self.inner.fetcher.set_policy(policy);
    }

    /// Forgets the bytes fetched last.
    #[cfg(test)]
    fn drop_windows(&self) {
        self.inner.fetcher.drop_windows();
    }

    /// Forgets everything that is cached, in memory and on the disk.
    pub async fn drop_caches(&self) {
        {
            let mut state = self.inner.lock();
            state.memory.clear();
            state.known.clear();
        }
        self.inner.fetcher.drop_windows();
        self.inner.fetcher.forget_absent();
        self.inner.fetcher.forwarding().clear();
        self.inner.relocations.clear();
        self.inner.disk.clear().await;
        self.drop_pins().await;
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the object cache's lock")
    }

    async fn load(
        self: &Arc<Self>,
        pointer: &Pointer,
        place: Place,
        asked: Option<Asked>,
    ) -> Result<Arc<Object>, ReadError> {
        let location = pointer.location;
        let corrupt = |detail: String| ReadError::Corrupt {
            place,
            location,
            detail,
        };
        let no_key = |epoch, newest| ReadError::KeyNotAtHand { place, epoch, newest };
        let arrival = match asked {
            Some(Asked::StoreHasNot) => {
                if let Some(object) = self.load_pinned(pointer, place).await {
                    return Ok(object);
                }
                self.lock().counters.misses += 1;
                return self.load_moved(pointer, place, Vec::new()).await;
            }
            Some(Asked::Caches(arrival)) => arrival,
            None => {
                let (arrival, object) = self.touch(pointer, place).await;
                if let Some(object) = object {
                    return Ok(object);
                }
                if let Some(object) = self.load_from_disk(pointer, place).await {
                    self.lock().counters.disk_hits += 1;
                    return Ok(object);
                }
                arrival
            }
        };
        if let Some(object) = self.load_pinned(pointer, place).await {
            self.lock().counters.disk_hits += 1;
            return Ok(object);
        }
        if let Some(object) = self.load_relocated(pointer, place).await {
            self.lock().counters.relocated_hits += 1;
            return Ok(object);
        }
        self.lock().counters.misses += 1;
        if let Some(object) = self.load_lost(pointer, place).await {
            return Ok(object);
        }
        // A segment that was repaired is still there, and its record tells of what was needed only.
        let moved = self.fetcher.forwarding().remembered(&location);
        if let Some(places) = moved.filter(|places| !places.is_empty()) {
            return self.load_moved(pointer, place, places).await;
        }
        let segment = location.segment;
        if self.fetcher.is_absent(segment) {
            return Err(ReadError::Missing { segment, place });
        }
        let first = match self.fetcher.fetch(&location, arrival).await {
            Ok(bytes) => match self.open(bytes, pointer, place).await {
                Ok(object) => return Ok(object),
                Err(Misfit::NoKey { epoch, newest }) => return Err(no_key(epoch, newest)),
                Err(Misfit::Unusable(detail)) => return Err(corrupt(detail)),
                Err(Misfit::Damaged(detail)) => detail,
            },
            Err(Refusal::Store(StoreError::NotFound { .. })) => {
                return self.load_moved(pointer, place, Vec::new()).await;
            }
            Err(refusal) => read_error(refusal, &location, place)?,
        };
        // Not believed before it was asked for once more, by itself and past everything that is cached.
        let bytes = match self.fetcher.fetch_uncached(&location).await {
            Ok(bytes) => bytes,
            Err(refusal) => return Err(corrupt(read_error(refusal, &location, place)?)),
        };
        match self.open(bytes.clone(), pointer, place).await {
            Ok(object) => {
                tracing::warn!(%place, segment = %location.segment, first, "the store gave damaged bytes, and the right ones when asked again");
                self.damages.note_healed();
                self.disk
                    .write(location.segment, location.offset, vec![bytes])
                    .await;
                Ok(object)
            }
            Err(Misfit::NoKey { epoch, newest }) => Err(no_key(epoch, newest)),
            Err(Misfit::Unusable(detail)) => Err(corrupt(detail)),
            // A repair may have written it anew and left the damaged segment to its grace.
            Err(Misfit::Damaged(detail)) => match self.follow(pointer, place, Vec::new(), true).await {
                Err(ReadError::Missing { .. }) => Err(corrupt(detail)),
                followed => followed,
            },
        }
    }

    /// Notes that the object was asked for, and opens it if its bytes were fetched a moment ago.
    async fn touch(&self, pointer: &Pointer, place: Place) -> (Arrival, Option<Arc<Object>>) {
        let (arrival, window) = self.fetcher.touch(&pointer.location);
        let Some(bytes) = window else {
            return (arrival, None);
        };
        let object = self.open(bytes, pointer, place).await.ok();
        if object.is_some() {
            self.lock().counters.window_hits += 1;
        }
        (arrival, object)
    }

    async fn load_from_disk(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let bytes = self.disk.read(&pointer.location).await?;
        self.open_cached(bytes, pointer, place).await
    }

    /// Reads a pinned segment of this length through the disk cache; `false` if the cache cannot.
    fn attach(&self, segment: SegmentId, length: u32) -> bool {
        !firn_env::planted!("volume.read_past_the_pins") && self.disk.attach(segment, length)
    }

    /// Opens what lies in a segment that waits for being read back: the store may not have it.
    async fn load_pinned(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        if !self.reads_pins || firn_env::planted!("volume.read_past_the_pins") {
            return None;
        }
        let bytes = self.pinned.read_object(&pointer.location).await?;
        self.open(bytes, pointer, place).await.ok()
    }
}

/// Why a fetch failed, for the reader; `Ok` is a reason to try once more.
fn read_error(refusal: Refusal, location: &Location, place: Place) -> Result<String, ReadError> {
    let segment = location.segment;
    match refusal {
        Refusal::Short | Refusal::Skipped => Ok("the segment ends before the object does".into()),
        Refusal::Store(StoreError::NotFound { .. }) => Err(ReadError::Missing { segment, place }),
        Refusal::Store(error @ StoreError::Invalid { .. }) => Ok(error.to_string()),
        Refusal::Store(
            error @ (StoreError::Unavailable { .. }
            | StoreError::Denied { .. }
            | StoreError::AlreadyExists { .. }),
        ) => Err(ReadError::Unavailable {
            segment,
            detail: error.to_string(),
        }),
    }
}
