//! Figure 8: write latency while 100 Mbit/s lead to the store, by how fast the client writes and how much the edge may hold
//! back (the journal).
//!
//! One megabyte at a time goes to a random file, stable at the reply. Requests are due at even intervals; as long as fewer
//! than sixteen are under way each is sent when it is due, so a server that keeps up is offered exactly the rate.

use crate::{
    cells::Cells,
    fileset::{FileSet, Noise},
    office::{Image, Line, Office},
    table1,
};
use anyhow::{Context, Result, anyhow};
use firn_env::sim::Seeded;
use firn_nfs::v3::types::StableHow;
use firn_volume::{FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// The constrained line.
const UP_BITS_PER_SECOND: u64 = 100_000_000;
const LATENCY_MS: u64 = 12;
/// A request, as in the paper.
const REQUEST_BYTES: usize = 1 << 20;
const AT_ONCE: usize = 16;
/// Offered rates, MB (2^20 bytes) a second.
pub const RATES: [u64; 8] = [2, 5, 8, 11, 14, 17, 20, 25];
/// What the edge may hold back at full scale, MiB.
pub const BUFFERS_MIB: [u64; 2] = [128, 1024];

/// A point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    pub mean_ms: f64,
    pub deviation_ms: f64,
    /// What the client got rid of, MB (2^20 bytes) a second.
    pub achieved: f64,
    pub requests: u64,
    pub buffer_mib: u64,
    pub burst_s: u64,
}

/// How much of it: buffers and burst are divided by the same number, so that the same part of a burst fits.
pub struct Figure8 {
    pub files: usize,
    pub burst: Duration,
    pub divide_buffers_by: u64,
}

impl Figure8 {
    /// Measures what was not measured yet.
    pub fn measure(&self, cells: &Cells) -> Result<()> {
        let mut made: Option<Arc<(Image, FileSet)>> = None;
        for buffer_mib in BUFFERS_MIB {
            for rate in RATES {
                cells.measured(&format!("figure8-{buffer_mib}-{rate}"), || {
                    let volume = match &made {
                        Some(volume) => volume.clone(),
                        None => {
                            let office = Office::new(FormatOptions::default())?;
                            let sizes = vec![REQUEST_BYTES as u64; self.files];
                            let set = FileSet::make(&office, &sizes, 4 << 20)?;
                            made.insert(Arc::new((office.image(), set))).clone()
                        }
                    };
                    self.point(&volume.0, &volume.1, buffer_mib / self.divide_buffers_by, rate)
                })?;
            }
        }
        Ok(())
    }

    fn point(&self, image: &Image, set: &FileSet, buffer_mib: u64, rate: u64) -> Result<Point> {
        let office = Office::of_image(image)?;
        let journal_bytes = buffer_mib << 20;
        let config = VolumeConfig {
            journal_bytes,
            journal_file_bytes: (journal_bytes / 8).clamp(4 << 20, 64 << 20),
            disk_cache_bytes: 256 << 20,
            wait_limit: Duration::from_secs(600),
            ..VolumeConfig::default()
        };
        let line = Line {
            up_bits_per_second: UP_BITS_PER_SECOND,
            ..Line::of_latency(LATENCY_MS)
        };
        let edge = office.edge(config, line)?;
        let mount = Arc::new(table1::mount(&office, &edge)?);
        let (looking, looked_at) = (mount.clone(), set.files.clone());
        office.run(async move {
            // The files' attributes are in the edge's memory before the burst begins.
            for file in looked_at {
                let answer = looking.nfs().get_attributes(&file.handle).await?;
                answer.map_err(|failed| anyhow!("GETATTR: {failed:?}"))?;
            }
            Ok(())
        })?;
        let (env, files, burst) = (edge.env.clone(), set.files.clone(), self.burst);
        let ((took, passed), _) = office.measure(&edge, async move {
            let (noise, mut random) = (Noise::new(3), Seeded::new(29, rate));
            let permits = Arc::new(Semaphore::new(AT_ONCE));
            let started = env.now();
            let interval = Duration::from_secs(1) / u32::try_from(rate).context("a small rate")?;
            let mut running = Vec::new();
            for number in 0.. {
                let due = interval * number;
                let passed = env.now().since(started);
                if due >= burst || passed >= burst {
                    break;
                }
                if passed < due {
                    env.sleep(due - passed).await;
                }
                let permit = permits.clone().acquire_owned().await.context("the permits end")?;
                let (file, data) = (
                    random.pick(&files).handle.clone(),
                    noise.bytes(u64::from(number), REQUEST_BYTES),
                );
                let (mount, env_of_write) = (mount.clone(), env.clone());
                running.push(env.spawn("write", async move {
                    let began = env_of_write.now();
                    mount.write(&file, 0, data, StableHow::FileSync).await?;
                    let took = env_of_write.now().since(began);
                    drop(permit);
                    anyhow::Ok(took)
                }));
            }
            let mut took = Vec::new();
            for write in running {
                took.push(write.await.context("a write was dropped")??);
            }
            Ok((took, env.now().since(started)))
        })?;
        office.close(edge)?;
        let ms: Vec<f64> = took.iter().map(|took| took.as_secs_f64() * 1000.0).collect();
        let count = ms.len().max(1) as f64;
        let mean_ms = ms.iter().sum::<f64>() / count;
        let variance = ms.iter().map(|one| (one - mean_ms).powi(2)).sum::<f64>() / count;
        Ok(Point {
            mean_ms,
            deviation_ms: variance.sqrt(),
            achieved: count / passed.as_secs_f64(),
            requests: ms.len() as u64,
            buffer_mib,
            burst_s: self.burst.as_secs(),
        })
    }
}
