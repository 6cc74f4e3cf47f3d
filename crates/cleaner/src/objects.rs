//! Reading objects without keys: where they lie now, and that they are what they should be.
//!
//! ```text
//! pointer → cache by uid → ranged GET at the hint → gone? the retirement of its segment → the mover's forwarding record
//!         → ranged GET there → … → gone and not retired? every record listed for the segment
//! ```
//!
//! Nodes, inodes, checkpoints and usage leaves are kept once verified, up to a bound; blocks pass through. Whatever is read
//! is compared with the uid by which it was reached, so a lying hint, record or store costs requests and nothing else.
//!
//! A repair has a second store, where objects and records are looked for last, and segments that the first is known to have lost, first.

use crate::{CleanError, Damage, Misread, lookup::Copies};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{
    ForwardingRecord, Kind, Location, MAX_FORWARDING_BYTES, MAX_OBJECT_BYTES, Place, Pointer, SegmentId, Uid,
    VerifiedObject, WriterId, decode_object,
};
use firn_store::{ObjectKey, Store, StoreError, erase};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
};

/// Retirements a pointer is led through at most. Chains are collapsed when they are met, so honest ones are short.
const MAX_HOPS: usize = 16;
/// Forwarding records kept in memory: 64 of some KiB each.
const RECORDS_KEPT: usize = 64;
/// Answers of the table about segments that are kept; 40 bytes each.
const RETIREMENTS_KEPT: usize = 65_536;

/// Objects of one family as one run sees them.
pub(crate) struct Objects {
    pub env: Env,
    pub store: Arc<dyn Store>,
    pub anchor: Anchor,
    cache_bytes_max: usize,
    cache_bytes: usize,
    /// With the pointer's location by which each was reached: copies of one object may know different places of its children.
    cache: BTreeMap<Uid, (Location, Arc<VerifiedObject>)>,
    /// In order of arrival: what came first goes first.
    order: VecDeque<Uid>,
    second: Option<Arc<dyn Store>>,
    /// What is read from the second store first.
    lost: BTreeSet<SegmentId>,
    retirements: BTreeMap<SegmentId, Option<WriterId>>,
    /// Whether `retirements` holds every retired segment there is.
    all_known: bool,
    records: BTreeMap<SegmentId, Arc<ForwardingRecord>>,
    record_order: VecDeque<SegmentId>,
    /// Whether the bucket keeps what is deleted, once this run has asked.
    keeps_versions: OnceLock<bool>,
    /// Nodes and inodes fetched.
    pub fetched: u64,
    /// Places looked up in roots, to judge what stands there.
    pub lookups: u64,
}

impl Objects {
    pub fn new(env: &Env, store: Arc<dyn Store>, anchor: &Anchor, cache_bytes_max: usize) -> Self {
        Self {
            env: env.clone(),
            store,
            anchor: anchor.clone(),
            cache_bytes_max,
            cache_bytes: 0,
            cache: BTreeMap::new(),
            order: VecDeque::new(),
            second: None,
            lost: BTreeSet::new(),
            retirements: BTreeMap::new(),
            all_known: false,
            records: BTreeMap::new(),
            record_order: VecDeque::new(),
            keeps_versions: OnceLock::new(),
            fetched: 0,
            lookups: 0,
        }
    }

    /// For a repair: what the store does not have is read from the second, these segments before all.
    pub fn with_second(self, second: Option<Arc<dyn Store>>, lost: BTreeSet<SegmentId>) -> Self {
        Self { second, lost, ..self }
    }

    /// Where a segment's bytes may be had, the likeliest first.
    pub fn sources(&self, segment: SegmentId) -> Vec<Arc<dyn Store>> {
        let mut sources = vec![self.store.clone()];
        let is_planted = firn_env::planted!("cleaner.repair_from_the_first_alone");
        if self.lost.contains(&segment) && !is_planted {
            sources.extend(self.second.clone());
            sources.reverse();
        }
        sources
    }

    /// Learns which segments are retired as of now. Objects are kept; they cannot change.
    pub async fn learn_retirements(&mut self) -> Result<(), CleanError> {
        let listed = self.anchor.list_retired(None, RETIREMENTS_KEPT).await?;
        self.all_known = listed.len() < RETIREMENTS_KEPT;
        self.retirements = listed
            .into_iter()
            .map(|(segment, retired, _)| (segment, Some(retired.mover)))
            .collect();
        self.records.clear();
        self.record_order.clear();
        Ok(())
    }

