//! Metrics of a node, for Prometheus.

use crate::shared::Inner;
use firn_metrics::{Exposition, Metrics};
use std::sync::{Arc, atomic::Ordering::Relaxed};

pub(crate) fn metrics(node: Arc<Inner>) -> Metrics {
    Metrics::new("firn_blockd", move |out| expose(out, &node))
}

/// A table of metrics: kind, name, value, help.
macro_rules! figures {
    ($out:ident: $($kind:ident $name:ident = $value:expr, $help:literal;)*) => {
        $($out.$kind(stringify!($name), $help, $value);)*
    };
}

fn expose(out: &mut Exposition<'_>, node: &Inner) {
    let counts = node.store.counts();
    let usage = &node.usage;
    figures! { out:
        gauge   capacity_tracts           = node.store.geometry().capacity_tracts(),  "Tracts the node has room for.";
        gauge   used_tracts               = node.store.used_tracts(),                 "Tracts the node holds.";
        gauge   damaged_blocks            = node.store.damaged().len(),               "Blocks found damaged and not repaired yet.";
        gauge   connections               = usage.connections.load(Relaxed),          "Connections open.";
        gauge   handshakes                = node.admission.handshaking(),             "Connections of whose callers nothing is known yet.";
        gauge   request_memory_bytes      = node.memory.used(),                       "Memory charged for requests and replies in flight.";
        gauge   request_memory_waiting    = node.memory.waiting(),                    "Requests waiting for memory.";
        gauge   waiting_requests          = node.queue.waiting(),                     "Requests waiting for their permit at the disk.";
        gauge   draining                  = node.draining.load(Relaxed),              "1 while the node is being emptied.";
        gauge   read_only                 = node.store.is_read_only(),                "1 while the file system has no room for commits.";
        gauge   serving                   = !node.stopped.load(Relaxed),              "0 once another process is this node.";
        counter requests_total            = usage.requests.load(Relaxed),             "Requests taken.";
        counter refused_total             = usage.refused.load(Relaxed),              "Requests refused.";
        counter malformed_total           = usage.malformed.load(Relaxed),            "Frames that were no requests.";
        counter connections_evicted_total = node.admission.evicted.load(Relaxed),     "Handshakes closed to make room for others.";
        counter connections_refused_total = node.admission.refused.load(Relaxed),     "Connections beyond their owner's share.";
        counter commits_total             = counts.commits.load(Relaxed),             "Group commits.";
        counter committed_blocks_total    = counts.committed_blocks.load(Relaxed),    "Blocks made durable.";
        counter read_blocks_total         = counts.read_blocks.load(Relaxed),         "Blocks read.";
        counter written_blocks_total      = counts.written_blocks.load(Relaxed),      "Blocks written.";
        counter journal_files_total       = counts.checkpoints.load(Relaxed),         "Times the journal went on to its other file.";
        counter defragmented_blocks_total = counts.defragmented_blocks.load(Relaxed), "Blocks moved home from scratch.";
        counter copied_blocks_total       = node.copied_blocks.load(Relaxed),         "Blocks copied from other replicas.";
        counter repaired_blocks_total     = node.repaired_blocks.load(Relaxed),       "Damaged blocks written again.";
        counter scrubbed_blocks_total     = node.scrubbed_blocks.load(Relaxed),       "Blocks scrubbed.";
        counter scrub_rounds_total        = node.scrub_rounds.load(Relaxed),          "Rounds of scrubbing.";
    }
    let operations = node.operations().into_iter().map(|(operation, count)| {
        let name = format!("{operation:?}").to_lowercase();
        ([("operation", name)], count)
    });
    out.counters("operations_total", "Requests by operation.", operations);
}
