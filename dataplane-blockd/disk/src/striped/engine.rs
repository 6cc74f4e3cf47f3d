//! The writer of a striped disk: a state machine without I/O.

use super::marks::{Marks, PageWrite};
use crate::{
    mode::{Answers, FlushPolicy, WritePolicy},
    mutants::{Mutant, Planted},
    types::{Body, Effect, Incarnation, Lookup, ReplicaSet, RequestId, Store, Ticket, Unit, Version},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    /// Blocks that share a mark; [`REGION_BLOCKS`](super::REGION_BLOCKS) but in tests.
    pub region_blocks: u64,
    /// For tests of the tests.
    pub planted: Planted,
}

/// A block's new content on its way to the replicas.
#[derive(Clone, Debug, Hash)]
struct Piece {
    block: u64,
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
    /// Pieces of each block, oldest first.
    by_block: BTreeMap<u64, VecDeque<u64>>,
    /// Epochs from the oldest that is not durable to the present one.
    epochs: VecDeque<Epoch>,
    first_epoch: u64,
    next_piece: u64,
    next_sequence: u64,
    /// Pieces that each request still waits for.
    requests: BTreeMap<RequestId, u64>,
    marks: Marks,
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
            by_block: BTreeMap::new(),
            epochs: VecDeque::from([Epoch::default()]),
            first_epoch: 0,
            next_piece: 0,
            next_sequence,
            requests: BTreeMap::new(),
            marks: Marks::new(replicas, config.region_blocks),
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

    /// Writes whole blocks from `first` on.
    pub fn write(
        &mut self,
        now_ms: u64,
        request: RequestId,
        first: u64,
        bodies: Vec<Body>,
        durable: bool,
    ) -> Vec<Effect> {
        let durable = durable || self.config.write == WritePolicy::Durable;
        let count = bodies.len() as u64;
        assert!(
            count > 0 && first + count <= self.config.blocks,
            "the caller checks ranges"
        );
        for (block, body) in (first..).zip(bodies) {
            self.submit(now_ms, block, body, durable.then_some(request));
        }
        if durable {
            self.requests.insert(request, count);
        } else {
            self.answers.push(request);
        }
        let mut effects = Vec::new();
        self.issue(&mut effects);
        self.answer(now_ms, &mut effects);
        effects
    }

    /// A flush ends the epoch.
    pub fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        let early = self.config.planted.is(Mutant::AnswerFlushEarly);
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

    /// Drops the marks of all regions at rest, for a clean detach.
    pub fn rest(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        let next_sequence = &mut self.next_sequence;
        let writes = self.marks.rest(|| {
            *next_sequence += 1;
            *next_sequence
        });
        self.send_marks(writes, &mut effects);
        effects
    }

