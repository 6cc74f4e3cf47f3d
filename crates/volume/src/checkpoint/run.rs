//! The checkpointer: one task that decides when, and carries a checkpoint through to its commit.
//!
//! | state | event | next |
//! |---|---|---|
//! | idle | first change | waiting (for the cadence) |
//! | waiting | time, bytes, records, or somebody wants one | building |
//! | building | all segments stored | committing |
//! | committing | root committed | idle, or waiting if more changed meanwhile |
//! | committing | no answer | committing (the same root again: our commit id tells whether it happened) |
//! | any | fenced | ended |
//!
//! An idle volume has no timer and makes no request (I9).

use super::{CheckpointError, CheckpointPayload, Packer, build, pack_checkpoint, sealed_snapshots};
use crate::{
    checkpointer::CheckpointerState,
    gathering, kept_checkpoint,
    manifest::newer_rounds,
    merge, rekey,
    serving::ServingState,
    state::{Retained, Snapshot},
    volume::Inner,
};
use bytes::Bytes;
use firn_anchor::{AnchorError, RememberedRoot};
use firn_env::Backoff;
use firn_format::{Checkpoint, Pointer, Version};
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};

/// Runs until the volume stops serving.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(own) = inner.checkpointer.own() else {
        return;
    };
    loop {
        if !serving(&inner) {
            return;
        }
        let is_asked_for = inner.snapshots.are_waited_for() || inner.gathering.is_waited_for();
        if is_asked_for || inner.lock().is_dirty() {
            wait_until_due(&inner).await;
        } else {
            let rekey = inner.rekey.due(inner.env.now());
            if rekey.is_none_or(|wait| !wait.is_zero()) {
                // A sync of a clean volume is done as it is asked for.
                inner.checkpointer.begin();
                inner.checkpointer.tell_committed();
                let woken = inner.checkpointer.woken();
                match rekey {
                    None => woken.await,
                    // Either the next step may be made, or somebody wants something.
                    Some(wait) => drop(inner.env.timeout(wait, woken).await),
                }
                continue;
            }
        }
        if !serving(&inner) {
            return;
        }
        inner.checkpointer.begin();
        let mut own = own.lock().await;
        let (made, over) = (
            pin!(checkpoint(&inner, &mut own)),
            pin!(inner.checkpointer.over()),
        );
        let Either::Left((made, _)) = select(made, over).await else {
            return;
        };
        if let Err(error) = made {
            // What was frozen stays in the journal and in the frozen layer; only a restart builds it anew.
            let reason = format!("a checkpoint failed and cannot be retried in place: {error}");
            tracing::error!(%error, "checkpoint failed; everything acknowledged is safe in the journal");
            inner.checkpointer.times().last_error = Some(error.to_string());
            let fenced = matches!(error, CheckpointError::Anchor(AnchorError::Fenced(_)));
            if fenced && let Err(error) = kept_checkpoint::forget(&**inner.env.disk()).await {
                tracing::warn!(%error, "the copy of the newest checkpoint is still there, though another edge took the volume over");
            }
            inner.set_serving_state(if fenced {
                ServingState::Fenced
            } else {
                ServingState::Failed(reason)
            });
            return;
        }
    }
}

fn serving(inner: &Inner) -> bool {
    !inner.serving.now().is_final()
}

/// Waits until the next checkpoint should start.
async fn wait_until_due(inner: &Inner) {
    loop {
        let wake = inner.checkpointer.woken();
        futures::pin_mut!(wake);
        wake.as_mut().enable();
        if inner.checkpointer.is_wanted() || !serving(inner) {
            return;
        }
        let since = inner.checkpointer.times().dirty_since;
        let waited = since.map_or(Duration::ZERO, |since| inner.env.now().since(since));
        let limit = {
            let state = inner.lock();
            if inner.config.cadence.is_due(&state) {
                return;
            }
            inner.config.cadence.limit(&state)
        };
        let left = limit.saturating_sub(waited);
        let left = inner
            .rekey
            .due(inner.env.now())
            .map_or(left, |rekey| rekey.min(left));
        if left.is_zero() {
            return;
        }
        // Either the time is up, or a change made it due earlier.
        let _ = inner.env.timeout(left.min(inner.config.cadence.busy), wake).await;
    }
}

