//! Audits held against their own word: of stores that lose or alter so much, the share of audits that notice it is the probability
//! that they print; planted bugs make the two differ; and nothing is ever found where volume and cleaners go on meanwhile.
//!
//! `cargo test -p firn-cleaner --test audit -- --nocapture` prints the rates.

#[path = "../family/mod.rs"]
mod family;
mod rounds;

use async_trait::async_trait;
use bytes::Bytes;
use family::{Edge, Reader, World, run, step};
use firn_cleaner::{AuditProgress, AuditReport, AuditRequest, CleanError, Limits, audit, clean_once};
use firn_env::mutants::planting;
use firn_format::{Location, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot, Uid, VolumeId};
use firn_quantity::Money;
use firn_store::{
    ListPage, MemoryStore, ObjectInfo, ObjectKey, ProviderPrices, PutMode, Route, Store, StoreError,
};
use futures::future::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const SEGMENT_BYTES: usize = 16 << 10;
/// Audits of a volume that goes on meanwhile.
const SEEDS: u64 = 25;
const VOLUME: VolumeId = VolumeId([1; 16]);

/// A store that shows everything in listings, and does not have some segments, nor all bytes of others, when they are read.
struct Lossy {
    inner: Arc<MemoryStore>,
    lost: BTreeSet<SegmentId>,
    /// Offsets of bytes that are altered.
    altered: BTreeMap<ObjectKey, BTreeSet<u64>>,
}

impl Lossy {
    fn is_lost(&self, key: &ObjectKey) -> bool {
        SegmentId::parse_key(key.as_str()).is_some_and(|(_, segment)| self.lost.contains(&segment))
    }

    fn read(&self, key: &ObjectKey, offset: u64, bytes: Bytes) -> Result<Bytes, StoreError> {
        if self.is_lost(key) {
            return Err(StoreError::NotFound { key: key.clone() });
        }
        let Some(altered) = self.altered.get(key) else {
            return Ok(bytes);
        };
        let mut bytes = bytes.to_vec();
        let end = offset + bytes.len() as u64;
        for at in altered.range(offset..end) {
            bytes[(at - offset) as usize] ^= 0x40;
        }
        Ok(bytes.into())
    }
}

#[async_trait]
impl Store for Lossy {
    async fn put(&self, _: &ObjectKey, _: Vec<Bytes>, _: PutMode) -> Result<(), StoreError> {
        unreachable!("an audit puts nothing")
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.read(key, 0, self.inner.get(key).await?)
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.read(key, offset, self.inner.get_range(key, offset, length).await?)
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        match self.is_lost(key) {
            true => Err(StoreError::NotFound { key: key.clone() }),
            false => self.inner.head(key).await,
        }
    }

    async fn delete(&self, _: &ObjectKey) -> Result<(), StoreError> {
        unreachable!("an audit deletes nothing")
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.inner.list(prefix, after).await
    }
}

/// Something the roots need.
#[derive(Clone, Copy)]
struct Needed {
    location: Location,
    place: Place,
    is_in_head: bool,
}

/// A volume of some files with two snapshots, and all that its roots need.
struct Archive {
    world: World,
    edge: Edge,
    data: Vec<Needed>,
    nodes: Vec<Needed>,
}

fn commit(world: &World, edge: &mut Edge, snapshot: Option<u64>) {
    let prepared = edge.prepare(world, true, snapshot, None);
    edge.commit(prepared);
}

fn archive(seed: u64) -> Archive {
    let world = World::new(seed);
    let mut edge = Edge::create(&world, VOLUME, 1, SEGMENT_BYTES);
    let write = |edge: &mut Edge, inode: u64, blocks: std::ops::Range<u64>| {
        for index in blocks {
            let bytes = 200 + world.roll(1300) as usize;
            edge.write(inode, index, bytes);
        }
    };
    write(&mut edge, 16, 0..300);
    write(&mut edge, 17, 0..100);
    write(&mut edge, 18, 20_000..20_060);
    write(&mut edge, 19, 0..1);
    commit(&world, &mut edge, Some(1));
    write(&mut edge, 16, 40..100);
    edge.remove(2, false);
    commit(&world, &mut edge, Some(2));
    write(&mut edge, 16, 250..330);
    write(&mut edge, 17, 0..30);
    commit(&world, &mut edge, None);
    held(world, edge)
}

