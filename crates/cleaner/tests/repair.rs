//! Random histories of a family with a second store: losses in either, a mirror and repairs that die anywhere, cleaners and edges that go on.
//!
//! As in `simulation.rs`, an executable model knows what every root and snapshot must show. After every step all of it is readable from both
//! stores together. In the end everything is repaired, and readable from the first store alone; then some segments are lost in both, and what
//! cannot be read lies in segments that the repair names, and everything else is as it was.
//!
//! `FIRN_CLEANER_SEEDS=2000 cargo test -p firn-cleaner --test repair --release -- --nocapture` runs more.

mod family;

use bytes::Bytes;
use family::{Edge, Prepared, REPAIR_MUTANTS, Reader, World, check_root, run, step};
use firn_cleaner::{CleanError, Cleaner, Limits, Repair, Report, clean_once};
use firn_env::mutants::planting;
use firn_format::{Pointer, SegmentId, VolumeId, decode_segment};
use firn_mirror::{Mirror, MirrorOptions, NoLocalCopies};
use firn_store::{ObjectKey, PutMode, Store};
use futures::future::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const SEGMENT_BYTES: usize = 8 << 10;
const STEPS: usize = 70;
const GRACE: Duration = Duration::from_secs(3600);
const KEEP: Duration = Duration::from_secs(48 * 3600);

struct Simulation {
    world: World,
    edges: Vec<Edge>,
    prepared: BTreeMap<usize, Prepared>,
    mirror: Mirror,
    cleaners: Vec<BoxFuture<'static, Result<Report, CleanError>>>,
    comparison: Option<BoxFuture<'static, ()>>,
    repair: Option<BoxFuture<'static, Result<Repair, CleanError>>>,
    /// What readers found damaged in the first store.
    damaged: BTreeSet<SegmentId>,
    next_id: u64,
    events: Events,
}

/// What happened: a test that nothing was tried in proves nothing.
#[derive(Default, Clone, Copy, Debug)]
struct Events {
    lost: u64,
    damaged: u64,
    lost_in_second: u64,
    repaired: u64,
    unneeded: u64,
    beyond: u64,
    cut_off: u64,
    overtaken: u64,
    takeovers: u64,
    deleted: u64,
}

