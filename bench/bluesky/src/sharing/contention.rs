//! Offices that write one volume at the same moment (`leases = "inode"`) and get in each other's way: what each gets, and what it costs.

use super::{
    NEAR_LINES_MS,
    client::{Mount, patiently},
    seconds,
};
use crate::{
    cells::Cells,
    office::{Line, Office, Sharing, Site, SiteLines},
};
use anyhow::Result;
use bytes::Bytes;
use firn_env::{Env, sim::Seeded};
use firn_vfs::Durability;
use firn_volume::VolumeConfig;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, sync::Mutex, time::Duration};

/// How long offices are watched.
const MINUTE: Duration = Duration::from_secs(60);
/// Between two files of an office that makes as many as it can.
const BUSY_MS: u64 = 20;
/// Pauses between two files of one directory, in milliseconds.
pub const PAUSES_MS: [u64; 2] = [BUSY_MS, 500];
/// Offices that commit after each change.
pub const COMMITTING: [usize; 4] = [1, 2, 8, 16];
/// What the first office has to upload when the other one wants a file of it, and over which line.
pub const BACKLOGS_MIB: [u64; 3] = [0, 32, 256];
pub const SLOW_UPLINK_BITS_PER_SECOND: u64 = 80_000_000;
const FILE_BYTES: usize = 4 << 10;
/// Content that is written at once.
const PIECE_BYTES: usize = 1 << 20;

/// Two offices that make files in one directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OneDirectory {
    pub files: Vec<u64>,
    pub alternations_per_second: f64,
    pub longest_wait_s: f64,
}

/// Offices that commit all the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Committing {
    /// Of each office, in a minute.
    pub saves: Vec<u64>,
    pub builds: u64,
}

/// The offices of a volume, each with a client.
struct Crowd {
    office: Office,
    sites: Vec<Arc<Site>>,
    client: Env,
}

impl Crowd {
    /// The first has an uplink of so many bits a second.
    fn new(count: usize, durability: Durability, first_up: Option<u64>) -> Result<Self> {
        let sharing = Sharing::ByInode {
            freshness: Duration::from_millis(500),
        };
        let office = Office::new(sharing.format())?;
        let site = |place: usize| {
            let (store_ms, table_ms) = NEAR_LINES_MS;
            let usual = Line::of_latency(store_ms);
            let up_bits_per_second = first_up.filter(|_| place == 0);
            let lines = SiteLines {
                store: Line {
                    up_bits_per_second: up_bits_per_second.unwrap_or(usual.up_bits_per_second),
                    ..usual
                },
                table: Duration::from_millis(table_ms),
            };
            office
                .site(sharing, durability, VolumeConfig::default(), lines)
                .map(Arc::new)
        };
        let sites = (0..count).map(site).collect::<Result<Vec<_>>>()?;
        let client = office.machine("client").env();
        Ok(Self {
            office,
            sites,
            client,
        })
    }

    /// The same directory at each office, or for each one of its own.
    fn mounts(&self, own: bool) -> Result<Vec<Arc<Mount>>> {
        let (client, sites) = (self.client.clone(), self.sites.clone());
        self.office.run(async move {
            let mut mounts = Vec::new();
            for (place, site) in sites.iter().enumerate() {
                let name = if own {
                    format!("of-{place}")
                } else {
                    "shared".to_owned()
                };
                let mount = Mount::of_directory(&client, &site.address(), &name).await?;
                site.sync().await?;
                mounts.push(Arc::new(mount));
            }
            Ok(mounts)
        })
    }
}

pub fn one_directory(cells: &Cells, pause_ms: u64) -> Result<OneDirectory> {
    cells.measured(&format!("sharing-inode-directory-{pause_ms}"), || {
        let crowd = Crowd::new(2, Durability::Journal, None)?;
        let mounts = crowd.mounts(false)?;
        let env = crowd.client.clone();
        crowd.office.run(async move {
            let made = Mutex::new(Vec::new());
            let note = |place| made.lock().expect("no panic under this lock").push(place);
            let makers = mounts.iter().enumerate().map(async |(place, mount)| {
                let (began, mut longest) = (env.now(), Duration::ZERO);
                for number in 0.. {
                    let asked = env.now();
                    if asked.since(began) >= MINUTE {
                        break;
                    }
                    let name = format!("{place}-{number}");
                    patiently(&env, async || mount.create(&name).await.map(drop)).await?;
                    longest = longest.max(env.now().since(asked));
                    note(place);
                    env.sleep(Duration::from_millis(pause_ms)).await;
                }
                anyhow::Ok(longest)
            });
            let longest = try_join_all(makers).await?;
            let made = made.lock().expect("no panic under this lock").clone();
            let alternations = made.windows(2).filter(|pair| pair[0] != pair[1]).count();
            let by = |place| made.iter().filter(|made| **made == place).count() as u64;
            Ok(OneDirectory {
                files: vec![by(0), by(1)],
                alternations_per_second: alternations as f64 / seconds(MINUTE),
                longest_wait_s: seconds(longest.into_iter().max().unwrap_or_default()),
            })
        })
    })
}

