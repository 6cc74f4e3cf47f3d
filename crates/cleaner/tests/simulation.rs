//! Random histories of a family and its cleaners, held against the model after every step.
//!
//! Edges write, commit, take snapshots and drop them, restart, are taken over, clone, and merge what was proposed or do not.
//! Up to three cleaners run at once, each stopped between any two of its requests: left there for hours while another redoes
//! its work, dropped, or gone on with. In every eighth history two of them duel over one branch. Puts land late, reads are
//! damaged, usage maps lie. After every step, everything that any root or snapshot reaches must be readable by way of its
//! pointers and the forwarding records, and equal to what was committed.
//!
//! `FIRN_CLEANER_SEEDS=5000 cargo test -p firn-cleaner --test simulation --release -- --nocapture` runs more;
//! `FIRN_CLEANER_FIRST_SEED` says where to begin.

mod family;

use family::{Edge, Gate, MUTANTS, Prepared, Reader, World, check_root, run, step};
use firn_cleaner::{CleanError, Limits, Report, clean_once};
use firn_env::mutants::planting;
use firn_format::{Pointer, SegmentId, Version, VolumeId, checkpoint_place};
use firn_store::{ObjectKey, Store};
use futures::future::BoxFuture;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const GRACE: Duration = Duration::from_secs(3600);
const SEGMENT_BYTES: usize = 8 << 10;
const STEPS: usize = 90;
const MAX_BRANCHES: usize = 4;

fn limits(world: &World) -> Limits {
    Limits {
        grace: GRACE,
        segment_bytes: SEGMENT_BYTES,
        batch_bytes: [4 << 10, 64 << 10][world.roll(2) as usize],
        cache_bytes: [2 << 10, 1 << 20][world.roll(2) as usize],
        cleaner_lease: Duration::from_secs(900),
        give_up_versions: 6,
        ..Limits::default()
    }
}

struct Simulation {
    world: World,
    edges: Vec<Edge>,
    prepared: BTreeMap<usize, Prepared>,
    /// Snapshots that a clone is being made of: (origin, version) by the clone's ordinal.
    pinned: BTreeMap<usize, (usize, Version)>,
    cleaners: Vec<BoxFuture<'static, Result<Report, CleanError>>>,
    gate: Arc<Gate>,
    proposals: BTreeMap<VolumeId, u64>,
    next_id: u64,
    events: Events,
    duel: bool,
}

/// What happened in a history: a test that nothing was tried in proves nothing.
#[derive(Default, Clone, Copy, Debug)]
struct Events {
    retired: u64,
    moved: u64,
    deleted: u64,
    merged: u64,
    forwarded: u64,
    overtaken: u64,
    forgotten: u64,
    collapsed: u64,
    damaged: u64,
    clones: u64,
    takeovers: u64,
}

impl Events {
    fn add(&mut self, report: &Report) {
        self.retired += report.retired_segments;
        self.moved += report.moved_objects;
        self.deleted += report.deleted_segments;
        self.overtaken += report.overtaken;
        self.forgotten += report.forgotten_retirements;
        self.collapsed += report.collapsed_records;
        self.damaged += report.damaged.len() as u64;
    }

    fn plus(&mut self, other: &Self) {
        self.retired += other.retired;
        self.moved += other.moved;
        self.deleted += other.deleted;
        self.merged += other.merged;
        self.forwarded += other.forwarded;
        self.overtaken += other.overtaken;
        self.forgotten += other.forgotten;
        self.collapsed += other.collapsed;
        self.damaged += other.damaged;
        self.clones += other.clones;
        self.takeovers += other.takeovers;
    }
}

fn history(seed: u64, mutant: Option<&str>) -> Result<Events, String> {
    planting(mutant, || sound_history(seed))
}

