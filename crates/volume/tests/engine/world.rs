//! One simulated edge with its bucket and table.

use crate::archive::Archived;
use firn_anchor::Anchor;
use firn_env::{
    Env,
    sim::{DiskImage, Machine, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{MemoryStore, Meter, Metered};
use firn_table::{Condition, ItemKey, MemoryTable, Table, Write};
use firn_vfs::{Caller, Credentials, MemoryOptions, MemoryVfs};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig, file_system_id};
use std::{collections::BTreeMap, future::Future, sync::Arc};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);

pub struct World {
    machine: Machine,
    unmetered: Arc<MemoryStore>,
    store: Arc<Metered>,
    meter: Meter,
    table: MemoryTable,
    env: Env,
    archive: Option<Arc<MemoryStore>>,
}

impl World {
    pub fn new(simulation: &Simulation) -> Self {
        let unmetered = Arc::new(MemoryStore::new(&simulation.env()));
        let store = Metered::new(unmetered.clone());
        Self::over(simulation, (unmetered, store), None)
    }

    /// The same, with a copy of all that was ever put: roots can be read there after a cleaner deleted what they need.
    pub fn with_archive(simulation: &Simulation) -> Self {
        let unmetered = Arc::new(MemoryStore::new(&simulation.env()));
        let archive = Arc::new(MemoryStore::new(&simulation.env()));
        let archived = Archived::new(unmetered.clone(), archive.clone());
        Self::over(
            simulation,
            (unmetered, Metered::new(Arc::new(archived))),
            Some(archive),
        )
    }

    fn over(
        simulation: &Simulation,
        (unmetered, store): (Arc<MemoryStore>, Metered),
        archive: Option<Arc<MemoryStore>>,
    ) -> Self {
        let machine = simulation.machine("edge");
        let env = machine.env();
        Self {
            machine,
            unmetered,
            meter: store.meter(),
            store: Arc::new(store),
            table: MemoryTable::new(),
            env,
            archive,
        }
    }

    /// See [`World::with_archive`].
    pub fn archive(&self) -> Option<Arc<MemoryStore>> {
        self.archive.clone()
    }

    pub fn model(&self) -> Arc<MemoryVfs> {
        let options = MemoryOptions {
            file_system: file_system_id(VOLUME),
            quota_bytes: config().quota_bytes,
            ..MemoryOptions::default()
        };
        Arc::new(MemoryVfs::new(&self.env, options))
    }

    /// What the volume is made of.
    pub fn own_parts(&self) -> Parts {
        self.parts(&self.env)
    }

    fn parts(&self, env: &Env) -> Parts {
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Parts {
            env: env.clone(),
            store: self.store.clone(),
            second: None,
            anchor: Anchor::new(self.table.connect(env), env.clone(), FAMILY),
            keys: Keys::new(FAMILY, keys),
            volume: VOLUME,
        }
    }

    pub fn format_and_open(&self) -> impl Future<Output = Volume> + Send + 'static {
        self.format_and_open_with(config())
    }

    /// The same, with settings of its own.
    pub fn format_and_open_with(
        &self,
        config: VolumeConfig,
    ) -> impl Future<Output = Volume> + Send + 'static {
        let parts = self.parts(&self.env);
        async move {
            parts.anchor.create_family().await.expect("a new family");
            Volume::format(&parts, "test", FormatOptions::default(), &config)
                .await
                .expect("it is formatted");
            Volume::open(parts, config).await.expect("it opens").0
        }
    }

    /// Cuts the power and starts the machine again.
    pub fn power_cut_only(&mut self) {
        self.machine.crash();
        self.env = self.machine.restart();
    }

    /// Cuts the power, starts again and recovers.
    pub fn power_cut(&mut self, simulation: &Simulation) -> Volume {
        self.power_cut_only();
        let parts = self.parts(&self.env);
        simulation
            .run(async move { Volume::open(parts, config()).await.expect("it recovers").0 })
            .expect("the run ends")
    }

    /// The edge's clock and tasks.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Stops the machine the next time it comes to this fault point.
    pub fn crash_at(&self, point: &'static str) {
        self.machine.crash_at(point, 1);
    }

    /// Stops the machine when it has come to so many fault points.
    pub fn crash_at_any(&self, hit: u64) {
        self.machine.crash_at_any(hit);
    }

    /// The parts of another volume of the family, on a machine of its own.
    pub fn elsewhere(&self, simulation: &Simulation, volume: VolumeId) -> Parts {
        let machine = simulation.machine(&format!("edge of {volume}"));
        Parts {
            volume,
            ..self.parts(&machine.env())
        }
    }

    /// A machine with the same disk as the edge's, to be handed to [`World::parts_in`] with an environment of it. The edge is down.
    pub fn copy_machine(&self, simulation: &Simulation, name: &str) -> Machine {
        assert!(
            !self.machine.is_running(),
            "a disk is copied while nobody writes to it"
        );
        let copy = simulation.machine(name);
        copy.crash();
        copy.disk().restore(&self.machine.disk().image());
        copy
    }

    /// What the volume is made of, in that environment.
    pub fn parts_in(&self, env: &Env) -> Parts {
        self.parts(env)
    }

    /// Counts what volumes ask of the store.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The store, past the meter.
    pub fn store(&self) -> Arc<MemoryStore> {
        self.unmetered.clone()
    }

    /// What the same volume is made of on another machine.
    pub fn machine_beside(&self, simulation: &Simulation, name: &str) -> Parts {
        self.parts(&simulation.machine(name).env())
    }

    /// The table itself.
    pub fn table(&self) -> MemoryTable {
        self.table.clone()
    }

    /// Replaces the bytes of the volume's tuple, as who controls the table can.
    pub fn put_tuple(&self, simulation: &Simulation, bytes: &bytes::Bytes) {
        let table = self.table.connect(&simulation.env());
        let key = ItemKey::new(format!("family/{FAMILY}"), format!("volume/{}", VOLUME.hex()));
        let bytes = bytes.clone();
        let work = async move {
            let found = table.get(&key).await.expect("it answers").expect("it is there");
            let write = Write::Put {
                key,
                value: bytes,
                condition: Condition::Version(found.version),
            };
            table.transact(vec![write]).await.expect("it is put");
        };
        simulation.run(work).expect("the run ends");
    }

    /// Cuts the power for good.
    pub fn end(&self) {
        self.machine.crash();
    }

    /// What is on the edge's disk.
    pub fn disk_image(&self) -> DiskImage {
        self.machine.disk().image()
    }

    /// Runs something on the machine until it is done or the machine is down.
    pub fn attempt(&self, simulation: &Simulation, work: impl Future<Output = ()> + Send + 'static) {
        let env = self.env.clone();
        simulation
            .run(async move {
                // It ends with its machine, which is what was asked for.
                let _ = env.spawn("attempt", work).await;
            })
            .expect("the run ends");
    }

    /// Requests to store and table so far.
    pub fn requests(&self) -> u64 {
        self.meter.usage().requests() + self.table.counts().requests()
    }

    /// The next start finds an empty disk.
    pub fn lose_disk(&mut self) {
        self.machine.crash();
        let empty = DiskImage::default();
        self.machine.disk().restore(&empty);
        self.machine.restart();
    }
}

/// A request of root's that nobody repeats.
pub fn root() -> Caller {
    Caller::new(Credentials::root())
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
