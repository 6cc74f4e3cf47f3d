//! An edge of one of several offices, of a volume of its own or of a shared one, behind lines of its own to bucket and table; both are metered.
//!
//! A member of a shared volume lives from term to term here as in `firn-edge`: a task opens one after the other.

use super::{Line, Office, serve};
use anyhow::{Context, Result};
use firn_env::{Env, sim::Machine};
use firn_nfs::rpc::Server;
use firn_store::{FaultConfig, Faulty, Meter, ProviderPrices, Route, Stack, StackConfig, Store, Usage};
use firn_table::{FaultRates, Metered, TablePrices, TableUsage};
use firn_vfs::{Durability, Vfs};
use firn_volume::{
    ByInodeVfs, FollowOptions, FormatOptions, LockLimits, LockTable, Member, MemberOptions, Parts, Volume,
    VolumeConfig,
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Between two tries to open a term, as in `firn-edge`.
const AGAIN: Duration = Duration::from_secs(2);
/// The book that all money of these pages is by.
const PRICES: &str = "s3-us-east-1";

/// Whether a volume is one office's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One edge owns it for good.
    Private,
    /// It is handed over; a follower's reads are so fresh.
    Shared { freshness: Duration },
    /// All offices write at the same moment, each what it holds; reads of what others hold are so fresh.
    ByInode { freshness: Duration },
}

impl Sharing {
    /// How a volume is made that is served so.
    pub fn format(self) -> FormatOptions {
        FormatOptions {
            by_inode: matches!(self, Self::ByInode { .. }),
            ..FormatOptions::default()
        }
    }
}

/// An office's lines: to the bucket, and the round trip to the table.
#[derive(Clone, Copy, Debug)]
pub struct SiteLines {
    pub store: Line,
    pub table: Duration,
}

/// See the module.
pub struct Site {
    pub env: Env,
    /// The store as the engine has it.
    pub store: Arc<dyn Store>,
    /// The table as the engine has it.
    pub table: Arc<Metered>,
    meter: Meter,
    served: Served,
    machine: Machine,
    /// It serves as long as it is there.
    _service: Arc<Server>,
}

#[derive(Clone)]
enum Served {
    Volume(Volume),
    Member(Member),
}

/// What a site asked of the cloud, and what that costs at list prices.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Spent {
    pub store: Usage,
    /// Reads of the table, queries included.
    pub table_reads: u64,
    /// Transactions of the table.
    pub table_writes: u64,
    pub table_nano_dollars: u64,
}

impl Spent {
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            store: self.store.since(&earlier.store),
            table_reads: self.table_reads - earlier.table_reads,
            table_writes: self.table_writes - earlier.table_writes,
            table_nano_dollars: self.table_nano_dollars - earlier.table_nano_dollars,
        }
    }

    pub fn plus(&self, other: &Self) -> Self {
        Self {
            store: self.store.plus(&other.store),
            table_reads: self.table_reads + other.table_reads,
            table_writes: self.table_writes + other.table_writes,
            table_nano_dollars: self.table_nano_dollars + other.table_nano_dollars,
        }
    }

    pub fn requests(&self) -> u64 {
        self.store.requests() + self.table_reads + self.table_writes
    }

    /// In dollars, transfers over the internet included.
    pub fn dollars(&self) -> Result<f64> {
        let cost = ProviderPrices::named(PRICES)?.cost(&self.store, Route::Internet);
        Ok((cost.total().nanos() as f64 + self.table_nano_dollars as f64) / 1e9)
    }
}

/// The book and its date.
pub fn price_list() -> Result<&'static ProviderPrices> {
    Ok(ProviderPrices::named(PRICES)?)
}

