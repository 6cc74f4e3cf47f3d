//! Metrics in Prometheus' text format.

use crate::node::Inner;
use std::{fmt::Write as _, sync::atomic::Ordering::Relaxed};

pub(crate) fn render(node: &Inner) -> String {
    let counts = node.store.counts();
    let usage = &node.usage;
    let mut text = String::new();
    let gauges = [
        (
            "capacity_tracts",
            "Tracts the node has room for.",
            node.store.geometry().capacity_tracts(),
        ),
        ("used_tracts", "Tracts the node holds.", node.store.used_tracts()),
        (
            "damaged_blocks",
            "Blocks found damaged and not repaired yet.",
            node.store.damaged().len() as u64,
        ),
        (
            "connections",
            "Connections open.",
            usage.connections.load(Relaxed),
        ),
        (
            "waiting_requests",
            "Requests waiting for their permit at the disk.",
            node.queue.waiting() as u64,
        ),
        (
            "draining",
            "1 while the node is being emptied.",
            node.draining.load(Relaxed).into(),
        ),
        (
            "read_only",
            "1 while the file system has no room for commits.",
            node.store.is_read_only().into(),
        ),
        (
            "serving",
            "0 once another process is this node.",
            (!node.stopped.load(Relaxed)).into(),
        ),
    ];
    for (name, help, value) in gauges {
        family(&mut text, name, help, "gauge");
        let _ = writeln!(text, "firn_blockd_{name} {value}");
    }
    let counters = [
        ("requests_total", "Requests taken.", &usage.requests),
        ("refused_total", "Requests refused.", &usage.refused),
        (
            "malformed_total",
            "Frames that were no requests.",
            &usage.malformed,
        ),
        ("commits_total", "Group commits.", &counts.commits),
        (
            "committed_blocks_total",
            "Blocks made durable.",
            &counts.committed_blocks,
        ),
        ("read_blocks_total", "Blocks read.", &counts.read_blocks),
        ("written_blocks_total", "Blocks written.", &counts.written_blocks),
        (
            "journal_files_total",
            "Times the journal went on to its other file.",
            &counts.checkpoints,
        ),
        (
            "defragmented_blocks_total",
            "Blocks moved home from scratch.",
            &counts.defragmented_blocks,
        ),
        (
            "copied_blocks_total",
            "Blocks copied from other replicas.",
            &node.copied_blocks,
        ),
        (
            "repaired_blocks_total",
            "Damaged blocks written again.",
            &node.repaired_blocks,
        ),
        ("scrubbed_blocks_total", "Blocks scrubbed.", &node.scrubbed_blocks),
        ("scrub_rounds_total", "Rounds of scrubbing.", &node.scrub_rounds),
    ];
    for (name, help, value) in counters {
        family(&mut text, name, help, "counter");
        let _ = writeln!(text, "firn_blockd_{name} {}", value.load(Relaxed));
    }
    family(&mut text, "operations_total", "Requests by operation.", "counter");
    for (operation, count) in node.operations() {
        let name = format!("{operation:?}").to_lowercase();
        let _ = writeln!(
            text,
            "firn_blockd_operations_total{{operation=\"{name}\"}} {count}"
        );
    }
    text
}

fn family(text: &mut String, name: &str, help: &str, kind: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# HELP firn_blockd_{name} {help}\n# TYPE firn_blockd_{name} {kind}"
    );
}
