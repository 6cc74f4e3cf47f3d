//! Reading: from memory what is not durable, the rest from the replicas, and again where something moved meanwhile.

use super::{BACKOFF, Inner, LOADS_AT_ONCE};
use crate::{
    replicas::{LoadedPart, ReplicaError, Stored},
    types::{Body, Lookup, Unit, Version},
};
use firn_blockd_nbd::{DeviceError, Piece};
use futures::{
    future::join_all,
    stream::{self, StreamExt, TryStreamExt},
};
use std::{ops::Range, sync::Arc};

/// Times a block is looked up again because it moved while it was being read. Each time, some write has gone through.
const LOOKUPS_MAX: usize = 16;

/// A part of what is read, in order.
enum Part {
    Found(Piece),
    /// Blocks that are looked up and loaded one by one.
    Single(Range<u64>),
}

impl Inner {
    /// Reads consecutive blocks: a run that is idle as a whole with as few requests as the layout allows, all else block by block.
    pub(super) async fn read_run(self: &Arc<Self>, blocks: Range<u64>) -> Result<Vec<Piece>, DeviceError> {
        let mut pieces = Vec::new();
        for part in self.load_idle(blocks).await? {
            match part {
                Part::Found(piece) => pieces.push(piece),
                Part::Single(blocks) => {
                    let singles = stream::iter(blocks).map(|block| self.clone().read_block(block));
                    let singles: Vec<Piece> = singles.buffered(LOADS_AT_ONCE).try_collect().await?;
                    pieces.extend(singles);
                }
            }
        }
        Ok(merge_zeroes(pieces))
    }

    /// Loads what lies in place and is idle, whole runs of it at once.
    async fn load_idle(&self, blocks: Range<u64>) -> Result<Vec<Part>, DeviceError> {
        if blocks.end - blocks.start < 2 {
            return Ok(vec![Part::Single(blocks)]);
        }
        let runs: Vec<(Range<u64>, bool)> = {
            let state = self.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced);
            }
            if state.engine.is_idle(blocks.clone()) {
                vec![(blocks, true)]
            } else {
                let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
                for block in blocks {
                    let idle = state.engine.is_idle(block..block + 1);
                    match runs.last_mut() {
                        Some((run, alike)) if *alike == idle => run.end += 1,
                        _ => runs.push((block..block + 1, idle)),
                    }
                }
                runs
            }
        };
        let loads = runs.into_iter().map(|(run, idle)| async move {
            if idle {
                self.load_run(run).await
            } else {
                vec![Part::Single(run)]
            }
        });
        Ok(join_all(loads).await.into_iter().flatten().collect())
    }

    async fn load_run(&self, run: Range<u64>) -> Vec<Part> {
        // Neighbouring requests begin with different replicas, which shares the work.
        let copy = (run.start / LOADS_AT_ONCE as u64) as usize % self.replicas.copies();
        let mut parts = Vec::new();
        let mut at = run.start;
        for LoadedPart { blocks, body } in self.replicas.load_run(copy, run.clone()).await {
            let bytes = blocks * u64::from(self.block_bytes);
            parts.push(match body {
                Some(Body::Zero) => Part::Found(Piece::Zeroes(bytes)),
                Some(Body::Data(data)) if data.len() as u64 == bytes => Part::Found(Piece::Data(data)),
                Some(Body::Data(_)) | None => Part::Single(at..at + blocks),
            });
            at += blocks;
        }
        assert_eq!(at, run.end, "the parts of a run cover it");
        parts
    }

    pub(super) async fn read_block(self: Arc<Self>, block: u64) -> Result<Piece, DeviceError> {
        let block_bytes = self.block_bytes as usize;
        let whole = |body: Body| match body {
            Body::Zero => Some(Piece::Zeroes(block_bytes as u64)),
            Body::Data(data) => (data.len() == block_bytes).then_some(Piece::Data(data)),
        };
        for _ in 0..LOOKUPS_MAX {
            let lookup = {
                let state = self.state();
                if state.fenced.is_some() {
                    return Err(DeviceError::Fenced);
                }
                state.engine.lookup(block)
            };
            let (unit, version) = match lookup {
                Lookup::Memory(body) => {
                    return whole(body)
                        .ok_or_else(|| DeviceError::Io(format!("block {block} has a foreign size")));
                }
                Lookup::Stored { unit, version } => (unit, version),
            };
            let body = match (self.load(block, unit, version).await?, version) {
                (Some(stored), None) => Some(stored.body),
                (Some(stored), Some(_)) => match crate::log::Record::decode(&stored.body) {
                    Some(crate::log::Record::Data { data, .. }) => Some(Body::Data(data)),
                    _ => None,
                },
                // Never written.
                (None, None) => Some(Body::Zero),
                // It may have moved while it was read.
                (None, Some(_)) => None,
            };
            if let Some(piece) = body.and_then(whole) {
                return Ok(piece);
            }
        }
        Err(DeviceError::Io(format!(
            "no replica has a valid copy of block {block}"
        )))
    }

    /// One valid copy from any replica; nothing if it was never written, or nobody has that version.
    async fn load(
        &self,
        block: u64,
        unit: Unit,
        version: Option<Version>,
    ) -> Result<Option<Stored>, DeviceError> {
        let count = self.replicas.copies();
        let mut failures = 0;
        loop {
            let (mut empty, mut away) = (false, None);
            for next in 0..count {
                // Neighbours begin with different replicas, which shares the work.
                let replica = (block as usize + next) % count;
                match self.replicas.load(replica, unit).await {
                    Ok(Some(stored)) if version.is_none_or(|version| version == stored.version) => {
                        return Ok(Some(stored));
                    }
                    Ok(_) => empty = true,
                    Err(ReplicaError::Damaged { .. }) => {}
                    Err(error @ ReplicaError::Unreachable { .. }) => away = Some(error),
                    Err(ReplicaError::Fenced { by }) => {
                        self.fence(by);
                        return Err(DeviceError::Fenced);
                    }
                }
            }
            match (empty, away) {
                (true, None) => return Ok(None),
                (false, None) if version.is_some() => return Ok(None),
                (false, None) => {
                    return Err(DeviceError::Io(format!(
                        "block {block} is damaged on all replicas"
                    )));
                }
                (_, Some(error)) => {
                    tracing::debug!(%error, "a read is tried again");
                    failures += 1;
                    BACKOFF.wait(&self.env, failures).await;
                }
            }
        }
    }
}

/// Joins neighbouring zeroes.
fn merge_zeroes(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Zeroes(before)), Piece::Zeroes(more)) => *before += more,
            (_, piece) => merged.push(piece),
        }
    }
    merged
}