/// Files a second that so many offices make, each in its own directory, until all of them are published.
pub fn own_directories(cells: &Cells, offices: usize) -> Result<f64> {
    cells.measured(&format!("sharing-inode-own-{offices}"), || {
        let crowd = Crowd::new(offices, Durability::Journal, None)?;
        let mounts = crowd.mounts(true)?;
        let (env, sites) = (crowd.client.clone(), crowd.sites.clone());
        crowd.office.run(async move {
            let makers = mounts.iter().zip(&sites).map(async |(mount, site)| {
                let (began, mut files) = (env.now(), 0_u64);
                while env.now().since(began) < MINUTE {
                    let name = format!("file-{files}");
                    let content = Bytes::from(vec![files as u8; FILE_BYTES]);
                    patiently(&env, async || mount.save(&name, content.clone()).await).await?;
                    files += 1;
                    env.sleep(Duration::from_millis(BUSY_MS)).await;
                }
                site.sync().await?;
                anyhow::Ok((files, env.now().since(began)))
            });
            let ends = try_join_all(makers).await?;
            let files: u64 = ends.iter().map(|(files, _)| files).sum();
            let longest = ends.iter().map(|(_, took)| *took).max().unwrap_or_default();
            Ok(files as f64 / seconds(longest))
        })
    })
}

/// Saves of so many offices, each in its own directory, answered when the others can see them.
pub fn committing(cells: &Cells, offices: usize) -> Result<Committing> {
    cells.measured(&format!("sharing-inode-committing-{offices}"), || {
        let crowd = Crowd::new(offices, Durability::Cloud, None)?;
        let mounts = crowd.mounts(true)?;
        let (env, sites) = (crowd.client.clone(), crowd.sites.clone());
        crowd.office.run(async move {
            for mount in &mounts {
                patiently(&env, async || {
                    mount.save("file", Bytes::from_static(b"first")).await
                })
                .await?;
            }
            let builds = || sites.iter().map(|site| site.builds()).sum::<u64>();
            let before = builds();
            let savers = mounts.iter().map(async |mount| {
                let file = mount.create("file").await?;
                let (began, mut saves) = (env.now(), 0_u64);
                while env.now().since(began) < MINUTE {
                    let content = Bytes::copy_from_slice(&saves.to_le_bytes());
                    patiently(&env, async || mount.close_written(&file, content.clone()).await).await?;
                    saves += 1;
                }
                anyhow::Ok(saves)
            });
            let saves = try_join_all(savers).await?;
            Ok(Committing {
                saves,
                builds: builds() - before,
            })
        })
    })
}

/// How long a change of a file of one line waits whose office has so much to upload; in seconds.
pub fn behind(cells: &Cells, backlog_mib: u64) -> Result<f64> {
    cells.measured(&format!("sharing-inode-behind-{backlog_mib}"), || {
        let crowd = Crowd::new(2, Durability::Journal, Some(SLOW_UPLINK_BITS_PER_SECOND))?;
        let mounts = crowd.mounts(false)?;
        let (env, sites) = (crowd.client.clone(), crowd.sites.clone());
        crowd.office.run(async move {
            let (one, two) = (mounts[0].clone(), mounts[1].clone());
            one.save("line", Bytes::from_static(b"line")).await?;
            sites[0].sync().await?;
            let mut random = Seeded::new(4, backlog_mib);
            let large = one.create("large").await?;
            for number in 0..backlog_mib {
                let mut piece = vec![0; PIECE_BYTES];
                random.fill(&mut piece);
                let (at, piece) = (number * PIECE_BYTES as u64, Bytes::from(piece));
                let write = async || one.write_stable(&large, at, piece.clone()).await;
                patiently(&env, write).await?;
            }
            let asked = env.now();
            patiently(&env, async || two.save("line", Bytes::from_static(b"LINE")).await).await?;
            Ok(seconds(env.now().since(asked)))
        })
    })
}
