//! Snapshots of a tenant's disk, and disks made of them: what `firn disk snapshot` and `firn disk restore` start.
//!
//! ```text
//! take      attached on this machine: its process is asked, by the socket in the state directory      else: ticket, attach, take, detach
//! restore   ticket for a new disk ─▶ attach, which makes it wait for this snapshot ─▶ written ─▶ like any other
//! list, delete                       the store and the old disk's key; the service is not asked
//! ```
//!
//! The store is the tenant's own, opened with what this machine's environment has; the service neither sees it nor pays for it.

use crate::{
    admin::{self, Command},
    cluster::{self, until_stopped},
    failure::Failure,
    security::Secret,
    service_table::ServiceTable,
    snapshots::{Place, delete_from, source_of, take_of, told, watch, write_back},
    tenant::disk_key,
    ticket::Ticket,
};
use clap::{Args, Subcommand};
use firn_blockd_client::{Attachable, AttachedDisk, attach};
use firn_blockd_placement::DiskTable as _;
use firn_blockd_protocol::DiskId;
use firn_blockd_snapshot::{Catalogue, SnapshotError};
use firn_env::{Env, println};
use firn_quantity::Size;
use firn_store::StoreUrl;
use futures::future::{Either, select};
use std::{path::PathBuf, pin::pin};

/// The snapshots of one disk.
#[derive(Args)]
pub struct Of {
    /// Where disks' keys and sockets of this user are.
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// The disk.
    #[arg(long)]
    disk: DiskId,
    /// What it is called.
    #[arg(long)]
    name: String,
    /// The file with the disk's key; by default one in the state directory.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where its snapshots are.
    #[arg(long, value_name = "URL")]
    store: StoreUrl,
}

/// What is done with them.
#[derive(Subcommand)]
pub enum TenantSnapshot {
    /// Takes one.
    Take {
        #[command(flatten)]
        of: Of,
        /// The snapshot's name.
        snapshot: String,
        /// The disk is attached nowhere: a ticket for it is on standard input.
        #[arg(long)]
        by_ticket: bool,
    },
    /// Lists them as JSON, the newest first.
    List {
        #[command(flatten)]
        of: Of,
    },
    /// Deletes one.
    Delete {
        #[command(flatten)]
        of: Of,
        /// The snapshot's name.
        snapshot: String,
    },
    /// Writes one to the disk of the ticket on standard input, which nobody has used yet.
    Restore {
        #[command(flatten)]
        of: Of,
        /// The snapshot's name.
        snapshot: String,
        /// The file with the new disk's key; by default one in the state directory.
        #[arg(long, value_name = "FILE")]
        new_key: Option<PathBuf>,
    },
}

impl Of {
    async fn catalogue(&self, env: &Env) -> Result<Catalogue, Failure> {
        let key = self.secret()?;
        let place = Place::new(Some(self.store.clone()), self.disk, key.expose());
        place.open(env).await
    }

    fn secret(&self) -> Result<Secret, Failure> {
        let path = match &self.key {
            Some(path) => path.clone(),
            None => self.state.join(format!("{}.key", self.disk)),
        };
        if path.exists() {
            return Secret::read(&path);
        }
        Err(Failure::usage(format!(
            "the key of disk {} is not on this machine: carry its file from where the disk was attached to {}, or name it with --key",
            self.name,
            path.display()
        )))
    }
}

/// A disk that is attached for as long as something is done with it.
struct Borrowed {
    attached: AttachedDisk,
    renewing: firn_env::Task<()>,
}

impl Borrowed {
    async fn attach(env: &Env, table: &ServiceTable, wanted: Attachable) -> Result<Self, Failure> {
        let attached = attach(env, table, &table.access()?, wanted).await?;
        let renewing = env.spawn_essential("renew", table.clone().keep_renewing(attached.fence));
        Ok(Self { attached, renewing })
    }

    /// Ends with the disk given back, whatever came of the work.
    async fn give_back(self) -> Result<(), Failure> {
        let given = self.attached.detach().await;
        self.renewing.abort();
        Ok(given?)
    }
}

fn holder(what: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}, {what}, process {}", host.trim(), std::process::id())
}

