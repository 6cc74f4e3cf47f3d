//! Figure 9 of the SCFS paper: from the close of a file in one office to its content at a client of another.
//!
//! The reader asks for the file's name every 50 ms, and reads it once it has its length. `polled` is what a client that keeps folders alike does, over
//! the same bucket and table: it uploads the file when it is closed and notes that in the table; the other one asks there every ten seconds.

use super::{Mode, SHARED, lines, mount, seconds};
use crate::{
    cells::Cells,
    office::{Office, Site},
};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use firn_env::{Env, sim::Seeded};
use firn_store::{ObjectKey, PutMode};
use firn_table::{Condition, ItemKey, Table, Write};
use firn_vfs::Durability;
use firn_volume::{Cadence, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// As in the paper.
pub const FILES_KIB: [u64; 4] = [256, 1 << 10, 4 << 10, 16 << 10];
const RUNS: u64 = 20;
const READER_ASKS: Duration = Duration::from_millis(50);
const LATEST_BEGIN: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_secs(10);
/// Between two runs: longer than the slowest cadence, so that each begins with nothing to be committed.
const PAUSE: Duration = Duration::from_secs(45);

/// A way to share.
#[derive(Clone, Copy)]
pub enum Way {
    /// A shared volume in this mode, with this cadence of commits.
    Volume(&'static Mode, Option<Duration>),
    /// See the module.
    Polled,
}

/// Seconds from the return of close to the content elsewhere, and how long close took, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Runs {
    pub seen: Vec<f64>,
    pub closed: Vec<f64>,
}

/// The value that so many per cent do not exceed.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

pub fn measure(cells: &Cells, slug: &str, way: Way, kib: u64, lines_ms: (u64, u64)) -> Result<Runs> {
    let name = format!("sharing-figure9-{slug}-{}-{}-{kib}", lines_ms.0, lines_ms.1);
    cells.measured(&name, || {
        let (sharing, durability, cadence) = match way {
            Way::Volume(mode, cadence) => (mode.sharing, mode.durability, cadence),
            Way::Polled => (SHARED, Durability::Journal, None),
        };
        let office = Office::new(sharing.format())?;
        let default = VolumeConfig::default();
        let config = VolumeConfig {
            cadence: cadence.map_or(default.cadence, |every| Cadence {
                busy: every,
                trickle: every,
                ..default.cadence
            }),
            ..default
        };
        let open = || {
            office
                .site(sharing, durability, config.clone(), lines(lines_ms))
                .map(Arc::new)
        };
        let (a, b) = (open()?, open()?);
        let (mount_a, mount_b) = (Arc::new(mount(&office, &a)?), Arc::new(mount(&office, &b)?));
        office.run(async move {
            let env = a.env.clone();
            mount_a
                .save("first", Bytes::from_static(b"the volume is here"))
                .await?;
            a.sync().await?;
            let mut random = Seeded::new(9, kib);
            let (mut seen, mut closed) = (Vec::new(), Vec::new());
            for run in 0..RUNS {
                env.sleep(PAUSE + random.duration(Duration::ZERO, POLL_EVERY))
                    .await;
                // Nothing in it compresses or was there before.
                let mut content = vec![0; (kib << 10) as usize];
                random.fill(&mut content);
                let content = Bytes::from(content);
                let name = format!("file-{run}");
                let (began, written, read) = match way {
                    Way::Polled => polled(&env, &a, &b, &name, content, &mut random).await?,
                    Way::Volume(..) => {
                        // The reader asked before, and its last look at the root is of any age.
                        let begins = random.duration(Duration::ZERO, LATEST_BEGIN);
                        let writing = async {
                            env.sleep(begins).await;
                            let file = mount_a.create(&name).await?;
                            let began = env.now();
                            mount_a.close_written(&file, content.clone()).await?;
                            anyhow::Ok((began, env.now()))
                        };
                        let reading = async {
                            loop {
                                let open = mount_b.open(&name).await?;
                                if let Some(open) = open
                                    && open.attributes.size_bytes == content.len() as u64
                                    && mount_b.read(&open).await? == content
                                {
                                    return anyhow::Ok(env.now());
                                }
                                env.sleep(READER_ASKS).await;
                            }
                        };
                        let ((began, written), read) = futures::try_join!(writing, reading)?;
                        (began, written, read)
                    }
                };
                closed.push(seconds(written.since(began)));
                // A client of the other office may see it before this one has heard.
                seen.push(if read > written {
                    seconds(read.since(written))
                } else {
                    0.0
                });
            }
            for list in [&mut seen, &mut closed] {
                list.sort_by(f64::total_cmp);
            }
            Ok(Runs { seen, closed })
        })
    })
}

/// When the close began, when it returned (at once: the upload goes on behind it), and when the other side had the content.
async fn polled(
    env: &Env,
    a: &Site,
    b: &Site,
    name: &str,
    content: Bytes,
    random: &mut Seeded,
) -> Result<(firn_env::Monotonic, firn_env::Monotonic, firn_env::Monotonic)> {
    let key = ObjectKey::new(&format!("polled/{name}"));
    let item = ItemKey::new("polled", name);
    let began = env.now();
    let uploading = async {
        a.store.put(&key, vec![content.clone()], PutMode::Create).await?;
        let put = Write::Put {
            key: item.clone(),
            value: Bytes::from_static(b"uploaded"),
            condition: Condition::Absent,
        };
        a.table.transact(vec![put]).await?;
        anyhow::Ok(())
    };
    let first_poll = random.duration(Duration::ZERO, POLL_EVERY);
    let polling = async {
        env.sleep(first_poll).await;
        while b.table.get(&item).await?.is_none() {
            env.sleep(POLL_EVERY).await;
        }
        let found = b.store.get(&key).await.context("uploaded")?;
        ensure!(found.len() == content.len(), "all of it");
        anyhow::Ok(env.now())
    };
    let ((), read) = futures::try_join!(uploading, polling)?;
    Ok((began, began, read))
}
