//! The planted bugs that histories of disks must catch; otherwise they prove nothing.

use crate::{full, history, on_nodes};
use firn_env::mutants::planting;

/// Those that histories of engines must catch. Each takes out one guard on which I10 or I11 rests.
pub const OF_ENGINES: [&str; 26] = [
    // Writes of an epoch are issued before the epoch before is durable.
    "disk.issue_next_epoch_early",
    // A flush is answered although earlier writes are not durable.
    "disk.answer_flush_early",
    // A write counts as durable when one replica has it.
    "disk.durable_on_one_replica",
    // A write replaces a waiting one of an earlier epoch.
    "disk.coalesce_across_epochs",
    // An unclean attach does not reconcile.
    "disk.skip_reconciliation",
    // Reconciliation takes the first replica's version, not the newest.
    "disk.reconcile_from_first_replica",
    // A write is issued before the mark of its region is durable.
    "disk.issue_before_mark",
    // A read goes to the replicas although a newer version waits in memory.
    "disk.read_past_pending",
    // An attach does not fence the replicas, so writes of its predecessor still arrive.
    "disk.skip_fence",
    // Roll-forward accepts entries of any incarnation: disavowed blocks come back (the paper's rule).
    "disk.accept_any_incarnation",
    // One replica without a valid copy ends roll-forward (the paper's rule).
    "disk.one_bad_replica_ends_roll_forward",
    // Which blocks are skipped depends on what has become durable so far (the paper's rule).
    "disk.skip_depends_on_retirement",
    // Roll-forward goes on behind a missing entry.
    "disk.accept_gaps",
    // What one replica had is accepted without bringing it to the others.
    "disk.skip_re_replication",
    // Recovery goes on under the incarnation that it found.
    "disk.reuse_incarnation",
    // A block is reused as soon as it is overwritten.
    "disk.skip_quarantine",
    // Both checkpoints are written to the same place.
    "disk.checkpoint_in_place",
    // A checkpoint is written before what it refers to is durable.
    "disk.checkpoint_before_prefix",
    // An entry counts as durable before the entries ahead of it are.
    "disk.retire_out_of_order",
    // TRIM and WRITE_ZEROES change memory but write no log record.
    "disk.trim_without_record",
    // A log zeroes a range and goes on reading what was written there before and is not durable yet.
    "disk.zeroes_leave_the_overlay",
    // A read goes to the replicas although its block lies in a range that is being zeroed.
    "disk.read_past_zeroes",
    // A block of a run that waits in memory is read as the run's first.
    "disk.read_the_head_of_a_run",
    // A run goes out although an older write of a block behind its first is under way.
    "disk.order_runs_by_their_first_block",
    // A range is zeroed when its first region is marked.
    "disk.mark_first_region_only",
    // A region that is written again while its mark is about to be dropped loses it.
    "disk.drop_busy_marks",
];
/// Histories within which each must be caught.
pub const SEEDS_MAX: u64 = 20_000;

/// The first seed that catches a bug of an engine, and what it says.
pub fn caught(bug: &str) -> Option<(u64, String)> {
    (1..=SEEDS_MAX).find_map(|seed| {
        let failure = std::panic::catch_unwind(|| planting(Some(bug), || history::run(seed, false).failure));
        match failure {
            Ok(failure) => failure.map(|failure| (seed, failure)),
            // An assertion of the engine's own counts as well.
            Err(_) => Some((seed, "an assertion of the disk".to_owned())),
        }
    })
}

/// Those that histories on production nodes must catch, in clients and nodes. Other guards of nodes have scenarios of their own,
/// in the tests of `firn-blockd-node`.
pub const ON_NODES: [&str; 16] = [
    "journal.answer_before_sync",
    "journal.forgets_flushes",
    "journal.repeats_everything",
    "journal.repeats_the_epoch",
    "journal.forgets_what_waits",
    "journal.read_past",
    "journal.flush_answers_early",
    "journal.trusts_an_earlier_attach",
    "client.one_replica_suffices",
    "client.zeroes_one_tract_only",
    "client.writes_one_tract_only",
    "store.acknowledge_before_sync",
    "snapshot.deletes_what_is_shared",
    "snapshot.writers_pass",
    "snapshot.forgets_what_failed",
    "snapshot.trusts_an_earlier_attach",
];
/// Histories within which each must be caught.
pub const ON_NODES_SEEDS_MAX: u64 = 300;

/// Bugs that only one history of some hundred catches, with a seed shortly before one that does: they are looked for from there on.
const RARE: [(&str, u64); 1] = [("journal.repeats_the_epoch", 250)];

/// The first seed that catches a bug on nodes, and what it says.
pub fn caught_on_nodes(bug: &str) -> Option<(u64, String)> {
    let rare = RARE.iter().find(|(rare, _)| *rare == bug);
    let first = rare.map_or(0, |(_, seed)| *seed);
    (first..first + ON_NODES_SEEDS_MAX).find_map(|seed| {
        let failure = planting(Some(bug), || on_nodes::run(seed).failure);
        failure.map(|failure| (seed, failure))
    })
}

/// Those that histories of full clusters must catch.
pub const ON_FULL_CLUSTERS: [&str; 2] = [
    // Any node may join any row, whatever is promised on it, and none makes way.
    "placement.any_room",
    // A node keeps tracts that are no longer its own while a write waits for a frame.
    "node.keeps_what_it_left",
];
/// Histories within which each must be caught.
pub const ON_FULL_CLUSTERS_SEEDS_MAX: u64 = 40;

/// The first seed that catches a bug on a full cluster, and what it says.
pub fn caught_on_full_clusters(bug: &str) -> Option<(u64, String)> {
    (0..ON_FULL_CLUSTERS_SEEDS_MAX).find_map(|seed| {
        let failure = planting(Some(bug), || full::run(seed).failure);
        failure.map(|failure| (seed, failure))
    })
}