impl Events {
    fn all(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("lost", &mut self.lost),
            ("damaged", &mut self.damaged),
            ("lost in the second store", &mut self.lost_in_second),
            ("repaired", &mut self.repaired),
            ("found unneeded", &mut self.unneeded),
            ("found beyond repair", &mut self.beyond),
            ("cut a repair off", &mut self.cut_off),
            ("overtook a repair", &mut self.overtaken),
            ("took over", &mut self.takeovers),
            ("deleted from the second store", &mut self.deleted),
        ]
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

fn segment_of(key: &ObjectKey) -> Option<SegmentId> {
    SegmentId::parse_key(key.as_str()).map(|(_, segment)| segment)
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let edge = Edge::create(&world, VolumeId([1; 16]), 1, SEGMENT_BYTES);
        let stores = (
            world.store.clone() as Arc<dyn Store>,
            world.second.clone() as Arc<dyn Store>,
        );
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: KEEP,
        };
        let mirror = Mirror::new(&world.env, stores, world.anchor(), Arc::default(), options);
        let mut simulation = Self {
            world,
            edges: vec![edge],
            prepared: BTreeMap::new(),
            mirror,
            cleaners: Vec::new(),
            comparison: None,
            repair: None,
            damaged: BTreeSet::new(),
            next_id: 1,
            events: Events::default(),
        };
        simulation.write(0, 8);
        simulation.commit(0, None, None);
        simulation
    }

    fn write(&mut self, ordinal: usize, blocks: u64) {
        let world = &self.world;
        let inode = self.edges[ordinal].files[world.roll(5) as usize];
        for _ in 0..=world.roll(blocks) {
            let index = [world.roll(12), 128 + world.roll(4), 20_000][world.roll(3) as usize];
            let bytes = 100 + world.roll(1500) as usize;
            self.edges[ordinal].write(inode, index, bytes);
        }
    }

    fn commit(&mut self, ordinal: usize, snapshot: Option<u64>, drop: Option<u64>) {
        let merge = self.world.chance(60);
        let prepared = match self.prepared.remove(&ordinal) {
            Some(prepared) => prepared,
            None => self.edges[ordinal].prepare(&self.world, merge, snapshot, drop),
        };
        self.edges[ordinal].commit(prepared);
    }

    fn act(&mut self) {
        let ordinal = self.world.roll(self.edges.len() as u64) as usize;
        let ready = !self.prepared.contains_key(&ordinal);
        match self.world.roll(100) {
            0..15 if ready => self.write(ordinal, 6),
            15..35 if ready => {
                let snapshot = self.world.chance(30).then_some(self.next_id);
                self.next_id += 1;
                let snapshots = &self.edges[ordinal].snapshots;
                let drop = (self.world.chance(20) && !snapshots.is_empty())
                    .then(|| snapshots[self.world.roll(snapshots.len() as u64) as usize].id);
                self.commit(ordinal, snapshot, drop);
            }
            35..38 if ready => {
                let prepared = self.edges[ordinal].prepare(&self.world, false, None, None);
                self.prepared.insert(ordinal, prepared);
            }
            15..38 => self.commit(ordinal, None, None),
            38..42 => self.reopen(ordinal),
            42..50 => self.clean(),
            50..60 => self.compare(),
            60..72 => self.lose(),
            72..88 => self.go_on_repairing(),
            88..91 if self.repair.is_some() => {
                self.repair = None;
                self.events.cut_off += 1;
            }
            91..100 => {
                let seconds = [1, 1000, 4000, 100_000, 200_000][self.world.roll(5) as usize];
                self.world.clock.advance(Duration::from_secs(seconds));
            }
            _ => {}
        }
    }

    fn reopen(&mut self, ordinal: usize) {
        self.prepared.remove(&ordinal);
        let edge = self.edges.swap_remove(ordinal);
        let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
        let held = tuple.owner.map_or(0, |held| held.id.0[0]);
        let takeover = tuple.retained.len() < 3 && self.world.chance(60) || held == 0;
        let owner = if takeover {
            1 + self.world.roll(4) as u8
        } else {
            held
        };
        self.events.takeovers += u64::from(takeover);
        self.edges
            .push(edge.reopen(&self.world, owner, takeover, SEGMENT_BYTES));
        let last = self.edges.len() - 1;
        self.edges.swap(ordinal, last);
    }

    fn limits(&self) -> Limits {
        Limits {
            grace: GRACE,
            segment_bytes: SEGMENT_BYTES,
            batch_bytes: [4 << 10, 64 << 10][self.world.roll(2) as usize],
            ..Limits::default()
        }
    }

    /// A gate of its own: each request of a cleaner is a point at which it may be stopped.
    fn clean(&mut self) {
        if self.cleaners.len() < 2 {
            let (env, anchor, limits) = (self.world.env.clone(), self.world.anchor(), self.limits());
            let store: Arc<dyn Store> = self.world.gate();
            self.cleaners.push(Box::pin(async move {
                clean_once(&env, store, &anchor, &limits).await
            }));
        }
        let chosen = self.world.roll(self.cleaners.len() as u64) as usize;
        let polls = [20, 200, 100_000][self.world.roll(3) as usize];
        for _ in 0..polls {
            if step(&mut self.cleaners[chosen]).is_some() {
                drop(self.cleaners.swap_remove(chosen));
                return;
            }
        }
    }

    fn compare(&mut self) {
        let mirror = self.mirror.clone();
        let comparison = self.comparison.get_or_insert_with(|| {
            Box::pin(async move { drop(mirror.compare(&NoLocalCopies).await.expect("both stores answer")) })
        });
        // The table is asked in steps; a comparison that is dropped is one that was killed.
        let polls = [3, 100_000][self.world.roll(2) as usize];
        for _ in 0..polls {
            if step(comparison).is_some() {
                self.comparison = None;
                return;
            }
        }
        if self.world.chance(30) {
            self.comparison = None;
        }
    }

    /// One store loses or alters a segment of which the other has a whole copy.
    fn lose(&mut self) {
        let (first, second) = (self.world.store.contents(), self.world.second.contents());
        let being_committed: BTreeSet<&ObjectKey> = self
            .prepared
            .values()
            .flat_map(|prepared| &prepared.keys)
            .collect();
        let both: Vec<&ObjectKey> = first
            .iter()
            .filter(|(key, bytes)| second.get(*key) == Some(*bytes) && !being_committed.contains(key))
            .filter(|(key, bytes)| segment_of(key).is_some() && decode_segment((*bytes).clone()).is_ok())
            .map(|(key, _)| key)
            .collect();
        if both.is_empty() {
            return;
        }
        for _ in 0..=self.world.roll(3) {
            let key = both[self.world.roll(both.len() as u64) as usize];
            let still = self.world.store.contents().get(key) == Some(&first[key])
                && self.world.second.contents().get(key) == Some(&second[key]);
            if !still {
                continue;
            }
            match self.world.roll(5) {
                0..3 => {
                    run(self.world.store.delete(key)).unwrap();
                    self.events.lost += 1;
                }
                3 => {
                    let altered = self.altered(&first[key]);
                    run(self.world.store.put(key, vec![altered], PutMode::Overwrite)).unwrap();
                    self.damaged.extend(segment_of(key));
                    self.events.damaged += 1;
                }
                _ => {
                    run(self.world.second.delete(key)).unwrap();
                    self.events.lost_in_second += 1;
                }
            }
        }
    }

    fn altered(&self, bytes: &Bytes) -> Bytes {
        let mut altered = bytes.to_vec();
        let at = self.world.roll(altered.len() as u64) as usize;
        altered[at] ^= 1;
        altered.into()
    }

    fn start_repair(&self) -> BoxFuture<'static, Result<Repair, CleanError>> {
        let mut lost: BTreeSet<SegmentId> = self.mirror.suspects().into_keys().collect();
        lost.extend(&self.damaged);
        let store: Arc<dyn Store> = self.world.gate();
        let second: Arc<dyn Store> = self.world.second.clone();
        let mut cleaner = Cleaner::new(&self.world.env, store, &self.world.anchor(), self.limits());
        Box::pin(async move { cleaner.repair(Some(second), &lost, false).await })
    }

    fn go_on_repairing(&mut self) {
        let mut repair = match self.repair.take() {
            Some(repair) => repair,
            None => self.start_repair(),
        };
        let polls = [self.world.roll(30), self.world.roll(100), 100_000][self.world.roll(3) as usize];
        for _ in 0..polls {
            if let Some(done) = step(&mut repair) {
                if let Ok(done) = done {
                    self.take(&done);
                }
                return;
            }
        }
        self.repair = Some(repair);
        // Cleaners that retire meanwhile are what overtakes it.
        self.clean();
    }

    fn take(&mut self, done: &Repair) {
        for segment in done.repaired.iter().chain(&done.retired) {
            self.mirror.forget_suspect(*segment);
            self.damaged.remove(segment);
        }
        for segment in &done.unneeded {
            run(self.mirror.mark_unneeded(*segment)).unwrap();
            self.damaged.remove(segment);
        }
        self.events.repaired += done.repaired.len() as u64;
        self.events.unneeded += done.unneeded.len() as u64;
        self.events.overtaken += done.report.overtaken;
    }

    /// Everything that any root shows is readable from both stores together.
    fn check(&self) -> Result<(), String> {
        self.check_by(&mut Reader::of_both(&self.world))
    }

    fn check_by(&self, reader: &mut Reader) -> Result<(), String> {
        for edge in &self.edges {
            for (pointer, version, is_head) in roots(edge) {
                check_root(reader, &pointer, version, is_head, &edge.shown)
                    .map_err(|why| format!("volume {:?}, {version}: {why}", edge.volume))?;
            }
        }
        Ok(())
    }

    /// Everything becomes idle; then what is lost is repaired until nothing is.
    fn finish(&mut self) -> Result<(), String> {
        self.cleaners.clear();
        self.repair = None;
        self.comparison = None;
        for ordinal in 0..self.edges.len() {
            self.commit(ordinal, None, None);
        }
        for round in 0.. {
            run(self.mirror.compare(&NoLocalCopies)).map_err(|error| error.to_string())?;
            if self.mirror.suspects().is_empty() && self.damaged.is_empty() {
                break;
            }
            if round > 8 {
                return Err(format!(
                    "not repaired: {:?} {:?}",
                    self.mirror.suspects(),
                    self.damaged
                ));
            }
            let done = run(self.start_repair()).map_err(|error| error.to_string())?;
            if let Some(beyond) = done.beyond.first() {
                return Err(format!("both stores together have it all, and yet: {beyond:?}"));
            }
            self.take(&done);
            self.settle();
            self.check()?;
        }
        self.check_by(&mut Reader::new(&self.world.store))
            .map_err(|why| format!("from the first store alone: {why}"))?;
        // What was retired goes from the second store, and nothing else does.
        for _ in 0..2 {
            self.world.clock.advance(KEEP);
            let compared = run(self.mirror.compare(&NoLocalCopies)).map_err(|error| error.to_string())?;
            self.events.deleted += compared.deleted;
            self.check()?;
        }
        self.settle();
        self.lose_for_good()
    }

    /// Proposals are merged, and cleaners that died are taken for dead: what is theirs may be judged.
    fn settle(&mut self) {
        for ordinal in 0..self.edges.len() {
            let prepared = self.edges[ordinal].prepare(&self.world, true, None, None);
            self.edges[ordinal].commit(prepared);
        }
        self.world.clock.advance(GRACE);
    }

    /// Some segments are lost in both stores: the repair names them, and all else is as it was.
    fn lose_for_good(&mut self) -> Result<(), String> {
        let newest: BTreeSet<SegmentId> = self
            .edges
            .iter()
            .flat_map(|edge| {
                roots(edge)
                    .into_iter()
                    .map(|(pointer, ..)| pointer.location.segment)
            })
            .collect();
        let contents = self.world.store.contents();
        // A head that cannot be read at all names nothing: that is for `recover`.
        let keys: Vec<&ObjectKey> = contents
            .keys()
            .filter(|key| segment_of(key).is_some_and(|segment| !newest.contains(&segment)))
            .collect();
        let mut gone = BTreeSet::new();
        for _ in 0..2 {
            let Some(key) = keys.get(self.world.roll(keys.len().max(1) as u64) as usize) else {
                continue;
            };
            run(self.world.store.delete(key)).unwrap();
            if let Some(copy) = self.world.second.contents().get(*key) {
                let altered = self.altered(copy);
                run(self.world.second.put(key, vec![altered], PutMode::Overwrite)).unwrap();
            }
            gone.extend(segment_of(key));
        }
        self.damaged = gone;
        // The first run may find that a cleaner is dead, and judge nothing of its.
        drop(run(self.start_repair()));
        let done = match run(self.start_repair()) {
            Ok(done) => done,
            // A snapshot's or a head's checkpoint is among it.
            Err(CleanError::Damaged(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let beyond: BTreeSet<SegmentId> = done.beyond.iter().map(|beyond| beyond.segment).collect();
        self.events.beyond += beyond.len() as u64;
        let mut reader = Reader::of_both(&self.world);
        for edge in &self.edges {
            for (pointer, version, _) in roots(edge) {
                let Ok(checkpoint) = reader.checkpoint(&pointer, version) else {
                    continue;
                };
                let shown = edge.shown.get(&version).ok_or("a version of no model")?;
                let found = reader.survey(checkpoint.inode_map, checkpoint.orphans);
                if let Some((at, _)) = found.shown.iter().find(|(at, uid)| shown.get(at) != Some(uid)) {
                    return Err(format!("{version} shows something else at {at:?}"));
                }
                if let Some(unnamed) = found.unreadable.iter().find(|segment| !beyond.contains(segment)) {
                    return Err(format!("segment {unnamed} is lost and not named: {beyond:?}"));
                }
                if found.unreadable.is_empty() && found.shown.len() != shown.len() {
                    return Err(format!("{version} lacks what nobody says is lost"));
                }
            }
        }
        Ok(())
    }
}

/// The committed roots of a volume, the head first.
fn roots(edge: &Edge) -> Vec<(Pointer, firn_format::Version, bool)> {
    let (tuple, _) = run(edge.anchor.load(edge.volume)).unwrap();
    let head = tuple.root.iter().map(|root| (root, true));
    let kept = tuple.retained.iter().map(|kept| (&kept.root, false));
    head.chain(kept)
        .map(|(root, is_head)| {
            let pointer = Pointer {
                uid: root.uid,
                location: root.location,
            };
            (pointer, root.version, is_head)
        })
        .collect()
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn what_one_store_loses_is_repaired_and_what_both_lose_is_named() {
    let first = from_environment("FIRN_CLEANER_FIRST_SEED", 1);
    let seeds = from_environment("FIRN_CLEANER_SEEDS", 150);
    let mut events = Events::default();
    let mut failed = Vec::new();
    for seed in first..first + seeds {
        let caught = std::panic::catch_unwind(|| history(seed, None));
        match caught.unwrap_or_else(|_| Err(format!("seed {seed}: an edge could not go on"))) {
            Ok(mut happened) => {
                for ((_, sum), (_, count)) in events.all().into_iter().zip(happened.all()) {
                    *sum += *count;
                }
            }
            Err(why) => failed.push(why),
        }
    }
    for why in failed.iter().take(10) {
        println!("{why}");
    }
    println!("{events:?}");
    println!("{} passed, {} failed", seeds - failed.len() as u64, failed.len());
    assert!(failed.is_empty(), "{}", failed[0]);
    if seeds >= 150 {
        for (what, count) in events.all() {
            assert!(*count >= 3, "the histories hardly ever {what}: {count}");
        }
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    let seeds = from_environment("FIRN_CLEANER_MUTANT_SEEDS", 200);
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutant in REPAIR_MUTANTS {
        let caught =
            (1..=seeds).find_map(
                |seed| match std::panic::catch_unwind(|| history(seed, Some(mutant))) {
                    Ok(Ok(_)) => None,
                    Ok(Err(why)) => Some(why),
                    Err(_) => Some(format!("seed {seed}: an edge could not go on")),
                },
            );
        match caught {
            Some(why) => println!("{mutant}: {why}"),
            None => missed.push(mutant),
        }
    }
    std::panic::set_hook(silent);
    assert!(missed.is_empty(), "not noticed in {seeds} histories: {missed:?}");
}
