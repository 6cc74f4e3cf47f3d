//! One simulated edge with its bucket and table.

use firn_anchor::Anchor;
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::MemoryStore;
use firn_table::MemoryTable;
use firn_vfs::{MemoryOptions, MemoryVfs};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig, file_system_id};
use std::{collections::BTreeMap, future::Future, sync::Arc};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);

pub struct World {
    machine: Machine,
    store: Arc<MemoryStore>,
    table: MemoryTable,
    env: Env,
}

impl World {
    pub fn new(simulation: &Simulation) -> Self {
        let machine = simulation.machine("edge");
        let env = machine.env();
        let store = Arc::new(MemoryStore::new(&simulation.env()));
        Self {
            machine,
            store,
            table: MemoryTable::new(),
            env,
        }
    }

    pub fn model(&self) -> Arc<MemoryVfs> {
        let options = MemoryOptions {
            file_system: file_system_id(VOLUME),
            quota_bytes: config().quota_bytes,
            ..MemoryOptions::default()
        };
        Arc::new(MemoryVfs::new(&self.env, options))
    }

    fn parts(&self, env: &Env) -> Parts {
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Parts {
            env: env.clone(),
            store: self.store.clone(),
            anchor: Anchor::new(self.table.connect(env), env.clone(), FAMILY),
            keys: Keys::new(FAMILY, keys),
            volume: VOLUME,
        }
    }

    pub fn format_and_open(&self) -> impl Future<Output = Volume> + Send + 'static {
        let parts = self.parts(&self.env);
        async move {
            parts.anchor.create_family().await.expect("a new family");
            Volume::format(&parts, "test", FormatOptions::default(), &config())
                .await
                .expect("it is formatted");
            Volume::open(parts, config()).await.expect("it opens").0
        }
    }

    /// Cuts the power, starts again and recovers.
    pub fn power_cut(&mut self, simulation: &Simulation) -> Volume {
        self.machine.crash();
        self.env = self.machine.restart();
        let parts = self.parts(&self.env);
        simulation
            .run(async move { Volume::open(parts, config()).await.expect("it recovers").0 })
            .expect("the run ends")
    }

    /// The next start finds an empty disk.
    pub fn lose_disk(&mut self) {
        self.machine.crash();
        let empty = firn_env::sim::DiskImage::default();
        self.machine.disk().restore(&empty);
        self.machine.restart();
    }
}

pub fn config() -> VolumeConfig {
    VolumeConfig {
        segment_bytes: 256 << 10,
        memory_cache_bytes: 4 << 20,
        disk_cache_bytes: 16 << 20,
        journal_bytes: 32 << 20,
        journal_file_bytes: 4 << 20,
        dirty_memory_bytes: 1 << 20,
        ..VolumeConfig::default()
    }
}
