//! The writer's task: owns the growing file, gives out numbers, and syncs once for all who wait.

use super::{FileEntry, Shared, SpoolError, create, file};
use crate::{BATCH_MAX_RECORDS, Observation, UsageBatch};
use bytes::Bytes;
use firn_env::{DiskError, DiskLock};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// An append waiting for its turn.
pub(super) struct Wish {
    pub(super) observations: Vec<Observation>,
    /// Told the first number.
    pub(super) done: oneshot::Sender<Result<u64, SpoolError>>,
}

/// Ends when the last handle of the spool is dropped, or after a failed write.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<Wish>,
    current_bytes: u64,
    _lock: Box<dyn DiskLock>,
) {
    let mut offset = current_bytes;
    let mut held = None;
    loop {
        let first = match held.take() {
            Some(wish) => wish,
            None => match queue.recv().await {
                Some(wish) => wish,
                None => return,
            },
        };
        let mut observations = first.observations;
        let mut waiting = vec![(0, first.done)];
        while let Ok(wish) = queue.try_recv() {
            let place = observations.len();
            if place + wish.observations.len() > BATCH_MAX_RECORDS {
                held = Some(wish);
                break;
            }
            observations.extend_from_slice(&wish.observations);
            if UsageBatch::fitting(&observations) < observations.len() {
                observations.truncate(place);
                held = Some(wish);
                break;
            }
            waiting.push((place as u64, wish.done));
        }
        let outcome = write(&shared, &mut offset, observations).await;
        let broken = matches!(outcome, Err(SpoolError::Broken(_)));
        for (place, done) in waiting {
            // Who is not waiting any more does not want to know.
            let _ = done.send(outcome.clone().map(|first| first + place));
        }
        if broken {
            return;
        }
        shared.grown.notify_one();
    }
}

/// One frame, durable; returns its first number.
async fn write(shared: &Shared, offset: &mut u64, observations: Vec<Observation>) -> Result<u64, SpoolError> {
    let first_sequence = {
        let index = shared.index();
        index.next_sequence.saturating_add(index.forgo_next)
    };
    let batch = UsageBatch::new(
        shared.source.clone(),
        shared.incarnation,
        first_sequence,
        observations,
    )
    .map_err(|error| SpoolError::Broken(error.to_string()))?;
    let encoded = batch
        .encode()
        .map_err(|error| SpoolError::Broken(error.to_string()))?;
    let frame = Bytes::from(file::framed(&encoded));
    let frame_bytes = frame.len() as u64;
    let used_bytes = shared.index().used_bytes;
    if used_bytes + frame_bytes > shared.config.max_bytes {
        return Err(SpoolError::Full {
            directory: shared.directory.clone(),
            used_bytes,
            max_bytes: shared.config.max_bytes,
        });
    }
    if *offset >= shared.config.file_bytes {
        *offset = begin_file(shared).await?;
    }
    let current = shared
        .index()
        .files
        .back()
        .expect("there is always a growing file")
        .file
        .clone();
    shared.env.fault_point("usage.spool.before_write").await;
    let publish = |shared: &Shared, offset: u64| {
        let mut index = shared.index();
        let next_sequence = batch.next_sequence();
        index.next_sequence = next_sequence;
        index.forgo_next = 0;
        index.used_bytes += frame_bytes;
        let entry = index.files.back_mut().expect("there is always a growing file");
        entry.next_sequence = next_sequence;
        entry.durable_bytes = offset + frame_bytes;
    };
    if firn_env::planted!("usage.send_before_sync") || firn_env::planted!("usage.acknowledge_before_sync") {
        current.write_at(*offset, vec![frame]).await?;
        publish(shared, *offset);
        *offset += frame_bytes;
        if firn_env::planted!("usage.send_before_sync") {
            shared.grown.notify_one();
            current.sync_data().await?;
        }
        return Ok(first_sequence);
    }
    match current.write_and_sync(*offset, vec![frame]).await {
        Ok(()) => {}
        // Refused before anything was synced: the next frame is written over it.
        Err(error @ DiskError::Full { .. }) => return Err(SpoolError::Disk(error)),
        Err(error) => return Err(stop(shared, &error)),
    }
    shared.env.fault_point("usage.spool.synced").await;
    publish(shared, *offset);
    *offset += frame_bytes;
    Ok(first_sequence)
}

/// Closes the growing file by beginning the next; returns where its first frame goes.
async fn begin_file(shared: &Shared) -> Result<u64, SpoolError> {
    let (number, first_sequence) = {
        let index = shared.index();
        let newest = index.files.back().expect("there is always a growing file");
        (newest.number + 1, index.next_sequence)
    };
    let header = file::Header {
        source: shared.source.clone(),
        incarnation: shared.incarnation,
        first_sequence,
    };
    // A file that was made but not finished stands in the way of the next try: stop, and open again.
    let made = create(&shared.env, &shared.directory, number, &header)
        .await
        .map_err(|error| stop(shared, &error))?;
    let mut index = shared.index();
    index.used_bytes += made.bytes;
    index.files.push_back(FileEntry {
        number,
        file: made.file,
        next_sequence: first_sequence,
        durable_bytes: made.bytes,
    });
    Ok(made.bytes)
}

fn stop(shared: &Shared, error: &DiskError) -> SpoolError {
    let why = error.to_string();
    tracing::error!(directory = shared.directory, %why, "the usage spool stops after a failed write");
    shared.index().broken = Some(why.clone());
    SpoolError::Broken(why)
}
