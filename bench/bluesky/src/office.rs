//! A simulated branch office: a bucket and a table far away, edges that serve one volume over NFS, and clients beside them.
//!
//! Everything that runs is the product: the engine, the NFS server with its RPC and XDR, the metered store. Simulated are the
//! network, the disks and the clock. Time is virtual and passes only while everybody waits, so what is measured is waiting:
//! for the store, the local disk and the local network. What the programs compute is measured beside it, as the CPU time of
//! this thread.
//!
//! ```text
//! client ── 0.1 ms ── edge (NFS server, engine, disk) ── latency, bandwidth ── bucket
//!                                                    └────────────────────── table
//! ```

mod site;

pub use site::{Sharing, Site, SiteLines, Spent, price_list};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use firn_anchor::{Anchor, WriterTenure};
use firn_env::{
    Env,
    sim::{DiskImage, Limits, Machine, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, SegmentId, VolumeId};
use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, Squash,
    mount::MountProgram,
    rpc::{Program, Programs, Server, ServerLimits},
    v3::NfsProgram,
};
use firn_seal::{EpochKey, Keys};
use firn_store::{
    FaultConfig, Faults, Faulty, MemoryStore, ObjectKey, PutMode, Stack, StackConfig, Store, Usage,
};
use firn_table::{MemoryTable, MemoryTableImage, Table};
use firn_vfs::{Durability, Vfs};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Of the first volume; each further one has the next.
const FIRST: (FamilyId, VolumeId) = (FamilyId([1; 16]), VolumeId([2; 16]));

/// One way between client and edge takes up to this long: 0.2 ms there and back on average, a switched office network.
const OFFICE_NETWORK_ONE_WAY_MAX: Duration = Duration::from_micros(200);

/// The largest READ and WRITE, as in a stock edge, and what a WRITE has beside its data at most.
const IO_BYTES_MAX: u32 = 1 << 20;
const CALL_HEAD_BYTES: u32 = 4096;

/// What the line to the store carries, as in the paper: "the network links … are both 1 Gbps".
pub const LINE_BITS_PER_SECOND: u64 = 1_000_000_000;
/// What one request carries. Of the paper's line one connection filled but a part; today's stores give 50 MB/s and more.
pub const CONNECTION_BITS_PER_SECOND: u64 = 400_000_000;

/// The line to the store.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Round trip.
    pub latency_ms: u64,
    /// Upwards.
    pub up_bits_per_second: u64,
}

impl Line {
    /// A line of the paper's width.
    pub fn of_latency(latency_ms: u64) -> Self {
        Self {
            latency_ms,
            up_bits_per_second: LINE_BITS_PER_SECOND,
        }
    }

    fn faults(self) -> Faults {
        Faults {
            latency_ms: self.latency_ms,
            up_bits_per_second: Some(self.up_bits_per_second),
            down_bits_per_second: Some(LINE_BITS_PER_SECOND),
            connection_bits_per_second: Some(CONNECTION_BITS_PER_SECOND),
            ..Faults::default()
        }
    }
}

/// What bucket and table hold at one moment.
#[derive(Clone)]
pub struct Image {
    objects: BTreeMap<ObjectKey, Bytes>,
    table: MemoryTableImage,
}

impl Image {
    /// Objects in the bucket.
    pub fn objects(&self) -> u64 {
        self.objects.len() as u64
    }
}

/// See the module.
pub struct Office {
    simulation: Arc<Simulation>,
    bucket: Arc<MemoryStore>,
    table: MemoryTable,
    machines: Arc<AtomicU64>,
    family: FamilyId,
    volume: VolumeId,
}

/// An edge that serves the volume.
pub struct Edge {
    pub env: Env,
    pub volume: Volume,
    pub stack: Arc<Stack>,
    machine: Machine,
    service: Arc<Server>,
}

/// The beginning of a measurement.
pub struct Started {
    elapsed: Duration,
    cpu: Duration,
}

/// What a step cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Virtual time: waiting for store, disk and network.
    pub waited_s: f64,
    /// CPU time of everything: client, server, engine and simulator.
    pub computed_s: f64,
    /// Requests to the store.
    pub usage: Usage,
}

