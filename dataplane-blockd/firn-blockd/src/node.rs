//! `firn-blockd node`: one physical disk, served.
//!
//! Each node also offers itself as coordinator; a lease in the table says which of them is it.

use crate::{
    cluster::{Outside, environment, open_placement, until_stopped},
    config::{Config, NodeSection, ServiceSection},
    failure::Failure,
    joined::Joined,
    meter::NodeMeter,
};
use axum::Router;
use firn_blockd_node::{
    DiskModel, Geometry, HANDSHAKES_MAX, Node, NodeOptions, OpenError, Security, Store, StoreOptions,
};
use firn_blockd_placement::{Coordinator, CoordinatorSettings, Placement};
use firn_blockd_protocol::NodeId;
use firn_env::{Env, println};
use firn_metrics::Served;
use firn_usage::DeliveryPolicy;
use futures::future::{Either, select};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{pin::pin, time::Duration};

/// Between two looks of a coordinator.
const TICK: Duration = Duration::from_secs(1);
/// Between two takings of what was served: what a process that dies does not charge.
const METER_PERIOD: Duration = Duration::from_secs(10);
/// Below this a node's disk is cut into smaller groups, down to the least that is of use.
const GROUPS_OF_A_GIBIBYTE_FROM: u64 = 2 << 30;
/// What passes under the arm of a common disk while it could move: 8 ms at 128 MB/s.
const SEEK_BYTES: u64 = 1 << 20;

/// How a disk of so many bytes is cut.
pub fn geometry(bytes: u64) -> Result<Geometry, Failure> {
    if bytes >= GROUPS_OF_A_GIBIBYTE_FROM {
        return Ok(Geometry::for_bytes(bytes));
    }
    // Seven home frames and one of scratch for each 64 MiB beside the journals.
    let journal_bytes = 8 << 20;
    let groups = bytes.saturating_sub(2 * journal_bytes) / (65 << 20);
    if groups == 0 {
        return Err(Failure::usage(format!(
            "{bytes} bytes are too few for a node; give it at least 128MiB"
        )));
    }
    Ok(Geometry {
        groups: u32::try_from(groups).unwrap_or(u32::MAX),
        home_frames: 7,
        scratch_frames: 1,
        journal_bytes,
    })
}

/// Why a store that is there is not used.
fn refused(section: &NodeSection, error: OpenError) -> Failure {
    let directory = section.directory.display();
    match error {
        OpenError::Newer { .. } => Failure::usage(format!("{directory}: {error}")),
        error => Failure::new(format!(
            "{error}. This node does not start, so that nobody takes what it lost for empty; if its disk is lost, empty {directory} \
             and the others will fill it again"
        )),
    }
}

/// Opens a node's store, which is formatted if the directory has none.
pub async fn open_store(env: &Env, section: &NodeSection) -> Result<Store, Failure> {
    let modelled = section.model.map_or_else(|| env.clone(), |model| model.over(env));
    match Store::open(&modelled, StoreOptions::default()).await {
        Ok(store) => return Ok(store),
        Err(OpenError::Empty) => {}
        Err(error) => return Err(refused(section, error)),
    }
    tracing::info!(directory = %section.directory.display(), "formatting a new node");
    Store::format(env, geometry(section.size.0)?)
        .await
        .map_err(Failure::new)?;
    Store::open(&modelled, StoreOptions::default())
        .await
        .map_err(Failure::new)
}

/// Starts a node on the environment's directory, which is formatted if nothing is there.
///
/// # Errors
/// [`Failure`]: a store that is damaged is not started, so that nobody takes what it lost for empty.
pub async fn start(
    env: &Env,
    placement: &Placement,
    section: &NodeSection,
    security: impl FnOnce(NodeId) -> Result<Security, Failure>,
) -> Result<Node, Failure> {
    let store = open_store(env, section).await?;
    let security = security(store.node())?;
    // A model says itself how long its arm takes.
    let seek_bytes = section.model.and_then(DiskModel::seek_bytes);
    let options = match seek_bytes.or(section.rotates.then_some(SEEK_BYTES)) {
        Some(seek_bytes) => NodeOptions::default().with_arm(seek_bytes),
        None => NodeOptions::default(),
    };
    let options = NodeOptions {
        listen: section.listen.clone(),
        advertise: section.advertise.clone(),
        domain: section.domain.clone(),
        connections: section.connections as usize,
        memory_bytes: usize::try_from(section.memory.0).unwrap_or(usize::MAX),
        heartbeat: Duration::from_secs(section.dead_after_seconds).min(Duration::from_secs(10)) / 5,
        ..options
    };
    Node::start(env, store, placement.clone(), security, options)
        .await
        .map_err(Failure::new)
}

/// Offers this process as coordinator; a lease in the table says which of all that do is it.
pub fn coordinate(env: &Env, placement: &Placement, section: &NodeSection, lease: Duration) {
    let settings = CoordinatorSettings {
        lease,
        dead_after: Duration::from_secs(section.dead_after_seconds),
        ..CoordinatorSettings::default()
    };
    drop(env.spawn_essential(
        "coordinator",
        Coordinator::new(placement.clone(), settings).run(TICK),
    ));
}

