//! Publication: what is changed here is put on the adopted root, checked leaf by leaf, and uploaded; then its member commits it.
//!
//! ```text
//! freeze (once) ─▶ leaf check ─▶ build on the adopted root ─▶ commit ──yes──▶ installed
//!                     ▲                                         │ the root has moved: adopt it
//!                     └─────────────────────────────────────────┘
//! ```
//!
//! What was frozen stays frozen until it is in a root: a try that was lost is built anew of the same entries, whole. So everything that a root has was born in
//! the version in which it landed, and no root has to say of objects that they are older than they look; the price is that a try which loses uploads
//! its leaves once more.

use super::{AdoptedRoot, ByInode, adoption::unreadable};
use crate::{
    checkpoint::{
        self, BuiltCheckpoint, CheckpointError, CheckpointPayload, HISTORY_MAX, MemberSection, Packer,
        pack_checkpoint,
    },
    follower::differing_inodes,
    journal::Sequence,
    objects::{Objects, ReadError},
    state::{CountersChange, FrozenEntry, Grounds, VolumeCounters},
    usage::UsageMap,
    volume::Inner,
};
use firn_anchor::VolumeTuple;
use firn_format::{Checkpoint, TreeRoot, Uid, Version};
use firn_leases::{Build, Built, MemberError};
use firn_vfs::{CompletedRequest, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

/// Requests in a member's section: fewer than an owner's, since every member has one. A client that retransmits has at most a few hundred under way.
const COMPLETED_MAX: usize = 256;

/// What was taken for a root.
pub(super) struct Frozen {
    entries: Vec<FrozenEntry>,
    /// The last record that it has.
    covered: Sequence,
    next_inode: u64,
    counters: CountersChange,
    completed: Vec<(Timestamp, CompletedRequest)>,
}

impl Frozen {
    fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().map(|entry| entry.number)
    }
}

/// A root that was uploaded.
pub(super) struct BuiltRoot {
    uid: Uid,
    checkpoint: Checkpoint,
    payload: CheckpointPayload,
    tree: BuiltCheckpoint,
    usage: UsageMap,
}

/// Builds the next root on the adopted one, which is that of `volume`.
pub(super) async fn build(inner: &Inner, volume: &VolumeTuple) -> Result<Build, MemberError> {
    let mut publishing = inner.by_inode().publishing.lock().await;
    let publishing = &mut *publishing;
    let adopted = &publishing.adopted;
    if volume.root.as_ref().map(|root| root.uid) != Some(adopted.uid) {
        return Err(MemberError::Content(
            "the root to build on was not adopted".into(),
        ));
    }
    if publishing.frozen.is_none() {
        publishing.frozen = freeze(inner, publishing.owes_section);
    }
    let Some(frozen) = &publishing.frozen else {
        return Ok(Build::Nothing);
    };
    let mut grounds = inner.lock().grounds();
    let numbers: BTreeSet<u64> = frozen.numbers().collect();
    grounds.retain(|number, _| numbers.contains(number));
    let changed = changed_leaf(&inner.objects, &grounds, adopted.checkpoint.inode_map).await;
    if let Some(inode) = changed.map_err(unreadable)?
        && !firn_env::planted!("volume.no_leaf_check")
    {
        return Ok(Build::LeafChanged { inode });
    }
    inner.env.fault_point("by_inode.before_build").await;
    let (built, root) = build_on(inner, volume, adopted, frozen, &publishing.usage)
        .await
        .map_err(unreadable)?;
    // No root may have records that a crash takes from the journal.
    let durable = inner.journal.durable(frozen.covered).await;
    durable.map_err(unreadable)?;
    inner.env.fault_point("by_inode.after_build").await;
    publishing.built = Some(root);
    Ok(Build::Root(built))
}

/// Takes what is changed, if anything is, or a root has to say that the journal was judged.
fn freeze(inner: &Inner, owes_section: bool) -> Option<Frozen> {
    let mut state = inner.lock();
    if !state.is_dirty() && !owes_section {
        return None;
    }
    inner.checkpointer.times().freeze();
    let waited = inner.cloud_waits.longest_wait(inner.env.now());
    state.forget_completed(inner.now(), waited);
    let mut completed = state.completed_with_times();
    completed.drain(..completed.len().saturating_sub(COMPLETED_MAX));
    Some(Frozen {
        counters: state.unpublished_counters(),
        next_inode: state.counters.next_inode,
        covered: state.applied,
        entries: state.freeze(),
        completed,
    })
}

/// An inode whose leaf in a root is not that which its first unpublished change was made on.
async fn changed_leaf(
    objects: &Objects,
    grounds: &Grounds,
    adopted: Option<TreeRoot>,
) -> Result<Option<u64>, ReadError> {
    let mut by_ground: BTreeMap<Option<Uid>, (Option<TreeRoot>, BTreeSet<u64>)> = BTreeMap::new();
    for (number, ground) in grounds {
        let uid = ground.map(|root| root.pointer.uid);
        let (_, numbers) = by_ground.entry(uid).or_insert((*ground, BTreeSet::new()));
        numbers.insert(*number);
    }
    for (ground, numbers) in by_ground.into_values() {
        let differing = differing_inodes(objects, Some(&numbers), ground, adopted).await?;
        if let Some(inode) = differing.first() {
            return Ok(Some(*inode));
        }
    }
    Ok(None)
}

