//! Contents of tuples by their versions: a cache that cannot be stale, since a version names one content for ever.

use crate::TupleVersion;
use bytes::Bytes;
use firn_table::ItemKey;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// 2 MiB: some five thousand volumes, each of which is committed every five seconds at most.
const KNOWN_BYTES: usize = 2 << 20;
/// A key, a version and the map's own share.
const ENTRY_BYTES: usize = 128;

/// The newest known content of each tuple.
#[derive(Default)]
pub struct KnownTuples(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_key: HashMap<ItemKey, (TupleVersion, Bytes)>,
    bytes: usize,
}

impl KnownTuples {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic under this lock")
    }

    pub(crate) fn content(&self, key: &ItemKey, version: TupleVersion) -> Option<Bytes> {
        let known = self.lock();
        let (newest, content) = known.by_key.get(key)?;
        (*newest == version || firn_env::planted!("anchor.memory_without_versions")).then(|| content.clone())
    }

    /// When there is too much, all of it goes: each tuple then costs one read more, once.
    pub(crate) fn learn(&self, key: &ItemKey, version: TupleVersion, content: &Bytes) {
        let weight = |content: &Bytes| content.len() + key.partition.len() + key.sort.len() + ENTRY_BYTES;
        let mut known = self.lock();
        if let Some((_, old)) = known.by_key.remove(key) {
            known.bytes -= weight(&old);
        }
        let more = weight(content);
        if more > KNOWN_BYTES {
            return;
        }
        if known.bytes + more > KNOWN_BYTES {
            *known = Known::default();
        }
        known.bytes += more;
        // Copied: a slice would keep the whole reply alive.
        known
            .by_key
            .insert(key.clone(), (version, Bytes::copy_from_slice(content)));
    }
}
