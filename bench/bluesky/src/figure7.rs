//! Figure 7: read latency by how much of the working set the edge's disk cache holds.
//!
//! One client reads at random places of random files, one request after the other; all files are the working set. The cache
//! is filled with as many files as it holds before the measurement begins.

use crate::{
    cells::Cells,
    fileset::FileSet,
    office::{Image, Line, Office},
    table1,
};
use anyhow::Result;
use firn_env::sim::Seeded;
use firn_store::Usage;
use firn_volume::{FetchPolicy, FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Sizes of a request, as in the paper.
pub const REQUESTS_KIB: [u32; 3] = [32, 128, 1024];
/// Part of the working set that the cache holds, per cent.
pub const CACHED_PERCENT: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// The paper's behaviour and ours.
pub const POLICIES: [(&str, FetchPolicy); 2] =
    [("exact", FetchPolicy::Exact), ("adaptive", FetchPolicy::Adaptive)];
const LATENCY_MS: u64 = 12;
/// While the cache is filled.
const FILL_BYTES: u32 = 1 << 20;
/// Room beside the files: sealed objects are a little longer, and the maps are there too.
const CACHE_SPARE_PERCENT: u64 = 3;

/// A point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    pub mean_ms: f64,
    pub median_ms: f64,
    pub requests: u64,
    pub usage: Usage,
    pub file_bytes: u64,
}

/// How much of it.
pub struct Figure7 {
    pub files: usize,
    pub file_bytes: u64,
    pub requests: u64,
}

impl Figure7 {
    /// Measures what was not measured yet.
    pub fn measure(&self, cells: &Cells) -> Result<()> {
        let mut made: Option<Arc<(Image, FileSet)>> = None;
        for (name, policy) in POLICIES {
            for kib in REQUESTS_KIB {
                for percent in CACHED_PERCENT {
                    cells.measured(&format!("figure7-{name}-{kib}-{percent}"), || {
                        let volume = match &made {
                            Some(volume) => volume.clone(),
                            None => {
                                let office = Office::new(FormatOptions::default())?;
                                let sizes = vec![self.file_bytes; self.files];
                                let set = FileSet::make(&office, &sizes, 4 << 20)?;
                                made.insert(Arc::new((office.image(), set))).clone()
                            }
                        };
                        self.point(&volume.0, &volume.1, policy, kib << 10, percent)
                    })?;
                }
            }
        }
        Ok(())
    }

    fn point(
        &self,
        image: &Image,
        set: &FileSet,
        policy: FetchPolicy,
        request_bytes: u32,
        percent: u64,
    ) -> Result<Point> {
        let office = Office::of_image(image)?;
        let config = VolumeConfig {
            fetch: policy,
            disk_cache_bytes: set.bytes * percent / 100 * (100 + CACHE_SPARE_PERCENT) / 100,
            memory_cache_bytes: 4 << 20,
            ..VolumeConfig::default()
        };
        let edge = office.edge(config, Line::of_latency(LATENCY_MS))?;
        let mount = Arc::new(table1::mount(&office, &edge)?);
        let files = set.files.clone();
        let held = files.len() as u64 * percent / 100;
        let (filling, filled) = (mount.clone(), files.clone());
        office.run(async move {
            for file in filled.iter().take(held as usize) {
                for offset in (0..file.size_bytes).step_by(FILL_BYTES as usize) {
                    filling.read(&file.handle, offset, FILL_BYTES).await?;
                }
            }
            Ok(())
        })?;
        let (requests, env) = (self.requests, edge.env.clone());
        let (mut took, cost) = office.measure(&edge, async move {
            let mut random = Seeded::new(23, u64::from(request_bytes));
            let mut took = Vec::new();
            for _ in 0..requests {
                let file = random.pick(&files);
                let places = file.size_bytes / u64::from(request_bytes);
                let offset = random.below(places.max(1)) * u64::from(request_bytes);
                let began = env.now();
                mount.read(&file.handle, offset, request_bytes).await?;
                took.push(env.now().since(began));
            }
            Ok(took)
        })?;
        office.close(edge)?;
        took.sort_unstable();
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        Ok(Point {
            mean_ms: took.iter().copied().map(ms).sum::<f64>() / took.len().max(1) as f64,
            median_ms: took.get(took.len() / 2).copied().map_or(0.0, ms),
            requests,
            usage: cost.usage,
            file_bytes: set.bytes,
        })
    }
}
