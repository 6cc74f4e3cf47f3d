//! Forwarding of pointers into retired segments, by the cleaner's forwarding records.
//!
//! A pointer may lead to a segment that is gone: the cleaner moved what was needed out of it, left a record, and deleted it
//! (`firn_format::ForwardingRecord`). Records are hints of an untrusted party: what one leads to is an object only once its
//! uid is verified, and a record that leads nowhere, in circles or to garbage is no worse than none.
//!
//! Records of a segment are listed and read once and remembered, so that following old pointers costs two requests a retired
//! segment and not two an object.

use bytes::Bytes;
use firn_format::{FamilyId, ForwardingRecord, Location, MAX_FORWARDING_BYTES, SegmentId, WriterId};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

/// Moves that are followed for one object. The cleaner collapses chains, so an honest one has one or two.
pub(super) const HOPS_MAX: usize = 16;

/// Records read of one segment: one a cleaner that moved it, and two at once are rare.
const RECORDS_MAX: usize = 8;

/// Entries remembered, of 28 bytes each: 3.5 MiB, the objects of about a thousand segments.
const ENTRIES_MAX: usize = 1 << 17;

type Records = Arc<Vec<ForwardingRecord>>;

#[derive(Default)]
struct Known {
    records: BTreeMap<SegmentId, Records>,
    /// Longest known first.
    order: VecDeque<SegmentId>,
    entries: usize,
}

/// See the module.
pub(super) struct Forwarding {
    store: Arc<dyn Store>,
    family: FamilyId,
    known: Mutex<Known>,
}

impl Forwarding {
    pub(super) fn new(store: Arc<dyn Store>, family: FamilyId) -> Self {
        Self {
            store,
            family,
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known
            .lock()
            .expect("no panic under the lock of forwarding records")
    }

    /// Where the object may be now, by what is remembered; `None` if nothing is known of its segment.
    pub(super) fn remembered(&self, location: &Location) -> Option<Vec<Location>> {
        let records = self.lock().records.get(&location.segment).cloned()?;
        Some(places(&records, location))
    }

    /// Whether the segment was retired. Asks the store, unless it is known.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn is_retired(&self, segment: SegmentId) -> Result<bool, StoreError> {
        if self.lock().records.contains_key(&segment) {
            return Ok(true);
        }
        Ok(!self.read(segment).await?.is_empty())
    }

    /// Where the object may be now, by the records that are in the store.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn find(&self, location: &Location) -> Result<Vec<Location>, StoreError> {
        Ok(places(&self.read(location.segment).await?, location))
    }

    /// The segments in which the objects of a retired one may be now.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn targets(&self, segment: SegmentId) -> Result<BTreeSet<SegmentId>, StoreError> {
        let records = self.read(segment).await?;
        let entries = records.iter().flat_map(|record| &record.entries);
        Ok(entries.map(|entry| entry.new.segment).collect())
    }

    /// What one mover left of a segment.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(super) async fn record_of(
        &self,
        segment: SegmentId,
        mover: WriterId,
    ) -> Result<Option<ForwardingRecord>, StoreError> {
        let key = ObjectKey::new(&ForwardingRecord::key(&self.family, segment, mover));
        let Some(bytes) = self.get(&key).await? else {
            return Ok(None);
        };
        let record = ForwardingRecord::decode(&bytes).ok();
        Ok(record.filter(|record| record.family == self.family && record.old == segment))
    }

    async fn read(&self, segment: SegmentId) -> Result<Records, StoreError> {
        let prefix = ForwardingRecord::prefix(&self.family, segment);
        let page = self.store.list(&prefix, None).await?;
        let mut records = Vec::new();
        // The newest mover has the highest number: what it says was true last.
        for listed in page.objects.iter().rev().take(RECORDS_MAX) {
            if listed.size_bytes > MAX_FORWARDING_BYTES as u64 {
                continue;
            }
            // Else it was pruned since it was listed.
            if let Some(bytes) = self.get(&listed.key).await? {
                match ForwardingRecord::decode(&bytes) {
                    Ok(record) if record.family == self.family && record.old == segment => {
                        records.push(record);
                    }
                    Ok(_) => {
                        tracing::warn!(key = %listed.key, "a forwarding record of another segment; ignored");
                    }
                    Err(error) => tracing::warn!(key = %listed.key, %error, "no forwarding record; ignored"),
                }
            }
        }
        let records = Arc::new(records);
        if !records.is_empty() {
            self.remember(segment, records.clone());
        }
        Ok(records)
    }

    async fn get(&self, key: &ObjectKey) -> Result<Option<Bytes>, StoreError> {
        match self.store.get(key).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remember(&self, segment: SegmentId, records: Records) {
        let count = |records: &Records| records.iter().map(|record| record.entries.len()).sum::<usize>();
        let mut known = self.lock();
        known.entries += count(&records);
        if let Some(before) = known.records.insert(segment, records) {
            known.entries -= count(&before);
        } else {
            known.order.push_back(segment);
        }
        while known.entries > ENTRIES_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            if let Some(gone) = known.records.remove(&oldest) {
                known.entries -= count(&gone);
            }
        }
    }

    pub(super) fn clear(&self) {
        *self.lock() = Known::default();
    }
}

fn places(records: &[ForwardingRecord], location: &Location) -> Vec<Location> {
    records
        .iter()
        .filter_map(|record| record.find(location))
        .collect()
}