async fn build_on(
    inner: &Inner,
    volume: &VolumeTuple,
    adopted: &AdoptedRoot,
    frozen: &Frozen,
    usage: &UsageMap,
) -> Result<(Built, BuiltRoot), CheckpointError> {
    let by_inode = inner.by_inode();
    let version = Version(adopted.version.0 + 1);
    let context = &inner.checkpointer.packer;
    context.progress.urgency.begin();
    let mut packer = Packer::new(context.clone(), version);
    let tree = checkpoint::build(
        &mut packer,
        Some(&inner.journal),
        inner.block_bytes,
        adopted.checkpoint.inode_map,
        frozen.entries.clone(),
        adopted.orphan_pointers.clone(),
    )
    .await?;
    let mut usage = usage.on(adopted.checkpoint.usage);
    let usage_root = usage.write(&mut packer, None).await?;
    let checkpoint = Checkpoint {
        version,
        epoch: volume.epoch,
        writer: context.writer,
        previous: Some(adopted.uid),
        fork: None,
        inode_map: tree.inode_map,
        orphans: tree.orphans,
        usage: usage_root,
        committed_at_ms: inner.env.wall().as_millis(),
        ..adopted.checkpoint.clone()
    };
    let payload = payload(by_inode, adopted, frozen, tree.used_correction);
    let (pointer, _) = pack_checkpoint(&mut packer, &checkpoint, &payload).await?;
    packer.finish().await?;
    let built = Built {
        uid: pointer.uid,
        location: pointer.location,
        sequence: context.next_segment.load(Ordering::Relaxed).saturating_sub(1),
    };
    let root = BuiltRoot {
        uid: pointer.uid,
        checkpoint,
        payload,
        tree,
        usage,
    };
    Ok((built, root))
}

/// The adopted payload with the own section and the own differences.
fn payload(
    by_inode: &ByInode,
    adopted: &AdoptedRoot,
    frozen: &Frozen,
    used_correction: i64,
) -> CheckpointPayload {
    let mut members = match firn_env::planted!("volume.publishes_own_section_only") {
        true => Vec::new(),
        false => adopted.payload.members.clone(),
    };
    let section = MemberSection {
        member: by_inode.number,
        next_inode: frozen.next_inode,
        covered: frozen.covered,
        completed: frozen.completed.clone(),
    };
    section.put(&mut members);
    let counters = match firn_env::planted!("volume.counters_not_as_differences") {
        true => frozen
            .counters
            .on(&VolumeCounters::new(adopted.payload.counters.directory_key)),
        false => frozen.counters.on(&adopted.payload.counters),
    };
    CheckpointPayload {
        counters: VolumeCounters {
            // Numbers from here on are nobody's yet, for who reads a root without being a member.
            next_inode: adopted.payload.counters.next_inode.max(frozen.next_inode),
            // The sum was an upper bound until the blocks were built.
            used_bytes: counters.used_bytes.saturating_add_signed(used_correction),
            ..counters
        },
        // An owner's: the members have a section each.
        covered: Sequence(0),
        completed: Vec::new(),
        history: adopted.history.iter().copied().collect(),
        members,
        ..adopted.payload.clone()
    }
}

/// What was built last is in a root: it is installed, and is the adopted root from now on.
pub(super) async fn committed(inner: &Inner, committed: &Built) {
    let by_inode = inner.by_inode();
    let mut publishing = by_inode.publishing.lock().await;
    let publishing = &mut *publishing;
    let (Some(built), Some(frozen)) = (publishing.built.take(), publishing.frozen.take()) else {
        unreachable!("only what was built is committed");
    };
    assert_eq!(
        built.uid, committed.uid,
        "what was built last is what is committed"
    );
    let BuiltRoot {
        uid,
        checkpoint,
        payload,
        tree,
        usage,
    } = built;
    {
        let mut state = inner.lock();
        state.install(tree.inode_map, tree.entries);
        state.committed_beside(&payload.counters, frozen.numbers());
    }
    inner.checkpointer.packer.progress.urgency.begin();
    let mut history = std::mem::take(&mut publishing.adopted.history);
    history.push_back((checkpoint.version, uid));
    while history.len() > HISTORY_MAX {
        history.pop_front();
    }
    let committed_at_ms = checkpoint.committed_at_ms;
    publishing.usage = usage;
    publishing.owes_section = false;
    by_inode
        .adopted_version
        .store(checkpoint.version.0, Ordering::Release);
    publishing.adopted = AdoptedRoot {
        version: checkpoint.version,
        uid,
        checkpoint,
        payload,
        history,
        orphan_pointers: tree.orphan_pointers,
    };
    inner.checkpointer.times().commit(frozen.covered, committed_at_ms);
    inner.checkpointer.tell_committed();
}
