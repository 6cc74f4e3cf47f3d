//! Reclaiming: tracts that are no longer this node's are given up.
//!
//! A tract stops being a node's when its row changes without the node, or when its disk is deleted. It is kept for a while all the
//! same ([`NodeOptions::drop_after`](crate::NodeOptions::drop_after)), in case a person wants it back; but a write that finds no frame free comes first:
//! then all such tracts are given up at once, and the client that was refused asks again a moment later. Nothing that a row still
//! counts on is ever given up: what is promised to disks is kept within what nodes have room for by whoever places rows.

use crate::{shared::Inner, store::TractPlace};
use firn_blockd_placement::{DiskState, PlacementError};
use firn_blockd_protocol::{DiskId, TractId};
use firn_env::Monotonic;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tracing::info;

/// Tracts given up in one round: each waits for a commit with all others.
const DROPPED_AT_ONCE: usize = 256;
/// Looks for deleted disks in the time that their tracts are kept anyway. Each reads the records of all disks, which costs money where
/// the table is a service: at every heartbeat, 100 nodes and 1,000 disks would be 3,000 read units a second.
const LOOKS_FOR_DELETED: u32 = 8;
/// Between two such looks while a write waits for a frame.
const LOOK_WHEN_WANTED: Duration = Duration::from_secs(5);

/// What this node holds and should not.
#[derive(Default)]
struct Foreign {
    /// Since when it is so.
    tracts: BTreeMap<TractId, Monotonic>,
    /// Disks that were deleted, as of the last look; no disk comes back.
    deleted: BTreeSet<DiskId>,
    looked: Option<Monotonic>,
}

pub(crate) async fn run(node: Arc<Inner>) {
    let mut foreign = Foreign::default();
    loop {
        let wanted = node.frame_wanted.notified();
        let _ = node.env.timeout(node.options.heartbeat, wanted).await;
        if node.store.is_read_only() {
            // Nothing can be given up before there is room to write it down.
            continue;
        }
        drop_foreign(&node, &mut foreign).await;
        if node.store.free_tracts() > 0 {
            node.out_of_tracts.store(false, Relaxed);
        }
    }
}

/// Gives up tracts whose rows this node has left, or whose disks were deleted, once that has been so for a while; or at once, if
/// a write found no frame free.
async fn drop_foreign(node: &Inner, foreign: &mut Foreign) {
    let now = node.env.now();
    let wanted = node.out_of_tracts.load(Relaxed) && !firn_env::planted!("node.keeps_what_it_left");
    let interval = match wanted {
        true => LOOK_WHEN_WANTED,
        false => node.options.drop_after / LOOKS_FOR_DELETED,
    };
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
        let over = wanted || now.since(since) >= node.options.drop_after;
        if over && dropped.len() < DROPPED_AT_ONCE {
            dropped.push(place);
        }
    }
    foreign.tracts.retain(|tract, _| seen.contains(tract));
    if dropped.is_empty() {
        return;
    }
    info!(
        tracts = dropped.len(),
        wanted, "giving up tracts that are no longer this node's"
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
