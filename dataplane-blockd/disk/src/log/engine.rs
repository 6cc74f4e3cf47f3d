//! The writer of a log: a state machine without I/O. Requests and completed stores go in, effects come out.

use super::{
    checkpoint::{self, Checkpoint},
    replay::{Record, Replay},
};
use crate::{
    mode::{Answers, FlushPolicy},
    types::{Body, Change, Effect, Incarnation, Lookup, ReplicaSet, RequestId, Store, Ticket, Unit, Version},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

/// What an entry that zeroes is counted as, however many blocks it covers: the block that it takes on the nodes. It bounds how
/// many of them wait, which every look for a block goes through.
const ZERO_ENTRY_BYTES: u64 = 4096;

/// How a log runs.
#[derive(Clone, Copy, Debug, Hash)]
pub struct LogConfig {
    /// When flushes are answered.
    pub flush: FlushPolicy,
    /// Bytes answered but not durable before writers are held back.
    pub dirty_bytes_max: u64,
    /// Entries between checkpoints: more make recovery longer, fewer cost writes.
    pub checkpoint_entries: u64,
}

/// An entry that is not yet durable, or not yet issued.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    record: Record,
    /// Counts what the user submitted; a release has none.
    index: Option<u64>,
    arrived_ms: u64,
    missing: ReplicaSet,
    #[cfg(feature = "mutants")]
    frees: Option<u64>,
}

#[derive(Clone, Debug, Hash)]
struct Checkpointing {
    number: u64,
    /// Covers the entries before this one.
    next: u64,
    snapshot: Option<Body>,
    missing: ReplicaSet,
    grow: bool,
}

/// A log that is attached.
#[derive(Clone, Debug, Hash)]
pub struct LogEngine {
    config: LogConfig,
    incarnation: Incarnation,
    replicas: usize,
    /// After the last issued entry.
    replay: Replay,
    issued: VecDeque<Waiting>,
    unissued: VecDeque<Waiting>,
    /// The newest content of blocks that are not durable, and the index that wrote it. What was zeroed since is not in here.
    overlay: BTreeMap<u64, (u64, Bytes)>,
    /// Ranges zeroed by entries that are not issued, by index: older than what the overlay holds, newer than the replay.
    zeroing: BTreeMap<u64, Range<u64>>,
    /// Entries submitted, and durable with all before them.
    submitted: u64,
    retired: u64,
    /// Requests that wait until so many entries are durable.
    waiting_for: BTreeMap<u64, Vec<RequestId>>,
    answers: Answers,
    dirty_bytes: u64,
    checkpointing: Option<Checkpointing>,
    /// Number and coverage of the last two durable checkpoints.
    durable: [(u64, u64); 2],
    /// A size that the next checkpoint brings: virtual blocks, physical blocks.
    growth: Option<(u64, u64)>,
    /// The size as users see it: a growth shows when it is durable.
    blocks: u64,
}

impl LogEngine {
    pub(super) fn new(
        config: LogConfig,
        replicas: usize,
        incarnation: Incarnation,
        replay: Replay,
        durable: [(u64, u64); 2],
    ) -> Self {
        let blocks = replay.virtual_blocks();
        Self {
            config,
            incarnation,
            replicas,
            replay,
            issued: VecDeque::new(),
            unissued: VecDeque::new(),
            overlay: BTreeMap::new(),
            zeroing: BTreeMap::new(),
            submitted: 0,
            retired: 0,
            waiting_for: BTreeMap::new(),
            answers: Answers::new(config.dirty_bytes_max, config.flush),
            dirty_bytes: 0,
            checkpointing: None,
            durable,
            growth: None,
            blocks,
        }
    }

    /// Blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Physical blocks, with those that an announced growth will bring.
    pub fn physical_blocks(&self) -> u64 {
        self.growth
            .map_or(self.replay.physical_blocks(), |(_, physical)| physical)
    }

    /// Whether it is growing: the next growth has to wait.
    pub fn is_growing(&self) -> bool {
        self.growth.is_some()
    }