/// One checkpoint, from freeze to trim.
async fn checkpoint(inner: &Inner, own: &mut CheckpointerState) -> Result<(), CheckpointError> {
    inner.env.fault_point("checkpoint.before_freeze").await;
    // Before anything is packed: what is packed from here on is sealed under this epoch or a newer one.
    let mut rekeying = rekey::begin(inner);
    let mut gathering = gathering::take(inner, own);
    let (begun, snapshots, covered, frozen, mut counters, completed, inode_map) = {
        let mut state = inner.lock();
        // In one instant: a snapshot is what is frozen with its record.
        let begun = inner.begin_snapshots(&mut state);
        inner.checkpointer.times().freeze();
        let frozen = state.freeze();
        state.forget_completed(inner.now(), inner.cloud_waits.longest_wait(inner.env.now()));
        (
            begun,
            state.freeze_snapshots(),
            state.applied,
            frozen,
            state.counters.clone(),
            state.completed_with_times(),
            state.inode_map,
        )
    };
    inner.env.fault_point("checkpoint.after_freeze").await;
    let version = Version(own.version.0 + 1);
    let mut packer = Packer::new(inner.checkpointer.packer.clone(), version);
    let block_bytes = inner.block_bytes;
    let mut built = build(
        &mut packer,
        Some(&inner.journal),
        block_bytes,
        inode_map,
        frozen,
        own.orphan_pointers.clone(),
    )
    .await?;
    inner.env.fault_point("checkpoint.after_build").await;
    let (mut listed, pending) = snapshots;
    let merged = merge::step(inner, own, &mut packer, &mut built, &mut listed).await?;
    if rekeying.has_step() {
        if firn_env::planted!("volume.rekey_stale_tree") {
            built.inode_map = inode_map;
        }
        rekey::step(inner, own, &mut packer, &mut built, &mut rekeying).await?;
    }
    // What is retained is what is committed: after the merge and the rekey, which write nodes anew. An object of this version that the head has
    // and its snapshot has not would live on in later ones unseen by who asks the oldest snapshot only (I4).
    let retained = built.inode_map.map(|built_map| Retained {
        version,
        inode_map: match inode_map {
            Some(before) if firn_env::planted!("volume.snapshot_undrained_tree") => before,
            _ => built_map,
        },
        orphans: built.orphans,
    });
    for snapshot in listed
        .iter_mut()
        .filter(|snapshot| pending.contains(&snapshot.id))
    {
        snapshot.retained = retained;
    }
    let proposed = own.merge.proposed_usage(merged.as_ref());
    let usage = own.usage.write(&mut packer, proposed).await?;
    let rounds = newer_rounds(inner, &mut own.manifest).await;
    let gathered = gathering.gathered.take();
    let manifest = own.manifest.write(&mut packer, &rounds, gathered).await?;
    let committed_at_ms = inner.env.wall().as_millis();
    let checkpoint = Checkpoint {
        family: inner.checkpointer.packer.family,
        volume: inner.volume,
        version,
        epoch: own.ownership.epoch(),
        writer: inner.checkpointer.packer.writer,
        previous: Some(own.root),
        fork: None,
        inode_map: built.inode_map,
        orphans: built.orphans,
        usage,
        snapshots: listed.iter().filter_map(Snapshot::root).collect(),
        cleaner_sequence: merged
            .as_ref()
            .map_or(own.merge.merged, |step| step.merged(own.merge.merged)),
        committed_at_ms,
        manifest,
    };
    // The sum was an upper bound until the blocks were built.
    counters.used_bytes = counters.used_bytes.saturating_add_signed(built.used_correction);
    let payload = CheckpointPayload {
        counters,
        block_bytes: block_bytes as u32,
        covered,
        completed,
        snapshots: sealed_snapshots(&listed),
        history: own.history.iter().copied().collect(),
        rekey: rekeying.state.clone(),
        members: Vec::new(),
    };
    let (root, copy) = pack_checkpoint(&mut packer, &checkpoint, &payload).await?;
    if !firn_env::planted!("volume.commit_before_upload") {
        packer.finish().await?;
    }
    // No root may cover records that a crash takes from the journal: a start from the root before would give their numbers to
    // others, which this root would then be taken to contain.
    if !firn_env::planted!("volume.commit_before_journal") {
        inner.journal.durable(covered).await?;
    }
    inner.env.fault_point("checkpoint.before_commit").await;
    if firn_env::planted!("volume.trim_before_commit") {
        inner.journal.trim(covered).await?;
    }
    if firn_env::planted!("volume.level_two_before_root") {
        inner.checkpointer.times().committed_to = covered;
        inner.checkpointer.tell_committed();
    }
    commit(inner, own, root, version, committed_at_ms).await?;
    inner.env.fault_point("checkpoint.after_commit").await;
    if firn_env::planted!("volume.commit_before_upload") {
        packer.finish().await?;
    }
    own.manifest.committed(&packer);
    own.version = version;
    own.root = root.uid;
    own.files = payload.counters.files;
    own.orphan_pointers = built.orphan_pointers;
    own.remember(version, root.uid);
    {
        let mut state = inner.lock();
        state.install(built.inode_map, built.entries);
        // Also those that were pending: their roots are those just committed.
        state.relocate_snapshots(&listed);
        // In the same instant: what is written next must not build on the old maps.
        if !firn_env::planted!("volume.rekey_keeps_old_maps") {
            for (number, map) in std::mem::take(&mut rekeying.contents) {
                state.set_content(number, map);
            }
        }
    }
    inner.rekey.committed(rekeying, inner.env.now());
    inner.gathering.commit(&gathering, &own.manifest);
    if let Some(step) = &merged {
        merge::committed(inner, own, step);
        merge::forget_old_places(inner, &packer, own).await;
    }
    inner.end_snapshots(begun);
    inner.checkpointer.times().commit(covered, committed_at_ms);
    let remembered = remember_root(inner, own, &copy).await;
    inner.env.fault_point("checkpoint.before_trim").await;
    if remembered {
        inner.journal.trim(covered).await?;
    }
    inner.checkpointer.tell_committed();
    Ok(())
}