    /// Removes an object for good, whatever the bucket keeps of what is deleted; one that is absent is fine.
    pub async fn remove(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let keeps_versions = match self.keeps_versions.get() {
            Some(keeps) => *keeps,
            None => {
                let keeps = self.ask_for_versions().await?;
                *self.keeps_versions.get_or_init(|| keeps)
            }
        };
        if keeps_versions {
            return erase(&*self.store, key).await;
        }
        match self.store.delete(key).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn ask_for_versions(&self) -> Result<bool, StoreError> {
        match self.store.keeps_versions().await {
            Err(error @ (StoreError::Denied { .. } | StoreError::Invalid { .. })) => {
                tracing::warn!(
                    %error,
                    "whether the bucket keeps versions is not known; if it does, what is deleted stays on the bill: allow the \
                     cleaner s3:GetBucketVersioning"
                );
                Ok(false)
            }
            other => other,
        }
    }

    /// The object a trusted pointer names, at its place; any copy of it.
    pub async fn get(&mut self, pointer: &Pointer, place: Place) -> Result<Arc<VerifiedObject>, CleanError> {
        if let Some((_, found)) = self.cache.get(&pointer.uid) {
            let found = found.clone();
            return at_place(found, place);
        }
        self.get_anew(pointer, place).await
    }

    /// The very copy to which a pointer leads: only that one knows what whoever follows the pointer will read.
    pub async fn get_exact(
        &mut self,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Arc<VerifiedObject>, CleanError> {
        match self.cache.get(&pointer.uid) {
            Some((location, found)) if *location == pointer.location => {
                let found = found.clone();
                at_place(found, place)
            }
            Some(_) | None => self.get_anew(pointer, place).await,
        }
    }

    /// From the store, whatever is in memory.
    pub async fn get_anew(
        &mut self,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Arc<VerifiedObject>, CleanError> {
        let object = self.fetch(pointer, place).await?;
        Ok(self.take(pointer.location, object))
    }

    /// The object a trusted pointer names, if it is in memory and stands at this place.
    pub fn cached(&self, pointer: &Pointer, place: Place, copies: Copies) -> Option<Arc<VerifiedObject>> {
        let (location, found) = self.cache.get(&pointer.uid)?;
        let is_wanted = copies == Copies::Any || *location == pointer.location;
        (is_wanted && found.header.place == place).then(|| found.clone())
    }

    /// Takes an object that was read and verified, by the pointer's location by which it was reached.
    pub fn take(&mut self, location: Location, object: VerifiedObject) -> Arc<VerifiedObject> {
        let object = Arc::new(object);
        self.fetched += 1;
        self.keep(location, &object);
        object
    }

    /// Keeps a verified object that others will be reached through.
    fn keep(&mut self, location: Location, object: &Arc<VerifiedObject>) {
        let bytes = object.encoded.len();
        if (object.header.kind == Kind::Block && object.header.plain.is_empty())
            || bytes > self.cache_bytes_max
        {
            return;
        }
        if let Some((_, replaced)) = self.cache.insert(object.uid(), (location, object.clone())) {
            self.cache_bytes -= replaced.encoded.len();
        } else {
            self.order.push_back(object.uid());
        }
        self.cache_bytes += bytes;
        while self.cache_bytes > self.cache_bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some((_, gone)) = self.cache.remove(&oldest) {
                self.cache_bytes -= gone.encoded.len();
            }
        }
    }

    async fn fetch(&mut self, pointer: &Pointer, place: Place) -> Result<VerifiedObject, CleanError> {
        let mut detail = match self.read_at(pointer, place).await? {
            Ok(object) => return Ok(object),
            Err(detail) => detail,
        };
        // The hint is old, or lies: first where the table says, then wherever any record says.
        let settled = self.settle(&pointer.location).await?;
        if let Some(location) = settled.filter(|settled| *settled != pointer.location) {
            let moved = Pointer { location, ..*pointer };
            match self.read_at(&moved, place).await? {
                Ok(object) => return Ok(object),
                Err(other) => detail = other,
            }
        }
        for location in self.records_of(&pointer.location).await? {
            let moved = Pointer { location, ..*pointer };
            let Some(location) = self.settle(&moved.location).await? else {
                continue;
            };
            for location in [moved.location, location] {
                let moved = Pointer { location, ..*pointer };
                match self.read_at(&moved, place).await? {
                    Ok(object) => return Ok(object),
                    Err(other) => detail = other,
                }
            }
        }
        if let Some(object) = self.fetch_second(pointer, settled, place).await? {
            return Ok(object);
        }
        Err(Damage::misread(place, pointer.uid, &detail).into())
    }

    /// From the second store, if there is one: where the pointer leads, and where that was moved.
    async fn fetch_second(
        &self,
        pointer: &Pointer,
        settled: Option<Location>,
        place: Place,
    ) -> Result<Option<VerifiedObject>, CleanError> {
        let Some(second) = &self.second else {
            return Ok(None);
        };
        for location in [Some(pointer.location), settled].into_iter().flatten() {
            let moved = Pointer { location, ..*pointer };
            if let Ok(object) = self.read_from(&**second, &moved, place).await? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    /// One try at one place. The inner error: what is there is not the object.
    pub async fn read_at(
        &self,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Result<VerifiedObject, Misread>, CleanError> {
        self.read_from(&*self.store, pointer, place).await
    }

    async fn read_from(
        &self,
        store: &dyn Store,
        pointer: &Pointer,
        place: Place,
    ) -> Result<Result<VerifiedObject, Misread>, CleanError> {
        let location = pointer.location;
        if location.length as usize > MAX_OBJECT_BYTES || location == Location::UNKNOWN {
            return Ok(Err(Misread::Other("its pointer leads nowhere".into())));
        }
        let key = ObjectKey::new(&location.segment.key(&self.anchor.family()));
        let read = store
            .get_range(&key, u64::from(location.offset), u64::from(location.length))
            .await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => {
                return Ok(Err(Misread::Other(format!("there is no segment {key}"))));
            }
            Err(error) => return Err(error.into()),
        };
        let verified = decode_object(bytes).and_then(|fetched| fetched.verify(&pointer.uid, Some(place)));
        Ok(verified.map_err(Misread::from))
    }

    /// Where the object at `location` is since all retirements so far: `location` itself unless its segment is retired.
    /// `None` if its segment is retired and its record does not know the object.
    pub async fn settle(&mut self, location: &Location) -> Result<Option<Location>, CleanError> {
        let mut location = *location;
        for _ in 0..MAX_HOPS {
            let Some(record) = self.record_of_retired(location.segment).await? else {
                return Ok(Some(location));
            };
            match record.and_then(|record| record.find(&location)) {
                Some(next) => location = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Whether a segment is retired.
    pub async fn is_retired(&mut self, segment: SegmentId) -> Result<bool, CleanError> {
        if let Some(known) = self.retirements.get(&segment) {
            return Ok(known.is_some());
        }
        if self.all_known {
            return Ok(false);
        }
        let mover = self
            .anchor
            .retired(segment)
            .await?
            .map(|(retired, _)| retired.mover);
        if self.retirements.len() >= RETIREMENTS_KEPT {
            self.retirements.clear();
        }
        self.retirements.insert(segment, mover);
        Ok(mover.is_some())
    }

    /// The record that counts for a retired segment; `None` for one that is not retired, `Some(None)` if there is no record.
    async fn record_of_retired(
        &mut self,
        segment: SegmentId,
    ) -> Result<Option<Option<Arc<ForwardingRecord>>>, CleanError> {
        if !self.is_retired(segment).await? {
            return Ok(None);
        }
        if let Some(record) = self.records.get(&segment) {
            return Ok(Some(Some(record.clone())));
        }
        let Some(Some(mover)) = self.retirements.get(&segment).copied() else {
            return Ok(None);
        };
        let key = ForwardingRecord::key(&self.anchor.family(), segment, mover);
        let Some(record) = self.record(&ObjectKey::new(&key), segment).await? else {
            return Ok(Some(None));
        };
        let record = Arc::new(record);
        if self.record_order.len() >= RECORDS_KEPT
            && let Some(oldest) = self.record_order.pop_front()
        {
            self.records.remove(&oldest);
        }
        self.record_order.push_back(segment);
        self.records.insert(segment, record.clone());
        Ok(Some(Some(record)))
    }

    /// The record at a key, if it is one of this segment.
    pub async fn record(
        &self,
        key: &ObjectKey,
        segment: SegmentId,
    ) -> Result<Option<ForwardingRecord>, CleanError> {
        for store in [Some(&self.store), self.second.as_ref()].into_iter().flatten() {
            // One byte more than any record has: a foreign object of gigabytes is not loaded.
            match store.get_range(key, 0, MAX_FORWARDING_BYTES as u64 + 1).await {
                Ok(bytes) => {
                    let record = ForwardingRecord::decode(&bytes).ok();
                    let family = self.anchor.family();
                    let ours = record.filter(|record| record.old == segment && record.family == family);
                    if ours.is_some() {
                        return Ok(ours);
                    }
                }
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Where any record, also one that never came to its retirement, says that the object at `location` went.
    async fn records_of(&self, location: &Location) -> Result<Vec<Location>, CleanError> {
        let prefix = ForwardingRecord::prefix(&self.anchor.family(), location.segment);
        let mut found = Vec::new();
        let listed = self.store.list(&prefix, None).await?;
        for object in listed.objects.iter().take(MAX_HOPS) {
            if let Some(record) = self.record(&object.key, location.segment).await?
                && let Some(next) = record.find(location)
            {
                found.push(next);
            }
        }
        Ok(found)
    }
}

fn at_place(object: Arc<VerifiedObject>, place: Place) -> Result<Arc<VerifiedObject>, CleanError> {
    if object.header.place == place {
        Ok(object)
    } else {
        Err(Damage::new(place, object.uid(), "it stands at another place").into())
    }
}
