//! A volume with its bucket and table in memory and in virtual time, on an edge's engine as it ships, with every request counted.

use crate::{archive::BLOCK_BYTES, asked::Asked};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::{
    Env,
    sim::{Limits, Simulation},
};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{MemoryStore, Meter, Metered, Usage};
use firn_table::{MemoryTable, Metered as MeteredTable, TablePrices};
use firn_vfs::{Caller, CreateMode, Credentials, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The family of all that is measured here.
pub const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);
/// One write of a client.
const WRITE_BYTES: u64 = 512 << 10;

/// Of one call, for the confirmation of what was put before.
const WAITS_MAX: u32 = 1000;

/// Bounded, and by far more than any of these measurements takes.
const LIMITS: Limits = Limits {
    steps: 2_000_000_000,
    time: Duration::from_secs(400 * 86_400),
};

/// The volume's world.
#[derive(Clone)]
pub struct World {
    /// The edge's clock and tasks.
    pub env: Env,
    /// What the volume is made of; the store and the table count.
    pub parts: Parts,
    meter: Meter,
    table: Arc<MeteredTable>,
}

/// Runs something in a simulation of its own.
///
/// # Errors
/// What it ends with, and the simulation's.
pub fn simulate<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    scenario: impl FnOnce(World) -> F,
) -> Result<T> {
    let simulation = Simulation::with_limits(5, LIMITS);
    let machine = simulation.machine("edge");
    // Nobody cuts its power, so nothing needs to be remembered of what that would bring back.
    machine.disk().configure(|disk| disk.writes_through = true);
    let env = machine.env();
    let store = Arc::new(Metered::new(Arc::new(MemoryStore::new(&simulation.env()))));
    let meter = store.meter();
    let table = MemoryTable::new().connect(&env);
    let table = Arc::new(MeteredTable::new(table, TablePrices::DYNAMODB_ON_DEMAND));
    let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
    let parts = Parts {
        env: env.clone(),
        store,
        second: None,
        anchor: Anchor::new(table.clone(), env.clone(), FAMILY),
        keys: Keys::new(FAMILY, keys),
        volume: VOLUME,
    };
    let world = World {
        env,
        parts,
        meter,
        table,
    };
    simulation.run(scenario(world)).context("the simulation")?
}

/// With a cache on disk that is as much larger than what is written as an edge's is by default: nothing is read but what is to be measured.
pub fn with_cache() -> VolumeConfig {
    VolumeConfig {
        disk_cache_bytes: 1 << 30,
        ..config()
    }
}

/// As edges are by default, in less memory; of what is written next to nothing stays in its caches.
pub fn config() -> VolumeConfig {
    VolumeConfig {
        memory_cache_bytes: 4 << 20,
        disk_cache_bytes: 16 << 20,
        journal_bytes: 256 << 20,
        dirty_memory_bytes: 16 << 20,
        ..VolumeConfig::default()
    }
}

impl World {
    /// What was asked so far.
    pub fn asked(&self) -> Asked {
        Asked {
            first: self.meter.usage(),
            second: Usage::default(),
            table: self.table.usage(),
        }
    }

    /// A new volume, open.
    ///
    /// # Errors
    /// The engine's.
    pub async fn volume(&self, manifest: bool, config: VolumeConfig) -> Result<Volume> {
        self.volume_of(BLOCK_BYTES, manifest, config).await
    }

    /// The same with blocks of another size.
    ///
    /// # Errors
    /// The engine's.
    pub async fn volume_of(&self, block_bytes: u64, manifest: bool, config: VolumeConfig) -> Result<Volume> {
        self.parts.anchor.create_family().await?;
        let options = FormatOptions {
            manifest,
            block_bytes: u32::try_from(block_bytes)?,
            ..FormatOptions::default()
        };
        Volume::format(&self.parts, "archive", options, &config).await?;
        Ok(Volume::open(self.parts.clone(), config).await?.0)
    }

    /// Writes so many bytes that cannot be compressed, durably; waits where the engine says that uploads are to be confirmed first.
    ///
    /// # Errors
    /// The engine's.
    pub async fn write(
        &self,
        volume: &Volume,
        file: FileHandle,
        (offset, bytes): (u64, u64),
        seed: u64,
    ) -> Result<()> {
        let mut at = 0;
        let mut waits = 0;
        while at < bytes {
            let piece = (bytes - at).min(WRITE_BYTES);
            let data = vec![Bytes::from(noise(seed ^ (offset + at), usize::try_from(piece)?))];
            let written = volume
                .write(&root(), file, offset + at, data, Stability::FileSync)
                .await;
            match written {
                Ok(_) => at += piece,
                Err(VfsError::TryAgain { .. }) if waits < WAITS_MAX => {
                    waits += 1;
                    self.env.sleep(Duration::from_secs(30)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until everything that was put was confirmed, and checks that nothing is asked then.
    ///
    /// # Errors
    /// If something is not confirmed, or is asked by an idle edge.
    pub async fn until_confirmed(&self, volume: &Volume) -> Result<()> {
        self.env.sleep(Duration::from_secs(300)).await;
        ensure!(
            volume.status().read_back.unconfirmed == 0,
            "not all was confirmed"
        );
        let before = self.asked();
        self.env.sleep(Duration::from_secs(3600)).await;
        let idle = self.asked().since(&before);
        ensure!(idle == Asked::default(), "an idle edge asks: {idle:?}");
        Ok(())
    }
}

/// The superuser.
fn root() -> Caller {
    Caller::new(Credentials::root())
}

/// A new file.
///
/// # Errors
/// The engine's.
pub async fn file(volume: &Volume, name: &str) -> Result<FileHandle> {
    let how = CreateMode::Guarded(SetAttributes::default());
    let made = volume
        .create(&root(), volume.root(), &Name::new(name.to_owned())?, how)
        .await;
    Ok(made?.handle)
}

/// Bytes that cannot be compressed: xorshift64.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = vec![0; bytes];
    for word in noise.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    noise
}
