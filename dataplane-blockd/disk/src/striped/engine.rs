//! The writer of a striped disk: a state machine without I/O.

use super::{
    dirty_region_log::{DirtyRegionLog, PageWrite, Regions},
    overlaps::Overlaps,
};
use crate::{
    mode::{Answers, FlushPolicy, WritePolicy},
    types::{Body, Change, Effect, Incarnation, Lookup, ReplicaSet, RequestId, Store, Ticket, Unit, Version},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

/// What a region of a range that waits to be zeroed is counted as: about what it takes in memory.
const ZEROED_REGION_BYTES: u64 = 64;

/// How a striped disk runs.
#[derive(Clone, Copy, Debug, Hash)]
pub struct StripedConfig {
    /// Blocks of the disk.
    pub blocks: u64,
    /// When writes are answered.
    pub write: WritePolicy,
    /// When flushes are answered.
    pub flush: FlushPolicy,
    /// Bytes answered but not durable before writers are held back.
    pub dirty_bytes_max: u64,
    /// How finely it remembers where replicas may differ.
    pub regions: Regions,
}

/// A run: consecutive blocks and their new content, or their zeroes, on the way to the replicas.
#[derive(Clone, Debug, Hash)]
struct Piece {
    blocks: Range<u64>,
    body: Body,
    epoch: u64,
    arrived_ms: u64,
    /// Nothing while it waits.
    missing: Option<ReplicaSet>,
    /// Requests to be told when it is durable.
    requests: Vec<RequestId>,
}

#[derive(Clone, Debug, Default, Hash)]
struct Epoch {
    /// Pieces not durable.
    open: u64,
    /// Pieces not issued.
    queued: BTreeSet<u64>,
    flushes: Vec<RequestId>,
}

/// A striped disk that is attached.
#[derive(Clone, Debug, Hash)]
pub struct StripedEngine {
    config: StripedConfig,
    incarnation: Incarnation,
    replicas: usize,
    pieces: BTreeMap<u64, Piece>,
    overlaps: Overlaps,
    /// Epochs from the oldest that is not durable to the present one.
    epochs: VecDeque<Epoch>,
    first_epoch: u64,
    next_piece: u64,
    next_sequence: u64,
    dirty_regions: DirtyRegionLog,
    answers: Answers,
    dirty_bytes: u64,
}

impl StripedEngine {
    pub(super) fn new(
        config: StripedConfig,
        replicas: usize,
        incarnation: Incarnation,
        next_sequence: u64,
    ) -> Self {
        Self {
            config,
            incarnation,
            replicas,
            pieces: BTreeMap::new(),
            overlaps: Overlaps::default(),
            epochs: VecDeque::from([Epoch::default()]),
            first_epoch: 0,
            next_piece: 0,
            next_sequence,
            dirty_regions: DirtyRegionLog::new(replicas, config.regions),
            answers: Answers::new(config.dirty_bytes_max, config.flush),
            dirty_bytes: 0,
        }
    }

    /// Blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.config.blocks
    }

    /// The attach it works for.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Bytes that are not durable.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Makes the disk larger.
    pub fn grow(&mut self, blocks: u64) {
        self.config.blocks = self.config.blocks.max(blocks);
    }

    /// Writes a run of blocks, as one piece. `data` has the same number of bytes for each.
    pub fn write(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        data: Bytes,
        durable: bool,
    ) -> Vec<Effect> {
        self.accept(now_ms, request, blocks, Body::Data(data), durable)
    }

    /// Makes a range of blocks read as zeroes, as one piece. The caller bounds its length.
    pub fn zero(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        durable: bool,
    ) -> Vec<Effect> {
        self.accept(now_ms, request, blocks, Body::Zero, durable)
    }

    fn accept(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        body: Body,
        durable: bool,
    ) -> Vec<Effect> {
        let durable = durable || self.config.write == WritePolicy::Durable;
        assert!(
            !blocks.is_empty() && blocks.end <= self.config.blocks,
            "the caller checks ranges"
        );
        let first = self.next_piece;
        self.submit(now_ms, blocks, body, durable.then_some(request));
        if !durable {
            self.answers.push(request);
        }
        let mut effects = Vec::new();
        self.issue_of((first..self.next_piece).collect(), &mut effects);
        self.answer(now_ms, &mut effects);
        effects
    }

    /// A flush ends the epoch.
    pub fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        let early = firn_env::planted!("disk.answer_flush_early");
        self.end_epoch(
            now_ms,
            request,
            self.config.flush == FlushPolicy::Durable && !early,
        )
    }

    /// A flush that is answered when everything before it is durable, whatever the policy.
    pub fn sync(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        self.end_epoch(now_ms, request, true)
    }

    /// Drops all idle regions from the dirty-region log, for a clean detach.
    pub fn drop_idle_regions(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        let next_sequence = &mut self.next_sequence;
        let writes = self.dirty_regions.drop_idle(|| {
            *next_sequence += 1;
            *next_sequence
        });
        self.send_dirty_pages(writes, &mut effects);
        effects
    }

    /// Whether an attach after this moment would have nothing to reconcile.
    pub fn is_clean(&self) -> bool {
        self.pieces.is_empty() && self.dirty_regions.are_clear()
    }

    fn end_epoch(&mut self, now_ms: u64, request: RequestId, durable: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        let current = self.epochs.back_mut().expect("there is a present epoch");
        if durable {
            current.flushes.push(request);
        } else {
            self.answers.push(request);
        }
        if current.open > 0 || !current.flushes.is_empty() {
            self.epochs.push_back(Epoch::default());
        }
        self.advance(&mut effects);
        self.answer(now_ms, &mut effects);
        effects
    }

    /// A store is durable.
    pub fn stored(&mut self, now_ms: u64, ticket: Ticket, replica: usize) -> Vec<Effect> {
        let mut effects = Vec::new();
        match ticket {
            Ticket::Piece(piece) => self.piece_stored(piece, replica, &mut effects),
            Ticket::DirtyRegionLog { page, sequence } => {
                if self.dirty_regions.stored(page, sequence, replica) {
                    self.issue(&mut effects);
                }
            }
            Ticket::Entry(_) | Ticket::Checkpoint(_) => unreachable!("a striped disk has no log"),
        }
        self.answer(now_ms, &mut effects);
        effects
    }

    /// When the oldest write that is not durable arrived.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.pieces.values().next().map(|piece| piece.arrived_ms)
    }

    /// What was written and is not durable, in order. Nothing of it is withdrawn.
    pub fn pending(&self) -> Vec<Change> {
        let mut pending = Vec::new();
        let mut epoch = None;
        for piece in self.pieces.values() {
            if epoch.is_some_and(|epoch| epoch < piece.epoch) {
                pending.push(Change::Flush);
            }
            epoch = Some(piece.epoch);
            pending.push(match &piece.body {
                Body::Data(data) => Change::Data {
                    first: piece.blocks.start,
                    data: data.clone(),
                },
                Body::Zero => Change::Zero {
                    blocks: piece.blocks.clone(),
                },
            });
        }
        if epoch.is_some_and(|epoch| epoch < self.current_epoch()) {
            pending.push(Change::Flush);
        }
        pending
    }

    /// Answers all that is held back by the bounds: whoever calls has made what it wrote safe in another way.
    pub fn answer_deferred(&mut self) -> Vec<Effect> {
        self.answers.release_all().map(Effect::Answer).collect()
    }

    /// Where to read a block.
    pub fn lookup(&self, block: u64) -> Lookup {
        let newest = self.overlaps.newest(block..block + 1);
        #[cfg(feature = "mutants")]
        let newest = newest.filter(|newest| {
            let blocks = &self.pieces[newest].blocks;
            blocks.end - blocks.start == 1 || !firn_env::planted!("disk.read_past_zeroes")
        });
        match newest {
            Some(newest) if !firn_env::planted!("disk.read_past_pending") => {
                let Piece { blocks, body, .. } = &self.pieces[&newest];
                let at = if firn_env::planted!("disk.read_the_head_of_a_run") {
                    0
                } else {
                    block - blocks.start
                };
                Lookup::Memory(body.part(at, blocks.end - blocks.start))
            }
            _ => Lookup::Stored {
                unit: Unit::Block(block),
                version: None,
            },
        }
    }

    /// Whether all of these blocks are to be read from their places.
    pub fn is_idle(&self, blocks: Range<u64>) -> bool {
        self.overlaps.newest(blocks).is_none()
    }

    fn current_epoch(&self) -> u64 {
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    fn submit(&mut self, now_ms: u64, blocks: Range<u64>, body: Body, request: Option<RequestId>) {
        let epoch = self.current_epoch();
        let newest = self.overlaps.newest(blocks.clone());
        let any_epoch = firn_env::planted!("disk.coalesce_across_epochs");
        self.dirty_bytes += self.cost_bytes(&blocks, &body);
        if let Some(piece) = newest.and_then(|newest| self.pieces.get_mut(&newest))
            && piece.missing.is_none()
            && piece.blocks == blocks
            && (piece.epoch == epoch || any_epoch)
        {
            let replaced = std::mem::replace(&mut piece.body, body);
            piece.requests.extend(request);
            self.dirty_bytes -= self.cost_bytes(&blocks, &replaced);
            return;
        }
        let number = self.next_piece;
        self.next_piece += 1;
        self.dirty_regions.begin(&blocks);
        self.overlaps.insert(&blocks, number);
        let present = self.epochs.back_mut().expect("there is a present epoch");
        present.open += 1;
        present.queued.insert(number);
        self.pieces.insert(
            number,
            Piece {
                blocks,
                body,
                epoch,
                arrived_ms: now_ms,
                missing: None,
                requests: request.into_iter().collect(),
            },
        );
    }

    fn cost_bytes(&self, blocks: &Range<u64>, body: &Body) -> u64 {
        match body {
            Body::Data(data) => data.len() as u64,
            Body::Zero => {
                let regions = (blocks.end - blocks.start).div_ceil(self.config.regions.blocks);
                regions * ZEROED_REGION_BYTES
            }
        }
    }

    /// Epochs whose pieces may be sent.
    fn issuable_epochs(&self) -> usize {
        if firn_env::planted!("disk.issue_next_epoch_early") {
            self.epochs.len()
        } else {
            1
        }
    }

    /// Sends what may be sent of all that waits.
    fn issue(&mut self, effects: &mut Vec<Effect>) {
        let epochs = self.epochs.iter().take(self.issuable_epochs());
        let queued = epochs.flat_map(|epoch| epoch.queued.iter().copied());
        self.issue_of(queued.collect(), effects);
    }

    /// Sends what may be sent of some pieces: those of the oldest epoch, with nothing older on their blocks, in marked regions.
    /// Whoever knows which pieces an event can set free names them, since thousands may wait.
    fn issue_of(&mut self, candidates: Vec<u64>, effects: &mut Vec<Effect>) {
        let epochs = self.issuable_epochs();
        for number in candidates {
            let waits = |epoch: &Epoch| epoch.queued.contains(&number);
            if !self.epochs.iter().take(epochs).any(waits) {
                continue;
            }
            let blocks = self.pieces[&number].blocks.clone();
            let ahead = if firn_env::planted!("disk.order_runs_by_their_first_block") {
                blocks.start..blocks.start + 1
            } else {
                blocks.clone()
            };
            if self.overlaps.is_behind(ahead, number) {
                continue;
            }
            let needed = if firn_env::planted!("disk.mark_first_region_only") {
                blocks.start..blocks.start + 1
            } else {
                blocks
            };
            if !self.dirty_regions.are_logged(&needed) && !firn_env::planted!("disk.issue_before_mark") {
                continue;
            }
            self.send(number, effects);
        }
        let next_sequence = &mut self.next_sequence;
        let writes = self.dirty_regions.writes(|| {
            *next_sequence += 1;
            *next_sequence
        });
        self.send_dirty_pages(writes, effects);
    }

    fn send_dirty_pages(&self, writes: Vec<(u64, PageWrite)>, effects: &mut Vec<Effect>) {
        let incarnation = self.incarnation;
        for (sequence, write) in writes {
            effects.extend((0..self.replicas).map(|replica| {
                Effect::Store(Store {
                    ticket: Ticket::DirtyRegionLog {
                        page: write.page,
                        sequence,
                    },
                    replica,
                    unit: Unit::Intent(write.page),
                    count: 1,
                    version: Version {
                        incarnation,
                        sequence,
                    },
                    body: write.body.clone(),
                    epoch: 0,
                })
            }));
        }
    }

    fn send(&mut self, number: u64, effects: &mut Vec<Effect>) {
        self.next_sequence += 1;
        let version = Version {
            incarnation: self.incarnation,
            sequence: self.next_sequence,
        };
        let piece = self.pieces.get_mut(&number).expect("queued pieces exist");
        piece.missing = Some(ReplicaSet::all(self.replicas));
        let epoch = (piece.epoch - self.first_epoch) as usize;
        self.epochs[epoch].queued.remove(&number);
        effects.extend((0..self.replicas).map(|replica| {
            Effect::Store(Store {
                ticket: Ticket::Piece(number),
                replica,
                unit: Unit::Block(piece.blocks.start),
                count: piece.blocks.end - piece.blocks.start,
                version,
                body: piece.body.clone(),
                epoch: piece.epoch,
            })
        }));
    }

    fn piece_stored(&mut self, number: u64, replica: usize, effects: &mut Vec<Effect>) {
        // A piece that is gone was answered twice.
        let Some(piece) = self.pieces.get_mut(&number) else {
            return;
        };
        let missing = piece.missing.as_mut().expect("only what was sent is stored");
        missing.remove(replica);
        if firn_env::planted!("disk.durable_on_one_replica") {
            missing.clear();
        }
        if !missing.is_empty() {
            return;
        }
        let piece = self.pieces.remove(&number).expect("it was just there");
        self.dirty_bytes -= self.cost_bytes(&piece.blocks, &piece.body);
        self.dirty_regions.end(&piece.blocks);
        self.overlaps.remove(&piece.blocks, number);
        effects.extend(piece.requests.into_iter().map(Effect::Answer));
        let epoch = (piece.epoch - self.first_epoch) as usize;
        self.epochs[epoch].open -= 1;
        let mut behind: Vec<u64> = self.overlaps.of(piece.blocks).collect();
        behind.sort_unstable();
        self.issue_of(behind, effects);
        self.advance(effects);
    }

    /// Leaves epochs behind that are over and durable.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        let before = self.first_epoch;
        while self.epochs.len() > 1 && self.epochs[0].open == 0 {
            let done = self.epochs.pop_front().expect("there are two");
            self.first_epoch += 1;
            effects.extend(done.flushes.into_iter().map(Effect::Answer));
        }
        if self.first_epoch > before {
            self.issue(effects);
        }
    }

    fn answer(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let oldest_ms = self.oldest_ms();
        let released = self.answers.release(self.dirty_bytes, oldest_ms, now_ms);
        effects.extend(released.map(Effect::Answer));
    }
}