fn held(world: World, edge: Edge) -> Archive {
    let mut found: BTreeMap<Uid, Needed> = BTreeMap::new();
    let mut roots = vec![(edge.trees.inode_map, edge.trees.orphans, true)];
    let kept = edge.snapshots.iter();
    roots.extend(kept.map(|snapshot| (Some(snapshot.inode_map), snapshot.orphans, false)));
    let mut reader = Reader::new(&world.store);
    for (inode_map, orphans, is_in_head) in roots {
        for (inode, root) in [(0, inode_map), (ORPHAN_MAP, orphans)] {
            if let Some(root) = root {
                needed(&mut reader, inode, root, is_in_head, &mut found);
            }
        }
    }
    let (data, nodes) = found
        .into_values()
        .partition(|needed| needed.place.inode >= 16 && needed.place.level == 0);
    Archive {
        world,
        edge,
        data,
        nodes,
    }
}

/// Adds what a tree needs, itself included.
fn needed(
    reader: &mut Reader,
    inode: u64,
    root: TreeRoot,
    is_in_head: bool,
    found: &mut BTreeMap<Uid, Needed>,
) {
    let mut open: Vec<(Pointer, Place)> = vec![(
        root.pointer,
        Place {
            inode,
            level: root.level,
            index: 0,
        },
    )];
    while let Some((pointer, place)) = open.pop() {
        found.entry(pointer.uid).or_insert(Needed {
            location: pointer.location,
            place,
            is_in_head,
        });
        if place.level == 0 && place.inode >= 16 {
            continue;
        }
        let object = reader.read(&pointer, place).expect("what was committed");
        for child in &object.header.children {
            let below = match place.level {
                0 => Place {
                    inode: place.index,
                    level: object.header.plain[0],
                    index: 0,
                },
                level => Place {
                    inode: place.inode,
                    level: level - 1,
                    index: place.index * 128 + u64::from(child.slot),
                },
            };
            open.push((child.pointer, below));
        }
    }
}

fn request(challenges: u32) -> AuditRequest {
    let prices = ProviderPrices::named("s3-us-east-1").expect("a book").clone();
    AuditRequest {
        volume: None,
        challenges,
        budget: Money::parse("1").expect("a dollar"),
        prices,
        route: Route::Internet,
        seed: None,
        second: None,
        from: Default::default(),
    }
}

impl Archive {
    fn whole(&self) -> Lossy {
        Lossy {
            inner: self.world.store.clone(),
            lost: BTreeSet::new(),
            altered: BTreeMap::new(),
        }
    }

    fn audit(&self, store: Lossy, challenges: u32) -> Result<AuditReport, CleanError> {
        let (env, anchor, progress) = (&self.world.env, self.world.anchor(), AuditProgress::default());
        run(audit(
            env,
            Arc::new(store),
            &anchor,
            &request(challenges),
            &progress,
        ))
    }

    fn data_bytes(&self) -> u64 {
        self.data.iter().map(|one| u64::from(one.location.length)).sum()
    }

    /// Alters one byte of the object.
    fn alter(&self, store: &mut Lossy, one: &Needed) {
        let Location {
            segment,
            offset,
            length,
        } = one.location;
        let at = u64::from(offset) + self.world.roll(u64::from(length));
        let key = ObjectKey::new(&segment.key(&family::world::FAMILY));
        store.altered.entry(key).or_default().insert(at);
    }
}

/// Which bytes a store loses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Losses {
    /// Of data, here and there.
    Scattered,
    /// Neighbours in one file.
    OneFile,
    /// What only snapshots need.
    Old,
    /// What was written last.
    New,
    /// Whole segments, and with them what else lies there.
    Segments,
    /// One node or inode.
    OneNode,
}

