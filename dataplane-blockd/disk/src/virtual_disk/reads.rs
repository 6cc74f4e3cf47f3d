//! Reading: from memory what is not durable, the rest from the replicas, and again where something moved meanwhile.

use super::{BACKOFF, Inner, LOADS_AT_ONCE};
use crate::{
    replicas::{Copy, ReplicaError, Stored},
    types::{Body, Lookup, Unit, Version},
};
use firn_blockd_nbd::{DeviceError, Piece};
use std::{ops::Range, sync::Arc};

/// Times a block is looked up again because it moved while it was being read. Each time, some write has gone through.
const LOOKUPS_MAX: usize = 16;

impl Inner {
    /// Loads the blocks that lie in place and are idle, as many at once as the replicas can; nothing in the place of others
    /// and of those that need another look.
    pub(super) async fn load_in_place(&self, blocks: Range<u64>) -> Result<Vec<Option<Piece>>, DeviceError> {
        let block_bytes = self.block_bytes as usize;
        let units: Vec<Option<Unit>> = {
            let state = self.state();
            if state.fenced.is_some() {
                return Err(DeviceError::Fenced);
            }
            let idle = |block| match state.engine.lookup(block) {
                Lookup::Stored { unit, version: None } => Some(unit),
                Lookup::Stored { .. } | Lookup::Memory(_) => None,
            };
            blocks.clone().map(idle).collect()
        };
        let wanted: Vec<Unit> = units.iter().flatten().copied().collect();
        if wanted.len() < 2 {
            return Ok(vec![None; units.len()]);
        }
        // Neighbouring requests begin with different replicas, which shares the work.
        let copy = (blocks.start / LOADS_AT_ONCE as u64) as usize % self.replicas.copies();
        let mut found = self.replicas.load_many(copy, &wanted).await.into_iter();
        let piece = |copy: Copy| match copy {
            Copy::Empty => Some(Piece::Zeroes(block_bytes as u64)),
            Copy::Holds(Stored { body: Body::Zero, .. }) => Some(Piece::Zeroes(block_bytes as u64)),
            Copy::Holds(Stored {
                body: Body::Data(data),
                ..
            }) if data.len() == block_bytes => Some(Piece::Data(data)),
            Copy::Holds(_) | Copy::Damaged | Copy::Joining => None,
        };
        Ok(units
            .into_iter()
            .map(|unit| unit.and_then(|_| found.next().flatten()).and_then(piece))
            .collect())
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
pub(super) fn merge_zeroes(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Zeroes(before)), Piece::Zeroes(more)) => *before += more,
            (_, piece) => merged.push(piece),
        }
    }
    merged
}