fn sound_history(seed: u64) -> Result<Events, String> {
    let mut simulation = Simulation::new(seed);
    for at in 0..STEPS {
        simulation.act();
        simulation
            .check()
            .map_err(|why| format!("seed {seed}, step {at}: {why}"))?;
    }
    simulation
        .finish()
        .map_err(|why| format!("seed {seed}, end: {why}"))?;
    Ok(simulation.events)
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        if seed.is_multiple_of(3) {
            world.keep_versions();
        }
        let mut edge = Edge::create(&world, VolumeId([1; 16]), 1, SEGMENT_BYTES);
        edge.lies = world.roll(5).saturating_sub(1);
        let gate = world.gate();
        let mut simulation = Self {
            world,
            edges: vec![edge],
            prepared: BTreeMap::new(),
            pinned: BTreeMap::new(),
            cleaners: Vec::new(),
            gate,
            proposals: BTreeMap::new(),
            next_id: 1,
            events: Events::default(),
            duel: seed.is_multiple_of(8),
        };
        simulation.write(0, 8);
        simulation.commit(0, None, None);
        simulation
    }

    fn write(&mut self, ordinal: usize, blocks: u64) {
        let world = &self.world;
        let inode = self.edges[ordinal].files[world.roll(5) as usize];
        for _ in 0..=world.roll(blocks) {
            let index = match world.roll(6) {
                0 => 128 + world.roll(4),
                1 => 20_000 + world.roll(2),
                _ => world.roll(12),
            };
            let bytes = 100 + world.roll(1500) as usize;
            self.edges[ordinal].write(inode, index, bytes);
        }
    }

    fn prepare(&mut self, ordinal: usize, snapshot: Option<u64>, drop: Option<u64>) {
        let merge = self.world.chance(50);
        let edge = &mut self.edges[ordinal];
        let before = edge.cleaner_sequence;
        let prepared = edge.prepare(&self.world, merge, snapshot, drop);
        self.events.merged += u64::from(merge && before != edge.cleaner_sequence);
        self.prepared.insert(ordinal, prepared);
    }

    fn commit(&mut self, ordinal: usize, snapshot: Option<u64>, drop: Option<u64>) {
        if !self.prepared.contains_key(&ordinal) {
            self.prepare(ordinal, snapshot, drop);
        }
        let before = self.edges[ordinal].cleaner_sequence;
        let prepared = self.prepared.remove(&ordinal).expect("just prepared");
        self.edges[ordinal].commit(prepared);
        self.events.merged += u64::from(before != self.edges[ordinal].cleaner_sequence);
        self.pinned.remove(&ordinal);
    }

    /// Ids of the snapshots of a branch that no clone is being made of.
    fn droppable(&self, ordinal: usize) -> Vec<u64> {
        let snapshots = self.edges[ordinal].snapshots.iter();
        snapshots
            .filter(|snapshot| {
                !self
                    .pinned
                    .values()
                    .any(|pin| *pin == (ordinal, snapshot.version))
            })
            .map(|snapshot| snapshot.id)
            .collect()
    }

    fn act(&mut self) {
        if self.duel {
            return self.act_in_a_duel();
        }
        let ordinal = self.world.roll(self.edges.len() as u64) as usize;
        // A clone without a root can only go on to its first.
        if self.edges[ordinal].root.is_none() && self.world.chance(40) {
            self.commit(ordinal, None, None);
            return;
        }
        let ready = !self.prepared.contains_key(&ordinal) && self.edges[ordinal].root.is_some();
        match self.world.roll(100) {
            0..20 if ready => self.write(ordinal, 6),
            20..26 if ready => {
                let (which, index) = (self.world.roll(10), self.world.roll(12));
                match self.world.roll(3) {
                    0 => self.edges[ordinal].remove(which, false),
                    1 => self.edges[ordinal].remove(which, true),
                    _ => {
                        let inode = self.edges[ordinal].files[which as usize % 5];
                        self.edges[ordinal].punch(inode, index);
                    }
                }
            }
            26..46 if ready => {
                let snapshot = self.world.chance(25).then_some(self.next_id);
                self.next_id += 1;
                let droppable = self.droppable(ordinal);
                let drop = self.world.chance(30) && !droppable.is_empty();
                let drop = drop.then(|| droppable[self.world.roll(droppable.len() as u64) as usize]);
                self.commit(ordinal, snapshot, drop);
            }
            46..50 if ready => self.prepare(ordinal, None, None),
            26..50 if self.prepared.contains_key(&ordinal) && self.world.chance(60) => {
                self.commit(ordinal, None, None);
            }
            50..54 if self.edges[ordinal].root.is_some() => self.reopen(ordinal),
            54..56 => {
                let edge = &self.edges[ordinal];
                let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
                if let Some(kept) = tuple.retained.first() {
                    run(edge.anchor.forget_retained(edge.volume, kept.fenced_epoch)).unwrap();
                }
            }
            56..59 => self.clone_a_snapshot(ordinal),
            59..72 => self.start_cleaner(),
            72..84 => self.poll_cleaners(),
            84..87 if !self.cleaners.is_empty() => {
                let crashed = self.world.roll(self.cleaners.len() as u64) as usize;
                drop(self.cleaners.swap_remove(crashed));
            }
            87..89 => run(self.gate.land()),
            89..91 => self.damage_reads(),
            91..100 => {
                let seconds = [1, 30, 1000, 4000, 40_000][self.world.roll(5) as usize];
                self.world.clock.advance(Duration::from_secs(seconds));
            }
            _ => {}
        }
    }

    /// One branch, two cleaners that are stopped for long between any two requests, merges now and then: each may decide on
    /// what the other has changed since it looked.
    fn act_in_a_duel(&mut self) {
        match self.world.roll(10) {
            0 | 1 => {
                self.write(0, 3);
                let snapshot = self.world.chance(30).then_some(self.next_id);
                self.next_id += 1;
                self.commit(0, snapshot, None);
            }
            2 => self.commit(0, None, None),
            3 => {
                let seconds = [1, 100, 4000][self.world.roll(3) as usize];
                self.world.clock.advance(Duration::from_secs(seconds));
            }
            _ => {
                if self.cleaners.len() < 2 {
                    let limits = Limits {
                        free_per_mille: 0,
                        cold_free_per_mille: 0,
                        batch_bytes: [1 << 10, 4 << 10, 64 << 10][self.world.roll(3) as usize],
                        // Both live through the duel.
                        cleaner_lease: Duration::from_secs(1_000_000),
                        ..limits(&self.world)
                    };
                    self.cleaners.push(self.cleaner(limits));
                }
                let chosen = self.world.roll(self.cleaners.len() as u64) as usize;
                let polls = [self.world.roll(8), self.world.roll(100), 100_000][self.world.roll(3) as usize];
                for _ in 0..polls {
                    if let Some(done) = step(&mut self.cleaners[chosen]) {
                        drop(self.cleaners.swap_remove(chosen));
                        if let Ok(report) = done {
                            self.events.add(&report);
                        }
                        return;
                    }
                }
            }
        }
    }

    fn reopen(&mut self, ordinal: usize) {
        self.prepared.remove(&ordinal);
        let takeover = self.world.chance(40);
        let owner = if takeover { 1 + self.world.roll(4) as u8 } else { 0 };
        let edge = self.edges.swap_remove(ordinal);
        let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
        let (owner, takeover) = match tuple.owner {
            Some(held) if !takeover => (held.id.0[0], false),
            _ if tuple.retained.len() < 3 => (owner.max(1), true),
            Some(held) => (held.id.0[0], false),
            None => (owner.max(1), true),
        };
        self.events.takeovers += u64::from(takeover);
        self.edges
            .push(edge.reopen(&self.world, owner, takeover, SEGMENT_BYTES));
        let last = self.edges.len() - 1;
        self.edges.swap(ordinal, last);
    }

    fn clone_a_snapshot(&mut self, ordinal: usize) {
        if self.edges.len() >= MAX_BRANCHES {
            return;
        }
        let origin = &self.edges[ordinal];
        let Some(snapshot) = origin.snapshots.last().copied() else {
            return;
        };
        let volume = VolumeId([1 + self.edges.len() as u8 * 2; 16]);
        let trees = family::edge::Trees {
            inode_map: Some(snapshot.inode_map),
            orphans: snapshot.orphans,
            usage: None,
        };
        let mut clone = Edge::clone_of(
            &self.world,
            origin,
            snapshot.version,
            trees,
            volume,
            SEGMENT_BYTES,
        );
        clone.lies = self.world.roll(5).saturating_sub(1);
        self.edges.push(clone);
        self.events.clones += 1;
        let last = self.edges.len() - 1;
        self.pinned.insert(last, (ordinal, snapshot.version));
        self.write(last, 3);
        self.prepare(last, None, None);
    }

    fn cleaner(&self, limits: Limits) -> BoxFuture<'static, Result<Report, CleanError>> {
        let (env, anchor) = (self.world.env.clone(), self.world.anchor());
        let store: Arc<dyn Store> = self.gate.clone();
        Box::pin(async move { clean_once(&env, store, &anchor, &limits).await })
    }

    fn start_cleaner(&mut self) {
        self.gate.set_late(if self.world.chance(15) { 60 } else { 0 });
        if self.cleaners.len() < 3 {
            let limits = limits(&self.world);
            self.cleaners.push(self.cleaner(limits));
        }
        self.poll_cleaners();
    }

    fn poll_cleaners(&mut self) {
        let polls = [20, 200, 2000][self.world.roll(3) as usize];
        for _ in 0..polls {
            if self.cleaners.is_empty() {
                return;
            }
            let chosen = self.world.roll(self.cleaners.len() as u64) as usize;
            if let Some(done) = step(&mut self.cleaners[chosen]) {
                drop(self.cleaners.swap_remove(chosen));
                if let Ok(report) = done {
                    self.events.add(&report);
                }
            }
        }
    }

    /// From now on reads of one segment come back damaged, or no more do.
    fn damage_reads(&mut self) {
        let keys: Vec<ObjectKey> = self.world.store.contents().into_keys().collect();
        let chosen = &keys[self.world.roll(keys.len() as u64) as usize];
        self.gate.set_flip(self.world.chance(50).then(|| chosen.clone()));
    }

    fn check(&mut self) -> Result<(), String> {
        let mut reader = Reader::new(&self.world.store);
        for edge in &self.edges {
            let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
            let head = tuple.root.iter().map(|root| (root, true));
            let kept = tuple.retained.iter().map(|kept| (&kept.root, false));
            for (root, is_head) in head.chain(kept) {
                let pointer = Pointer {
                    uid: root.uid,
                    location: root.location,
                };
                check_root(&mut reader, &pointer, root.version, is_head, &edge.shown)
                    .map_err(|why| format!("volume {:?}, {}: {why}", edge.volume, root.version))?;
            }
            if let Some((proposal, _)) = run(edge.anchor.proposal(edge.volume)).unwrap()
                && self.proposals.insert(edge.volume, proposal.sequence) != Some(proposal.sequence)
            {
                let pointer = Pointer {
                    uid: proposal.base_uid,
                    location: proposal.location,
                };
                let place = checkpoint_place(proposal.base_version);
                reader
                    .read(&pointer, place)
                    .map_err(|why| format!("a proposal that is not its base: {why}"))?;
                if edge.history.get(&proposal.base_version) != Some(&proposal.base_uid) {
                    return Err("a proposal for what was never committed".into());
                }
            }
        }
        self.events.forwarded += reader.forwarded;
        let contents = self.world.store.contents();
        for prepared in self.prepared.values() {
            if let Some(gone) = prepared.keys.iter().find(|key| !contents.contains_key(key)) {
                return Err(format!("{gone} was deleted while it was about to be committed"));
            }
        }
        for (key, at) in self.gate.take_deleted() {
            let Some((_, segment)) = SegmentId::parse_key(key.as_str()) else {
                continue;
            };
            let sort = format!("{:016x}/{:016x}", segment.writer.0, segment.sequence);
            let doomed = self.world.doomed_at.lock().unwrap().get(&sort).copied();
            match doomed {
                Some(doomed) if at.since(doomed) + Duration::from_millis(1) >= GRACE => {}
                Some(_) => return Err(format!("{key} was deleted before its grace was over")),
                None => return Err(format!("{key} was deleted and never retired")),
            }
        }
        Ok(())
    }

    /// Everything becomes idle, and then everything that nobody needs must go.
    fn finish(&mut self) -> Result<(), String> {
        self.cleaners.clear();
        run(self.gate.land());
        self.gate.set_late(0);
        self.gate.set_flip(None);
        for ordinal in 0..self.edges.len() {
            self.commit(ordinal, None, None);
        }
        for _ in 0..8 {
            let mut cleaner = self.cleaner(Limits {
                segment_bytes: SEGMENT_BYTES,
                ..Limits::default()
            });
            let report = (0..1_000_000)
                .find_map(|_| step(&mut cleaner))
                .expect("a run ends")
                .map_err(|error| format!("nothing is wrong, and yet: {error}"))?;
            if !report.damaged.is_empty() || report.foreign.count > 0 {
                return Err(format!(
                    "nothing is damaged, and yet: {:?} {:?}",
                    report.damaged, report.foreign
                ));
            }
            self.events.add(&report);
            self.world.clock.advance(2 * GRACE);
            for ordinal in 0..self.edges.len() {
                self.edges[ordinal].lies = 0;
                let edge = &mut self.edges[ordinal];
                let prepared = edge.prepare(&self.world, true, None, None);
                edge.commit(prepared);
            }
            self.check()?;
        }
        self.waste()
    }

    /// What the log holds beside what roots reach, now that cleaners had time.
    fn waste(&self) -> Result<(), String> {
        let mut reader = Reader::new(&self.world.store);
        for edge in &self.edges {
            let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
            let head = tuple.root.iter().map(|root| (root, true));
            let kept = tuple.retained.iter().map(|kept| (&kept.root, false));
            for (root, is_head) in head.chain(kept) {
                let pointer = Pointer {
                    uid: root.uid,
                    location: root.location,
                };
                check_root(&mut reader, &pointer, root.version, is_head, &edge.shown)?;
            }
        }
        let needed: u64 = reader.found_at.iter().map(|at| u64::from(at.length)).sum();
        let contents = self.world.store.contents();
        let stored: u64 = contents
            .iter()
            .filter(|(key, _)| SegmentId::parse_key(key.as_str()).is_some())
            .map(|(_, bytes)| bytes.len() as u64)
            .sum();
        // A fifth may be free in each segment; indices, and the newest commits, come on top.
        if stored > needed * 2 + (96 << 10) {
            return Err(format!("{stored} bytes are kept for {needed}"));
        }
        let seen: u64 = contents.values().map(|bytes| bytes.len() as u64).sum();
        let kept = self.world.store.stored_bytes();
        if kept != seen {
            return Err(format!("{kept} bytes are kept, of which only {seen} can be seen"));
        }
        Ok(())
    }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn everything_stays_readable_and_all_waste_goes() {
    let first = from_environment("FIRN_CLEANER_FIRST_SEED", 1);
    let seeds = from_environment("FIRN_CLEANER_SEEDS", 300);
    let (mut passed, mut failed) = (0, Vec::new());
    let mut events = Events::default();
    for seed in first..first + seeds {
        let caught = std::panic::catch_unwind(|| history(seed, None));
        match caught.unwrap_or_else(|_| Err(format!("seed {seed}: an edge could not go on"))) {
            Ok(happened) => {
                passed += 1;
                events.plus(&happened);
            }
            Err(why) => failed.push(why),
        }
    }
    for why in failed.iter().take(10) {
        println!("{why}");
    }
    println!("{events:?}");
    println!("{passed} passed, {} failed", failed.len());
    assert!(failed.is_empty(), "{}", failed[0]);
    if seeds >= 300 {
        let Events {
            retired,
            moved,
            deleted,
            merged,
            forwarded,
            overtaken,
            forgotten,
            collapsed,
            damaged,
            clones,
            takeovers,
        } = events;
        for (what, count) in [
            ("retired", retired),
            ("moved", moved),
            ("deleted", deleted),
            ("merged", merged),
            ("forwarded", forwarded),
            ("overtaken", overtaken),
            ("forgotten", forgotten),
            ("collapsed", collapsed),
            ("damaged", damaged),
            ("clones", clones),
            ("takeovers", takeovers),
        ] {
            assert!(count >= 20, "the histories hardly ever {what}: {count}");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 7] {
        let events = || format!("{:?}", history(seed, None));
        assert_eq!(events(), events());
    }
}

#[test]
#[ignore = "minutes: some bugs need hundreds of histories; make test-all runs it, optimised"]
fn every_planted_bug_is_noticed() {
    let seeds = from_environment("FIRN_CLEANER_MUTANT_SEEDS", 400);
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("FIRN_CLEANER_MUTANT").ok();
    for mutant in MUTANTS {
        if only.as_deref().is_some_and(|only| only != mutant) {
            continue;
        }
        let caught =
            (1..=seeds).find_map(
                |seed| match std::panic::catch_unwind(|| history(seed, Some(mutant))) {
                    Ok(Ok(_)) => None,
                    Ok(Err(why)) => Some(why),
                    Err(_) => Some(format!("seed {seed}: an edge could not go on")),
                },
            );
        match caught {
            Some(why) => println!("{}: {why}", mutant),
            None => missed.push(mutant),
        }
    }
    std::panic::set_hook(silent);
    println!("{} passed, {} failed", MUTANTS.len() - missed.len(), missed.len());
    assert!(missed.is_empty(), "not noticed in {seeds} histories: {missed:?}");
}
