//! Heartbeat of a node every few seconds: it says whether it takes writes, and learns rows that changed.

use crate::shared::Inner;
use firn_blockd_placement::{NodeState, PlacementError, Registration};
use firn_blockd_protocol::Replication;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tracing::warn;

pub(crate) async fn run(node: Arc<Inner>, registration: Registration, mut epoch: u64) {
    loop {
        node.env.sleep(node.options.heartbeat).await;
        let report = node.report().await;
        match node.placement.heartbeat(&registration, report).await {
            Ok(record) => node.draining.store(record.state == NodeState::Draining, Relaxed),
            Err(error @ PlacementError::Superseded(_)) => {
                warn!(%error, "this node stops serving");
                node.stopped.store(true, Relaxed);
                return;
            }
            // The table will be back; until then nobody can change a row either, so serving on is safe.
            Err(error) => warn!(%error, "no heartbeat"),
        }
        match node.placement.cluster().await {
            Ok(cluster) if cluster.epoch == epoch => {}
            Ok(cluster) => match learn_rows(&node).await {
                Ok(()) => epoch = cluster.epoch,
                Err(error) => warn!(%error, "the rows cannot be read"),
            },
            Err(error) => warn!(%error, "the cluster cannot be read"),
        }
    }
}

/// Learns every row that concerns this node, as the table has it now.
pub(crate) async fn learn_rows(node: &Inner) -> Result<(), PlacementError> {
    let mut changed = false;
    for replication in Replication::ALL {
        for row in node.placement.rows(replication).await? {
            if node.rows.concerns(&row) {
                changed |= node.rows.learn(row).await;
            }
        }
    }
    if changed {
        node.rows_changed.notify_one();
    }
    Ok(())
}
