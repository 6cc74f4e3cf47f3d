//! The cost of cleaning grows with the garbage, not with the volume; hardly more with many snapshots. And the bytes written for
//! a given utilisation, beside the theory of log-structured file systems. Counts only, so they are the same everywhere.
//!
//! `cargo test -p firn-cleaner --test figures -- --nocapture` prints the tables.

mod family;

use family::{Edge, World, run};
use firn_cleaner::{Limits, Report, clean_once, plan};
use firn_format::{Place, SegmentId, VolumeId};
use firn_store::ProviderPrices;
use std::time::Duration;

const SEGMENT_BYTES: usize = 16 << 10;
const BLOCK_BYTES: usize = 1000;

struct Bench {
    world: World,
    edge: Edge,
    limits: Limits,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let edge = Edge::create(&world, VolumeId([1; 16]), 1, SEGMENT_BYTES);
        let limits = Limits {
            segment_bytes: SEGMENT_BYTES,
            judged_segments: 100_000,
            batches: 1000,
            list_pages: 100,
            ..Limits::default()
        };
        Self { world, edge, limits }
    }

    fn write(&mut self, inode: u64, blocks: impl Iterator<Item = u64>) {
        for index in blocks {
            self.edge.write(inode, index, BLOCK_BYTES);
        }
    }

    /// Commits what was written, having merged what was proposed.
    fn commit(&mut self, snapshot: Option<u64>) {
        let prepared = self.edge.prepare(&self.world, true, snapshot, None);
        self.edge.commit(prepared);
        self.world.clock.advance(Duration::from_secs(30));
    }

    fn clean(&mut self) -> Report {
        let store = self.world.gate();
        let anchor = self.world.anchor();
        let report = run(clean_once(&self.world.env, store, &anchor, &self.limits)).unwrap();
        assert!(
            report.damaged.is_empty() && report.foreign.count == 0,
            "{report:?}"
        );
        report
    }

    /// Bytes of segments that were not retired.
    fn stored_bytes(&self) -> u64 {
        let doomed = run(self.world.anchor().list_doomed(None, usize::MAX)).unwrap();
        let doomed: std::collections::BTreeSet<SegmentId> =
            doomed.into_iter().map(|doomed| doomed.segment).collect();
        let contents = self.world.store.contents();
        let live = contents.iter().filter(|(key, _)| {
            SegmentId::parse_key(key.as_str()).is_some_and(|(_, segment)| !doomed.contains(&segment))
        });
        live.map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// The same garbage beside so many times the live data: what one run takes.
fn with_live_data(times: u64) -> Report {
    let mut bench = Bench::new(5);
    bench.write(100, 0..times * 512);
    bench.commit(None);
    for _ in 0..3 {
        bench.write(16, 0..512);
        bench.commit(None);
    }
    let plan = {
        let (store, anchor) = (bench.world.gate(), bench.world.anchor());
        run(plan(&bench.world.env, store, &anchor, &bench.limits)).unwrap()
    };
    let report = bench.clean();
    assert_eq!(
        plan.victims, report.retired_segments,
        "the plan is what happens, {plan:?}"
    );
    assert!(plan.freed_bytes >= 2 * 512 * BLOCK_BYTES as u64);
    report
}

#[test]
fn the_cost_grows_with_the_garbage_and_not_with_the_volume() {
    let (one, fifty) = (with_live_data(1), with_live_data(50));
    let book = ProviderPrices::named("s3-us-east-1").unwrap();
    println!("live data   retired   requests   bytes read   bytes written   money per GiB reclaimed");
    for (name, report) in [("1x", &one), ("50x", &fifty)] {
        let reclaimed = report.retired_bytes - report.written_bytes;
        let money = report.cost(book).0 as f64 / 1e9 * (1u64 << 30) as f64 / reclaimed as f64;
        println!(
            "{name:>9} {:>9} {:>10} {:>12} {:>15}   ${money:.4} (segments of {} KiB)",
            report.retired_segments,
            report.usage.requests(),
            report.usage.bytes_down,
            report.usage.bytes_up,
            SEGMENT_BYTES >> 10
        );
    }
    assert!(one.retired_segments > 60);
    let ratio = |left: u64, right: u64| left as f64 / right as f64;
    let requests = ratio(fifty.usage.requests(), one.usage.requests());
    let bytes = ratio(
        fifty.usage.bytes_down + fifty.usage.bytes_up,
        one.usage.bytes_down + one.usage.bytes_up,
    );
    println!("ratio: requests {requests:.2}, bytes {bytes:.2}");
    assert!(requests <= 1.5, "requests grow with the volume: {requests:.2}");
    assert!(bytes <= 1.5, "bytes grow with the volume: {bytes:.2}");
}

/// A file of 64 blocks, a few of which change in each of 500 versions.
fn hot_file(snapshots: bool) -> Report {
    let mut bench = Bench::new(6);
    bench.write(16, 0..64);
    bench.commit(None);
    for version in 0..500u64 {
        bench.write(16, (0..4).map(|block| (version * 7 + block * 5) % 64));
        bench.commit(snapshots.then_some(version));
    }
    // Looked at although the snapshots hold it.
    bench.edge.lies = 1;
    bench.commit(None);
    bench.clean()
}

#[test]
fn five_hundred_snapshots_hardly_make_a_lookup_dearer() {
    let (none, many) = (hot_file(false), hot_file(true));
    println!("snapshots   objects   lookups an object   fetches an object   moved");
    let per_object = |count: u64, report: &Report| count as f64 / report.judged_objects as f64;
    for (name, report) in [("none", &none), ("500", &many)] {
        println!(
            "{name:>9} {:>9} {:>19.2} {:>19.2} {:>7}",
            report.judged_objects,
            per_object(report.lookups, report),
            per_object(report.lookup_fetches, report),
            report.moved_objects
        );
    }
    assert!(none.judged_objects > 1000 && many.judged_objects > 1000);
    let ratio = per_object(many.lookups, &many) / per_object(none.lookups, &none);
    println!("ratio of lookups: {ratio:.2}");
    assert!(
        ratio <= 2.0,
        "lookups an object grow with the snapshots: {ratio:.2}"
    );
}

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Uniform,
    Hot,
    Sequential,
}

