//! What a node does for its cluster every few seconds: it beats, learns rows that changed, and drops what is no longer its.

use crate::{node::Inner, store::TractPlace};
use firn_blockd_placement::{DiskState, NodeState, PlacementError, Registration};
use firn_blockd_protocol::{Replication, TractId};
use firn_env::Monotonic;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tracing::{info, warn};

/// Tracts given up in one round: each waits for a commit with all others.
const DROPPED_AT_ONCE: usize = 256;

pub(crate) async fn run(node: Arc<Inner>, registration: Registration, mut epoch: u64) {
    let mut foreign: BTreeMap<TractId, Monotonic> = BTreeMap::new();
    loop {
        node.env.sleep(node.options.heartbeat).await;
        match node.placement.heartbeat(&registration, node.report()).await {
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
        drop_foreign(&node, &mut foreign).await;
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

/// Gives up tracts whose rows this node has left, or whose disks were deleted, once that has been so for a while.
async fn drop_foreign(node: &Inner, foreign: &mut BTreeMap<TractId, Monotonic>) {
    let now = node.env.now();
    let gone = gone_disks(node).await;
    let mut seen = BTreeSet::new();
    let mut dropped = Vec::new();
    for place in node.store.places() {
        let TractPlace { tract, .. } = place;
        let ours = match node.rows.known((place.replication, place.row)).await {
            Some(row) => row
                .replica(node.store.node())
                .is_some_and(|replica| replica.since == place.since),
            // A row nobody told us of: nothing can be said yet.
            None => true,
        };
        if ours && !gone.contains(&tract.disk) {
            continue;
        }
        seen.insert(tract);
        let since = *foreign.entry(tract).or_insert(now);
        if now.since(since) >= node.options.drop_after && dropped.len() < DROPPED_AT_ONCE {
            dropped.push(place);
        }
    }
    foreign.retain(|tract, _| seen.contains(tract));
    if dropped.is_empty() {
        return;
    }
    info!(
        tracts = dropped.len(),
        "giving up tracts that are no longer this node's"
    );
    futures::future::join_all(dropped.iter().map(|place| node.store.release(*place))).await;
    let held: BTreeSet<_> = node.store.places().iter().map(|place| place.tract.disk).collect();
    for disk in gone {
        if !held.contains(&disk) {
            node.store.forget_disk(disk);
        }
    }
}

/// The disks this node knows that the table says are deleted. A disk that the table does not know counts only while the
/// table can be read.
async fn gone_disks(node: &Inner) -> BTreeSet<firn_blockd_protocol::DiskId> {
    let mut gone = BTreeSet::new();
    let mut held: BTreeSet<_> = node.store.disks().into_iter().collect();
    let stays = node.rows.stays();
    let Ok(records) = node.placement.disks(None).await else {
        return gone;
    };
    for record in records {
        if held.remove(&record.disk) && record.state != DiskState::Ready {
            gone.insert(record.disk);
            node.rows.note_disk(record.disk, Some(record), stays);
        }
    }
    gone.extend(held);
    gone
}
