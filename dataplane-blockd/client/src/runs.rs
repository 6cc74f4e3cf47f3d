//! Runs of a disk in place on nodes: consecutive blocks that are written or read by one request of the disk's user.
//!
//! ```text
//! run      first block, bytes  ─▶ parts: cut where the layout goes on to another tract ─▶ joined: a request for each tract, of 1 MiB at most
//! write    each request's blocks are sealed, with their checksums, into the one buffer it is sent from
//! read     each request's blocks are opened into one buffer; what is read is slices of it
//! ```
//!
//! Nothing else splits a run. It is durable when all its requests are; until then any of its blocks may be there.

use crate::{
    chunks::{self, Content, Part},
    layout::{Chunk, LayoutError},
    replicas::{ClusterReplicas, RUNS_AT_ONCE},
};
use bytes::BytesMut;
use firn_blockd_disk::{Body, LoadedPart, ReplicaError, Store, Unit};
use firn_blockd_protocol::{BLOCK_BYTES, BlockState, Generation, VersionedBlocks};
use futures::stream::{self, StreamExt};
use std::{ops::Range, sync::atomic::Ordering::Relaxed};

/// What blocks of a run turned out to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Data,
    Zeroes,
    Damaged,
}

impl ClusterReplicas {
    /// Which stores travel together: those of neighbours that one request can carry.
    pub(crate) fn neighbours(&self, stores: &[&Store]) -> Vec<Vec<usize>> {
        let (mut places, mut groups) = (Vec::new(), Vec::new());
        for (at, store) in stores.iter().enumerate() {
            match self.place(store) {
                Some(chunk) => places.push((chunk, at)),
                None => groups.push(vec![at]),
            }
        }
        places.sort_by_key(|(chunk, _)| (chunk.tract, chunk.range.first()));
        groups.extend(chunks::runs(&places).into_iter().map(|(_, members)| members));
        groups
    }

    /// The one chunk that a store lies in, if it is of a kind that travels with its neighbours.
    fn place(&self, store: &Store) -> Option<Chunk> {
        match store.unit {
            Unit::Block(first) => match self.layout.parts(first..first + store.count).ok()?[..] {
                [(chunk, _)] => Some(chunk),
                _ => None,
            },
            Unit::Log(_) => self.layout.chunk(store.unit, 0).ok(),
            Unit::Intent(_) | Unit::Checkpoint(_) => None,
        }
    }

    /// What a store makes of chunks.
    pub(crate) fn parts(&self, store: &Store) -> Result<Vec<Part>, LayoutError> {
        let (Unit::Block(first), Body::Data(data)) = (store.unit, &store.body) else {
            let sealed = self.sealer.seal(store.unit, store.version, &store.body);
            return chunks::cut(&self.layout, store.unit, &sealed);
        };
        let mut behind = data.clone();
        let part = |(chunk, first): (Chunk, u64)| Part {
            chunk,
            content: Content::Blocks {
                first,
                data: behind.split_to(chunk.range.bytes().min(behind.len())),
            },
        };
        let chunks = self.layout.parts(first..first + store.count)?;
        Ok(chunks.into_iter().map(part).collect())
    }

    /// Makes parts durable with as few requests as their places allow; what each carries is sealed when it is sent.
    pub(crate) async fn put_parts(
        &self,
        parts: Vec<Part>,
        at_once: usize,
        generation: Generation,
    ) -> Result<(), ReplicaError> {
        let mut requests = chunks::join(parts);
        if firn_env::planted!("client.writes_one_tract_only") {
            requests.truncate(1);
        }
        let seal = |(chunk, parts): (Chunk, Vec<Part>)| {
            chunks::sealed(&self.sealer, self.tract(chunk.tract), chunk, parts)
        };
        self.put_all(requests.into_iter().map(seal), at_once, generation)
            .await
    }

    /// Loads a run, with as few requests as its places allow.
    pub(crate) async fn fetch_run(&self, copy: usize, blocks: Range<u64>) -> Vec<LoadedPart> {
        let unknown = |blocks| LoadedPart { blocks, body: None };
        let Ok(parts) = self.layout.parts(blocks.clone()) else {
            return vec![unknown(blocks.end - blocks.start)];
        };
        let lengths = parts.iter().map(|(chunk, _)| chunk.range.count() as u64);
        let mut found: Vec<Vec<LoadedPart>> = lengths.map(|blocks| vec![unknown(blocks)]).collect();
        let mut places: Vec<(Chunk, usize)> =
            (0..).zip(&parts).map(|(at, (chunk, _))| (*chunk, at)).collect();
        places.sort_by_key(|(chunk, _)| (chunk.tract, chunk.range.first()));
        let members = |members: Vec<usize>| -> Vec<(usize, u64, u64)> {
            let member = |at: usize| (at, parts[at].1, parts[at].0.range.count() as u64);
            members.into_iter().map(member).collect()
        };
        let loaded: Vec<_> = stream::iter(chunks::runs(&places))
            .map(|(run, within)| {
                let within = members(within);
                async move {
                    let bytes = self.budgeted(run.range.bytes());
                    let _permit = self.loads.acquire_many(bytes).await.ok()?;
                    let found = self.fetch_from(copy, run).await.ok()??;
                    self.counters.loads.fetch_add(1, Relaxed);
                    Some(self.open_run(&found, within))
                }
            })
            .buffer_unordered(RUNS_AT_ONCE)
            .collect()
            .await;
        for (at, parts) in loaded.into_iter().flatten().flatten() {
            found[at] = parts;
        }
        found.into_iter().flatten().collect()
    }

    /// A run as one request fetched it: `members` are its parts, each with its first block and its position; these come back with what
    /// they hold.
    fn open_run(
        &self,
        found: &VersionedBlocks,
        members: Vec<(usize, u64, u64)>,
    ) -> Vec<(usize, Vec<LoadedPart>)> {
        let mut opened = BytesMut::with_capacity(found.data.len());
        let mut contents = found.contents();
        // Lengths first: what is opened is one buffer, and all that holds data a part of it.
        let mut held: Vec<(usize, Vec<(u64, Held)>)> = Vec::with_capacity(members.len());
        for (at, first, count) in members {
            let mut parts: Vec<(u64, Held)> = Vec::new();
            for number in first..first + count {
                let now = match contents.next() {
                    Some((_, version, Some(data))) if matches!(version.state, BlockState::Written(_)) => {
                        self.sealer.open_block(number, &data, &mut opened);
                        Held::Data
                    }
                    Some((_, version, _)) if !matches!(version.state, BlockState::Written(_)) => Held::Zeroes,
                    Some(_) | None => Held::Damaged,
                };
                match parts.last_mut() {
                    Some((blocks, before)) if *before == now => *blocks += 1,
                    Some(_) | None => parts.push((1, now)),
                }
            }
            held.push((at, parts));
        }
        let mut opened = opened.freeze();
        let mut part = |(blocks, held): (u64, Held)| LoadedPart {
            blocks,
            body: match held {
                Held::Data => Some(Body::Data(opened.split_to(blocks as usize * BLOCK_BYTES))),
                Held::Zeroes => Some(Body::Zero),
                Held::Damaged => None,
            },
        };
        held.into_iter()
            .map(|(at, parts)| (at, parts.into_iter().map(&mut part).collect()))
            .collect()
    }
}
