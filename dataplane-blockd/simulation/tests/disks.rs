//! A fixed set of histories, and all short ones.

use firn_blockd_disk::{FlushPolicy, LogConfig, Regions, StripedConfig, WritePolicy};
use firn_blockd_simulation::{engine::Mode, exhaustive, history, on_nodes};

#[test]
fn five_hundred_histories_keep_i10_and_i11() {
    for seed in 0..500 {
        let report = history::run(seed, false);
        assert_eq!(report.failure, None, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| history::run(seed, true));
        assert_eq!((one.trace, one.log), (other.trace, other.log));
    }
}

#[test]
fn every_crash_of_every_history_of_three_operations_recovers_to_a_prefix() {
    let striped = |write, flush| {
        Mode::Striped(StripedConfig {
            blocks: exhaustive::BLOCKS,
            write,
            flush,
            dirty_bytes_max: 1 << 20,
            regions: Regions {
                blocks: exhaustive::BLOCKS,
                ..Regions::default()
            },
        })
    };
    let config = LogConfig {
        flush: FlushPolicy::Durable,
        dirty_bytes_max: 1 << 20,
        checkpoint_entries: 2,
    };
    for mode in [
        striped(WritePolicy::Durable, FlushPolicy::Durable),
        striped(WritePolicy::Memory, FlushPolicy::Durable),
        striped(WritePolicy::Memory, FlushPolicy::Ordered { lag_ms_max: 1000 }),
        Mode::Log(config, exhaustive::BLOCKS, exhaustive::BLOCKS + 4),
    ] {
        let tried = exhaustive::run(mode, 3).unwrap();
        assert!(tried.crashes > 100, "{tried:?}");
    }
}

#[test]
fn histories_on_production_nodes_keep_i10() {
    for seed in 0..6 {
        let report = on_nodes::run(seed);
        assert_eq!(report.failure, None, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_history_on_nodes() {
    let [one, other] = [(); 2].map(|()| on_nodes::run(4));
    assert_eq!(one.trace, other.trace);
}
