//! The text is what Prometheus' own parser takes, name by name.

use firn_metrics::Metrics;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

#[test]
fn families_have_their_type_their_unit_and_their_ends() {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    let metrics = Metrics::new("firn_test", move |out| {
        out.info(
            "program_info",
            "What runs.",
            [("version", "1"), ("name", "a \"b\" \\ c\nd")],
        );
        out.gauge("serving", "1 while it serves.", true);
        out.gauge("files", "Files.", 7_usize);
        out.gauge("used_bytes", "Bytes used.", 4096_u64);
        out.counter("runs_total", "Runs.", counted.load(Relaxed));
        out.counters(
            "busy_seconds_total",
            "Time at work.",
            [
                ([("part", "a"), ("way", "up")], 1.5),
                ([("part", "b"), ("way", "down")], 0.0),
            ],
        );
        out.gauges(
            "empty",
            "Nothing of this kind is there.",
            [([("part", "a")], 0_u64); 0],
        );
    });
    let text = |runs: u64| {
        format!(
            "# HELP firn_test_program What runs.\n\
             # TYPE firn_test_program info\n\
             firn_test_program_info{{version=\"1\",name=\"a \\\"b\\\" \\\\ c\\nd\"}} 1\n\
             # HELP firn_test_serving 1 while it serves.\n\
             # TYPE firn_test_serving gauge\n\
             firn_test_serving 1\n\
             # HELP firn_test_files Files.\n\
             # TYPE firn_test_files gauge\n\
             firn_test_files 7\n\
             # HELP firn_test_used_bytes Bytes used.\n\
             # TYPE firn_test_used_bytes gauge\n\
             # UNIT firn_test_used_bytes bytes\n\
             firn_test_used_bytes 4096\n\
             # HELP firn_test_runs Runs.\n\
             # TYPE firn_test_runs counter\n\
             firn_test_runs_total {runs}\n\
             # HELP firn_test_busy_seconds Time at work.\n\
             # TYPE firn_test_busy_seconds counter\n\
             # UNIT firn_test_busy_seconds seconds\n\
             firn_test_busy_seconds_total{{part=\"a\",way=\"up\"}} 1.5\n\
             firn_test_busy_seconds_total{{part=\"b\",way=\"down\"}} 0.0\n\
             # HELP firn_test_empty Nothing of this kind is there.\n\
             # TYPE firn_test_empty gauge\n\
             # EOF\n"
        )
    };
    assert_eq!(metrics.text(), text(0));
    runs.store(3, Relaxed);
    assert_eq!(metrics.text(), text(3), "figures are of the moment of the scrape");
}

#[test]
#[should_panic(expected = "counters end in _total")]
fn a_counter_that_does_not_say_so_is_refused() {
    Metrics::new("firn_test", |out| out.counter("runs", "Runs.", 1_u64)).text();
}