impl Cost {
    /// What it would take on one core that computes and waits in turn.
    pub fn seconds(&self) -> f64 {
        self.waited_s + self.computed_s
    }
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

impl Office {
    /// An office whose volume is empty.
    pub fn new(format: FormatOptions) -> Result<Self> {
        Self::bare().formatted(format)
    }

    /// The same place with another volume, which is empty: same bucket, table, network and clock.
    pub fn with_another_volume(&self, format: FormatOptions) -> Result<Self> {
        let next = |id: [u8; 16]| id.map(|byte| byte + 2);
        let another = Self {
            simulation: self.simulation.clone(),
            bucket: self.bucket.clone(),
            table: self.table.clone(),
            machines: self.machines.clone(),
            family: FamilyId(next(self.family.0)),
            volume: VolumeId(next(self.volume.0)),
        };
        another.formatted(format)
    }

    fn formatted(self, format: FormatOptions) -> Result<Self> {
        let office = self;
        let machine = office.machine("format");
        let env = machine.env();
        let parts = office.parts(&env, office.bucket.clone());
        office.run(async move {
            parts.anchor.create_family().await?;
            Volume::format(&parts, "office", format, &VolumeConfig::default()).await?;
            Ok(())
        })?;
        machine.crash();
        Ok(office)
    }

    /// An office whose bucket and table hold what others held.
    pub fn of_image(image: &Image) -> Result<Self> {
        let office = Self::bare();
        office.table.restore(&image.table);
        let (bucket, objects) = (office.bucket.clone(), image.objects.clone());
        office.run(async move {
            for (key, content) in objects {
                bucket.put(&key, vec![content], PutMode::Create).await?;
            }
            Ok(())
        })?;
        Ok(office)
    }

    fn bare() -> Self {
        let limits = Limits {
            steps: u64::MAX,
            time: Duration::from_secs(365 * 86_400),
        };
        let simulation = Simulation::with_limits(1, limits);
        simulation.set_early_timers(false);
        simulation.set_network_latency(OFFICE_NETWORK_ONE_WAY_MAX);
        Self {
            bucket: Arc::new(MemoryStore::new(&simulation.env())),
            table: MemoryTable::new(),
            machines: Arc::default(),
            simulation: Arc::new(simulation),
            family: FIRST.0,
            volume: FIRST.1,
        }
    }

    /// What bucket and table hold now.
    pub fn image(&self) -> Image {
        Image {
            objects: self.bucket.contents(),
            table: self.table.image(),
        }
    }

    fn parts(&self, env: &Env, store: Arc<dyn Store>) -> Parts {
        self.parts_over(env, store, self.table.connect(env))
    }

    fn parts_over(&self, env: &Env, store: Arc<dyn Store>, table: Arc<dyn Table>) -> Parts {
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Parts {
            env: env.clone(),
            store,
            second: None,
            anchor: Anchor::new(table, env.clone(), self.family),
            keys: Keys::new(self.family, keys),
            volume: self.volume,
        }
    }

    /// A machine that was never used.
    pub fn machine(&self, what: &str) -> Machine {
        let number = self.machines.fetch_add(1, Relaxed);
        let machine = self.simulation.machine(&format!("{what}-{number}"));
        // Nobody cuts the power here, and the cache removes many a file whose directory it never syncs.
        machine.disk().configure(|disk| disk.writes_through = true);
        machine
    }

    /// What a cleaner on this machine, beside the bucket, works with.
    pub fn cleaner(&self, machine: &Machine) -> (Env, Arc<dyn Store>, Anchor) {
        let env = machine.env();
        let anchor = Anchor::new(self.table.connect(&env), env.clone(), self.family);
        (env, self.bucket.clone(), anchor)
    }

