//! Figure 11 of the SCFS paper: what operations, a gigabyte and an hour cost, by the meters of the offices' edges and the price list.

use super::{
    Mode,
    client::{Mount, patiently},
    lines, mount, paper_lines,
};
use crate::{
    cells::Cells,
    office::{Office, Sharing, Site, Spent},
};
use anyhow::{Context, Result};
use bytes::Bytes;
use firn_env::{Env, sim::Seeded};
use firn_vfs::Durability;
use firn_volume::VolumeConfig;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Sizes of files.
pub const FILES_KIB: [u64; 4] = [256, 1 << 10, 4 << 10, 16 << 10];
/// What offices do for an hour.
pub const HOURS: [&str; 4] = ["alone", "reading", "contending", "idle"];
/// The same in a volume that offices write at the same moment; and both save one document.
pub const HOURS_BY_INODE: [&str; 5] = ["alone", "reading", "contending", "one document", "idle"];
const CACHED_OPENS: u64 = 100;
const HOUR: Duration = Duration::from_secs(3600);
/// Until an owner that changes nothing has given the volume up, and all is quiet.
const UNTIL_IDLE: Duration = Duration::from_secs(600);
const DOCUMENT_BYTES: usize = 100 << 10;
pub const ALONE_SAVES_EVERY: Duration = Duration::from_secs(60);
pub const READER_OPENS_EVERY: Duration = Duration::from_secs(10);
pub const CONTENDERS_SAVE_EVERY: Duration = Duration::from_secs(10);

/// What operations cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operations {
    /// Of one open, read, close of a file in the cache of an office that follows, at `freshness = "0 s"`.
    pub cached_open_dollars: f64,
    pub cached_open_requests: f64,
    /// The same in the office that has the volume.
    pub owner_open_dollars: f64,
    /// By size: a first read in the other office, and a save answered by the cloud.
    pub reads: Vec<Spent>,
    pub writes: Vec<Spent>,
}

/// What one hour of all offices took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hour {
    pub spent: Spent,
    pub handovers: u64,
    pub saves: u64,
    pub opens: u64,
}

struct Two {
    office: Office,
    a: Arc<Site>,
    b: Arc<Site>,
    mount_a: Arc<Mount>,
    mount_b: Arc<Mount>,
}

fn two(sharing: Sharing, durability: Durability) -> Result<Two> {
    let office = Office::new(sharing.format())?;
    let open = || {
        office
            .site(sharing, durability, VolumeConfig::default(), lines(paper_lines()))
            .map(Arc::new)
    };
    let (a, b) = (open()?, open()?);
    let (mount_a, mount_b) = (Arc::new(mount(&office, &a)?), Arc::new(mount(&office, &b)?));
    Ok(Two {
        office,
        a,
        b,
        mount_a,
        mount_b,
    })
}

/// Content that neither compresses nor is the same twice.
fn content(random: &mut Seeded, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    Bytes::from(content)
}

pub fn operations(cells: &Cells) -> Result<Operations> {
    cells.measured("sharing-figure11-operations", || {
        let Two {
            office,
            a,
            b,
            mount_a,
            mount_b,
        } = two(
            Sharing::Shared {
                freshness: Duration::ZERO,
            },
            Durability::Cloud,
        )?;
        office.run(async move {
            let mut random = Seeded::new(11, 0);
            mount_a
                .save("document", content(&mut random, DOCUMENT_BYTES))
                .await?;
            let [follower, owner] = [(&b, &mount_b), (&a, &mount_a)];
            let mut opened = Vec::new();
            for (site, mount) in [follower, owner] {
                mount.load("document").await?.context("saved")?;
                let before = site.spent();
                for _ in 0..CACHED_OPENS {
                    mount.load("document").await?.context("saved")?;
                }
                opened.push(site.spent().since(&before));
            }
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for kib in FILES_KIB {
                let name = format!("file-{kib}");
                let whole = content(&mut random, (kib << 10) as usize);
                let before = a.spent();
                mount_a.save(&name, whole).await?;
                writes.push(a.spent().since(&before));
                // The root that has it is adopted by another read before.
                mount_b.load("document").await?.context("saved")?;
                let before = b.spent();
                mount_b.load(&name).await?.context("saved")?;
                reads.push(b.spent().since(&before));
            }
            let opens = CACHED_OPENS as f64;
            Ok(Operations {
                cached_open_dollars: opened[0].dollars()? / opens,
                cached_open_requests: opened[0].requests() as f64 / opens,
                owner_open_dollars: opened[1].dollars()? / opens,
                reads,
                writes,
            })
        })
    })
}

