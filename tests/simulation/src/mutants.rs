//! Histories against an engine with one guard taken out: each must be caught, or the histories prove nothing.

use crate::{
    engine::Engine,
    runner::{Plan, run_many},
    sharing,
};
use std::sync::Arc;

/// Seeds within which each must be caught.
pub const SEEDS_MAX: u64 = 500;

/// All that histories of whole edges must catch. Others show only where a history is steered to them: the engine's are caught by
/// the tests of `crates/volume`, the anchor's and the cleaner's by the histories of their crates.
pub const MUTANTS: [&str; 40] = [
    // The journal answers `durable` once the record is queued, before any fsync.
    "volume.acknowledge_before_fsync",
    // A start writes over the last journal file it found instead of opening a new one (I6). Going on in it with the same
    // key is impossible: found files have no sealer (I5).
    "volume.reuse_found_journal_file",
    // A start builds on replayed records without making them durable first.
    "volume.skip_resync_of_found_files",
    // A new journal file is used before its name is durable.
    "volume.skip_journal_directory_sync",
    // Records of the next journal file may become durable before the last ones of the file before.
    "volume.skip_sync_before_rotation",
    // The root is committed while its segments are still being uploaded.
    "volume.commit_before_upload",
    // The journal is trimmed before the root that covers it is committed.
    "volume.trim_before_commit",
    // A truncation drops the extents but lets the committed bytes behind it show again when the file grows.
    "volume.forget_truncation",
    // A checkpoint leaves out the last changed block of a file.
    "volume.drop_last_block",
    // A start takes the same writer incarnation as the one before, so segment names are used twice.
    "volume.reuse_writer_incarnation",
    // After a crash the write verifier stays the same, so clients never send lost unstable writes again.
    "volume.keep_write_verifier",
    // A start without the cloud takes the present time for its write verifier, also after a clean stop.
    "volume.detached_verifier_by_time",
    // When the cloud is back, the volume is taken for the edge's own without asking the table for it.
    "volume.return_without_acquire",
    // A fenced epoch's journal is thrown away instead of being salvaged.
    "volume.drop_fenced_journal",
    // COMMIT answers without waiting for the journal.
    "volume.commit_without_sync",
    // What is to be answered at level 2 is answered before the root is committed.
    "volume.level_two_before_root",
    // It is answered by the commit under way, which may have begun before the change.
    "volume.level_two_by_any_commit",
    // Two batches of the journal that are written side by side are sealed in whatever order their threads run.
    "volume.seal_in_any_order",
    // A snapshot keeps the tree as it was before the changes it was to contain.
    "volume.snapshot_undrained_tree",
    // A start that replays a snapshot's record lets the snapshot have what came after it, too.
    "volume.snapshot_later_changes",
    // A protected snapshot is deleted like any other.
    "volume.delete_protected_snapshot",
    // The place that a rekey has come to is committed, and what it sealed anew is not.
    "volume.rekey_cursor_before_data",
    // A rekey goes through the tree as it was before the changes that are committed with it.
    "volume.rekey_stale_tree",
    // After a step of a rekey files go on with the maps they had before.
    "volume.rekey_keeps_old_maps",
    // The trees that snapshots retain are thought to need no older key than the volume.
    "volume.rekey_forgets_snapshots",
    // After a failed condition, a root is committed over whatever stands there, whoever owns the volume now.
    "anchor.commit_without_fence",
    // The root is not retained at a takeover.
    "anchor.takeover_drops_root",
    // Objects are moved and nobody is told where to.
    "cleaner.no_forwarding_record",
    // What only a snapshot needs is taken for dead.
    "cleaner.ignore_snapshots",
    // A segment is retired although one of its live objects was not moved.
    "cleaner.forget_one_object",
    // A segment that no root refers to is garbage once it is a minute old.
    "cleaner.orphans_by_age",
    // A forwarding record goes as soon as its segment is deleted.
    "cleaner.prune_at_once",
    // An entry is forgotten when the tree takes over what waits in the checkpoint.
    "volume.manifest_forgets_at_merge",
    // A segment leaves the manifest that no round retired.
    "volume.manifest_drops_unretired",
    // The hash in a manifest is not that of all bytes that were put.
    "volume.manifest_hashes_other_bytes",
    // After a start the segment of the root's checkpoint is not entered.
    "volume.manifest_forgets_tail",
    // What a round wrote is not taken in.
    "volume.manifest_ignores_written",
    // A retirement leaves no round.
    "cleaner.retire_untold",
    // A round is forgotten before every manifest has it.
    "cleaner.forget_rounds_at_once",
    // Objects newer than the head are judged like the others.
    "cleaner.judge_uncommitted",
];