    /// Whether an attach after this moment would have nothing to reconcile.
    pub fn is_clean(&self) -> bool {
        self.pieces.is_empty() && self.marks.are_clear()
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
            Ticket::Marks { page, sequence } => {
                if self.marks.stored(page, sequence, replica) {
                    self.issue(&mut effects);
                }
            }
            Ticket::Entry(_) | Ticket::Checkpoint(_) => unreachable!("a striped disk has no log"),
        }
        self.answer(now_ms, &mut effects);
        effects
    }

    /// Where to read a block.
    pub fn lookup(&self, block: u64) -> Lookup {
        match self.by_block.get(&block).and_then(VecDeque::back) {
            Some(newest) if !self.config.planted.is(Mutant::ReadPastPending) => {
                Lookup::Memory(self.pieces[newest].body.clone())
            }
            _ => Lookup::Stored {
                unit: Unit::Block(block),
                version: None,
            },
        }
    }

    fn current_epoch(&self) -> u64 {
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    fn submit(&mut self, now_ms: u64, block: u64, body: Body, request: Option<RequestId>) {
        let epoch = self.current_epoch();
        let newest = self.by_block.get(&block).and_then(VecDeque::back).copied();
        self.dirty_bytes += body.cost_bytes();
        let any_epoch = self.config.planted.is(Mutant::CoalesceAcrossEpochs);
        if let Some(piece) = newest.and_then(|newest| self.pieces.get_mut(&newest))
            && piece.missing.is_none()
            && (piece.epoch == epoch || any_epoch)
        {
            self.dirty_bytes -= piece.body.cost_bytes();
            piece.body = body;
            piece.requests.extend(request);
            return;
        }
        let number = self.next_piece;
        self.next_piece += 1;
        self.marks.begin(block);
        self.by_block.entry(block).or_default().push_back(number);
        let present = self.epochs.back_mut().expect("there is a present epoch");
        present.open += 1;
        present.queued.insert(number);
        self.pieces.insert(
            number,
            Piece {
                block,
                body,
                epoch,
                arrived_ms: now_ms,
                missing: None,
                requests: request.into_iter().collect(),
            },
        );
    }

    /// Sends what may be sent: pieces of the oldest epoch, first of their block, in marked regions.
    fn issue(&mut self, effects: &mut Vec<Effect>) {
        let epochs = if self.config.planted.is(Mutant::IssueNextEpochEarly) {
            self.epochs.len()
        } else {
            1
        };
        let queued: Vec<u64> = self
            .epochs
            .iter()
            .take(epochs)
            .flat_map(|epoch| epoch.queued.iter().copied())
            .collect();
        for number in queued {
            let block = self.pieces[&number].block;
            let first = self.by_block[&block].front() == Some(&number);
            if !first {
                continue;
            }
            if !self.marks.is_marked(block) && !self.config.planted.is(Mutant::IssueBeforeMark) {
                continue;
            }
            self.send(number, effects);
        }
        let next_sequence = &mut self.next_sequence;
        let writes = self.marks.writes(|| {
            *next_sequence += 1;
            *next_sequence
        });
        self.send_marks(writes, effects);
    }

    fn send_marks(&self, writes: Vec<(u64, PageWrite)>, effects: &mut Vec<Effect>) {
        let incarnation = self.incarnation;
        for (sequence, write) in writes {
            effects.extend((0..self.replicas).map(|replica| {
                Effect::Store(Store {
                    ticket: Ticket::Marks {
                        page: write.page,
                        sequence,
                    },
                    replica,
                    unit: Unit::Intent(write.page),
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
                unit: Unit::Block(piece.block),
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
        if self.config.planted.is(Mutant::DurableOnOneReplica) {
            missing.clear();
        }
        if !missing.is_empty() {
            return;
        }
        let piece = self.pieces.remove(&number).expect("it was just there");
        self.dirty_bytes -= piece.body.cost_bytes();
        self.marks.end(piece.block);
        let waiting = self.by_block.get_mut(&piece.block).expect("its block has it");
        waiting.retain(|other| *other != number);
        if waiting.is_empty() {
            self.by_block.remove(&piece.block);
        }
        for request in piece.requests {
            if let Some(left) = self.requests.get_mut(&request) {
                *left -= 1;
                if *left == 0 {
                    self.requests.remove(&request);
                    effects.push(Effect::Answer(request));
                }
            }
        }
        let epoch = (piece.epoch - self.first_epoch) as usize;
        self.epochs[epoch].open -= 1;
        self.advance(effects);
    }

    /// Leaves epochs behind that are over and durable.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        while self.epochs.len() > 1 && self.epochs[0].open == 0 {
            let done = self.epochs.pop_front().expect("there are two");
            self.first_epoch += 1;
            effects.extend(done.flushes.into_iter().map(Effect::Answer));
        }
        self.issue(effects);
    }

    fn answer(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let oldest_ms = self.pieces.values().next().map(|piece| piece.arrived_ms);
        let released = self.answers.release(self.dirty_bytes, oldest_ms, now_ms);
        effects.extend(released.map(Effect::Answer));
    }
}