/// Of so many audits of stores that lost about this share of the data: how many noticed, and how many should have, with the
/// standard deviation.
fn noticed(archive: &Archive, losses: Losses, per_mille: u64, runs: u64) -> (f64, f64, f64) {
    let (mut noticed, mut expected, mut variance) = (0.0, 0.0, 0.0);
    for _ in 0..runs {
        let mut store = archive.whole();
        let share = damage(archive, &mut store, losses, per_mille);
        let is_found = match archive.audit(store, 100) {
            Ok(report) => {
                let [volume] = &report.volumes[..] else {
                    panic!("one volume: {report:?}")
                };
                assert!(volume.is_complete, "{report:?}");
                let probability = match losses {
                    Losses::OneNode => 1.0,
                    _ => volume.probability(share),
                };
                expected += probability;
                variance += probability * (1.0 - probability);
                !report.is_intact()
            }
            // A head that is gone.
            Err(CleanError::Damaged(_)) => {
                expected += 1.0;
                true
            }
            Err(error) => panic!("{error}"),
        };
        noticed += f64::from(u8::from(is_found));
    }
    (noticed, expected, variance.sqrt())
}

/// Damages the store; answers the share of the data's bytes that cannot be read.
fn damage(archive: &Archive, store: &mut Lossy, losses: Losses, per_mille: u64) -> f64 {
    let roll = |sides: usize| archive.world.roll(sides as u64) as usize;
    let wanted = archive.data_bytes() * per_mille / 1000;
    let mut candidates: Vec<Needed> = archive.data.clone();
    match losses {
        Losses::OneNode => {
            archive.alter(store, &archive.nodes[roll(archive.nodes.len())]);
            return 0.0;
        }
        Losses::Segments => {
            let mut lost_bytes = 0;
            while lost_bytes < wanted {
                let drawn = candidates[roll(candidates.len())].location.segment;
                store.lost.insert(drawn);
                let lost = archive
                    .data
                    .iter()
                    .filter(|one| store.lost.contains(&one.location.segment));
                lost_bytes = lost.map(|one| u64::from(one.location.length)).sum();
            }
            return lost_bytes as f64 / archive.data_bytes() as f64;
        }
        Losses::Scattered => {
            for last in (1..candidates.len()).rev() {
                candidates.swap(last, roll(last + 1));
            }
        }
        Losses::OneFile => {
            candidates.retain(|one| one.place.inode == 16);
            candidates.sort_by_key(|one| one.place.index);
            let first = roll(candidates.len());
            candidates.rotate_left(first);
        }
        Losses::Old => candidates.retain(|one| !one.is_in_head),
        Losses::New => candidates.sort_by_key(|one| std::cmp::Reverse(one.location)),
    }
    let mut lost_bytes = 0;
    for one in candidates {
        if lost_bytes >= wanted {
            break;
        }
        archive.alter(store, &one);
        lost_bytes += u64::from(one.location.length);
    }
    lost_bytes as f64 / archive.data_bytes() as f64
}

/// Whether the audits that noticed are as many as they said.
fn is_as_told(archive: &Archive, losses: Losses, per_mille: u64, runs: u64) -> bool {
    let (noticed, expected, deviation) = noticed(archive, losses, per_mille, runs);
    println!(
        "{losses:?}, {} %: {:.1} % of {runs} audits noticed, {:.1} % by their own word",
        per_mille as f64 / 10.0,
        100.0 * noticed / runs as f64,
        100.0 * expected / runs as f64
    );
    let is_enough = noticed >= expected - 4.5 * deviation;
    // Whoever loses a segment loses nodes, too, and these are found for certain.
    is_enough && (losses == Losses::Segments || noticed <= expected + 4.5 * deviation)
}

fn all_as_told(losses: Losses) {
    let archive = archive(7);
    for per_mille in [1, 10, 50] {
        assert!(
            is_as_told(&archive, losses, per_mille, 1000),
            "{losses:?} {per_mille}"
        );
    }
}