/// Overwrites a file of 512 blocks six times over and cleans after every 64 blocks: utilisation, and bytes written in all for a
/// byte of the user's.
fn overwrite(pattern: Pattern, free_per_mille: u64) -> (f64, f64) {
    const BLOCKS: u64 = 512;
    let mut bench = Bench::new(7);
    bench.limits.free_per_mille = free_per_mille;
    bench.write(16, 0..BLOCKS);
    bench.commit(None);
    let (mut moved, mut user, mut next) = (0, 0, 0);
    let (mut utilisation, mut samples) = (0.0, 0u32);
    for round in 0..48 {
        let chosen: Vec<u64> = (0..64)
            .map(|_| match pattern {
                Pattern::Uniform => bench.world.roll(BLOCKS),
                Pattern::Hot if bench.world.chance(90) => bench.world.roll(BLOCKS / 10),
                Pattern::Hot => bench.world.roll(BLOCKS),
                Pattern::Sequential => {
                    next += 1;
                    next % BLOCKS
                }
            })
            .collect();
        bench.write(16, chosen.into_iter());
        let blocks: u64 = bench.edge.dirty.values().map(|blocks| blocks.len() as u64).sum();
        bench.commit(None);
        let report = bench.clean();
        if round >= 16 {
            user += blocks * BLOCK_BYTES as u64;
            moved += report.moved_data_bytes;
            utilisation += (BLOCKS * BLOCK_BYTES as u64) as f64 / bench.stored_bytes() as f64;
            samples += 1;
        }
    }
    let amplification = (user + moved) as f64 / user as f64;
    (utilisation / f64::from(samples), amplification)
}

/// The write amplification that theory gives a log of which `utilisation` is live under uniform overwrites, cleaned oldest or
/// emptiest first: 1 / (1 − u) where u, the live part of a segment when it is cleaned, solves utilisation = (u − 1) / ln u
/// (Rosenblum and Ousterhout 1992; Desnoyers 2012).
fn theory(utilisation: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if (middle - 1.0) / f64::ln(middle) < utilisation {
            low = middle;
        } else {
            high = middle;
        }
    }
    1.0 / (1.0 - low)
}