/// All that histories of several offices ([`sharing`]) must catch.
pub const OF_FOLLOWERS: [&str; 5] = [
    // A follower adopts whatever root the anchor shows it.
    "volume.follower_adopts_anything",
    // A strict reader is answered by a read of the root that had begun before it came.
    "volume.follower_joins_read_under_way",
    // What the cleaner has deleted is an error, though a newer root has it elsewhere.
    "volume.follower_keeps_old_root",
    // An adoption keeps entries that the new root has otherwise.
    "volume.follower_keeps_stale_entries",
    // Reads that are to wait for the anchor are answered by the root at hand.
    "volume.follower_serves_stale",
];

/// All that histories of members that write by turns ([`sharing::members`]) must catch.
pub const OF_MEMBERS: [&str; 6] = [
    // A volume is given up without what was not committed yet.
    "volume.drain_without_commit",
    // A fenced epoch's journal is thrown away instead of being salvaged.
    "volume.drop_fenced_journal",
    // An owner answers though no heartbeat of it was acknowledged for long.
    "volume.member_serves_lapsed",
    // After a takeover the write verifier is the one before.
    "volume.member_keeps_verifier",
    // A heart is taken to stand still though it beats.
    "volume.member_breaks_the_living",
    // An owner never looks who waits.
    "volume.member_ignores_wants",
];

/// All that histories of locks of members ([`sharing::members::locking`]) must catch.
pub const OF_LOCKS: [&str; 5] = [
    // An office that gave the volume goes on granting.
    "session.grants_in_a_closed_table",
    // An unlock grants to who waits, though the office follows.
    "session.unlock_serves_a_closed_table",
    // An owner grants before it knows what others hold.
    "volume.member_grants_before_restoring",
    // The volume is given, and what its clients hold is recorded afterwards.
    "volume.member_gives_before_recording",
    // Clients keep what another office broke.
    "volume.member_keeps_broken_locks",
];

/// The first seed whose history of locks catches a planted bug, and by what.
pub fn caught_by_locks(planted: &'static str) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let run = || sharing::members::locking::run(seed);
        let report = firn_env::mutants::planting(Some(planted), run);
        // The locks themselves.
        let mut failures = report.failures.into_iter();
        Some((seed, failures.find(|failure| failure.contains("was granted at"))?))
    })
}

/// The first seed whose history of members catches a planted bug, and by what.
pub fn caught_by_members(planted: &'static str) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let report = firn_env::mutants::planting(Some(planted), || sharing::members::run(seed));
        Some((seed, report.failures.into_iter().next()?))
    })
}

/// The first seed whose history of several offices catches a planted bug, and by what.
pub fn caught_by_offices(planted: &'static str) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let report = firn_env::mutants::planting(Some(planted), || sharing::run(seed));
        // What their readers say.
        let mut failures = report.failures.into_iter();
        Some((seed, failures.find(|failure| failure.starts_with("follower"))?))
    })
}

/// The first seed that catches a planted bug, and by what.
pub fn caught(planted: &'static str, threads: usize) -> Option<(u64, String)> {
    let build = |simulation: &firn_env::sim::Simulation, random: &mut firn_env::sim::Seeded| {
        Arc::new(Engine::new(simulation, random)) as Arc<dyn crate::system::System>
    };
    let plan = Plan {
        first: 0,
        count: SEEDS_MAX,
        threads,
        stop_at_failure: true,
        planted: Some(planted),
    };
    let summary = run_many(&build, plan);
    let (seed, failures) = summary.failed.into_iter().next()?;
    Some((seed, failures.into_iter().next().unwrap_or_default()))
}
