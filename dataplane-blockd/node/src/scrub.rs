//! Scrubbing: reading everything now and then, so that rot is found while another replica is whole; and repair.

use crate::{
    copy,
    shared::Inner,
    store::{Content, Put, TractPlace},
};
use firn_blockd_protocol::{BlockRange, BlockState, TRACT_BLOCKS, TractId, limits::MAX_REQUEST_BLOCKS};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tracing::{info, warn};

/// Between two tries at blocks that could not be repaired.
const RETRY_AFTER: Duration = Duration::from_secs(60);

pub(crate) async fn run(node: Arc<Inner>) {
    loop {
        node.env.sleep(node.options.scrub_interval).await;
        for place in node.store.places() {
            scrub_tract(&node, place).await;
        }
        node.scrub_rounds.fetch_add(1, Relaxed);
    }
}

async fn scrub_tract(node: &Inner, place: TractPlace) {
    let step = u16::try_from(MAX_REQUEST_BLOCKS).expect("a small constant");
    for first in (0..TRACT_BLOCKS).step_by(usize::from(step)) {
        let range = BlockRange::new(first, step.min(TRACT_BLOCKS - first)).expect("within the tract");
        node.scrub_throttle.pass(range.bytes()).await;
        node.scrubbed_blocks.fetch_add(range.count() as u64, Relaxed);
        if node.store.read(place, range).await.is_ok() {
            continue;
        }
        // One of them is damaged; look at each.
        for block in range.blocks() {
            let one = BlockRange::new(block, 1).expect("within the tract");
            if let Err(error) = node.store.read(place, one).await {
                warn!(%error, "scrubbing found damage");
                node.damage_found.notify_one();
            }
        }
    }
}

/// Writes damaged blocks again from another replica.
pub(crate) async fn repair(node: Arc<Inner>) {
    loop {
        let _ = node.env.timeout(RETRY_AFTER, node.damage_found.notified()).await;
        for (tract, block) in node.store.damaged() {
            if repair_block(&node, tract, block).await {
                node.repaired_blocks.fetch_add(1, Relaxed);
                info!(%tract, block, "repaired a damaged block");
            }
        }
    }
}

async fn repair_block(node: &Inner, tract: TractId, block: u16) -> bool {
    let Some(place) = node.store.place(tract) else {
        return false;
    };
    let Some(row) = node.rows.known((place.replication, place.row)).await else {
        return false;
    };
    let range = BlockRange::new(block, 1).expect("within the tract");
    let Ok(found) = copy::fetch_from_any(node, &row, tract, range).await else {
        return false;
    };
    let Some((block, version, Some(data))) = found.contents().next() else {
        return false;
    };
    let BlockState::Written(checksum) = version.state else {
        return false;
    };
    let put = Put {
        block,
        generation: version.generation,
        content: Content::Data { data, checksum },
    };
    node.env.fault_point("repair.before_put").await;
    matches!(node.store.repair(place, put).await, Ok(true))
}
