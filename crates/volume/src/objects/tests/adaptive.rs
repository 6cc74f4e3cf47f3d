//! The adaptive policy against both fixed ones, in virtual time over a store with latency: a cold walk must take about as
//! long as with whole segments, random reads must cost about as much as exact ones.

use super::{CACHE, FAMILY, build, key, keys, place};
use crate::objects::{FetchPolicy, FetchPrices, Objects, ObjectsConfig};
use firn_env::sim::{Seeded, Simulation};
use firn_format::Pointer;
use firn_store::{FaultConfig, Faults, Faulty, MemoryStore, Metered, PutMode, Store, Usage};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SEGMENTS: u64 = 12;

/// About 4 MiB of files as a checkpoint packs them: a few blocks of each file, then a small inode.
fn lengths() -> Vec<usize> {
    let mut random = Seeded::new(5, 0);
    let mut lengths = Vec::new();
    let mut total = 0;
    while total < 4 << 20 {
        for _ in 0..random.between(1, 4) {
            lengths.push(random.between(2000, 32_768) as usize);
        }
        lengths.push(300);
        total = lengths.iter().sum();
    }
    lengths
}

/// A reader, one object at a time: which objects, in which order.
type Order = Box<dyn Fn(&mut Seeded, usize) -> Vec<usize> + Send>;

#[derive(Debug)]
struct Outcome {
    took: Duration,
    usage: Usage,
    nanodollars: f64,
}

fn run(policy: FetchPolicy, order: Order, latency_ms: u64, at_once: usize) -> Outcome {
    let simulation = Simulation::new(1);
    let machine = simulation.machine("edge");
    let env = machine.env();
    let controller = simulation.env();
    simulation
        .run(async move {
            let memory = Arc::new(MemoryStore::new(&controller));
            let lengths = lengths();
            let mut pointers: Vec<Pointer> = Vec::new();
            for sequence in 0..SEGMENTS {
                let (parts, built) = build(sequence, sequence * lengths.len() as u64, &lengths);
                memory
                    .put(&key(sequence), parts, PutMode::Create)
                    .await
                    .expect("stored");
                pointers.extend(built);
            }
            let faults = Faults {
                latency_ms,
                down_bits_per_second: Some(1_000_000_000),
                ..Faults::default()
            };
            let config = FaultConfig {
                seed: 1,
                faults,
                ..FaultConfig::default()
            };
            let far = Arc::new(Faulty::new(&controller, memory, config).expect("a configuration"));
            let store = Arc::new(Metered::new(far));
            let config = ObjectsConfig {
                fetch: policy,
                ..ObjectsConfig::default()
            };
            let objects = Objects::open(&env, store.clone(), FAMILY, keys(), CACHE, config)
                .await
                .expect("opens");
            let indices = order(&mut Seeded::new(9, 0), pointers.len());
            let started = env.now();
            for group in indices.chunks(at_once) {
                let reads = group
                    .iter()
                    .map(|index| objects.get(&pointers[*index], place(*index as u64)));
                for object in futures::future::join_all(reads).await {
                    object.expect("readable");
                }
            }
            let took = env.now().since(started);
            // Prefetching goes on for a moment.
            env.sleep(Duration::from_secs(2)).await;
            let usage = store.usage();
            let prices = FetchPrices::default();
            let nanodollars = (usage.gets + usage.ranged_gets) as f64 * prices.get_nanodollars
                + usage.bytes_down as f64 * prices.byte_nanodollars;
            Outcome {
                took,
                usage,
                nanodollars,
            }
        })
        .expect("the simulation runs")
}

fn walk() -> Order {
    Box::new(|_, count| (0..count).collect())
}

/// As `walk`, but each file's inode is read before its blocks, and one file in eight is left out.
fn walk_by_inode() -> Order {
    Box::new(|random, count| {
        let lengths = lengths();
        let mut order = Vec::new();
        let mut file = Vec::new();
        for index in 0..count {
            if lengths[index % lengths.len()] == 300 {
                if !random.chance(1, 8) {
                    order.push(index);
                    order.append(&mut file);
                }
                file.clear();
            } else {
                file.push(index);
            }
        }
        order
    })
}

