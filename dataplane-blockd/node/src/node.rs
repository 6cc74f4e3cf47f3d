//! A node: a store that takes part in a cluster.
//!
//! Its tasks: accepting connections, heartbeats and rows ([`upkeep`](crate::upkeep)), copying what it joins
//! ([`copy`](crate::copy)), scrubbing and repair ([`scrub`](crate::scrub)), giving up what is no longer its own
//! ([`reclaim`](crate::reclaim)). All end when the node is dropped or stopped. If one of them panics the process ends: a node that
//! only beats would be believed to serve.

use crate::{
    admission::Admission,
    auth::Authenticator,
    copy,
    fair::{FairQueue, IoPermit},
    metrics,
    peers::Peers,
    reclaim,
    rows::Rows,
    scrub,
    served::{Served, ServedCounts, ServedDisk},
    service::{NodeService, refusal},
    store::{Put, Store, StoreError, TractPlace},
    throttle::Throttle,
    upkeep,
};
use bytes::Bytes;
use firn_blockd_placement::{NodeCondition, NodeReport, Placement, PlacementError, Registration};
use firn_blockd_protocol::{
    Budget, NodeId, Operation, Owner, Refusal, ServerLimits, ServerUsage, TenantId, Transport, limits, serve,
};
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

/// Four movements of an arm: then commits for those who fill the disk take a fifth of its time, not half.
const COMMIT_WAIT_MAX: Duration = Duration::from_millis(32);

/// How long a node that stops waits for its last commit: less than a service manager waits before it kills (90 s).
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How a node works.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where it listens, `host:port`.
    pub listen: String,
    /// Where others find it; nothing: where it listens.
    pub advertise: Option<String>,
    /// What fails together with it.
    pub domain: String,
    /// Between two heartbeats; several must fit into the time after which the coordinator takes a node for dead.
    pub heartbeat: Duration,
    /// Requests that use the disk at once: about what keeps it busy. More would only move the queue from where tenants take
    /// turns to where they do not. [`NodeOptions::with_arm`] for disks that seek.
    pub permits: usize,
    /// What a request costs its tenant beside its bytes: a solid disk does not seek, but each of its requests takes a processor's
    /// time, and small ones fill its channels less.
    pub request_cost_bytes: u64,
    /// How long a durable write waits for somebody else's commit while its tenant has requests waiting for a permit.
    pub commit_wait_max: Duration,
    /// Rows copied at once when the node joins.
    pub copies_at_once: usize,
    /// Bytes a second for copying.
    pub copy_bytes_per_second: u64,
    /// Bytes a second for scrubbing.
    pub scrub_bytes_per_second: u64,
    /// From the end of one round of scrubbing to the beginning of the next.
    pub scrub_interval: Duration,
    /// How long tracts are kept that are no longer this node's, in case somebody wants them back.
    pub drop_after: Duration,
    /// Of each connection.
    pub limits: ServerLimits,
    /// Connections open at once. Their owners share them, so that one that is alone gets half.
    pub connections: usize,
    /// Bytes of requests and replies in flight on all connections, shared alike; at least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: usize,
}

/// A few of the largest requests.
pub const MEMORY_BYTES_MIN: usize = 8 << 20;

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:7300".into(),
            advertise: None,
            domain: "default".into(),
            heartbeat: Duration::from_secs(2),
            permits: 32,
            request_cost_bytes: 64 << 10,
            commit_wait_max: Duration::ZERO,
            copies_at_once: 8,
            copy_bytes_per_second: 64 << 20,
            scrub_bytes_per_second: 8 << 20,
            scrub_interval: Duration::from_secs(7 * 86_400),
            drop_after: Duration::from_secs(3600),
            limits: ServerLimits::default(),
            connections: 1024,
            // What keeps the disk busy is 32 requests of a mebibyte; this is eight times as much, or four tenants' share of it.
            memory_bytes: 256 << 20,
        }
    }
}

