//! The first checkpoint of a branch: of a new volume, and of a salvage clone.

use crate::{
    checkpoint::{CheckpointPayload, Packer, build, pack_checkpoint},
    error::VolumeError,
    journal::Journal,
    manifest::Manifest,
    ownership_statement::{OwnershipStatement, RootSigner, StatementKind},
    parts::Parts,
    rekey::RekeyState,
    state::State,
    usage::UsageMap,
};
use firn_anchor::{Anchor, Ownership, Root};
use firn_env::Env;
use firn_format::{Checkpoint, Pointer, Version};
use std::collections::BTreeMap;

/// Where a new branch begins.
pub(crate) struct NewBranch {
    pub version: Version,
    pub previous: Option<firn_format::Uid>,
    pub fork: Option<firn_format::ForkPoint>,
    pub block_bytes: u32,
    /// Which segments must exist, if the branch is to say so. What a salvage clone began with its origin's owner may have written anew
    /// since, so it has none.
    pub manifest: Manifest,
}

/// The first version of a branch that leaves another at `fork`. Births are compared with versions to find the one snapshot in
/// which an object must be looked for (I4), so a branch goes on counting where it began.
pub(crate) fn first_version(fork: Version) -> Version {
    Version(fork.0 + 1)
}

/// Packs what is dirty in `state` outside the checkpointer and installs it there; nothing is committed. `journal` has the data
/// of writes that are not in memory.
pub(crate) async fn pack_dirty(
    packer: &mut Packer,
    journal: Option<&Journal>,
    state: &mut State,
    orphans: &mut BTreeMap<u64, Pointer>,
    block_bytes: u32,
) -> Result<Option<firn_format::TreeRoot>, VolumeError> {
    let frozen = state.freeze();
    let built = build(
        packer,
        journal,
        u64::from(block_bytes),
        state.inode_map,
        frozen,
        std::mem::take(orphans),
    )
    .await?;
    *orphans = built.orphan_pointers;
    state.install(built.inode_map, built.entries);
    Ok(built.orphans)
}

/// Commits the first checkpoint of a branch outside the checkpointer, and gives the ownership up again.
pub(crate) async fn commit_branch(
    parts: &Parts,
    ownership: Ownership,
    mut packer: Packer,
    state: &mut State,
    mut orphans: BTreeMap<u64, Pointer>,
    mut branch: NewBranch,
) -> Result<Root, VolumeError> {
    let orphan_map = pack_dirty(&mut packer, None, state, &mut orphans, branch.block_bytes).await?;
    let mut usage = match branch.previous {
        None => UsageMap::of_new_volume(),
        // What was there before was never counted for this branch.
        Some(_) => UsageMap::default(),
    };
    let usage = usage.write(&mut packer, None).await?;
    let manifest = branch.manifest.write(&mut packer, &[], None).await?;
    let committed_at_ms = parts.env.wall().as_millis();
    let checkpoint = Checkpoint {
        family: parts.family(),
        volume: parts.volume,
        version: branch.version,
        epoch: ownership.epoch(),
        writer: packer.writer(),
        previous: branch.previous,
        fork: branch.fork,
        inode_map: state.inode_map,
        orphans: orphan_map,
        usage,
        snapshots: Vec::new(),
        cleaner_sequence: 0,
        committed_at_ms,
        manifest,
    };
    // `pack_dirty` has installed what it built, so the state's sum is exact.
    let payload = CheckpointPayload {
        counters: state.counters.clone(),
        block_bytes: branch.block_bytes,
        covered: state.applied,
        completed: Vec::new(),
        snapshots: Vec::new(),
        history: Vec::new(),
        rekey: match branch.previous {
            // All of it was just sealed.
            None => RekeyState::clean_from(parts.keys.current(), branch.version),
            Some(_) => RekeyState::default(),
        },
        members: Vec::new(),
    };
    let (env, anchor) = (&parts.env, &parts.anchor);
    commit_root(env, anchor, ownership, packer, &checkpoint, &payload).await
}

/// Commits a branch's first root, and gives the ownership up again.
pub(crate) async fn commit_root(
    env: &Env,
    anchor: &Anchor,
    mut ownership: Ownership,
    mut packer: Packer,
    checkpoint: &Checkpoint,
    payload: &CheckpointPayload,
) -> Result<Root, VolumeError> {
    let (pointer, _) = pack_checkpoint(&mut packer, checkpoint, payload).await?;
    packer.finish().await?;
    let context = packer.context();
    let signer = RootSigner::draw(env, context.family, checkpoint.volume, ownership.grant());
    let statement = OwnershipStatement {
        kind: StatementKind::Started,
        volume: checkpoint.volume,
        epoch: ownership.epoch(),
        grant: ownership.grant(),
        owner: ownership.owner().clone(),
        writer: context.writer,
        signer: signer.public(),
        base: None,
        abandoned: Version(0),
        made_at_ms: checkpoint.committed_at_ms,
    };
    statement.put(env, &*context.store, &context.keys).await?;
    let commit_id = env.random_bytes();
    let root = ownership.next_root(
        pointer.uid,
        pointer.location,
        checkpoint.version,
        commit_id,
        checkpoint.committed_at_ms,
    );
    let root = signer.sign(root);
    anchor.commit(&mut ownership, root.clone()).await?;
    anchor.drain(&mut ownership).await?;
    Ok(root)
}
