//! Metrics for Prometheus.

use crate::node::Inner;
use firn_metrics::{Exposition, Metrics};
use std::sync::{Arc, atomic::Ordering::Relaxed};

pub(crate) fn metrics(node: Arc<Inner>) -> Metrics {
    Metrics::new("firn_blockd", move |out| expose(out, &node))
}

fn expose(out: &mut Exposition<'_>, node: &Inner) {
    let counts = node.store.counts();
    let usage = &node.usage;
    out.gauge(
        "capacity_tracts",
        "Tracts the node has room for.",
        node.store.geometry().capacity_tracts(),
    );
    out.gauge("used_tracts", "Tracts the node holds.", node.store.used_tracts());
    out.gauge(
        "damaged_blocks",
        "Blocks found damaged and not repaired yet.",
        node.store.damaged().len(),
    );
    out.gauge(
        "connections",
        "Connections open.",
        usage.connections.load(Relaxed),
    );
    out.gauge(
        "handshakes",
        "Connections of whose callers nothing is known yet.",
        node.admission.handshaking(),
    );
    out.gauge(
        "request_memory_bytes",
        "Memory charged for requests and replies in flight.",
        node.memory.used(),
    );
    out.gauge(
        "request_memory_waiting",
        "Requests waiting for memory.",
        node.memory.waiting(),
    );
    out.gauge(
        "waiting_requests",
        "Requests waiting for their permit at the disk.",
        node.queue.waiting(),
    );
    out.gauge(
        "draining",
        "1 while the node is being emptied.",
        node.draining.load(Relaxed),
    );
    out.gauge(
        "read_only",
        "1 while the file system has no room for commits.",
        node.store.is_read_only(),
    );
    out.gauge(
        "serving",
        "0 once another process is this node.",
        !node.stopped.load(Relaxed),
    );
    out.counter("requests_total", "Requests taken.", usage.requests.load(Relaxed));
    out.counter("refused_total", "Requests refused.", usage.refused.load(Relaxed));
    out.counter(
        "malformed_total",
        "Frames that were no requests.",
        usage.malformed.load(Relaxed),
    );
    out.counter(
        "connections_evicted_total",
        "Handshakes closed to make room for others.",
        node.admission.evicted.load(Relaxed),
    );
    out.counter(
        "connections_refused_total",
        "Connections beyond their owner's share.",
        node.admission.refused.load(Relaxed),
    );
    out.counter("commits_total", "Group commits.", counts.commits.load(Relaxed));
    out.counter(
        "committed_blocks_total",
        "Blocks made durable.",
        counts.committed_blocks.load(Relaxed),
    );
    out.counter(
        "read_blocks_total",
        "Blocks read.",
        counts.read_blocks.load(Relaxed),
    );
    out.counter(
        "written_blocks_total",
        "Blocks written.",
        counts.written_blocks.load(Relaxed),
    );
    out.counter(
        "journal_files_total",
        "Times the journal went on to its other file.",
        counts.checkpoints.load(Relaxed),
    );
    out.counter(
        "defragmented_blocks_total",
        "Blocks moved home from scratch.",
        counts.defragmented_blocks.load(Relaxed),
    );
    out.counter(
        "copied_blocks_total",
        "Blocks copied from other replicas.",
        node.copied_blocks.load(Relaxed),
    );
    out.counter(
        "repaired_blocks_total",
        "Damaged blocks written again.",
        node.repaired_blocks.load(Relaxed),
    );
    out.counter(
        "scrubbed_blocks_total",
        "Blocks scrubbed.",
        node.scrubbed_blocks.load(Relaxed),
    );
    out.counter(
        "scrub_rounds_total",
        "Rounds of scrubbing.",
        node.scrub_rounds.load(Relaxed),
    );
    let operations = node.operations().into_iter().map(|(operation, count)| {
        let name = format!("{operation:?}").to_lowercase();
        ([("operation", name)], count)
    });
    out.counters("operations_total", "Requests by operation.", operations);
}
