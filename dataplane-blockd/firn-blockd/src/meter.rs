//! The way of a node's counts to the bill: what clients of disks were served becomes usage records in a spool on the node's own disk.
//!
//! ```text
//! Node ── taken every period ──▶ Spool (<directory>/usage, level 1) ── batches, until received ──▶ the service
//! ```
//!
//! What was taken and not spooled is lost if the process dies then: one period's counts, in the tenants' favour. What is in the spool
//! counts exactly once (`firn_usage`).

use crate::failure::Failure;
use firn_blockd_node::{Node, Served, ServedDisk};
use firn_blockd_protocol::NodeId;
use firn_env::{Env, Task};
use firn_usage::{
    APPEND_MAX, Delivery, DeliveryPolicy, Meter, Observation, ResourceName, SourceId, Spool, SpoolConfig,
    TenantName, UsageSink,
};
use std::{sync::Arc, time::Duration};

/// Observations in one append: two for each disk.
const DISKS_AT_ONCE: usize = APPEND_MAX / 2;

/// The source under which a node reports.
///
/// # Panics
/// Never: a node's id is made of letters, digits and underscores.
pub fn usage_source(node: NodeId) -> SourceId {
    SourceId::new(&format!("node/{node}")).expect("made of letters, digits, slashes and underscores")
}

/// Counts what a node serves. Dropped, it counts no more; what is spooled is delivered by the next start.
pub struct NodeMeter {
    env: Env,
    spool: Spool,
    _delivery: Task<()>,
}

impl NodeMeter {
    /// Opens the spool in the node's directory, and delivers what is in it to `sink`.
    ///
    /// # Errors
    /// If the spool cannot be opened; then a disk fails, or another process has it.
    pub async fn start(
        env: &Env,
        node: NodeId,
        sink: Arc<dyn UsageSink>,
        policy: DeliveryPolicy,
    ) -> Result<Self, Failure> {
        let spool = Spool::open(env, "usage", usage_source(node), SpoolConfig::default())
            .await
            .map_err(Failure::new)?;
        let delivery = Delivery::new(&spool, sink, policy);
        Ok(Self {
            env: env.clone(),
            _delivery: env.spawn("usage delivery", delivery.run()),
            spool,
        })
    }

    /// Takes the node's counts every period, for ever.
    pub async fn run(&self, node: &Node, period: Duration) {
        loop {
            self.env.sleep(period).await;
            self.record(node).await;
        }
    }

    /// Takes the node's counts now. What the spool does not take stays with the node.
    pub async fn record(&self, node: &Node) {
        let at_ms = u64::try_from(self.env.wall().as_millis()).unwrap_or(0);
        let served: Vec<_> = node.take_served().into_iter().collect();
        for (index, part) in served.chunks(DISKS_AT_ONCE).enumerate() {
            let observations = part.iter().flat_map(|(disk, count)| observed(disk, count, at_ms));
            if let Err(error) = self.spool.append(observations.collect()).await {
                tracing::warn!(%error, "what this node served waits for the spool");
                node.put_back_served(served[index * DISKS_AT_ONCE..].iter().copied());
                return;
            }
        }
    }
}

fn observed((tenant, disk): &ServedDisk, count: &Served, at_ms: u64) -> impl Iterator<Item = Observation> {
    let resource = match disk {
        Some(disk) => format!("disk/{disk}"),
        None => "disk/others".to_owned(),
    };
    let observation = Observation {
        tenant: TenantName::from(*tenant),
        resource: ResourceName::new(&resource).expect("made of letters, digits, slashes and underscores"),
        meter: Meter::NODE_OPERATIONS,
        quantity: count.requests,
        from_ms: at_ms,
        duration_ms: 0,
    };
    let bytes = Observation {
        meter: Meter::NODE_BYTES,
        quantity: count.bytes,
        ..observation.clone()
    };
    [observation, bytes]
        .into_iter()
        .filter(|observation| observation.quantity > 0)
}
