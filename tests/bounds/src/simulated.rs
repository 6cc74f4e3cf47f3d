//! The real engine in simulated time: an hour or a month passes in seconds, and every request is counted.

use crate::world::{World, root};
use anyhow::{Context, Result};
use bytes::Bytes;
use firn_env::{
    Env,
    sim::{Limits, Machine, Simulation},
};
use firn_store::{FaultConfig, FaultControl, Faulty, MemoryStore, Metered, RetryPolicy, Retrying};
use firn_vfs::{CreateMode, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{Volume, VolumeConfig};
use std::{sync::Arc, time::Duration};

/// A machine with a bucket and a table of its own.
pub struct SimulatedEdge {
    simulation: Simulation,
    pub machine: Machine,
    pub world: World,
    pub faults: FaultControl,
    pub bucket: Arc<MemoryStore>,
}

impl SimulatedEdge {
    pub fn new(seed: u64, config: VolumeConfig) -> Self {
        let limits = Limits {
            // Bounded, but by far more than a month of a busy client.
            steps: 2_000_000_000,
            time: Duration::from_secs(40 * 86_400),
        };
        let simulation = Simulation::with_limits(seed, limits);
        let machine = simulation.machine("edge");
        let outside = simulation.env();
        let bucket = Arc::new(MemoryStore::new(&outside));
        let faulty =
            Faulty::new(&outside, bucket.clone(), FaultConfig::default()).expect("no faults make sense");
        let faults = faulty.control();
        let metered = Metered::new(Arc::new(faulty));
        let meter = metered.meter();
        let store = Retrying::new(&outside, Arc::new(metered), RetryPolicy::default());
        let world = World::new(&outside, Arc::new(store), meter, config);
        Self {
            simulation,
            machine,
            world,
            faults,
            bucket,
        }
    }

    /// Keeps no memory of what a power cut might bring back, which is much after a month: for those that cut none.
    pub fn without_power_cuts(&self) {
        self.machine.disk().configure(|disk| disk.writes_through = true);
    }

    pub fn env(&self) -> Env {
        self.machine.env()
    }

    /// Runs until the future is done.
    pub fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.simulation.run(future).context("the simulation")?
    }
}

/// A new file in the root directory.
pub async fn file(volume: &Volume, name: &str) -> Result<FileHandle> {
    let name = Name::new(name.to_owned())?;
    let how = CreateMode::Unchecked(SetAttributes::default());
    Ok(volume.create(&root(), volume.root(), &name, how).await?.handle)
}

/// One stable write.
pub async fn write(volume: &Volume, file: FileHandle, offset: u64, data: &[u8]) -> Result<(), VfsError> {
    let data = vec![Bytes::copy_from_slice(data)];
    volume
        .write(&root(), file, offset, data, Stability::FileSync)
        .await
        .map(drop)
}
