//! Disks in memory that take their time, what writes to them, and what is read back.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Geometry, MemoryDevice, Piece};
use firn_blockd_protocol::DiskId;
use firn_blockd_snapshot::{Catalogue, Progress, SnapshotError, SnapshotGate, restore};
use firn_env::Env;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

pub const BLOCK: u64 = 4096;
pub const TRACT_BLOCKS: u64 = 3;
pub const TRACT_BYTES: u32 = (BLOCK * TRACT_BLOCKS) as u32;
pub const KEY: [u8; 32] = [6; 32];
pub const DISK: DiskId = DiskId([8; 16]);

/// Memory that does at once what it is asked, and takes its time to say so.
#[derive(Clone)]
pub struct Slow {
    env: Env,
    pub memory: Arc<MemoryDevice>,
    /// Bytes that were read.
    pub read: Arc<AtomicU64>,
}

impl Slow {
    pub fn new(env: &Env, blocks: u64) -> Self {
        Self {
            env: env.clone(),
            memory: Arc::new(MemoryDevice::with_block(blocks * BLOCK, BLOCK as u32)),
            read: Arc::default(),
        }
    }

    async fn wait(&self) {
        let pause = self.env.random_below(20);
        self.env.sleep(Duration::from_millis(pause)).await;
    }
}

#[async_trait]
impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        self.wait().await;
        self.read.fetch_add(length.into(), Relaxed);
        let pieces = self.memory.read(offset, length).await;
        self.wait().await;
        pieces
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        self.memory.write(offset, data, durability).await?;
        self.wait().await;
        Ok(())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush().await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.memory
            .write_zeroes(offset, length, allow_hole, durability)
            .await?;
        self.wait().await;
        Ok(())
    }
}

pub async fn content<D: BlockDevice>(device: &D) -> Vec<u8> {
    let size = device.geometry().size_bytes;
    let mut bytes = Vec::new();
    for piece in device.read(0, size as u32).await.expect("memory does not fail") {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeroes(length) => bytes.resize(bytes.len() + length as usize, 0),
        }
    }
    bytes
}

pub async fn restored(catalogue: &Catalogue, name: &str) -> Result<Vec<u8>, SnapshotError> {
    let root = catalogue.root(name).await?;
    let target = MemoryDevice::with_block(root.size_bytes, BLOCK as u32);
    restore(catalogue, name, &target, &Progress::default()).await?;
    Ok(content(&target).await)
}

/// Writes and zeroes at random places, for ever.
pub async fn write_for_ever(env: Env, gate: SnapshotGate<Slow>) {
    for number in 1_u64.. {
        let blocks = gate.geometry().size_bytes / BLOCK;
        let first = env.random_below(blocks);
        let count = (1 + env.random_below(2 * TRACT_BLOCKS)).min(blocks - first);
        let (offset, length) = (first * BLOCK, count * BLOCK);
        let done = if env.random_below(4) == 0 {
            gate.write_zeroes(offset, length, true, Durability::Acknowledged)
                .await
        } else {
            let data: Vec<u8> = number.to_le_bytes().repeat(length as usize / 8);
            gate.write(offset, data.into(), Durability::Acknowledged).await
        };
        done.expect("memory does not fail");
        let pause = env.random_below(10);
        env.sleep(Duration::from_millis(pause)).await;
    }
}
