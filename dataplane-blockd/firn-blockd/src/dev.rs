//! `firn-blockd dev`: a cluster in one process, on directories, with one disk.
//!
//! The same code as in production on the same kind of connections; only the table is a file, and all nodes are in this
//! process. What is in the directory stays and is used again.

use crate::{
    cluster::environment,
    config::NodeSection,
    disks::{self, AttachOptions, Create, Exported},
    failure::Failure,
    node,
    security::{Operator, Secret},
    tls::TlsFiles,
};
use clap::Args;
use firn_blockd_client::{AttachFailed, DETACH_LIMIT, attach};
use firn_blockd_node::{DiskModel, Node};
use firn_blockd_placement::{DiskRecord, NewDisk, Placement, PlacementError};
use firn_blockd_protocol::TenantId;
use firn_env::{Backoff, Env, Retry, println};
use firn_quantity::Size;
use firn_store::StoreUrl;
use firn_table::RedbTable;
use std::{path::PathBuf, sync::Arc, time::Duration};

const TENANT: TenantId = TenantId([0xde; 16]);
/// Rows of each table: a few for each of a handful of nodes.
const ROWS: u32 = 64;
/// How long the lease of an earlier process on this directory is respected: the table's lock shows that it is gone, so no longer
/// than it takes to renew one's own in time.
const LEASE: Duration = Duration::from_secs(3);
/// How long nodes are waited for.
const STARTING: Retry = Retry::lasting(
    Backoff::constant(Duration::from_millis(200)),
    Duration::from_secs(60),
);

/// The cluster, and how its disk is attached.
#[derive(Args)]
pub struct Dev {
    /// How many nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: u8,
    /// Where everything is kept.
    #[arg(long, default_value = "firn-blockd-dev")]
    pub directory: PathBuf,
    /// What each node may use.
    #[arg(long, default_value = "1GiB")]
    pub node_size: Size,
    /// Makes each node's disk as slow as this, such as seek=8ms,bw=128MB/s.
    #[arg(long)]
    pub model: Option<DiskModel>,
    /// The disk's size, if it has to be created.
    #[arg(long, default_value = "256MiB")]
    pub size: Size,
    /// Copies, if it has to be created.
    #[arg(long, default_value_t = 2)]
    pub replication: u8,
    /// Where NBD clients connect; by default a socket in the directory.
    #[arg(long)]
    pub nbd: Option<String>,
    /// write-through, write-back, flush-epoch or log.
    #[arg(long, default_value = "write-back")]
    pub mode: firn_blockd_client::Mode,
    /// When a flush is answered.
    #[arg(long, value_enum, default_value = "durable")]
    pub flush: disks::Flush,
}

/// `firn-blockd dev`.
pub async fn run(wanted: &Dev) -> Result<(), Failure> {
    let env = environment(&wanted.directory)?;
    let directory = std::fs::canonicalize(&wanted.directory).map_err(Failure::new)?;
    let secret_path = directory.join("secret");
    let secret = if secret_path.exists() {
        Secret::read(&secret_path)?
    } else {
        Secret::create(&env, &secret_path)?
    };
    let operator = Arc::new(Operator::new(&env, &secret, "dev.firn")?);
    let table = RedbTable::open(&env, &directory.join("table.redb"))
        .await
        .map_err(Failure::new)?;
    let placement = Placement::new(env.clone(), Arc::new(table), "dev")?;
    placement.initialise([ROWS; 3]).await?;
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..wanted.nodes {
        let section = NodeSection {
            directory: directory.join(format!("node{number}")),
            size: wanted.node_size,
            listen: "127.0.0.1:0".into(),
            advertise: None,
            domain: format!("node{number}"),
            model: wanted.model,
            rotates: false,
            dead_after_seconds: 10,
            connections: 1024,
            memory: Size(256 << 20),
            metrics: None,
        };
        node::raise_file_limit(&vec![section.clone(); wanted.nodes.into()])?;
        let node_env = environment(&section.directory)?;
        if number == 0 {
            node::coordinate(&node_env, &placement, &section, LEASE);
        }
        nodes.push(node::start(&node_env, &placement, &section, |id| operator.node(id)).await?);
    }
    println!(
        "{} nodes serve; everything is in {}",
        nodes.len(),
        directory.display()
    );
    let key = directory.join("disk.key");
    let nbd = wanted
        .nbd
        .clone()
        .unwrap_or_else(|| format!("unix:{}", directory.join("nbd.sock").display()));
    let how = AttachOptions {
        mode: None,
        flush: wanted.flush,
        lag_ms: 1000,
        dirty: Size(64 << 20),
        attach_timeout_s: 30,
        journal: None,
        journal_size: Size(1 << 30),
        journal_after_ms: 2000,
        disconnected_seconds: None,
        detach_seconds: DETACH_LIMIT.as_secs(),
        nbd_connections: 64,
        // Whoever had it was an earlier process on this directory, which the table's lock shows to be gone.
        force: true,
        tls: TlsFiles::default(),
    };
    let name = format!("dev-{}-{}", wanted.mode, wanted.replication);
    let create = Create {
        name,
        size: wanted.size,
        replication: wanted.replication,
        mode: wanted.mode,
        segment: None,
        role: None,
        log_block: 4096,
        key: key.clone(),
    };
    let new = disks::new_disk(&env, TENANT, &create)?;
    let record = when_ready(&env, || find_or_create(&placement, &new)).await?;
    let access = operator.client(3600)?;
    let attachable = disks::attachable(&record, &Secret::read(&key)?, &how)?;
    let wanted = attachable.clone();
    let attached = when_ready(&env, || async {
        attach(&env, &placement, &access, attachable.clone()).await
    })
    .await?;
    let snapshots = directory.join("snapshots");
    std::fs::create_dir_all(&snapshots)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", snapshots.display())))?;
    let store = StoreUrl::Directory { path: snapshots };
    let exported = Exported {
        name: &record.name,
        nbd: &nbd,
        state_directory: &directory,
        device: None,
    };
    let serving = disks::serving(&exported, &wanted, &how, Some(&store))?;
    disks::serve(&env, attached, serving, &exported).await?;
    for node in nodes {
        node.stop().await;
    }
    Ok(())
}

/// Until nodes have registered and rows are built, there is no room and nobody to ask.
async fn when_ready<T, F>(env: &Env, mut work: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, AttachFailed>>,
{
    let no_room_yet = |error: &AttachFailed| {
        matches!(
            error,
            AttachFailed::Placement(
                PlacementError::NotEnoughNodes { .. } | PlacementError::NoCapacity { .. },
            )
        )
    };
    Ok(env.retry(&STARTING, no_room_yet, |_| work()).await?)
}

async fn find_or_create(placement: &Placement, new: &NewDisk) -> Result<DiskRecord, AttachFailed> {
    match placement.disk_named(new.tenant, &new.name).await {
        Err(PlacementError::NoDisk(_)) => Ok(placement.create_disk(new.clone()).await?),
        other => Ok(other?),
    }
}
