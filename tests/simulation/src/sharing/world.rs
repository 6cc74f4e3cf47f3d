//! The installation: machines of owners and followers, one bucket, one table, and the lines between them.

use crate::bad_line::{fair_store, fair_table, rough_store, rough_table};
use async_trait::async_trait;
use firn_anchor::Anchor;
use firn_env::{
    Env,
    sim::{Machine, Seeded, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{
    FaultConfig, FaultControl, Faults, Faulty, MemoryStore, Meter, Metered, Outage, RetryPolicy, Retrying,
};
use firn_table::{Applied, Item, ItemKey, MemoryTable, MemoryTableClient, Page, Table, TableError, Write};
use firn_volume::{Cadence, Parts, VolumeConfig, objects::FetchPolicy};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

pub const FAMILY: FamilyId = FamilyId([1; 16]);
pub const VOLUME: VolumeId = VolumeId([2; 16]);
/// Machines that own the volume, one at a time.
pub const OWNERS: usize = 2;
/// Machines that follow it.
pub const FOLLOWERS: usize = 2;

/// What goes wrong between a machine and the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Fair,
    Rough,
    NoStore,
    NoTable,
}

/// A machine with its line.
pub struct Place {
    pub machine: Machine,
    pub faults: FaultControl,
    store: Arc<Metered>,
    meter: Meter,
    client: Mutex<Option<Arc<MemoryTableClient>>>,
    line: Mutex<Line>,
    /// Shown instead of what the table has.
    pub lie: Arc<Mutex<Option<Item>>>,
}

/// See the module.
pub struct World {
    pub bucket: Arc<MemoryStore>,
    pub table: MemoryTable,
    pub config: VolumeConfig,
    places: Vec<Place>,
}

impl World {
    pub fn new(simulation: &Simulation, random: &mut Seeded) -> Self {
        let env = simulation.env();
        let bucket = Arc::new(MemoryStore::new(&env));
        let place = |number: usize| {
            let config = FaultConfig {
                seed: simulation.seed() ^ (number as u64) << 32,
                ..FaultConfig::default()
            };
            let faulty = Faulty::new(&env, bucket.clone(), config).expect("no faults make sense");
            let faults = faulty.control();
            let store = Arc::new(Metered::new(Arc::new(faulty)));
            Place {
                machine: simulation.machine(&format!("office{number}")),
                faults,
                meter: store.meter(),
                store,
                client: Mutex::default(),
                line: Mutex::new(Line::Fair),
                lie: Arc::default(),
            }
        };
        let config = VolumeConfig {
            owner_name: "office".into(),
            segment_bytes: *random.pick(&[16 << 10, 64 << 10, 1 << 20]),
            memory_cache_bytes: *random.pick(&[0, 64 << 10, 4 << 20]),
            disk_cache_bytes: *random.pick(&[64 << 10, 1 << 20, 64 << 20]),
            journal_bytes: 8 << 20,
            journal_file_bytes: 1 << 20,
            cadence: Cadence {
                busy: random.duration(Duration::from_millis(20), Duration::from_secs(2)),
                busy_bytes: *random.pick(&[8 << 10, 256 << 10, 4 << 20]),
                trickle: random.duration(Duration::from_millis(50), Duration::from_secs(10)),
            },
            quota_bytes: 1 << 40,
            fetch: *random.pick(&[
                FetchPolicy::Adaptive,
                FetchPolicy::Exact,
                FetchPolicy::FullSegment,
            ]),
            wait_limit: Duration::from_secs(random.between(1, 20)),
            merge_every: *random.pick(&[Duration::ZERO, Duration::from_secs(5), Duration::from_secs(60)]),
            ..VolumeConfig::default()
        };
        Self {
            places: (0..OWNERS + FOLLOWERS).map(place).collect(),
            bucket,
            table: MemoryTable::new(),
            config,
        }
    }

    pub fn owner(&self, number: usize) -> &Place {
        &self.places[number]
    }

    pub fn follower(&self, number: usize) -> &Place {
        &self.places[OWNERS + number]
    }

    /// A machine, whatever it does.
    pub fn place(&self, number: usize) -> &Place {
        &self.places[number]
    }

    /// The machine that looks at what is there in the end.
    pub fn auditor(&self) -> &Place {
        &self.places[OWNERS + FOLLOWERS - 1]
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.places.iter().map(|place| &place.machine)
    }

    /// Requests of all machines so far.
    pub fn requests(&self) -> u64 {
        let store: u64 = self
            .places
            .iter()
            .map(|place| place.meter.usage().requests())
            .sum();
        store + self.table.counts().requests()
    }

    /// What a machine's running incarnation makes the volume of.
    pub fn parts(&self, place: &Place) -> Parts {
        let env = place.machine.env();
        let client = self.table.connect(&env);
        *place.client.lock().expect("no panic under this lock") = Some(client.clone());
        place.apply();
        let policy = RetryPolicy {
            tries_max: 4,
            pause_ms: 50,
            pause_max_ms: 2_000,
            ..RetryPolicy::default()
        };
        let table = TwoFaced {
            table: client,
            lie: place.lie.clone(),
        };
        Parts {
            store: Arc::new(Retrying::new(&env, place.store.clone(), policy)),
            second: None,
            anchor: Anchor::new(Arc::new(table), env.clone(), FAMILY),
            keys: Keys::new(
                FAMILY,
                BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]),
            ),
            volume: VOLUME,
            env,
        }
    }

    /// The volume's item as it is now.
    pub async fn item(&self, env: &Env) -> Option<Item> {
        self.table.connect(env).get(&volume_key()).await.ok().flatten()
    }
}

fn volume_key() -> ItemKey {
    ItemKey::new(format!("family/{FAMILY}"), format!("volume/{}", VOLUME.hex()))
}

impl Place {
    pub fn set_line(&self, line: Line) {
        *self.line.lock().expect("no panic under this lock") = line;
        self.apply();
    }

    pub fn lie(&self, item: Option<Item>) {
        *self.lie.lock().expect("no panic under this lock") = item;
    }

    fn apply(&self) {
        let line = *self.line.lock().expect("no panic under this lock");
        let faults = match line {
            Line::Fair => fair_store(),
            Line::Rough | Line::NoTable => rough_store(),
            Line::NoStore => Faults {
                outage: Outage::Hang,
                ..rough_store()
            },
        };
        self.faults.set(faults).expect("the faults make sense");
        let client = self.client.lock().expect("no panic under this lock");
        let Some(client) = &*client else { return };
        client.set_outage(line == Line::NoTable);
        client.set_rates(match line {
            Line::Fair => fair_table(40),
            Line::Rough | Line::NoStore | Line::NoTable => rough_table(40),
        });
    }
}

/// A table that shows somebody an old item of the volume.
struct TwoFaced {
    table: Arc<MemoryTableClient>,
    lie: Arc<Mutex<Option<Item>>>,
}

#[async_trait]
impl Table for TwoFaced {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        let lie = self.lie.lock().expect("no panic under this lock").clone();
        let found = self.table.get(key).await?;
        Ok(lie.filter(|_| *key == volume_key()).or(found))
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.table.query(partition, prefix, after, limit).await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.table.transact(writes).await
    }
}