/// A node of a control plane's: joined before it registers, with a store that has the identity it was invited under.
async fn start_joined(
    env: &Env,
    placement: &Placement,
    section: &NodeSection,
    service: &ServiceSection,
) -> Result<(Node, Joined), Failure> {
    let address = section.advertise.as_deref().unwrap_or(&section.listen);
    let geometry = geometry(section.size.0)?;
    let joined = Joined::open(
        env,
        service,
        &section.directory,
        address,
        geometry.capacity_tracts(),
    )
    .await?;
    let id = joined.node();
    match Store::format_as(env, geometry, id).await {
        Ok(()) | Err(OpenError::Exists(_)) => {}
        Err(error) => return Err(refused(section, error)),
    }
    let node = start(env, placement, section, |stored| {
        if stored == id {
            return joined.security();
        }
        Err(Failure::usage(format!(
            "{} holds the store of {stored}, and the configuration names {id}",
            section.directory.display()
        )))
    })
    .await?;
    Ok((node, joined))
}

/// Of file descriptors: standard streams, the store's lock and journals, the table's and other nodes' connections.
const OTHER_FILES: u64 = 256;

/// Raises the limit of open files to what these nodes can need, as far as it may: each connection is one, and so is each of a
/// store's files. A process that has fewer runs, and closes who is silent when it has no more.
pub fn raise_file_limit(sections: &[NodeSection]) -> Result<(), Failure> {
    let mut needed = OTHER_FILES;
    for section in sections {
        let groups = u64::from(geometry(section.size.0)?.groups);
        needed += u64::from(section.connections) + HANDSHAKES_MAX as u64 + 2 * groups;
    }
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = limit.maximum.map_or(needed, |most| most.min(needed));
    let wanted = Rlimit {
        current: Some(raised),
        maximum: limit.maximum,
    };
    if setrlimit(Resource::Nofile, wanted).is_err() || raised < needed {
        tracing::warn!(
            needed,
            allowed = limit.maximum,
            "this process may have fewer files open than its connections and its store can need; raise LimitNOFILE"
        );
    }
    Ok(())
}

/// `firn-blockd node`.
pub async fn run(config: &Config) -> Result<(), Failure> {
    let section = config.node()?;
    raise_file_limit(std::slice::from_ref(section))?;
    let env = environment(&section.directory)?;
    let (node, placement, joined) = match &config.service {
        Some(service) => {
            let (_, placement) = open_placement(config, &section.directory).await?;
            let (node, joined) = start_joined(&env, &placement, section, service).await?;
            (node, placement, Some(joined))
        }
        None => {
            let outside = Outside::open(config, &section.directory).await?;
            let operator = outside.operator.clone();
            let node = start(&env, &outside.placement, section, |id| operator.node(id)).await?;
            (node, outside.placement, None)
        }
    };
    let lease = Duration::from_secs(section.dead_after_seconds);
    coordinate(&env, &placement, section, lease);
    println!("node {} serves at {}", node.id().hex(), node.address());
    // Held until the node ends.
    let _metrics = match &section.metrics {
        Some(address) => {
            let served = serve_metrics(&env, &node, address).await?;
            println!("metrics at http://{}/metrics", served.address);
            Some(served)
        }
        None => None,
    };
    // Whoever runs a cluster without a control plane has no bill.
    let meter = match &joined {
        Some(joined) => {
            let policy = DeliveryPolicy::default();
            Some(NodeMeter::start(&env, node.id(), joined.usage_sink(), policy).await?)
        }
        None => None,
    };
    let served = serve(&env, &node, joined, meter.as_ref()).await;
    if let Some(meter) = &meter {
        meter.record(&node).await;
    }
    served?;
    node.stop().await;
    Ok(())
}

/// Serves a node's figures to Prometheus.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve_metrics(env: &Env, node: &Node, address: &str) -> Result<Served, Failure> {
    let served = firn_metrics::serve(env, address, node.metrics(), Router::new()).await;
    served.map_err(|error| {
        Failure::usage(format!(
            "cannot serve metrics on {address} (node.metrics): {error}"
        ))
    })
}

/// Waits until the process is told to end. An error if it must not go on.
async fn serve(
    env: &Env,
    node: &Node,
    joined: Option<Joined>,
    meter: Option<&NodeMeter>,
) -> Result<(), Failure> {
    let superseded = async {
        while !node.is_superseded() {
            env.sleep(TICK).await;
        }
    };
    let reporting = async {
        match joined {
            Some(joined) => joined.report(node).await,
            None => std::future::pending().await,
        }
    };
    let metering = async {
        match meter {
            Some(meter) => meter.run(node, METER_PERIOD).await,
            None => std::future::pending().await,
        }
    };
    let reporting = async {
        select(pin!(reporting), pin!(metering)).await;
    };
    let (stopped, superseded, reporting) = (pin!(until_stopped()), pin!(superseded), pin!(reporting));
    match select(select(stopped, superseded), reporting).await {
        Either::Left((Either::Left((stopped, _)), _)) => stopped,
        Either::Left((Either::Right(((), _)), _)) => Err(Failure::fenced(
            "another process has registered as this node; this one has stopped, look for a second one on this disk",
        )),
        // Reports never end.
        Either::Right(((), _)) => Err(Failure::new("this node stopped reporting")),
    }
}