impl Office {
    /// Another office's edge, with an empty disk.
    pub fn site(
        &self,
        sharing: Sharing,
        durability: Durability,
        config: VolumeConfig,
        lines: SiteLines,
    ) -> Result<Site> {
        let machine = self.machine("edge");
        let env = machine.env();
        let faults = FaultConfig {
            faults: lines.store.faults(),
            ..FaultConfig::default()
        };
        let faulty = Faulty::new(&env, self.bucket.clone(), faults)?;
        let stack = Stack::new(&env, Arc::new(faulty), StackConfig::default());
        let client = self.table.connect(&env);
        let one_way = lines.table / 2;
        client.set_rates(FaultRates {
            delay: one_way..=one_way,
            ..FaultRates::default()
        });
        let table = Arc::new(Metered::new(client, TablePrices::DYNAMODB_ON_DEMAND));
        let parts = self.parts_over(&env, stack.store.clone(), table.clone());
        let serving = env.clone();
        let (served, service) = self.run(async move {
            let (served, vfs) = open(parts, sharing, config).await?;
            Ok((served, serve(&serving, vfs, durability).await?))
        })?;
        Ok(Site {
            env,
            store: stack.store.clone(),
            table,
            meter: stack.meter.clone(),
            served,
            machine,
            _service: service,
        })
    }
}

async fn open(parts: Parts, sharing: Sharing, config: VolumeConfig) -> Result<(Served, Arc<dyn Vfs>)> {
    let freshness = match sharing {
        Sharing::Private => {
            let (volume, _) = Volume::open(parts, config).await?;
            return Ok((Served::Volume(volume.clone()), Arc::new(volume)));
        }
        Sharing::ByInode { freshness } => {
            let number = Volume::join_by_inode(&parts, "office").await?;
            let (volume, _) = Volume::open_by_inode(parts, config, number).await?;
            let vfs = Arc::new(ByInodeVfs::new(volume.clone(), freshness));
            return Ok((Served::Volume(volume), vfs));
        }
        Sharing::Shared { freshness } => freshness,
    };
    let options = MemberOptions {
        follow: FollowOptions {
            freshness,
            ..FollowOptions::default()
        },
        ..MemberOptions::default()
    };
    let env = parts.env.clone();
    let member = Member::new(parts, config, options, &LockTable::new(LockLimits::default()));
    let living = member.clone();
    drop(env.clone().spawn("member", async move {
        loop {
            match living.open().await {
                // What comes next the next opening finds out.
                Ok(term) => drop(living.run(&term).await),
                Err(_) => env.sleep(AGAIN).await,
            }
        }
    }));
    let vfs = Arc::new(member.vfs());
    Ok((Served::Member(member), vfs))
}

impl Site {
    /// Its host name and NFS port.
    pub fn address(&self) -> String {
        format!("{}:2049", self.machine.name())
    }

    /// What it has asked of the cloud so far.
    pub fn spent(&self) -> Spent {
        let table: TableUsage = self.table.usage();
        Spent {
            store: self.meter.usage(),
            table_reads: table.gets + table.queries,
            table_writes: table.transactions,
            table_nano_dollars: table.nano_dollars,
        }
    }

    /// Commits what was acknowledged, if it has the volume.
    pub async fn sync(&self) -> Result<()> {
        self.volume().context("between two terms")?.sync().await?;
        Ok(())
    }

    /// The volume of the term at hand.
    pub fn volume(&self) -> Option<Volume> {
        match &self.served {
            Served::Volume(volume) => Some(volume.clone()),
            Served::Member(member) => member.volume(),
        }
    }

    /// Roots that were built here, those that others were faster than among them.
    pub fn builds(&self) -> u64 {
        let hits = self.machine.faults().hits();
        hits.get("by_inode.before_build").copied().unwrap_or(0)
    }

    /// How often it gave the volume; of a volume that all write at once, how often its changes waited for a lease.
    pub fn given(&self) -> u64 {
        match &self.served {
            Served::Volume(volume) => volume.by_inode_status().map_or(0, |status| status.lease_waits),
            Served::Member(member) => member.status().given,
        }
    }
}