#[test]
fn scattered_damage_is_noticed_as_often_as_is_told() {
    all_as_told(Losses::Scattered);
}

#[test]
fn damage_of_one_file_is_noticed_as_often_as_is_told() {
    all_as_told(Losses::OneFile);
}

#[test]
fn damage_of_what_only_snapshots_need_is_noticed_as_often_as_is_told() {
    all_as_told(Losses::Old);
}

#[test]
fn damage_of_what_was_just_written_is_noticed_as_often_as_is_told() {
    all_as_told(Losses::New);
}

#[test]
fn lost_segments_are_noticed_at_least_as_often_as_is_told() {
    all_as_told(Losses::Segments);
}

#[test]
fn one_altered_node_is_always_noticed() {
    assert!(is_as_told(&archive(7), Losses::OneNode, 0, 1000));
}

#[test]
fn planted_bugs_make_audits_say_more_than_they_find() {
    let archive = archive(7);
    let mutants = [
        // Slots keep the first data they meet.
        ("cleaner.audit_draws_once", Losses::Scattered),
        // An object that is there counts as right.
        ("cleaner.audit_believes_presence", Losses::Scattered),
        // What only snapshots need is not gone through.
        ("cleaner.audit_without_snapshots", Losses::Old),
        // What cannot be read is taken for what nobody needs any more.
        ("cleaner.audit_takes_lost_for_released", Losses::Scattered),
        // Nodes that cannot be read are passed by.
        ("cleaner.audit_skips_lost_nodes", Losses::OneNode),
    ];
    for (mutant, losses) in mutants {
        assert!(is_as_told(&archive, losses, 50, 200), "without {mutant}");
        let is_as_told = planting(Some(mutant), || is_as_told(&archive, losses, 50, 200));
        assert!(!is_as_told, "{mutant} went unnoticed");
    }
}

#[test]
fn each_byte_that_roots_need_is_counted_once() {
    let archive = archive(3);
    let report = archive.audit(archive.whole(), 50).expect("a report");
    let volume = &report.volumes[0];
    assert!(report.is_intact() && report.is_complete(), "{report:?}");
    assert_eq!(volume.data_objects, archive.data.len() as u64);
    assert_eq!(volume.data_bytes, archive.data_bytes());
    assert_eq!((volume.retained_roots, volume.walked_roots), (2, 2));
    assert_eq!((volume.answered(), volume.intact), (50, 50));
    // The usage map is no part of what was collected.
    assert!(volume.read_objects >= archive.nodes.len() as u64);
    assert_eq!(volume.version, archive.edge.version.0);
    // One for each challenge, one for the checkpoint, and at most one for each node and inode.
    let requests = report.usage.requests();
    assert!(
        requests <= 51 + volume.read_objects,
        "{requests} requests: {report:?}"
    );
}

#[test]
fn whoever_has_the_seed_draws_the_same_again() {
    let archive = archive(6);
    let with = |seed: Option<[u8; 32]>| {
        let (env, anchor) = (&archive.world.env, archive.world.anchor());
        let request = AuditRequest { seed, ..request(100) };
        let store = Arc::new(archive.whole());
        let mut report =
            run(audit(env, store, &anchor, &request, &AuditProgress::default())).expect("a report");
        report.volumes.remove(0)
    };
    let first = with(None);
    let seed = firn_ids::parse_hex(&first.seed).expect("64 digits");
    let again = with(Some(seed));
    assert_eq!((&again.seed, &again.drawn), (&first.seed, &first.drawn));
    assert_eq!(first.drawn.len(), 64);
    // Each audit has a seed of its own, and another one draws otherwise.
    let other = with(None);
    assert_ne!(other.seed, first.seed);
    assert_ne!(other.drawn, first.drawn);
}

#[test]
fn a_lost_segment_is_named_and_so_is_what_lay_in_it() {
    let archive = archive(4);
    let mut store = archive.whole();
    let victim = archive.data[0].location.segment;
    store.lost.insert(victim);
    let report = archive.audit(store, 2000).expect("a report");
    let volume = &report.volumes[0];
    assert!(!report.is_intact());
    assert_eq!(volume.lost_segments, [victim.to_string()]);
    let named = volume
        .damaged
        .iter()
        .any(|file| file.detail.contains(&victim.to_string()));
    assert!(named, "{volume:?}");
}

