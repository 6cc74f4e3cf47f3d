//! What a node does for its cluster every few seconds: it beats, learns rows that changed, and drops what is no longer its.

use crate::{node::Inner, store::TractPlace};
use firn_blockd_placement::{DiskState, NodeState, PlacementError, Registration};
use firn_blockd_protocol::{DiskId, Replication, TractId};
use firn_env::Monotonic;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tracing::{info, warn};

/// Tracts given up in one round: each waits for a commit with all others.
const DROPPED_AT_ONCE: usize = 256;
/// Looks for deleted disks in the time that their tracts are kept anyway. Each reads the records of all disks, which costs money where
/// the table is a service: at every heartbeat, 100 nodes and 1,000 disks would be 3,000 read units a second.
const LOOKS_FOR_DELETED: u32 = 8;

/// What this node holds and should not.
#[derive(Default)]
struct Foreign {
    /// Since when it is so.
    tracts: BTreeMap<TractId, Monotonic>,
    /// Disks that were deleted, as of the last look; no disk comes back.
    deleted: BTreeSet<DiskId>,
    looked: Option<Monotonic>,
}

pub(crate) async fn run(node: Arc<Inner>, registration: Registration, mut epoch: u64) {
    let mut foreign = Foreign::default();
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
async fn drop_foreign(node: &Inner, foreign: &mut Foreign) {
    let now = node.env.now();
    let interval = node.options.drop_after / LOOKS_FOR_DELETED;
    if foreign.looked.is_none_or(|looked| now.since(looked) >= interval)
        && let Ok(deleted) = deleted_disks(node).await
    {
        (foreign.deleted, foreign.looked) = (deleted, Some(now));
    }
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
        if ours && !foreign.deleted.contains(&tract.disk) {
            continue;
        }
        seen.insert(tract);
        let since = *foreign.tracts.entry(tract).or_insert(now);
        if now.since(since) >= node.options.drop_after && dropped.len() < DROPPED_AT_ONCE {
            dropped.push(place);
        }
    }
    foreign.tracts.retain(|tract, _| seen.contains(tract));
    if dropped.is_empty() {
        return;
    }
    info!(
        tracts = dropped.len(),
        "giving up tracts that are no longer this node's"
    );
    futures::future::join_all(dropped.iter().map(|place| node.store.release(*place))).await;
    let held: BTreeSet<_> = node.store.places().iter().map(|place| place.tract.disk).collect();
    for disk in &foreign.deleted {
        if !held.contains(disk) {
            node.store.forget_disk(*disk);
        }
    }
}

/// The disks this node knows that the table says are deleted, or does not know.
async fn deleted_disks(node: &Inner) -> Result<BTreeSet<DiskId>, PlacementError> {
    let mut deleted = BTreeSet::new();
    // Whatever is held now was in the table before it came here.
    let mut held: BTreeSet<_> = node.store.disks().into_iter().collect();
    let membership_epochs = node.rows.membership_epochs();
    for record in node.placement.disks(None).await? {
        if held.remove(&record.disk) && record.state != DiskState::Ready {
            deleted.insert(record.disk);
            node.rows.note_disk(record.disk, Some(record), membership_epochs);
        }
    }
    deleted.extend(held);
    Ok(deleted)
}