/// Does it until it is done, or somebody wants this process to end.
async fn unless_stopped<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let (work, stopped) = (pin!(work), pin!(until_stopped()));
    match select(work, stopped).await {
        Either::Left((done, _)) => done,
        Either::Right((stopped, _)) => {
            stopped?;
            Err(Failure::new("it was interrupted; the same command does it again"))
        }
    }
}

/// `firn-blockd tenant-snapshot`.
pub async fn run(wanted: &TenantSnapshot) -> Result<(), Failure> {
    match wanted {
        TenantSnapshot::Take {
            of,
            snapshot,
            by_ticket,
        } => take_one(of, snapshot, *by_ticket).await,
        TenantSnapshot::List { of } => list(of).await,
        TenantSnapshot::Delete { of, snapshot } => {
            let env = cluster::environment(&of.state)?;
            let catalogue = of.catalogue(&env).await?;
            delete_from(&env, &catalogue, &of.name, snapshot).await
        }
        TenantSnapshot::Restore {
            of,
            snapshot,
            new_key,
        } => restore_one(of, snapshot, new_key.as_ref()).await,
    }
}

async fn take_one(of: &Of, snapshot: &str, by_ticket: bool) -> Result<(), Failure> {
    let socket = of.disk.to_string();
    let command = Command::Snapshot {
        name: snapshot.to_owned(),
        store: Some(of.store.to_string()),
    };
    if admin::ask(&of.state, &socket, command).await?.is_some() {
        return watch(&of.state, &socket, &of.name, snapshot).await;
    }
    if !by_ticket {
        return Err(Failure::new(format!(
            "disk {} is attached, and not by this user on this machine; take the snapshot there, or detach it first",
            of.name
        )));
    }
    let ticket = Ticket::read(std::io::stdin().lock())?;
    let env = cluster::environment(&of.state)?;
    let (key, catalogue) = (of.secret()?, of.catalogue(&env).await?);
    let table = ServiceTable::new(&env, &ticket)?;
    let wanted = Attachable::new(ticket.disk, *key.expose(), &holder("taking a snapshot"));
    let borrowed = Borrowed::attach(&env, &table, wanted).await?;
    let taken = unless_stopped(take_of(&env, &borrowed.attached, &catalogue, snapshot)).await;
    borrowed.give_back().await?;
    told(snapshot, &of.name, taken?);
    Ok(())
}

async fn list(of: &Of) -> Result<(), Failure> {
    let env = cluster::environment(&of.state)?;
    let listed = of.catalogue(&env).await?.list().await?;
    let listed: Vec<_> = listed
        .into_iter()
        .map(|snapshot| {
            serde_json::json!({
                "name": snapshot.name,
                "size_bytes": snapshot.size_bytes,
                "taken": snapshot.taken_unix_ms / 1000,
            })
        })
        .collect();
    println!("{}", serde_json::Value::Array(listed));
    Ok(())
}

async fn restore_one(of: &Of, snapshot: &str, new_key: Option<&PathBuf>) -> Result<(), Failure> {
    let ticket = Ticket::read(std::io::stdin().lock())?;
    let env = cluster::environment(&of.state)?;
    let catalogue = of.catalogue(&env).await?;
    // Before the new disk is touched: there must be something to write to it, and it must fit.
    let root = catalogue.root(snapshot).await?;
    let table = ServiceTable::new(&env, &ticket)?;
    let record = table.disk(ticket.disk).await?;
    if record.size_bytes < root.size_bytes {
        return Err(SnapshotError::TooSmall {
            snapshot_bytes: root.size_bytes,
            disk_bytes: record.size_bytes,
        }
        .into());
    }
    let path = match new_key {
        Some(path) => path.clone(),
        None => of.state.join(format!("{}.key", ticket.disk)),
    };
    let key = disk_key(&env, &path, &record, &ticket.name)?;
    let wanted = Attachable {
        restoring: Some(source_of(of.disk, snapshot)),
        ..Attachable::new(ticket.disk, *key.expose(), &holder("restoring"))
    };
    let mut borrowed = Borrowed::attach(&env, &table, wanted).await?;
    let written = unless_stopped(write_back(&env, &mut borrowed.attached, &catalogue, snapshot)).await;
    borrowed.give_back().await?;
    let written_bytes = written?;
    println!(
        "disk {} holds snapshot {snapshot} of disk {}; {} were written",
        ticket.name,
        of.name,
        Size(written_bytes)
    );
    Ok(())
}