pub fn hour(cells: &Cells, mode: &Mode, what: &str) -> Result<Hour> {
    let slug = what.replace(' ', "-");
    cells.measured(&format!("sharing-hour-{}-{slug}", mode.slug), || {
        let Two {
            office,
            a,
            b,
            mount_a,
            mount_b,
        } = two(mode.sharing, mode.durability)?;
        let (what, client) = (what.to_owned(), office.machine("client").env());
        office.run(async move {
            let env = a.env.clone();
            mount_a
                .save("document", Bytes::from(vec![1; DOCUMENT_BYTES]))
                .await?;
            a.sync().await?;
            mount_b.load("document").await?.context("saved")?;
            // The begin of a volume is no part of an hour like any other.
            env.sleep(UNTIL_IDLE).await;
            // The servers have ended connections on which nobody asked anything.
            let mount_a = Mount::new(&client, &a.address()).await?;
            let mount_b = Mount::new(&client, &b.address()).await?;
            if what == "idle" {
                // A mount is a call: an office goes away once nobody has asked anything for a while.
                env.sleep(UNTIL_IDLE).await;
            }
            let both = || a.spent().plus(&b.spent());
            let given = || a.given() + b.given();
            let (before, given_before) = (both(), given());
            let (mut saves, mut opens) = (0, 0);
            match what.as_str() {
                "alone" => saves = save_for_an_hour(&env, &mount_a, "document", ALONE_SAVES_EVERY, 1).await?,
                "reading" => {
                    let saving = save_for_an_hour(&env, &mount_a, "document", ALONE_SAVES_EVERY, 1);
                    let reading = async {
                        let began = env.now();
                        let mut opens = 0;
                        while env.now().since(began) < HOUR {
                            mount_b.load("document").await?.context("saved")?;
                            opens += 1;
                            env.sleep(READER_OPENS_EVERY).await;
                        }
                        anyhow::Ok(opens)
                    };
                    (saves, opens) = futures::try_join!(saving, reading)?;
                }
                "contending" => {
                    let one = save_for_an_hour(&env, &mount_a, "of-one", CONTENDERS_SAVE_EVERY, 1);
                    let two = save_for_an_hour(&env, &mount_b, "of-two", CONTENDERS_SAVE_EVERY, 2);
                    let (of_one, of_two) = futures::try_join!(one, two)?;
                    saves = of_one + of_two;
                }
                "one document" => {
                    let one = save_for_an_hour(&env, &mount_a, "document", CONTENDERS_SAVE_EVERY, 1);
                    let two = save_for_an_hour(&env, &mount_b, "document", CONTENDERS_SAVE_EVERY, 2);
                    let (of_one, of_two) = futures::try_join!(one, two)?;
                    saves = of_one + of_two;
                }
                "idle" => env.sleep(HOUR).await,
                other => anyhow::bail!("no hour {other}"),
            }
            Ok(Hour {
                spent: both().since(&before),
                handovers: given() - given_before,
                saves,
                opens,
            })
        })
    })
}

async fn save_for_an_hour(env: &Env, mount: &Mount, name: &str, every: Duration, seed: u64) -> Result<u64> {
    let (began, mut random, mut saves) = (env.now(), Seeded::new(seed, 0), 0);
    while env.now().since(began) < HOUR {
        let document = content(&mut random, DOCUMENT_BYTES);
        patiently(env, async || mount.save(name, document.clone()).await).await?;
        saves += 1;
        env.sleep(every).await;
    }
    Ok(saves)
}
