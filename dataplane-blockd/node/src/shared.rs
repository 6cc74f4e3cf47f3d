//! Shared state of a node's tasks, and what more than one of them does with it.

use crate::{
    admission::Admission,
    auth::Authenticator,
    fair::{FairQueue, IoPermit},
    options::NodeOptions,
    peers::Peers,
    rows::Rows,
    served::ServedCounts,
    store::{Put, Store, StoreError, TractPlace},
    throttle::Throttle,
};
use firn_blockd_placement::{NodeCondition, NodeReport, Placement};
use firn_blockd_protocol::{Budget, Operation, Owner, Refusal, ServerUsage, TenantId, Transport};
use firn_env::Env;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::Notify;

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
    pub(crate) operations: Mutex<BTreeMap<Operation, u64>>,
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
                Err(StoreError::OtherMembership { tract }) => {
                    if firn_env::planted!("node.keep_earlier_membership") {
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

/// What a client is told when the store did not do as asked.
pub(crate) fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Full => Refusal::Full,
        StoreError::Damaged { block, .. } => Refusal::Damaged { block },
        StoreError::OtherMembership { .. } => Refusal::Superseded,
        StoreError::ReadOnly => Refusal::NotServing(error.to_string()),
        StoreError::Busy => Refusal::Busy,
        StoreError::Disk(error) => Refusal::Disk(error.to_string()),
    }
}
