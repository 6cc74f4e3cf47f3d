//! A server and a client on simulated machines, whose network cuts streams at random places.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{
    BlockDevice, DeviceError, Durability, Export, Exports, Extent, Geometry, Limits, MemoryDevice, Piece,
    Server,
};
use firn_env::{Env, sim::Simulation};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Semaphore;

/// 6 GiB: more than 32 bits can say.
pub const LARGE_BYTES: u64 = 6 << 30;
pub const DISK_BYTES: u64 = 1 << 20;

#[derive(Clone)]
pub struct World {
    pub env: Env,
    pub address: String,
    pub server: Server,
    pub disk: Arc<MemoryDevice>,
    pub gated: Arc<GatedDevice>,
}

/// Exports: `disk` (1 MiB, blocks of 512), `large` (6 GiB), `sealed` (read-only), `gated` (waits to be let through).
fn start(simulation: &Simulation, limits: Limits) -> World {
    let exports = Arc::new(Exports::new());
    let disk = Arc::new(MemoryDevice::with_block(DISK_BYTES, 512));
    let gated = Arc::new(GatedDevice::new());
    let devices: [(&str, Arc<dyn BlockDevice>); 4] = [
        ("disk", disk.clone()),
        ("large", Arc::new(MemoryDevice::new(LARGE_BYTES))),
        ("sealed", Arc::new(MemoryDevice::new(DISK_BYTES).read_only())),
        ("gated", gated.clone()),
    ];
    for (name, device) in devices {
        exports.insert(name, Export::new(device, format!("the {name} one")));
    }
    let server = simulation.machine("server");
    World {
        env: simulation.machine("client").env(),
        address: format!("{}:10809", server.address()),
        server: Server::new(server.env(), exports, None, limits),
        disk,
        gated,
    }
}

/// Runs a test on several seeds.
pub fn on_network<F: Future<Output = ()> + Send + 'static>(test: impl Fn(World) -> F) {
    on_network_with(Limits::default(), test);
}

pub fn on_network_with<F: Future<Output = ()> + Send + 'static>(limits: Limits, test: impl Fn(World) -> F) {
    for seed in 0..8 {
        run(seed, limits, &test);
    }
}

pub fn run<F: Future<Output = ()> + Send + 'static>(
    seed: u64,
    limits: Limits,
    test: impl Fn(World) -> F,
) -> u64 {
    let simulation = Simulation::new(seed);
    let world = start(&simulation, limits);
    let work = test(world.clone());
    simulation
        .run(async move {
            world.server.listen(&world.address).await.unwrap();
            work.await;
        })
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    simulation.trace_hash()
}

/// A device whose requests wait for permits, and which counts how many wait at once.
pub struct GatedDevice {
    memory: MemoryDevice,
    pub gate: Semaphore,
    running: AtomicUsize,
    pub peak: AtomicUsize,
    pub done: AtomicUsize,
}

impl GatedDevice {
    fn new() -> Self {
        Self {
            memory: MemoryDevice::new(64 << 20),
            gate: Semaphore::new(0),
            running: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl BlockDevice for GatedDevice {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    /// The first 4 KiB are free to read.
    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        if offset >= 4096 {
            self.pass().await;
        }
        self.memory.read(offset, length).await
    }
    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        self.pass().await;
        self.memory.write(offset, data, durability).await
    }
    async fn flush(&self) -> Result<(), DeviceError> {
        Err(DeviceError::Fenced)
    }
    async fn trim(&self, _: u64, _: u64, _: Durability) -> Result<(), DeviceError> {
        Err(DeviceError::Io("the disk is on fire".to_owned()))
    }
    async fn write_zeroes(&self, _: u64, _: u64, _: bool, _: Durability) -> Result<(), DeviceError> {
        Err(DeviceError::NoSpace("quota".to_owned()))
    }
    async fn extents(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>, DeviceError> {
        self.memory.extents(offset, length, most).await
    }
}
