//! The committer: the one task that makes things durable.

use super::{Shared, Store, checkpoint, defragmentation, journal::Journal, record::Record, state::State};
use bytes::Bytes;
use firn_blockd_protocol::TractId;
use firn_codec::Writer;
use firn_env::Task;
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// What one commit writes.
struct Batch {
    number: u64,
    records: Vec<Record>,
    tracts: Vec<TractId>,
    groups: Vec<u32>,
    blocks: usize,
}

/// Commits whenever somebody asks, and every now and then.
pub(super) async fn run(shared: Arc<Shared>, mut journal: Journal, mut store: impl FnMut() -> Option<Store>) {
    let mut checkpoint: Option<Task<()>> = None;
    loop {
        // Asked for, or time passed: a commit of nothing costs nothing.
        let waited = shared
            .env
            .timeout(shared.options.commit_interval, shared.wanted.notified());
        let asked = waited.await.is_ok();
        let wrote = commit(&shared, &mut journal, &mut checkpoint).await;
        if !asked
            && !wrote
            && let Some(store) = store()
        {
            defragmentation::relieve(&store).await;
        }
    }
}

/// One commit; whether there was anything to write.
///
/// Where the file system is full it waits for room ([`room`](super::room)).
///
/// # Panics
/// If a sync fails: what is on the disk is not known any more, so only a restart, which reads it, can go on. The task is an
/// essential one, so that ends the process.
async fn commit(shared: &Arc<Shared>, journal: &mut Journal, checkpoint: &mut Option<Task<()>>) -> bool {
    let batch = seal(&mut shared.state());
    let wrote = !batch.records.is_empty();
    if wrote {
        let env = &shared.env;
        env.fault_point("commit.before_data_sync").await;
        if !firn_env::planted!("store.journal_before_data") {
            let syncs = batch
                .groups
                .iter()
                .map(|group| shared.data[*group as usize].sync_data());
            for outcome in futures::future::join_all(syncs).await {
                if let Err(error) = outcome {
                    panic!("data cannot be synced: {error}; what the disk has is not known any more");
                }
            }
        }
        if firn_env::planted!("store.acknowledge_before_sync") {
            shared.durable.set(batch.number);
        }
        env.fault_point("commit.before_journal").await;
        write(shared, journal, checkpoint, &batch.records).await;
        env.fault_point("commit.after_journal").await;
        shared.counts.commits.fetch_add(1, Relaxed);
        shared
            .counts
            .committed_blocks
            .fetch_add(batch.blocks as u64, Relaxed);
    }
    {
        let mut state = shared.state();
        for tract in &batch.tracts {
            state.merge(*tract);
        }
        for record in &batch.records {
            if !matches!(record, Record::Blocks { .. }) {
                state.apply(record, false);
            }
        }
    }
    shared.durable.set(batch.number);
    wrote
}

/// Writes records into as many journal batches as they need.
async fn write(
    shared: &Arc<Shared>,
    journal: &mut Journal,
    checkpoint: &mut Option<Task<()>>,
    records: &[Record],
) {
    let mut payload = Writer::default();
    for record in records {
        if payload.len() + record.bytes() > journal.payload_max_bytes() {
            append(shared, journal, checkpoint, std::mem::take(&mut payload)).await;
        }
        record.encode(&mut payload);
    }
    append(shared, journal, checkpoint, payload).await;
}

async fn append(
    shared: &Arc<Shared>,
    journal: &mut Journal,
    checkpoint: &mut Option<Task<()>>,
    payload: Writer,
) {
    if !journal.has_room(payload.len()) {
        rotate(shared, journal, checkpoint).await;
    }
    let payload = Bytes::from(payload.finish());
    let mut step = shared.step("writing the journal");
    while let Err(error) = journal.append(payload.clone()).await {
        step.failed(error).await;
    }
}

/// Goes on in the other journal file, which is free once the checkpoint before has covered what it holds; and starts the
/// checkpoint that will cover the file that is full.
async fn rotate(shared: &Arc<Shared>, journal: &mut Journal, checkpoint: &mut Option<Task<()>>) {
    if let Some(running) = checkpoint.take() {
        running.await.expect("the checkpoint ends or the node does");
    }
    journal.rotate();
    shared.counts.checkpoints.fetch_add(1, Relaxed);
    let frames = std::mem::take(&mut shared.state().dirty_frames);
    let first_needed = journal.number();
    shared.env.fault_point("commit.journal_rotated").await;
    if firn_env::planted!("store.reuse_journal_early") {
        return;
    }
    let covering = checkpoint::run(shared.clone(), frames, first_needed);
    *checkpoint = Some(shared.env.spawn_essential("blockd checkpoint", covering));
}

/// Takes what is active as the next batch.
fn seal(state: &mut State) -> Batch {
    let number = state.batch;
    state.batch += 1;
    let mut records = std::mem::take(&mut state.control);
    let tracts: Vec<TractId> = std::mem::take(&mut state.dirty).into_iter().collect();
    for id in &tracts {
        let tract = state.tracts.get_mut(id).expect("only held tracts are dirty");
        assert!(tract.committing.is_empty(), "one commit at a time");
        tract.committing = std::mem::take(&mut tract.active);
        for (block, entry) in &tract.committing {
            let pair = (entry.place.code(), entry.checksum);
            match records.last_mut() {
                Some(Record::Blocks {
                    tract: last,
                    first,
                    generation,
                    entries,
                    ..
                }) if last == id
                    && *generation == entry.generation
                    && usize::from(*first) + entries.len() == usize::from(*block) =>
                {
                    entries.push(pair);
                }
                Some(_) | None => records.push(Record::Blocks {
                    frame: tract.frame,
                    tract: *id,
                    first: *block,
                    generation: entry.generation,
                    entries: vec![pair],
                }),
            }
        }
    }
    let blocks = std::mem::take(&mut state.active_blocks);
    Batch {
        number,
        records,
        tracts,
        groups: std::mem::take(&mut state.dirty_groups).into_iter().collect(),
        blocks,
    }
}
