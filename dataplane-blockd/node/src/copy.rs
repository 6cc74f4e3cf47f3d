//! Copying: how a replica that joins a row gets what was written before it joined.
//!
//! ```text
//! joined ──drop what is left of an earlier membership──▶ list the row's tracts on an active replica ──▶ fetch, put, fetch, put …
//!        ──flush──▶ promote in the table at the row version that was copied ──▶ active
//! ```
//!
//! The source answers a list only when it knows the row at our version and nothing under an earlier one is under way, so
//! what is not in the list or comes later was sent to us as well. Writes that arrive meanwhile have higher generations and
//! win over what is copied, trims included. Rows are copied several at once, from different sources, below a rate.

use crate::{
    shared::Inner,
    store::{Content, Put, TractPlace},
};
use firn_blockd_protocol::{
    BlockRange, BlockState, CallError, Fence, NodeId, Refusal, Replica, ReplicaState, Reply, Request, Row,
    RowAt, TRACT_BLOCKS, TractId, VersionedBlocks, limits::MAX_LIST, limits::MAX_REQUEST_BLOCKS,
};
use futures::StreamExt;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tracing::{debug, info, warn};

/// After a round that left rows to copy: most often a source was asked for a row that it did not know yet and had just been told
/// to look for. Each round without any progress doubles the pause: then sources must come back, or rows change.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The longest such pause.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// A look though nobody called: a row may have been learned on a client's word.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) async fn run(node: Arc<Inner>) {
    let (mut before, mut retry_after) = (0, RETRY_AFTER);
    loop {
        let left = round(&node).await;
        retry_after = if left == before {
            (retry_after * 2).min(RETRY_AFTER_MAX)
        } else {
            RETRY_AFTER
        };
        before = left;
        let pause = if left > 0 { retry_after } else { RECONCILE_INTERVAL };
        let _ = node.env.timeout(pause, node.rows_changed.notified()).await;
    }
}

/// Copies every row this node is joining; returns how many are left.
async fn round(node: &Arc<Inner>) -> usize {
    let me = node.store.node();
    let joining: Vec<Row> = node
        .rows
        .all_known()
        .await
        .into_iter()
        .filter(|row| {
            row.replica(me)
                .is_some_and(|replica| replica.state == ReplicaState::Joining)
        })
        .collect();
    if joining.is_empty() {
        return 0;
    }
    let all = joining.len();
    let copied: Vec<RowAt> = futures::stream::iter(joining)
        .map(|row| async move {
            let at = RowAt {
                replication: row.replication,
                index: row.index,
                version: row.version,
            };
            match copy_row(node, &row).await {
                Ok(()) => Some(at),
                Err(error) => {
                    debug!(row = row.index.0, %error, "a row is not copied yet");
                    None
                }
            }
        })
        .buffer_unordered(node.options.copies_at_once.max(1))
        .filter_map(|copied| async move { copied })
        .collect()
        .await;
    if copied.is_empty() {
        return all;
    }
    node.env.fault_point("copy.before_flush").await;
    if !firn_env::planted!("node.promote_before_flush") {
        node.store.flush().await;
    }
    node.env.fault_point("copy.before_promote").await;
    match node.placement.promote(me, &copied).await {
        Ok(promoted) => {
            info!(rows = promoted, "copied rows; serving them now");
            if let Err(error) = crate::upkeep::learn_rows(node).await {
                warn!(%error, "the rows cannot be read");
            }
            all - promoted.min(all)
        }
        Err(error) => {
            warn!(%error, "copied rows cannot be made active yet");
            all
        }
    }
}

/// Why a row is not copied now.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("the row has changed since")]
    Changed,
    #[error("no active replica answers: {0}")]
    NoSource(CallError),
    #[error(transparent)]
    Put(#[from] Refusal),
    #[error("block {block} of tract {tract} is damaged on every active replica")]
    Lost { tract: TractId, block: u16 },
}