impl NodeOptions {
    /// For a disk that serves one request after the other, each after a movement that takes as long as so many bytes: what is
    /// given to it cannot be overtaken any more, so it is given one thing at a time.
    pub fn with_arm(self, seek_bytes: u64) -> Self {
        Self {
            permits: 1,
            request_cost_bytes: seek_bytes,
            commit_wait_max: COMMIT_WAIT_MAX,
            ..self
        }
    }
}

/// How a node knows whom it speaks to.
#[derive(Clone)]
pub struct Security {
    /// What all its connections travel over.
    pub transport: Transport,
    /// What a capability allows.
    pub authenticator: Arc<dyn Authenticator>,
    /// The capability by which it copies from other nodes, asked anew for each connection; nothing where the name in its
    /// certificate is enough.
    pub capability: Arc<dyn Fn() -> Option<Bytes> + Send + Sync>,
}

/// What the node's tasks share.
pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) options: NodeOptions,
    pub(crate) store: Store,
    pub(crate) placement: Placement,
    pub(crate) rows: Rows,
    pub(crate) peers: Peers,
    pub(crate) transport: Transport,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) incarnation: u64,
    pub(crate) queue: FairQueue,
    pub(crate) admission: Arc<Admission>,
    /// Of requests and replies in flight.
    pub(crate) memory: Budget<Owner>,
    pub(crate) copy_throttle: Throttle,
    pub(crate) scrub_throttle: Throttle,
    /// Another process is this node now.
    pub(crate) stopped: AtomicBool,
    pub(crate) draining: AtomicBool,
    /// Rows have changed: somebody may have to copy.
    pub(crate) rows_changed: Notify,
    /// A damaged block was found.
    pub(crate) damage_found: Notify,
    /// A write found no frame free for its tract, and none has been since.
    pub(crate) out_of_tracts: AtomicBool,
    /// The same, at the moment it happens.
    pub(crate) frame_wanted: Notify,
    pub(crate) usage: Arc<ServerUsage>,
    pub(crate) served: ServedCounts,
    operations: Mutex<BTreeMap<Operation, u64>>,
    pub(crate) copied_blocks: AtomicU64,
    pub(crate) repaired_blocks: AtomicU64,
    pub(crate) scrubbed_blocks: AtomicU64,
    pub(crate) scrub_rounds: AtomicU64,
}

impl Inner {
    pub(crate) async fn report(&self) -> NodeReport {
        NodeReport {
            capacity_tracts: self.store.geometry().capacity_tracts(),
            used_tracts: self.store.used_tracts(),
            condition: if self.store.is_full().await {
                NodeCondition::ReadOnly
            } else if self.out_of_tracts.load(Relaxed) {
                NodeCondition::OutOfTracts
            } else {
                NodeCondition::Writable
            },
        }
    }

    pub(crate) fn count(&self, operation: Operation) {
        *self
            .operations
            .lock()
            .expect("no panic under this lock")
            .entry(operation)
            .or_default() += 1;
    }

    pub(crate) fn operations(&self) -> BTreeMap<Operation, u64> {
        self.operations.lock().expect("no panic under this lock").clone()
    }

    pub(crate) async fn permit(&self, tenant: TenantId, bytes: usize) -> Result<IoPermit, Refusal> {
        self.queue.permit(tenant, bytes).await.map_err(|_| Refusal::Busy)
    }

    /// Puts blocks into the store; what it holds of the tract from another membership in the row is emptied first.
    pub(crate) async fn put(&self, place: TractPlace, puts: &[Put]) -> Result<u64, Refusal> {
        for _ in 0..4 {
            match self.store.put(place, puts).await {
                Err(StoreError::OtherStay { tract }) => {
                    if firn_env::planted!("node.keep_earlier_stay") {
                        let held = self.store.place(tract).unwrap_or(place);
                        return self.store.put(held, puts).await.map_err(refusal);
                    }
                    self.store.reset(place).await;
                }
                Err(StoreError::Full) => {
                    self.out_of_tracts.store(true, Relaxed);
                    self.frame_wanted.notify_one();
                    return Err(Refusal::Full);
                }
                outcome => return outcome.map_err(refusal),
            }
        }
        Err(Refusal::Superseded)
    }
}

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
