//! Attaching a log: fence, newest checkpoint, roll forward, new checkpoint.
//!
//! A crash at any point of it leaves the state from which the next attach starts over: until the new checkpoint is durable,
//! nothing but fences and copies of accepted entries has been written.

use super::{
    checkpoint::{self, Checkpoint},
    engine::{LogConfig, LogEngine},
    replay::{Record, Replay},
};
use crate::{
    replicas::{AttachError, ReplicaError, Replicas, Stored, settle},
    types::{Incarnation, Unit, Version},
};

/// Writes the first checkpoint of a new disk, of which `tract_blocks` neighbouring physical blocks lie in one tract.
///
/// # Errors
/// If a replica fails.
pub async fn format(
    replicas: &dyn Replicas,
    incarnation: Incarnation,
    virtual_blocks: u64,
    physical_blocks: u64,
    tract_blocks: u64,
) -> Result<(), AttachError> {
    fence(replicas, incarnation).await?;
    let checkpoint = Checkpoint {
        number: 0,
        incarnation,
        replay: Replay::new(virtual_blocks, physical_blocks, tract_blocks),
    };
    write_checkpoint(replicas, &checkpoint).await?;
    Ok(())
}

async fn fence(replicas: &dyn Replicas, incarnation: Incarnation) -> Result<(), ReplicaError> {
    for path in 0..replicas.paths() {
        replicas.fence(path, incarnation).await?;
    }
    Ok(())
}

async fn write_checkpoint(replicas: &dyn Replicas, checkpoint: &Checkpoint) -> Result<(), ReplicaError> {
    let version = Version {
        incarnation: checkpoint.incarnation,
        sequence: checkpoint.number,
    };
    let (unit, body) = (checkpoint::unit(checkpoint.number), checkpoint.encode());
    for path in 0..replicas.paths() {
        replicas.store(path, unit, version, body.clone()).await?;
    }
    Ok(())
}

/// The newest checkpoint that any replica has, on all of them.
async fn newest_checkpoint(replicas: &dyn Replicas) -> Result<Checkpoint, AttachError> {
    let newest_of = |found: &[Option<Stored>]| {
        found
            .iter()
            .flatten()
            .filter_map(|stored| Some((Checkpoint::decode(&stored.body)?.number, stored)))
            .max_by_key(|(number, _)| *number)
            .map(|(_, stored)| stored.clone())
    };
    let mut newest: Option<(u64, Unit)> = None;
    for unit in [Unit::Checkpoint(0), Unit::Checkpoint(1)] {
        if let Some(stored) = settle(replicas, unit, newest_of, false).await? {
            let number = Checkpoint::decode(&stored.body)
                .ok_or(AttachError::BadCheckpoint)?
                .number;
            newest = newest.max(Some((number, unit)));
        }
    }
    let (_, unit) = newest.ok_or(AttachError::NoCheckpoint)?;
    // Its other place is overwritten next: from here on this one must be everywhere.
    let stored = settle(replicas, unit, newest_of, true)
        .await?
        .ok_or(AttachError::NoCheckpoint)?;
    Checkpoint::decode(&stored.body).ok_or(AttachError::BadCheckpoint)
}

/// Attaches as `incarnation`, which no attach had before.
///
/// # Errors
/// If replicas fail, or a later attach came first.
pub async fn recover(
    replicas: &dyn Replicas,
    incarnation: Incarnation,
    config: LogConfig,
) -> Result<LogEngine, AttachError> {
    if !firn_env::planted!("disk.skip_fence") {
        fence(replicas, incarnation).await?;
    }
    let Checkpoint {
        number,
        incarnation: expected,
        mut replay,
    } = newest_checkpoint(replicas).await?;
    if !incarnation.follows(expected) {
        return Err(AttachError::Reused {
            given: incarnation,
            newest: expected,
        });
    }
    let before = replay.next();
    roll_forward(replicas, expected, &mut replay).await?;
    let owner = if firn_env::planted!("disk.reuse_incarnation") {
        expected
    } else {
        incarnation
    };
    let checkpoint = Checkpoint {
        number: number + 1,
        incarnation: owner,
        replay,
    };
    if !firn_env::planted!("disk.reuse_incarnation") {
        write_checkpoint(replicas, &checkpoint).await?;
        let durable = [(number, before), (number + 1, checkpoint.replay.next())];
        return Ok(LogEngine::new(
            config,
            replicas.paths(),
            owner,
            checkpoint.replay,
            durable,
        ));
    }
    let durable = [(number.saturating_sub(1), before), (number, before)];
    Ok(LogEngine::new(
        config,
        replicas.paths(),
        owner,
        checkpoint.replay,
        durable,
    ))
}

async fn roll_forward(
    replicas: &dyn Replicas,
    expected: Incarnation,
    replay: &mut Replay,
) -> Result<(), AttachError> {
    // A log never goes round without a checkpoint, so this many entries can follow one.
    for _ in 0..replay.physical_blocks() {
        let Some(place) = replay.place() else { break };
        let version = Version {
            incarnation: expected,
            sequence: replay.next(),
        };
        let next_one = |stored: &&Stored| {
            let any_incarnation = firn_env::planted!("disk.accept_any_incarnation");
            let gap = firn_env::planted!("disk.accept_gaps") && stored.version.sequence > version.sequence;
            (stored.version.sequence == version.sequence || gap)
                && (stored.version.incarnation == version.incarnation || any_incarnation)
        };
        let pick = |found: &[Option<Stored>]| {
            if firn_env::planted!("disk.one_bad_replica_ends_roll_forward")
                && !found
                    .iter()
                    .all(|stored| stored.as_ref().is_some_and(|stored| next_one(&stored)))
            {
                return None;
            }
            found.iter().flatten().find(next_one).cloned()
        };
        let copy = !firn_env::planted!("disk.skip_re_replication");
        let accepted = settle(replicas, Unit::Log(place), pick, copy).await?;
        let record = accepted
            .as_ref()
            .and_then(|stored| Record::decode(&stored.body))
            .filter(|record| replay.accepts(record));
        let Some(record) = record else {
            if firn_env::planted!("disk.accept_gaps") && skip_gap(replicas, expected, replay).await? {
                continue;
            }
            break;
        };
        let by = accepted.map_or(expected, |stored| stored.version.incarnation);
        replay.apply(&record, by, place);
    }
    Ok(())
}

/// The planted bug's way over a missing entry: as if it had been an empty one.
async fn skip_gap(
    replicas: &dyn Replicas,
    expected: Incarnation,
    replay: &mut Replay,
) -> Result<bool, AttachError> {
    let mut ahead = replay.clone();
    for _ in 0..2 {
        let Some(place) = ahead.place() else {
            return Ok(false);
        };
        let version = Version {
            incarnation: expected,
            sequence: ahead.next(),
        };
        let found = settle(
            replicas,
            Unit::Log(place),
            |found| {
                found
                    .iter()
                    .flatten()
                    .find(|stored| stored.version == version)
                    .cloned()
            },
            false,
        )
        .await?;
        if found.is_some() {
            while replay.next() < ahead.next() {
                let Some(place) = replay.place() else {
                    return Ok(false);
                };
                replay.apply(&Record::Zero { first: 0, count: 0 }, expected, place);
            }
            return Ok(true);
        }
        ahead.apply(&Record::Zero { first: 0, count: 0 }, expected, place);
    }
    Ok(false)
}
