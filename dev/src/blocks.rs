//! Three disk nodes and their coordinator, as `firn-blockd node` runs them, each on a directory of its own.

use crate::layout::{Layout, write_whole};
use anyhow::{Context as _, Result, bail};
use firn_api::MasterSecret;
use firn_billing::{Billing, BillingSink, Reporter};
use firn_blockd::{
    NodeMeter, NodeSection, Operator, Size, coordinate, serve_metrics, start_node, usage_source,
};
use firn_blockd_node::Node;
use firn_blockd_placement::Placement;
use firn_blockd_protocol::{Replication, RowIndex};
use firn_env::Env;
use firn_metrics::Served;
use firn_table::Table;
use firn_usage::DeliveryPolicy;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// As many as the most copies of a disk.
pub const NODES: usize = 3;
/// Rows of each table: a few for each node.
const ROWS: u32 = 64;
const NODE_BYTES: u64 = 1 << 30;
const DEAD_AFTER_SECONDS: u64 = 4;
/// How long the lease of an earlier process on this directory is respected, and disks wait after a crash: the table's lock
/// shows that it is gone, so no longer than it takes to renew one's own in time.
const LEASE: Duration = Duration::from_secs(3);
/// Who uses a disk and then asks for the bill should not wait.
const METER_PERIOD: Duration = Duration::from_millis(500);
/// Nodes that do not register by then are broken.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The installation's name in certificates.
pub const TRUST_DOMAIN: &str = "dev.firn";

/// A running cluster.
pub struct Cluster {
    env: Env,
    pub placement: Placement,
    /// Each with the environment of its directory.
    nodes: Vec<(Node, Env)>,
    /// What answers Prometheus, for as long as it is held.
    _metrics: Vec<Served>,
}

/// What of the nodes goes to the bill.
pub struct Meters(Vec<NodeMeter>);

/// What makes nodes believe each other, and those whom the service let in: its authority and its capabilities.
fn operator(env: &Env, master: &MasterSecret) -> Result<Arc<Operator>> {
    let authority = master.authority(TRUST_DOMAIN)?;
    Ok(Arc::new(Operator::with(env, authority, master.capabilities())))
}

/// Starts the nodes, which open `table` and are where the API is: whoever reaches that, to attach a disk, must reach them.
pub async fn start(
    env: &Env,
    layout: &Layout,
    master: &MasterSecret,
    table: Arc<dyn Table>,
    address: IpAddr,
) -> Result<Cluster> {
    let operator = operator(env, master)?;
    let placement = Placement::new(env.clone(), table, "dev")?;
    placement.initialise([ROWS; 3]).await?;
    let start_one = async |number: usize| -> Result<(Node, Env, NodeSection)> {
        let section = NodeSection {
            directory: layout.path(&format!("node-{number}")),
            size: Size(NODE_BYTES),
            listen: SocketAddr::new(address, 0).to_string(),
            advertise: None,
            domain: format!("node-{number}"),
            model: None,
            rotates: false,
            dead_after_seconds: DEAD_AFTER_SECONDS,
            connections: 1024,
            memory: Size(256 << 20),
            metrics: None,
        };
        std::fs::create_dir_all(&section.directory)?;
        let node_env = firn_env::real(&section.directory)?;
        let node = start_node(&node_env, &placement, &section, |id| operator.node(id))
            .await
            .map_err(|failure| anyhow::anyhow!("disk node {number}: {failure}"))?;
        Ok((node, node_env, section))
    };
    let started = futures::future::try_join_all((0..NODES).map(start_one)).await?;
    // The first look of a coordinator finds all nodes: the next would be a second later.
    for (_, node_env, section) in &started {
        coordinate(node_env, &placement, section, LEASE);
    }
    let nodes: Vec<(Node, Env)> = started.into_iter().map(|(node, env, _)| (node, env)).collect();
    let mut metrics = Vec::new();
    for (node, node_env) in &nodes {
        let served = serve_metrics(node_env, node, "127.0.0.1:0").await;
        metrics.push(served.map_err(|failure| anyhow::anyhow!("{failure}"))?);
    }
    let urls = metrics
        .iter()
        .map(|served| format!("http://{}/metrics\n", served.address));
    let urls: String = urls.collect();
    write_whole(&layout.path("node-metrics"), urls.as_bytes(), 0o600)?;
    Ok(Cluster {
        env: env.clone(),
        placement,
        nodes,
        _metrics: metrics,
    })
}

impl Cluster {
    /// Waits until disks of three copies can be made.
    pub async fn ready(&self) -> Result<()> {
        let most = Replication::new(u8::try_from(NODES)?).context("three copies are allowed")?;
        let began = self.env.now();
        while self.placement.row(most, RowIndex(0)).await?.replicas.len() < NODES {
            if self.env.now().since(began) > START_TIMEOUT {
                bail!("the disk nodes do not register");
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Opens what carries the nodes' counts into the ledger, which lies in `table`.
    pub async fn meters(&self, table: &Arc<dyn Table>) -> Result<Meters> {
        let ledger = Arc::new(Billing::new(&self.env, table.clone()));
        let mut meters = Vec::new();
        for (node, env) in &self.nodes {
            let reporter = Reporter::service(usage_source(node.id()));
            let sink = Arc::new(BillingSink::new(ledger.clone(), reporter));
            let policy = DeliveryPolicy {
                linger: METER_PERIOD,
                ..DeliveryPolicy::default()
            };
            let meter = NodeMeter::start(env, node.id(), sink, policy).await;
            meters.push(meter.map_err(|failure| anyhow::anyhow!("{failure}"))?);
        }
        Ok(Meters(meters))
    }

    /// Counts for ever what the nodes serve.
    pub async fn keep_counting(&self, Meters(meters): &Meters) {
        let counting = self.nodes.iter().zip(meters);
        let counting = counting.map(|((node, _), meter)| meter.run(node, METER_PERIOD));
        futures::future::join_all(counting).await;
    }

    pub async fn stop(self, Meters(meters): Meters) {
        for ((node, _), meter) in self.nodes.into_iter().zip(&meters) {
            meter.record(&node).await;
            node.stop().await;
        }
    }
}
