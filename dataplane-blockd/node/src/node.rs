//! A node: a store that takes part in a cluster.
//!
//! Its tasks: accepting connections, heartbeats and rows ([`upkeep`](crate::upkeep)), copying what it joins
//! ([`copy`](crate::copy)), scrubbing and repair ([`scrub`](crate::scrub)), giving up what is no longer its own
//! ([`reclaim`](crate::reclaim)). All end when the node is dropped or stopped. If one of them panics the process ends: a node that
//! only beats would be believed to serve.

use crate::{
    admission::Admission,
    copy,
    fair::FairQueue,
    metrics,
    options::{MEMORY_BYTES_MIN, NodeOptions, Security},
    peers::Peers,
    reclaim,
    rows::Rows,
    scrub,
    served::{Served, ServedCounts, ServedDisk},
    service::NodeService,
    shared::Inner,
    store::Store,
    throttle::Throttle,
    upkeep,
};
use firn_blockd_placement::{Placement, PlacementError, Registration};
use firn_blockd_protocol::{Budget, NodeId, limits, serve};
use firn_env::{Env, Task, Watched};
use firn_metrics::Metrics;
use futures::future::{Either, select};
use std::{
    collections::BTreeMap,
    io,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

/// How long a node that stops waits for its last commit: less than a service manager waits before it kills (90 s).
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running node.
pub struct Node {
    inner: Arc<Inner>,
    address: String,
    stop: Watched<bool>,
    tasks: Vec<Task<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Connections have tasks of their own.
        self.stop.set(true);
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The table.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// What was to be listened on.
        address: String,
        /// The operating system's words.
        error: io::Error,
    },
}

impl Node {
    /// Registers the store's node, learns its rows and serves.
    ///
    /// # Errors
    /// [`StartError`]; the store is untouched.
    pub async fn start(
        env: &Env,
        store: Store,
        placement: Placement,
        security: Security,
        options: NodeOptions,
    ) -> Result<Self, StartError> {
        let Security {
            transport,
            authenticator,
            capability,
        } = security;
        let node = store.node();
        let listener = env
            .network()
            .listen(&options.listen)
            .await
            .map_err(|error| StartError::Listen {
                address: options.listen.clone(),
                error,
            })?;
        assert!(
            options.memory_bytes >= MEMORY_BYTES_MIN
                && MEMORY_BYTES_MIN > limits::MAX_DATA_BYTES + 2 * limits::MAX_BODY_BYTES,
            "every request fits"
        );
        let address = options.advertise.clone().unwrap_or_else(|| listener.address());
        let cluster = placement.cluster().await?;
        let incarnation = env.random_u64();
        let inner = Arc::new(Inner {
            env: env.clone(),
            rows: Rows::new(env, node, placement.clone(), cluster),
            peers: Peers::new(env, transport.clone(), capability),
            transport,
            admission: Admission::new(env, options.connections),
            memory: Budget::new(options.memory_bytes),
            queue: FairQueue::new(options.permits, options.request_cost_bytes),
            copy_throttle: Throttle::new(env, options.copy_bytes_per_second),
            scrub_throttle: Throttle::new(env, options.scrub_bytes_per_second),
            store,
            placement,
            authenticator,
            incarnation,
            stopped: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            rows_changed: Notify::new(),
            damage_found: Notify::new(),
            out_of_tracts: AtomicBool::new(false),
            frame_wanted: Notify::new(),
            usage: Arc::default(),
            served: ServedCounts::default(),
            operations: Mutex::default(),
            copied_blocks: AtomicU64::new(0),
            repaired_blocks: AtomicU64::new(0),
            scrubbed_blocks: AtomicU64::new(0),
            scrub_rounds: AtomicU64::new(0),
            options,
        });
        let report = inner.report().await;
        let registration: Registration = inner
            .placement
            .register(node, incarnation, &address, &inner.options.domain, report)
            .await?;
        upkeep::learn_rows(&inner).await?;
        info!(%node, address, domain = inner.options.domain, "disk node serves");
        let stop = Watched::new(false);
        let tasks = vec![
            env.spawn_essential("blockd accept", accept(inner.clone(), listener, stop.clone())),
            env.spawn_essential(
                "blockd upkeep",
                upkeep::run(inner.clone(), registration, cluster.epoch),
            ),
            env.spawn_essential("blockd copy", copy::run(inner.clone())),
            env.spawn_essential("blockd scrub", scrub::run(inner.clone())),
            env.spawn_essential("blockd repair", scrub::repair(inner.clone())),
            env.spawn_essential("blockd reclaim", reclaim::run(inner.clone())),
        ];
        Ok(Self {
            inner,
            address,
            stop,
            tasks,
        })
    }

    /// Who it is.
    pub fn id(&self) -> NodeId {
        self.inner.store.node()
    }

    /// Where others find it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Another process has registered as this node: this one has stopped serving and should end.
    pub fn is_superseded(&self) -> bool {
        self.inner.stopped.load(Relaxed)
    }

    /// Blocks that it copied from other replicas since it was started.
    pub fn copied_blocks(&self) -> u64 {
        self.inner.copied_blocks.load(Relaxed)
    }

    /// Takes what clients of disks were served since this was last asked.
    pub fn take_served(&self) -> BTreeMap<ServedDisk, Served> {
        self.inner.served.take()
    }

    /// Gives back what was taken and could not be kept elsewhere.
    pub fn put_back_served(&self, served: impl IntoIterator<Item = (ServedDisk, Served)>) {
        for (disk, count) in served {
            self.inner.served.add(disk, count);
        }
    }

    /// Its metrics for Prometheus.
    pub fn metrics(&self) -> Metrics {
        metrics::metrics(self.inner.clone())
    }

    /// Takes no more requests, lets those under way end, and makes everything durable; on a file system without room it gives up
    /// after [`STOP_LIMIT`]: nothing that waits then was acknowledged.
    pub async fn stop(self) {
        self.stop.set(true);
        let flushed = self.inner.env.timeout(STOP_LIMIT, self.inner.store.flush());
        if flushed.await.is_err() {
            warn!("this node stops without a last commit: its disk does not take it");
        }
    }
}

async fn accept(inner: Arc<Inner>, listener: Box<dyn firn_env::Listener>, stop: Watched<bool>) {
    let service = Arc::new(NodeService(inner.clone()));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "a connection was not accepted");
                // Most often there is no file descriptor left. Who is silent gives one back at once; where nobody is, we wait.
                if !inner.admission.evict_oldest() {
                    inner.env.sleep(Duration::from_millis(100)).await;
                } else {
                    inner.env.sleep(Duration::from_millis(1)).await;
                }
                continue;
            }
        };
        if stop.get() {
            return;
        }
        let mut unknown = inner.admission.arrived(&peer);
        // Who was displaced for it gives their descriptor back before the next one is taken: however long the backlog is, few are being
        // closed at any time.
        inner.env.yield_now().await;
        let (inner, service, stop) = (inner.clone(), service.clone(), stop.clone());
        let spawning = inner.env.clone();
        drop(spawning.spawn("blockd connection", async move {
            let handshake = pin!(inner.transport.accept(stream, peer));
            let accepted = match select(handshake, pin!(unknown.evicted())).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(((), _)) => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => return debug!(%error, "a caller is not one of ours"),
            };
            let Some(_open) = inner.admission.known(unknown, &peer.owner()) else {
                return;
            };
            let (env, limits, usage) = (
                inner.env.clone(),
                inner.options.limits.clone(),
                inner.usage.clone(),
            );
            serve(env, stream, peer, service, limits, usage, stop).await;
        }));
    }
}
