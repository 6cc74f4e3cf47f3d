//! A table in memory for simulations: one [`MemoryTable`] stands for the service and outlives every simulated machine;
//! each machine reaches it through a [`MemoryTableClient`] of its own, on which a test asks for trouble.
//!
//! ```text
//! machine A ── client A (faults of A) ──┐
//!                                       ├── MemoryTable: items, late writes, counts
//! machine B ── client B (faults of B) ──┘
//! ```
//!
//! Everything is deterministic: trouble is either scripted call by call or drawn from the client's own `Env`, and a late
//! write lands after a number of further requests rather than after a time, so no task and no clock is needed for it.
//! Versions are a counter that is scrambled, so that no test comes to rely on their order, and that a restored image does
//! not set back.

mod client;

pub use client::{Fault, FaultRates, MemoryTableClient};

use crate::{
    Applied, Item, ItemKey, ItemVersion, Page, TableError, Write,
    page::{self, PageBuilder},
};
use bytes::Bytes;
use firn_env::Env;
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard},
};

/// Requests made, whether they succeeded or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Single reads.
    pub gets: u64,
    /// Pages of queries.
    pub queries: u64,
    /// Transactions of any size.
    pub transactions: u64,
}

impl TableCounts {
    /// All requests together.
    pub fn requests(&self) -> u64 {
        self.gets + self.queries + self.transactions
    }
}

/// The items of a [`MemoryTable`] at one moment, as a backup holds them.
#[derive(Clone, Debug, Default)]
pub struct MemoryTableImage {
    items: BTreeMap<ItemKey, (ItemVersion, Bytes)>,
}

/// The simulated service; cheap to clone, all clones are one table.
#[derive(Clone, Default)]
pub struct MemoryTable {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    items: BTreeMap<ItemKey, (ItemVersion, Bytes)>,
    puts: u64,
    late: Vec<LateWrite>,
    counts: TableCounts,
    watcher: Option<Watcher>,
}

/// Sees each item put (with its new value) or deleted (with none), in the order in which it happens.
type Watcher = Box<dyn Fn(&ItemKey, Option<&Bytes>) + Send>;

/// A transaction whose sender was told "unavailable" and that is still on its way.
struct LateWrite {
    requests_left: u64,
    writes: Vec<Write>,
}

impl MemoryTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// The table as the machine of `env` sees it, at first without faults.
    pub fn connect(&self, env: &Env) -> Arc<MemoryTableClient> {
        Arc::new(MemoryTableClient::new(self.clone(), env.clone()))
    }

    /// Requests of all clients so far.
    pub fn counts(&self) -> TableCounts {
        self.lock().counts
    }

    /// Lets every late write land (or fail its conditions) now.
    pub fn settle(&self) {
        let mut state = self.lock();
        for late in std::mem::take(&mut state.late) {
            // Its sender stopped listening long ago.
            let _ = state.apply(&late.writes);
        }
    }

    /// Shows `watcher` each put (with the value) and each delete (without), in the order in which they happen: what an
    /// executable model compares itself with. It must not use the table.
    pub fn watch(&self, watcher: impl Fn(&ItemKey, Option<&Bytes>) + Send + 'static) {
        self.lock().watcher = Some(Box::new(watcher));
    }

    /// A copy of the items, as a backup would hold them.
    pub fn image(&self) -> MemoryTableImage {
        MemoryTableImage {
            items: self.lock().items.clone(),
        }
    }

    /// Puts the items back to what they were: a rolled-back table.
    pub fn restore(&self, image: &MemoryTableImage) {
        self.lock().items = image.items.clone();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn count(&self, add: impl FnOnce(&mut TableCounts)) {
        add(&mut self.lock().counts);
    }

    fn get(&self, key: &ItemKey) -> Option<Item> {
        let mut state = self.lock();
        state.age_late_writes();
        state.items.get(key).map(|(version, value)| Item {
            key: key.clone(),
            version: *version,
            value: value.clone(),
        })
    }

    fn query(&self, partition: &str, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        let mut state = self.lock();
        state.age_late_writes();
        let start = page::start(prefix, after).map(|sort| ItemKey::new(partition, sort));
        let mut builder = PageBuilder::new(limit);
        for (key, (version, value)) in state.items.range((start, Bound::Unbounded)) {
            if key.partition != partition || !key.sort.starts_with(prefix) {
                break;
            }
            let item = Item {
                key: key.clone(),
                version: *version,
                value: value.clone(),
            };
            if !builder.push(item) {
                break;
            }
        }
        builder.finish()
    }

    fn transact(&self, writes: &[Write]) -> Result<Applied, TableError> {
        let mut state = self.lock();
        state.age_late_writes();
        state.apply(writes)
    }

    fn delay_write(&self, requests: u64, writes: Vec<Write>) {
        let mut state = self.lock();
        state.age_late_writes();
        state.late.push(LateWrite {
            requests_left: requests.max(1),
            writes,
        });
    }
}

impl State {
    fn age_late_writes(&mut self) {
        let mut waiting = Vec::new();
        for mut late in std::mem::take(&mut self.late) {
            late.requests_left -= 1;
            if late.requests_left == 0 {
                // Its sender stopped listening long ago.
                let _ = self.apply(&late.writes);
            } else {
                waiting.push(late);
            }
        }
        self.late = waiting;
    }

    fn apply(&mut self, writes: &[Write]) -> Result<Applied, TableError> {
        for (index, write) in writes.iter().enumerate() {
            let current = self.items.get(write.key()).map(|(version, _)| *version);
            if !write.condition().holds(current) {
                return Err(TableError::ConditionFailed { index });
            }
        }
        let mut applied = Applied::with_capacity(writes.len());
        for write in writes {
            match (&self.watcher, write) {
                (Some(watcher), Write::Put { key, value, .. }) => watcher(key, Some(value)),
                (Some(watcher), Write::Delete { key, .. }) => watcher(key, None),
                (Some(_), Write::Check { .. }) | (None, _) => {}
            }
            applied.push(match write {
                Write::Put { key, value, .. } => {
                    self.puts += 1;
                    let version = ItemVersion(scramble(self.puts));
                    self.items.insert(key.clone(), (version, value.clone()));
                    Some(version)
                }
                Write::Delete { key, .. } => {
                    self.items.remove(key);
                    None
                }
                Write::Check { .. } => None,
            });
        }
        Ok(applied)
    }
}

/// A one-to-one map of 64-bit numbers without visible order (odd multiplications and xor-shifts are each invertible).
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