#[test]
fn what_is_written_for_a_utilisation_stands_up_to_theory() {
    let mut written = Vec::new();
    println!("pattern      free at least   utilisation   written a byte   theory (uniform, greedy)");
    for free_per_mille in [400, 600] {
        for (name, pattern) in [
            ("uniform", Pattern::Uniform),
            ("90/10", Pattern::Hot),
            ("sequential", Pattern::Sequential),
        ] {
            let (utilisation, amplification) = overwrite(pattern, free_per_mille);
            written.push(amplification);
            let expected = theory(utilisation);
            println!(
                "{name:<12} {:>11} % {:>11.0} % {amplification:>16.2} {expected:>16.2}",
                free_per_mille / 10,
                utilisation * 100.0
            );
            assert!(utilisation > 0.3, "{name}: {utilisation:.2} of the log is live");
            // A segment is moved out of when so much of it is free, so theory's 1 / (1 - u) bounds what is written.
            let bound = 1000.0 / free_per_mille as f64;
            assert!(
                amplification <= bound,
                "{name}: {amplification:.2} written a byte, at most {bound:.2} by theory"
            );
        }
    }
    assert!(
        written[2] < 1.1 && written[5] < 1.1,
        "sequential overwrites leave whole segments free: {written:?}"
    );
    assert!(
        written[3] < written[0],
        "waiting for more garbage moves less: {written:?}"
    );
}

/// A file that is scattered over many segments lies together after it was moved.
#[test]
fn what_is_moved_lies_in_the_order_of_its_file() {
    let mut bench = Bench::new(8);
    for block in 0..64u64 {
        let block = (block * 29) % 64;
        bench.write(16, block..=block);
        bench.write(17, (0..6).map(|other| (block * 6 + other) % 64));
        bench.commit(None);
    }
    let before = side_by_side(&bench);
    bench.clean();
    bench.commit(None);
    let after = side_by_side(&bench);
    println!("of 63 neighbours, {before} lay side by side, {after} do now");
    assert!(before < 5 && after >= 25, "{before} before, {after} after");
}

/// Neighbouring blocks of file 16 of which the second begins where the first ends.
fn side_by_side(bench: &Bench) -> usize {
    let mut reader = family::Reader::new(&bench.world.store);
    let inode_map = bench.edge.trees.inode_map.unwrap();
    let inodes = reader.leaves(0, &inode_map).unwrap();
    let (_, pointer) = inodes.iter().find(|(number, _)| *number == 16).unwrap();
    let inode = reader.read(pointer, Place::of_inode(16)).unwrap();
    let tree = firn_format::TreeRoot {
        pointer: inode.header.children[0].pointer,
        level: 1,
    };
    let mut leaves = reader.leaves(16, &tree).unwrap();
    leaves.sort_by_key(|(index, _)| *index);
    let neighbours = leaves.windows(2).filter(|pair| {
        let (left, right) = (pair[0].1.location, pair[1].1.location);
        left.segment == right.segment && left.end() == u64::from(right.offset)
    });
    neighbours.count()
}

/// Sixty runs with usage maps of this kind: requests, lookups, bytes left.
fn cleaned_by(lies: u64) -> (u64, u64, u64) {
    let mut bench = Bench::new(9);
    bench.edge.lies = lies;
    bench.write(100, 0..512);
    bench.write(16, 0..256);
    bench.commit(None);
    // Half of each segment of one file becomes garbage.
    bench.write(16, (0..256).filter(|block| block % 2 == 0));
    bench.commit(None);
    let (mut requests, mut lookups) = (0, 0);
    for run in 0..60 {
        let report = bench.clean();
        requests += report.usage.requests();
        lookups += report.lookups;
        if run % 10 == 0 {
            bench.commit(None);
        }
    }
    (requests, lookups, bench.stored_bytes())
}

#[test]
fn a_usage_map_full_of_lies_changes_what_cleaning_costs_and_nothing_else() {
    println!("usage map      requests   lookups   bytes left");
    let maps = [(0, "right"), (1, "all zero"), (2, "three times"), (3, "none")];
    let [right, zero, much, none] = maps.map(|(lies, name)| {
        let (requests, lookups, left) = cleaned_by(lies);
        println!("{name:<12} {requests:>10} {lookups:>9} {left:>12}");
        (requests, lookups, left)
    });
    for lied in [zero, much, none] {
        assert!(
            lied.2 * 100 <= right.2 * 103,
            "garbage stays for ever behind a lie: {lied:?}, {right:?}"
        );
    }
    for lied in [zero, none] {
        assert!(
            lied.0 > 2 * right.0,
            "a right map is what makes cleaning cheap: {lied:?}, {right:?}"
        );
    }
}