    /// The attach it works for.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Bytes that are not durable.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Writes consecutive blocks, an entry for each. `data` has the same number of bytes for each.
    pub fn write(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        data: Bytes,
        durable: bool,
    ) -> Vec<Effect> {
        let block_bytes = data.len() / (blocks.end - blocks.start) as usize;
        for (at, block) in blocks.enumerate() {
            let data = data.slice(at * block_bytes..(at + 1) * block_bytes);
            self.submit(now_ms, Record::Data { block, data });
        }
        self.accept(now_ms, request, durable)
    }

    /// Makes a range of blocks read as zeroes, by one entry. The caller bounds its length.
    pub fn zero(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        durable: bool,
    ) -> Vec<Effect> {
        if self.overlay.range(blocks.clone()).next().is_some() || self.replay.maps_any(blocks.clone()) {
            if firn_env::planted!("disk.trim_without_record") {
                self.zeroing.insert(u64::MAX, blocks);
            } else {
                let (first, count) = (blocks.start, blocks.end - blocks.start);
                self.submit(now_ms, Record::Zero { first, count });
            }
        }
        self.accept(now_ms, request, durable)
    }

    /// A flush: everything submitted so far is to be durable before what follows.
    pub fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        let durable =
            self.config.flush == FlushPolicy::Durable && !firn_env::planted!("disk.answer_flush_early");
        self.accept(now_ms, request, durable)
    }

    /// A flush that is answered when everything before it is durable, whatever the policy.
    pub fn sync(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        self.accept(now_ms, request, true)
    }

    /// Makes the disk larger; takes effect with the next checkpoint, before which no further entry is issued.
    pub fn grow(&mut self, now_ms: u64, virtual_blocks: u64, physical_blocks: u64) -> Vec<Effect> {
        assert!(self.growth.is_none(), "a disk grows one step at a time");
        self.growth = Some((virtual_blocks, physical_blocks));
        let mut effects = Vec::new();
        self.pump(now_ms, &mut effects);
        effects
    }

    /// A store is durable.
    pub fn stored(&mut self, now_ms: u64, ticket: Ticket, replica: usize) -> Vec<Effect> {
        let mut effects = Vec::new();
        match ticket {
            Ticket::Entry(sequence) => self.entry_stored(sequence, replica),
            Ticket::Checkpoint(number) => self.checkpoint_stored(number, replica),
            Ticket::Piece(_) | Ticket::DirtyRegionLog { .. } => unreachable!("a log has no such stores"),
        }
        self.pump(now_ms, &mut effects);
        self.answer(now_ms, &mut effects);
        effects
    }

    /// What the user wrote that is not durable with all before it, in order.
    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        let all = self.issued.iter().chain(&self.unissued);
        all.filter(|entry| entry.index.is_some())
    }

    /// When the oldest write that is not durable arrived.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.waiting().next().map(|entry| entry.arrived_ms)
    }

    /// What was written and is not durable, in order. Nothing of it is withdrawn.
    pub fn pending(&self) -> Vec<Change> {
        let change = |entry: &Waiting| match &entry.record {
            Record::Data { block, data } => Some(Change::Data {
                first: *block,
                data: data.clone(),
            }),
            Record::Zero { first, count } => Some(Change::Zero {
                blocks: *first..first + count,
            }),
            Record::Release { .. } => None,
        };
        self.waiting().filter_map(change).collect()
    }

    /// Answers all that is held back by the bounds: whoever calls has made what it wrote safe in another way.
    pub fn answer_deferred(&mut self) -> Vec<Effect> {
        self.answers.release_all().map(Effect::Answer).collect()
    }

    /// Where to read a block.
    pub fn lookup(&self, block: u64) -> Lookup {
        match self.overlay.get(&block) {
            Some((_, data)) if !firn_env::planted!("disk.read_past_pending") => {
                Lookup::Memory(Body::Data(data.clone()))
            }
            _ if self.zeroing.values().any(|zeroed| zeroed.contains(&block)) => Lookup::Memory(Body::Zero),
            _ => self
                .replay
                .mapping(block)
                .map_or(Lookup::Memory(Body::Zero), |mapping| Lookup::Stored {
                    unit: Unit::Log(mapping.physical),
                    version: Some(mapping.version),
                }),
        }
    }

    fn submit(&mut self, now_ms: u64, record: Record) {
        self.submitted += 1;
        let index = self.submitted;
        match &record {
            Record::Data { block, data } => {
                self.overlay.insert(*block, (index, data.clone()));
            }
            Record::Zero { first, count } => {
                let blocks = *first..first + count;
                if !firn_env::planted!("disk.zeroes_leave_the_overlay") {
                    let mut behind = self.overlay.split_off(&blocks.start);
                    self.overlay.append(&mut behind.split_off(&blocks.end));
                }
                self.zeroing.insert(index, blocks);
            }
            Record::Release { .. } => unreachable!("releases are not submitted"),
        }
        self.dirty_bytes += cost_bytes(&record);
        self.unissued
            .push_back(Waiting::new(record, Some(index), now_ms, self.replicas));
    }

    fn accept(&mut self, now_ms: u64, request: RequestId, durable: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        if durable {
            self.waiting_for.entry(self.submitted).or_default().push(request);
        } else {
            self.answers.push(request);
        }
        self.pump(now_ms, &mut effects);
        self.answer(now_ms, &mut effects);
        effects
    }

    /// Issues what can be issued, and checkpoints that are due.
    fn pump(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        while self.growth.is_none()
            && self.replay.has_room()
            && let Some(entry) = self.unissued.pop_front()
        {
            self.issue(entry, effects);
        }
        // Of the last two durable checkpoints, the older one's coverage bounds what may be released.
        let before = self.durable[0].1;
        if self.growth.is_none()
            && self.replay.free() > 0
            && self.replay.would_release(before)
            && self.wants_release()
        {
            let release = Waiting::new(Record::Release { before }, None, now_ms, self.replicas);
            self.issue(release, effects);
            return self.pump(now_ms, effects);
        }
        self.checkpoint(effects);
    }

    /// Releases, and the checkpoints that they need, are worth their price when writes wait for a block, or soon will and
    /// much is to be gained: a log that nobody writes must become idle.
    fn wants_release(&self) -> bool {
        let slack = self.replay.physical_blocks() - self.replay.virtual_blocks();
        let short = self.replay.free() * 4 < slack && self.replay.quarantined() > self.replay.free() + 1;
        !self.unissued.is_empty() || short
    }

    fn issue(&mut self, entry: Waiting, effects: &mut Vec<Effect>) {
        let place = self.replay.place().expect("there is a free block");
        let version = Version {
            incarnation: self.incarnation,
            sequence: self.replay.next(),
        };
        #[cfg(feature = "mutants")]
        let entry = {
            let mut entry = entry;
            if let Record::Data { block, .. } = &entry.record {
                entry.frees = self.replay.mapping(*block).map(|mapping| mapping.physical);
            }
            entry
        };
        self.replay.apply(&entry.record, self.incarnation, place);
        if let Some(index) = entry.index {
            self.zeroing.remove(&index);
        }
        #[cfg(feature = "mutants")]
        if let (true, Some(physical)) = (firn_env::planted!("disk.skip_depends_on_retirement"), entry.frees) {
            self.replay.hold_until_retired(physical, true);
        }
        let body = entry.record.encode();
        effects.extend((0..self.replicas).map(|replica| {
            Effect::Store(Store {
                ticket: Ticket::Entry(version.sequence),
                replica,
                unit: Unit::Log(place),
                count: 1,
                version,
                body: body.clone(),
                epoch: version.sequence,
            })
        }));
        self.issued.push_back(entry);
    }

    /// The sequence of the oldest entry that is not durable.
    fn oldest_sequence(&self) -> u64 {
        self.replay.next() - self.issued.len() as u64
    }

    fn entry_stored(&mut self, sequence: u64, replica: usize) {
        let Some(position) = sequence.checked_sub(self.oldest_sequence()) else {
            // Retired already: a repeated answer.
            return;
        };
        let entry = &mut self.issued[position as usize];
        entry.missing.remove(replica);
        if firn_env::planted!("disk.durable_on_one_replica") {
            entry.missing.clear();
        }
        if firn_env::planted!("disk.retire_out_of_order")
            && entry.missing.is_empty()
            && let Some(index) = entry.index
        {
            self.retired = self.retired.max(index);
        }
        while self.issued.front().is_some_and(|entry| entry.missing.is_empty()) {
            let entry = self.issued.pop_front().expect("it was just seen");
            self.retire(&entry);
        }
    }

    fn retire(&mut self, entry: &Waiting) {
        #[cfg(feature = "mutants")]
        if let Some(physical) = entry.frees {
            self.replay.hold_until_retired(physical, false);
        }
        let Some(index) = entry.index else { return };
        self.retired = self.retired.max(index);
        self.dirty_bytes -= cost_bytes(&entry.record);
        if let Record::Data { block, .. } = entry.record
            && self
                .overlay
                .get(&block)
                .is_some_and(|(newest, _)| *newest == index)
        {
            self.overlay.remove(&block);
        }
    }

    fn answer(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        while let Some(entry) = self.waiting_for.first_entry()
            && *entry.key() <= self.retired
        {
            effects.extend(entry.remove().into_iter().map(Effect::Answer));
        }
        let oldest_ms = self.oldest_ms();
        let released = self.answers.release(self.dirty_bytes, oldest_ms, now_ms);
        effects.extend(released.map(Effect::Answer));
    }

    /// Begins a checkpoint if one is due, and writes it once all that it covers is durable.
    fn checkpoint(&mut self, effects: &mut Vec<Effect>) {
        let retired_sequence = self.oldest_sequence();
        if self.checkpointing.is_none() && self.is_checkpoint_due() {
            let grow = self.growth;
            if let Some((virtual_blocks, physical_blocks)) = grow {
                self.replay.grow(virtual_blocks, physical_blocks);
            }
            let number = self.durable[1].0 + 1;
            let snapshot = Checkpoint {
                number,
                incarnation: self.incarnation,
                replay: self.replay.clone(),
            };
            self.checkpointing = Some(Checkpointing {
                number,
                next: self.replay.next(),
                snapshot: Some(snapshot.encode()),
                missing: ReplicaSet::all(self.replicas),
                grow: grow.is_some(),
            });
        }
        let early = firn_env::planted!("disk.checkpoint_before_prefix");
        let Some(checkpointing) = &mut self.checkpointing else {
            return;
        };
        if retired_sequence < checkpointing.next && !early {
            return;
        }
        let Some(body) = checkpointing.snapshot.take() else {
            return;
        };
        let version = Version {
            incarnation: self.incarnation,
            sequence: checkpointing.number,
        };
        effects.extend((0..self.replicas).map(|replica| {
            Effect::Store(Store {
                ticket: Ticket::Checkpoint(version.sequence),
                replica,
                unit: checkpoint::unit(version.sequence),
                count: 1,
                version,
                body: body.clone(),
                epoch: 0,
            })
        }));
    }

    fn is_checkpoint_due(&self) -> bool {
        let since = self.replay.next() - self.durable[1].1;
        // Blocks run short, and a newer pair of checkpoints would let some go.
        let starved = self.wants_release() && self.replay.would_release(self.replay.next());
        since >= self.config.checkpoint_entries || starved || self.growth.is_some()
    }

    fn checkpoint_stored(&mut self, number: u64, replica: usize) {
        let Some(checkpointing) = &mut self.checkpointing else {
            return;
        };
        if checkpointing.number != number {
            return;
        }
        checkpointing.missing.remove(replica);
        if checkpointing.missing.is_empty() {
            self.durable = [self.durable[1], (number, checkpointing.next)];
            if checkpointing.grow {
                self.growth = None;
                self.blocks = self.replay.virtual_blocks();
            }
            self.checkpointing = None;
        }
    }
}

impl Waiting {
    fn new(record: Record, index: Option<u64>, arrived_ms: u64, replicas: usize) -> Self {
        Self {
            record,
            index,
            arrived_ms,
            missing: ReplicaSet::all(replicas),
            #[cfg(feature = "mutants")]
            frees: None,
        }
    }
}

fn cost_bytes(record: &Record) -> u64 {
    match record {
        Record::Data { data, .. } => data.len() as u64,
        Record::Zero { .. } => ZERO_ENTRY_BYTES,
        Record::Release { .. } => 0,
    }
}