    /// Bytes of the segments that lie in the bucket now: those of edges, and those of cleaners.
    pub async fn log_bytes(&self, anchor: &Anchor) -> Result<(u64, u64)> {
        let mut bytes = (0, 0);
        let mut of_cleaners = BTreeMap::new();
        for (key, content) in self.bucket.contents() {
            let Some((_, segment)) = SegmentId::parse_key(key.as_str()) else {
                continue;
            };
            if let Entry::Vacant(unknown) = of_cleaners.entry(segment.writer) {
                let tuple = anchor.writer(segment.writer).await?;
                unknown.insert(tuple.is_some_and(|(tuple, _)| matches!(tuple.tenure, WriterTenure::Cleaner)));
            }
            let sum = if of_cleaners[&segment.writer] {
                &mut bytes.1
            } else {
                &mut bytes.0
            };
            *sum += content.len() as u64;
        }
        Ok(bytes)
    }

    /// Runs one thing to its end.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.simulation.run(work).map_err(|error| anyhow!("{error}"))?
    }

    /// Starts measuring.
    pub fn start(&self) -> Started {
        Started {
            elapsed: self.simulation.elapsed(),
            cpu: cpu_time(),
        }
    }

    /// What was spent since, with this edge's requests after `usage`.
    pub fn cost(&self, started: &Started, edge: &Edge, usage: &Usage) -> Cost {
        Cost {
            waited_s: (self.simulation.elapsed() - started.elapsed).as_secs_f64(),
            computed_s: cpu_time().saturating_sub(started.cpu).as_secs_f64(),
            usage: edge.stack.meter.usage().since(usage),
        }
    }

    /// Runs one thing and says what it cost.
    pub fn measure<T: Send + 'static>(
        &self,
        edge: &Edge,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(T, Cost)> {
        let (started, usage) = (self.start(), edge.stack.meter.usage());
        let result = self.run(work)?;
        Ok((result, self.cost(&started, edge, &usage)))
    }

    /// A new edge with an empty disk serves the volume, which nobody else may have open.
    pub fn edge(&self, config: VolumeConfig, line: Line) -> Result<Edge> {
        let machine = self.machine("edge");
        let env = machine.env();
        let faults = FaultConfig {
            faults: line.faults(),
            ..FaultConfig::default()
        };
        let faulty = Faulty::new(&env, self.bucket.clone(), faults)?;
        let stack = Arc::new(Stack::new(&env, Arc::new(faulty), StackConfig::default()));
        let parts = self.parts(&env, stack.store.clone());
        let serving = env.clone();
        let (volume, service) = self.run(async move {
            let (volume, _) = Volume::open(parts, config).await?;
            let service = serve(&serving, Arc::new(volume.clone()), Durability::Journal).await?;
            Ok((volume, service))
        })?;
        Ok(Edge {
            env,
            volume,
            stack,
            machine,
            service,
        })
    }

    /// Commits everything, gives the volume up and switches the machine off.
    pub fn close(&self, edge: Edge) -> Result<()> {
        let (volume, service) = (edge.volume.clone(), edge.service.clone());
        self.run(async move {
            volume.sync().await?;
            service.shutdown().await;
            volume.drain().await?;
            Ok(())
        })?;
        edge.machine.crash();
        // What is left on its disk would only take memory.
        edge.machine.disk().restore(&DiskImage::default());
        Ok(())
    }
}

/// Serves a file system as the export `/`.
async fn serve(env: &Env, volume: Arc<dyn Vfs>, durability: Durability) -> Result<Arc<Server>> {
    let rule = ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    };
    let export = Export::new("/", volume, vec![rule])?.with_durability(durability);
    let exports = Arc::new(Exports::new(HandleKey::new(&[7; 32]), [export])?);
    let limits = ServerLimits {
        record_bytes: (IO_BYTES_MAX + CALL_HEAD_BYTES) as usize,
        ..ServerLimits::default()
    };
    // The service as firn-edge starts it wants datagrams too, which the simulated network has not.
    let service = Server::new(env, limits);
    let nfs = NfsProgram::new(env, exports.clone(), IO_BYTES_MAX);
    let mount = MountProgram::new(env, exports);
    let programs: [Arc<dyn Program>; 2] = [Arc::new(nfs), Arc::new(mount)];
    service
        .listen("0.0.0.0:2049", Arc::new(Programs::new(programs)))
        .await?;
    Ok(service)
}

impl Edge {
    /// Its host name and NFS port.
    pub fn address(&self) -> String {
        format!("{}:2049", self.machine.name())
    }
}
