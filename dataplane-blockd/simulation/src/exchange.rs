//! Figure 9 of the Blizzard paper over again: what a mail server's database gets done, by mode.
//!
//! The paper uses JetStress, which is not to be had here; what it says of it is: 16 threads, seeks, flushes, and transactions of
//! 64 KiB, to which it sets the log's block. Ours: each thread reads or writes one aligned block of 64 KiB at a random place, three
//! reads to two writes, and flushes behind each sixteenth operation; the next begins when the one before is answered. The disk was
//! filled before, so a log finds its free blocks among those in use.

use crate::setting::Setting;
use bytes::Bytes;
use firn_blockd_disk::VirtualDisk;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Piece};
use firn_env::Env;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Of a transaction, and of the log's block.
const TRANSACTION_BYTES: u32 = 64 << 10;
const THREADS: usize = 16;
/// Of five operations, reads.
const READS_OF_FIVE: u64 = 3;
const OPERATIONS_PER_FLUSH: u64 = 16;
/// Until arms and queues are as they stay, and what is measured.
const WARM_UP: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);

/// Writes a whole disk, of a size in mebibytes, once.
pub(crate) async fn fill(disk: &VirtualDisk) -> Result<(), DeviceError> {
    let data = Bytes::from(vec![0x33; 1 << 20]);
    for offset in (0..disk.geometry().size_bytes).step_by(data.len()) {
        disk.write(offset, data.clone(), Durability::Acknowledged).await?;
    }
    disk.sync().await
}

async fn operate(env: &Env, disk: &VirtualDisk, number: u64) -> Result<(), DeviceError> {
    let places = disk.geometry().size_bytes / u64::from(TRANSACTION_BYTES);
    let offset = env.random_below(places) * u64::from(TRANSACTION_BYTES);
    if env.random_below(5) < READS_OF_FIVE {
        let read = disk.read(offset, TRANSACTION_BYTES).await?;
        let is_there = read.iter().all(|piece| matches!(piece, Piece::Data(_)));
        assert!(is_there, "the disk was filled");
    } else {
        let data = number.to_le_bytes().repeat(TRANSACTION_BYTES as usize / 8);
        disk.write(offset, data.into(), Durability::Acknowledged).await?;
    }
    if number.is_multiple_of(OPERATIONS_PER_FLUSH) {
        disk.flush().await?;
    }
    Ok(())
}

/// Operations answered in a second.
///
/// # Errors
/// If a disk does not do what it must.
pub(crate) fn operations_per_second(setting: Setting) -> Result<f64, String> {
    setting.run_in_blocks(3, TRANSACTION_BYTES, |client| async move {
        let (env, disk) = (client.machine.env(), client.attached.disk.clone());
        fill(&disk).await.map_err(|error| error.to_string())?;
        let done = Arc::new(AtomicU64::new(0));
        for _ in 0..THREADS {
            let (working, disk, done) = (env.clone(), disk.clone(), done.clone());
            drop(env.spawn("thread", async move {
                for number in 1.. {
                    if operate(&working, &disk, number).await.is_err() {
                        return;
                    }
                    done.fetch_add(1, Relaxed);
                }
            }));
        }
        env.sleep(WARM_UP).await;
        let before = done.load(Relaxed);
        env.sleep(MEASURED).await;
        Ok((done.load(Relaxed) - before) as f64 / MEASURED.as_secs_f64())
    })
}