/// Between tries of a commit, for as long as it takes. One writer a volume: there is nobody to collide with.
const COMMIT_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(30)).without_jitter();

/// Commits the root, for as long as it takes: an answer that was lost is asked for again, and our commit id found there
/// means that it happened.
async fn commit(
    inner: &Inner,
    own: &mut CheckpointerState,
    pointer: Pointer,
    version: Version,
    committed_at_ms: i64,
) -> Result<(), CheckpointError> {
    let commit_id = inner.env.random_bytes();
    let root = own
        .ownership
        .next_root(pointer.uid, pointer.location, version, commit_id, committed_at_ms);
    let root = own.signer.sign(root);
    let mut failures = 0_u32;
    loop {
        match inner.anchor.commit(&mut own.ownership, root.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_transient() => {
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "root not committed yet; its data is safe in the journal");
                }
                inner.checkpointer.times().last_error = Some(error.to_string());
                COMMIT_BACKOFF.wait(&inner.env, failures).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Remembers the root, so that a rolled-back anchor is noticed at the next start and a start without the cloud goes out from it;
/// `false` if the journal must keep everything meanwhile. Failing to is no reason to stop.
async fn remember_root(inner: &Inner, own: &CheckpointerState, copy: &Bytes) -> bool {
    let mut local = inner.checkpointer.local.lock().await;
    local.seen = Some(RememberedRoot::new(inner.volume, own.ownership.tuple()));
    match local.remember(&**inner.env.disk(), Some(copy)).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(%error, "cannot remember the newest root locally; the journal is trimmed when that succeeds");
            false
        }
    }
}