async fn copy_row(node: &Inner, row: &Row) -> Result<(), CopyError> {
    let me = node.store.node();
    let name = (row.replication, row.index);
    let since = row.replica(me).ok_or(CopyError::Changed)?.since;
    if !firn_env::planted!("node.keep_earlier_membership") {
        let stale = node
            .store
            .places()
            .into_iter()
            .filter(|place| (place.replication, place.row) == name && place.since != since);
        futures::future::join_all(stale.map(|place| node.store.release(place))).await;
    }
    let at = RowAt {
        replication: row.replication,
        index: row.index,
        version: row.version,
    };
    let mut after = None;
    let mut first_error = None;
    loop {
        let list = Request::List {
            disk: None,
            row: Some(at),
            after,
            limit: u16::try_from(MAX_LIST).expect("a small constant"),
        };
        let Some((tracts, more)) = list_from_any(node, row, list, &mut first_error).await else {
            let error = first_error.unwrap_or(CallError::Refused(Refusal::Joining));
            return Err(match error {
                CallError::Refused(Refusal::WrongRow { newest }) if newest.version > row.version => {
                    node.rows.learn(newest).await;
                    CopyError::Changed
                }
                error => CopyError::NoSource(error),
            });
        };
        for tract in &tracts {
            let place = TractPlace {
                tract: *tract,
                replication: row.replication,
                row: row.index,
                since,
            };
            copy_tract(node, row, place).await?;
        }
        after = tracts.last().copied();
        if !more {
            break;
        }
    }
    match node.rows.known(name).await {
        Some(known) if known.version == row.version => Ok(()),
        Some(_) | None => Err(CopyError::Changed),
    }
}

async fn list_from_any(
    node: &Inner,
    row: &Row,
    list: Request,
    first_error: &mut Option<CallError>,
) -> Option<(Vec<TractId>, bool)> {
    for source in sources(row, node.store.node()) {
        match node.peers.call(source.node, &source.address, list.clone()).await {
            Ok(Reply::List { tracts, more }) => {
                return Some((tracts, more));
            }
            Ok(_) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    None
}

fn sources(row: &Row, me: NodeId) -> impl Iterator<Item = &Replica> {
    row.active().filter(move |replica| replica.node != me)
}

async fn copy_tract(node: &Inner, row: &Row, place: TractPlace) -> Result<(), CopyError> {
    let step = u16::try_from(MAX_REQUEST_BLOCKS).expect("a small constant");
    for first in (0..TRACT_BLOCKS).step_by(usize::from(step)) {
        let range = BlockRange::new(first, step.min(TRACT_BLOCKS - first)).expect("within the tract");
        match fetch_from_any(node, row, place.tract, range).await {
            Ok(found) => put_copies(node, place, &found).await?,
            // One damaged block must not cost the others: take them one at a time, each from whoever has it whole.
            Err(CallError::Refused(Refusal::Damaged { .. })) => {
                for block in range.blocks() {
                    let one = BlockRange::new(block, 1).expect("within the tract");
                    match fetch_from_any(node, row, place.tract, one).await {
                        Ok(found) => put_copies(node, place, &found).await?,
                        Err(CallError::Refused(Refusal::Damaged { .. })) => {
                            return Err(CopyError::Lost {
                                tract: place.tract,
                                block,
                            });
                        }
                        Err(error) => return Err(CopyError::NoSource(error)),
                    }
                }
            }
            // The disk was deleted meanwhile: there is nothing to copy.
            Err(CallError::Refused(Refusal::UnknownDisk)) => return Ok(()),
            Err(error) => return Err(CopyError::NoSource(error)),
        }
    }
    Ok(())
}

/// The versions and data of a range from the first active replica that has them whole.
pub(crate) async fn fetch_from_any(
    node: &Inner,
    row: &Row,
    tract: TractId,
    range: BlockRange,
) -> Result<VersionedBlocks, CallError> {
    let mut failure = CallError::Refused(Refusal::Joining);
    for source in sources(row, node.store.node()) {
        node.copy_throttle.pass(range.bytes()).await;
        let fetch = Request::Fetch {
            tract,
            row: row.version,
            fence: Fence(0),
            range,
        };
        match node.peers.call(source.node, &source.address, fetch).await {
            Ok(Reply::Fetched(found)) if found.range == range => match found.first_damaged(tract) {
                None => return Ok(found),
                Some(block) => failure = CallError::Refused(Refusal::Damaged { block }),
            },
            Ok(_) => {}
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn put_copies(node: &Inner, place: TractPlace, found: &VersionedBlocks) -> Result<(), Refusal> {
    let puts: Vec<Put> = found
        .contents()
        .filter_map(|(block, version, data)| {
            let content = match (version.state, data) {
                (BlockState::Written(checksum), Some(data)) => Content::Data { data, checksum },
                (BlockState::Trimmed, _) if !firn_env::planted!("node.copy_without_tombstones") => {
                    Content::Trim
                }
                (BlockState::Trimmed | BlockState::Absent | BlockState::Written(_), _) => return None,
            };
            Some(Put {
                block,
                generation: version.generation,
                content,
            })
        })
        .collect();
    if puts.is_empty() {
        return Ok(());
    }
    node.env.fault_point("copy.before_put").await;
    // A copy is no tenant's work; it has a rate of its own.
    node.put(place, &puts).await?;
    node.copied_blocks.fetch_add(puts.len() as u64, Relaxed);
    Ok(())
}