/// Whole files in random order: each inode, then its blocks at once.
fn random_files(files: usize) -> Order {
    Box::new(move |random, count| {
        let lengths = lengths();
        let mut all: Vec<Vec<usize>> = Vec::new();
        let mut file = Vec::new();
        for index in 0..count {
            file.push(index);
            if lengths[index % lengths.len()] == 300 {
                all.push(std::mem::take(&mut file));
            }
        }
        let mut seen = BTreeSet::new();
        let draws = std::iter::repeat_with(|| random.index(all.len()));
        draws
            .filter(|index| seen.insert(*index))
            .take(files)
            .flat_map(|index| all[index].clone())
            .collect()
    })
}

fn random(reads: usize) -> Order {
    Box::new(move |random, count| {
        let mut seen = BTreeSet::new();
        let all = std::iter::repeat_with(|| random.index(count));
        all.filter(|index| seen.insert(*index)).take(reads).collect()
    })
}

fn compare(name: &str, order: impl Fn() -> Order, latency_ms: u64, at_once: usize) -> [Outcome; 3] {
    let policies = [
        FetchPolicy::Exact,
        FetchPolicy::FullSegment,
        FetchPolicy::Adaptive,
    ];
    policies.map(|policy| {
        let outcome = run(policy, order(), latency_ms, at_once);
        println!(
            "{name:<24} {latency_ms} ms x{at_once} {:<12} {:>7} ms {:>5} GETs {:>10} bytes {:>9.0} µ$",
            format!("{policy:?}"),
            outcome.took.as_millis(),
            outcome.usage.gets + outcome.usage.ranged_gets,
            outcome.usage.bytes_down,
            outcome.nanodollars / 1000.0
        );
        outcome
    })
}

#[test]
fn a_cold_walk_takes_about_as_long_as_with_whole_segments() {
    for (order, latency_ms, at_once) in [
        (walk as fn() -> Order, 12, 1),
        (walk, 30, 8),
        (walk_by_inode, 30, 4),
    ] {
        let [exact, full, adaptive] = compare("walk", order, latency_ms, at_once);
        assert!(
            adaptive.took < full.took.mul_f64(1.5),
            "{adaptive:?} against {full:?}"
        );
        assert!(adaptive.took < exact.took / 4, "{adaptive:?} against {exact:?}");
    }
}

#[test]
fn random_reads_cost_about_as_much_as_exact_ones() {
    for (latency_ms, at_once) in [(12, 1), (30, 1), (30, 4)] {
        let [exact, full, adaptive] = compare("random", || random(300), latency_ms, at_once);
        assert!(
            adaptive.nanodollars < 1.2 * exact.nanodollars,
            "{adaptive:?} against {exact:?}"
        );
        assert!(
            adaptive.nanodollars < full.nanodollars,
            "{adaptive:?} against {full:?}"
        );
    }
}

#[test]
fn random_files_cost_about_as_much_as_exact_reads_and_take_less_time() {
    for (latency_ms, at_once) in [(12, 1), (30, 1)] {
        let [exact, _, adaptive] = compare("random files", || random_files(150), latency_ms, at_once);
        assert!(
            adaptive.nanodollars < 1.2 * exact.nanodollars,
            "{adaptive:?} against {exact:?}"
        );
        assert!(adaptive.took < exact.took, "{adaptive:?} against {exact:?}");
    }
}

#[test]
fn a_walk_after_random_reads_and_random_reads_after_a_walk_find_their_way() {
    let both = |first: fn() -> Order, then: fn() -> Order| -> Order {
        Box::new(move |random, count| {
            let half = count / 2;
            let mut order = first()(random, half);
            order.extend(then()(random, half).into_iter().map(|index| index + half));
            order
        })
    };
    let [_, full, adaptive] = compare("random, walk", || both(|| random(150), walk), 12, 1);
    assert!(
        adaptive.nanodollars < full.nanodollars,
        "{adaptive:?} against {full:?}"
    );
    let [exact, _, adaptive] = compare("walk, random", || both(walk, || random(150)), 12, 1);
    assert!(adaptive.took < exact.took / 3, "{adaptive:?} against {exact:?}");
}

#[test]
fn the_same_reads_make_the_same_requests() {
    let [one, other] = [(), ()].map(|()| run(FetchPolicy::Adaptive, walk_by_inode(), 12, 4));
    assert_eq!((one.usage, one.took), (other.usage, other.took));
}
