//! Megabytes a second of one user who takes as much as a disk gives: Figures 4 and 11 of the Blizzard paper.
//!
//! As many nodes as the widest segment has tracts, one copy, write-through, 32 MiB asked for at once. What is measured is the second
//! time over the same places: regions are marked then, and each write has an older one to take the place of.

use crate::setting::{BLOCK_BYTES, MODEL, NODE_TRACTS, Setting};
use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::{FlushPolicy, VirtualDisk};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use futures::{StreamExt, TryStreamExt, stream};
use std::time::Duration;

const DISK_BYTES: u64 = 1 << 30;
const AT_ONCE_BYTES: u64 = 32 << 20;
/// The network's longest one-way delay, but for the figure of that.
const NEAR: Duration = Duration::from_micros(200);

/// What the user does.
#[derive(Clone, Copy, Debug)]
struct Work {
    writes: bool,
    /// A power of two.
    request_bytes: u64,
    /// How many: a power of two.
    requests: u64,
    scattered: bool,
}

const SEQUENTIAL: Work = Work {
    writes: false,
    request_bytes: 1 << 20,
    requests: 256,
    scattered: false,
};
const RANDOM: Work = Work {
    writes: false,
    request_bytes: 128 << 10,
    requests: 2048,
    scattered: true,
};
/// In the order of the columns.
const WORKS: [Work; 4] = [
    SEQUENTIAL,
    Work {
        writes: true,
        ..SEQUENTIAL
    },
    RANDOM,
    Work {
        writes: true,
        ..RANDOM
    },
];
const COLUMNS: &str =
    "sequential read, MB/s | sequential write | random read | random write |\n|---|---|---|---|---|";

impl Work {
    /// Where a request begins: each somewhere else.
    fn offset(&self, number: u64) -> u64 {
        if self.scattered {
            // The number of places is a power of two, so an odd factor leaves none out.
            number * 5003 % (DISK_BYTES / self.request_bytes) * self.request_bytes
        } else {
            number * self.request_bytes
        }
    }

    async fn write(&self, disk: &VirtualDisk, number: u64) -> Result<(), String> {
        let data = Bytes::from(vec![0x5a; self.request_bytes as usize]);
        disk.write(self.offset(number), data, Durability::Durable)
            .await
            .map_err(|error| error.to_string())
    }

    async fn read(&self, disk: &VirtualDisk, number: u64) -> Result<(), String> {
        let length = u32::try_from(self.request_bytes).expect("a mebibyte at most");
        let read = disk.read(self.offset(number), length).await;
        let read = read.map_err(|error| error.to_string())?;
        if !read.iter().all(|piece| matches!(piece, Piece::Data(_))) {
            return Err("what was written reads as zeroes".into());
        }
        Ok(())
    }

    fn megabytes_per_second(self, segment_tracts: u32, latency: Duration) -> Result<f64, String> {
        let setting = Setting {
            nodes: 128,
            model: Some(MODEL),
            node_tracts: NODE_TRACTS,
            copies: 1,
            mode: Mode::WriteThrough,
            flush: FlushPolicy::Durable,
            segment_tracts,
            blocks: DISK_BYTES / BLOCK_BYTES,
        };
        let at_once = (AT_ONCE_BYTES / self.request_bytes) as usize;
        setting.run(2, move |client| async move {
            let (env, disk) = (client.machine.env(), client.attached.disk.clone());
            stream::iter(0..self.requests)
                .map(|number| self.write(&disk, number))
                .buffered(at_once)
                .try_collect::<()>()
                .await?;
            env.sleep(Duration::from_secs(60)).await;
            client.cluster.simulation.set_network_latency(latency);
            let began = env.now();
            stream::iter(0..self.requests)
                .map(|number| {
                    let disk = &disk;
                    async move {
                        // Scattered ones in another order than the one in which arms laid them down.
                        let number = if self.scattered {
                            (number * 257 + 13) % self.requests
                        } else {
                            number
                        };
                        match self.writes {
                            true => self.write(disk, number).await,
                            false => self.read(disk, number).await,
                        }
                    }
                })
                .buffered(at_once)
                .try_collect::<()>()
                .await?;
            let seconds = env.now().since(began).as_secs_f64();
            Ok((self.requests * self.request_bytes) as f64 / seconds / 1e6)
        })
    }
}

fn row(name: &str, segment_tracts: u32, latency: Duration) -> Result<(), String> {
    let mut cells = Vec::new();
    for work in WORKS {
        cells.push(format!(
            "{:.0}",
            work.megabytes_per_second(segment_tracts, latency)?
        ));
    }
    println!("| {name} | {} |", cells.join(" | "));
    Ok(())
}

/// Figure 4: by the width of a segment.
pub(crate) fn print_segments() -> Result<(), String> {
    println!("| segment, tracts | {COLUMNS}");
    for segment_tracts in [1, 8, 32, 128] {
        row(&segment_tracts.to_string(), segment_tracts, NEAR)?;
    }
    Ok(())
}

/// Figure 11: by the network's delay.
pub(crate) fn print_network() -> Result<(), String> {
    println!("| one-way delay, ms | {COLUMNS}");
    for latency in [NEAR, Duration::from_millis(5), Duration::from_millis(20)] {
        row(&(latency.as_secs_f64() * 1e3).to_string(), 128, latency)?;
    }
    Ok(())
}