#[test]
fn money_that_is_not_enough_ends_an_audit_which_says_so() {
    let archive = archive(5);
    let (env, anchor) = (&archive.world.env, archive.world.anchor());
    let with = |budget: &str| {
        let request = AuditRequest {
            budget: Money::parse(budget).expect("money"),
            ..request(1000)
        };
        let store = Arc::new(archive.whole());
        run(audit(env, store, &anchor, &request, &AuditProgress::default())).expect("a report")
    };
    let full = with("1");
    assert!(full.is_complete());
    for budget in ["0", "0.0001", "0.0004"] {
        let report = with(budget);
        assert!(!report.is_complete(), "{budget}: {report:?}");
        let volume = &report.volumes[0];
        assert!(volume.answered() < 1000, "{report:?}");
        assert!(volume.probability(0.01) < full.volumes[0].probability(0.01));
        // Roots are read before anything can be counted.
        let roots = Money::parse("0.000003").expect("money");
        let limit = Money::parse(budget).expect("money").saturating_plus(roots);
        assert!(report.cost <= limit, "{budget}: {}", report.cost);
    }
}

/// One audit during which the volume and a cleaner go on. Answers released draws and moved nodes.
fn audited_meanwhile(seed: u64) -> (u64, u64) {
    let world = World::new(seed);
    let mut edge = Edge::create(&world, VOLUME, 1, SEGMENT_BYTES);
    let write = |edge: &mut Edge, most: u64| {
        for _ in 0..world.roll(most) + 1 {
            let (file, index) = (16 + world.roll(4), world.roll(400));
            edge.write(file, index, 200 + world.roll(1000) as usize);
        }
    };
    for round in 0..3 {
        write(&mut edge, 300);
        commit(&world, &mut edge, (round == 1).then_some(round));
    }
    let limits = Limits {
        // Without any grace: what is retired is deleted by the next run.
        grace: Duration::ZERO,
        segment_bytes: SEGMENT_BYTES,
        ..Limits::default()
    };
    let (env, anchor, progress, request) = (
        world.env.clone(),
        world.anchor(),
        AuditProgress::default(),
        request(200),
    );
    let mut auditing: BoxFuture<'_, _> = Box::pin(audit(&env, world.gate(), &anchor, &request, &progress));
    let mut next_snapshot = 10;
    let report = loop {
        if let Some(report) = step(&mut auditing) {
            break report;
        }
        if world.chance(92) {
            continue;
        }
        if world.chance(60) {
            write(&mut edge, 120);
            let drop = world
                .chance(30)
                .then(|| edge.snapshots.first().map(|first| first.id))
                .flatten();
            let prepared = edge.prepare(
                &world,
                world.chance(80),
                world.chance(30).then_some(next_snapshot),
                drop,
            );
            next_snapshot += 1;
            edge.commit(prepared);
        } else {
            world.clock.advance(Duration::from_secs(100));
            run(clean_once(&world.env, world.gate(), &world.anchor(), &limits)).expect("a clean run");
        }
    };
    drop(auditing);
    let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(report.is_intact(), "seed {seed}: a false alarm: {report:?}");
    let volume = &report.volumes[0];
    assert!(volume.is_complete || volume.moved > 0, "seed {seed}: {report:?}");
    (volume.released, volume.moved)
}

#[test]
fn a_volume_and_cleaners_that_go_on_meanwhile_are_no_damage() {
    let (mut released, mut moved) = (0, 0);
    for seed in 0..SEEDS {
        let (one, other) = audited_meanwhile(seed);
        released += one;
        moved += other;
    }
    println!("{SEEDS} audits: {released} draws released meanwhile, {moved} nodes moved meanwhile");
    assert!(
        released > 0,
        "nothing was deleted under an audit, so this shows nothing"
    );
}
