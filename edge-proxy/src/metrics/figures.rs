//! The edge's figures, as Prometheus is told them. Alert rules and dashboards (`infra/prometheus`) name them.

use super::{by_inode, families::Families, level_two};
use crate::{
    following::FollowingPart,
    sharing::SharedPart,
    snapshot::{OperationPart, Snapshot, VolumeState},
};
use firn_metrics::Value;
use firn_store::BackgroundStatistics;

const NANOS: f64 = 1e9;

/// What serves clients at all.
fn serving(out: &mut Families, is_serving: bool) {
    out.gauge("serving", "1 while clients are served.", is_serving);
}

/// The figures of an edge's volumes; each is named if `has_names`.
pub(super) fn expose(volumes: &[VolumeState], has_names: bool) -> Families {
    let mut out = Families::default();
    for volume in volumes {
        out.of_volume(has_names.then_some(volume.name.as_str()));
        match &volume.snapshot {
            Some(snapshot) => of_volume(&mut out, snapshot),
            None => serving(&mut out, false),
        }
    }
    out.of_volume(None);
    // One server has the connections of all.
    if let Some(snapshot) = volumes.iter().find_map(|volume| volume.snapshot.as_ref()) {
        of_server(&mut out, snapshot);
    }
    out
}

/// A volume that edges write by turns.
fn of_member(out: &mut Families, shared: &SharedPart) {
    out.gauge(
        "shared_owned",
        "1 while this edge owns the shared volume.",
        matches!(shared.role.as_str(), "owning" | "giving"),
    );
    out.gauge(
        "shared_wanted",
        "1 while clients here wait for the shared volume.",
        shared.role == "waiting",
    );
    out.gauge(
        "shared_waiting",
        "Other edges that wait for the volume, as its owner sees them.",
        shared.waiting,
    );
    out.gauge(
        "shared_lapsed",
        "1 while no heartbeat of this owner reaches the anchor and clients wait.",
        shared.lease_holds == Some(false),
    );
    out.counter(
        "shared_taken_total",
        "Times that this edge took the volume.",
        shared.taken,
    );
    out.counter(
        "shared_given_total",
        "Times that this edge gave the volume.",
        shared.given,
    );
    out.counter(
        "shared_breaks_total",
        "Times that this edge took the volume over from an owner that gave no sign of life.",
        shared.breaks,
    );
    out.counter(
        "shared_broken_total",
        "Times that the volume was taken over from this edge and its journal salvaged.",
        shared.broken,
    );
    out.counter(
        "shared_lock_breaks_total",
        "Times that this edge broke the locks of an office that gave no sign of life.",
        shared.lock_breaks,
    );
    out.counter(
        "shared_locks_lost_total",
        "Locks of clients here that another office broke.",
        shared.locks_lost,
    );
    out.counter(
        "shared_wait_seconds_total",
        "From clients' wishes to change something to the volume at hand, all together.",
        shared.waits_ms as f64 / 1e3,
    );
    out.gauge(
        "shared_wait_seconds",
        "The same, the last time.",
        shared.last_wait_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.gauge(
        "shared_gift_seconds",
        "From the decision to give the volume to the volume given, the last time.",
        shared.last_gift_ms.unwrap_or(0) as f64 / 1e3,
    );
}

/// A volume that another edge owns.
fn of_follower(out: &mut Families, following: &FollowingPart) {
    out.gauge("follow_version", "The version that is served.", following.version);
    out.gauge(
        "follow_root_age_seconds",
        "Since the root was read last; grows while no client asks.",
        following.root_age_ms as f64 / 1e3,
    );
    out.gauge(
        "follow_committed_age_seconds",
        "Since the version that is served was committed.",
        following.committed_age_ms as f64 / 1e3,
    );
    out.gauge(
        "follow_away",
        "1 while the newest root cannot be read.",
        following.away.is_some(),
    );
    out.counter(
        "follow_adoptions_total",
        "Newer roots adopted.",
        following.adoptions,
    );
    out.counter(
        "follow_root_reads_total",
        "Reads of the root.",
        following.root_reads,
    );
    out.counter(
        "follow_dropped_entries_total",
        "Entries that adoptions dropped from memory since they differ.",
        following.dropped_entries,
    );
    out.counter(
        "follow_refreshes_total",
        "Reads of the root since an object of the one at hand was gone.",
        following.refreshes,
    );
    out.counter(
        "follow_stale_answers_total",
        "Answers by an older root than the freshness allows.",
        following.stale_answers,
    );
    out.counter(
        "follow_alarms_total",
        "Roots that were not adopted since they contradict what was seen.",
        following.alarms,
    );
}

fn of_volume(out: &mut Families, snapshot: &Snapshot) {
    let Snapshot {
        volume,
        owner,
        uncommitted,
        commits,
        journal,
        cache,
        store,
        table,
        nfs,
        ..
    } = snapshot;
    out.info(
        "edge_info",
        "Always 1; what runs is in the labels.",
        [
            ("version", snapshot.version.as_str()),
            ("volume", &volume.name),
            ("owner", &owner.name),
        ],
    );
    serving(out, snapshot.is_serving());
    let detached = snapshot.detached.as_ref();
    out.gauge(
        "detached",
        "1 while clients are served without the cloud, since it was away when the edge started.",
        detached.is_some(),
    );
    out.gauge(
        "detached_seconds",
        "How long they have been; 0 if they are not.",
        detached.map_or(0, |detached| detached.for_ms) as f64 / 1e3,
    );
    let away = |why: Option<&Option<String>>| why.is_some_and(Option::is_some);
    out.gauges(
        "cloud_away",
        "1 for what did not answer a detached edge when it was last asked.",
        [
            (
                [("part", "store")],
                away(detached.map(|detached| &detached.store_away)),
            ),
            (
                [("part", "table")],
                away(detached.map(|detached| &detached.table_away)),
            ),
        ],
    );
    if let Some(following) = &snapshot.following {
        of_follower(out, following);
    }
    if let Some(shared) = &snapshot.shared {
        of_member(out, shared);
    }
    if let Some(by_inode) = &snapshot.by_inode {
        by_inode::expose(out, by_inode);
    }
    level_two::expose(out, snapshot.level_two.as_ref());
    out.gauge(
        "epoch",
        "The epoch under which this edge owns the volume.",
        owner.epoch,
    );
    out.gauge(
        "up_seconds",
        "Since the volume was opened.",
        volume.up_ms as f64 / 1e3,
    );
    out.gauge("files", "Inodes of the volume.", volume.files);
    out.gauge("used_bytes", "Data of the volume.", volume.used_bytes);
    out.gauge(
        "quota_bytes",
        "Size of the volume as df shows it.",
        volume.quota_bytes,
    );
    out.gauge(
        "dirty_bytes",
        "Acknowledged, in the journal, not yet in a checkpoint.",
        uncommitted.bytes,
    );
    out.gauge(
        "dirty_memory_bytes",
        "Of them, kept in memory.",
        uncommitted.memory_bytes,
    );
    out.gauge(
        "oldest_uncommitted_seconds",
        "Age of the oldest change that is not in the cloud; 0 if all are.",
        uncommitted.oldest_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.counter("commits_total", "Checkpoints committed.", commits.checkpoints);
    out.gauge(
        "last_commit_timestamp_seconds",
        "When the newest root was committed; 0 if never.",
        commits.last_at_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.counter(
        "uploaded_segments_total",
        "Segments uploaded.",
        commits.uploaded_segments,
    );
    out.counter(
        "uploaded_bytes_total",
        "Bytes of the segments uploaded.",
        commits.uploaded_bytes,
    );
    out.gauge(
        "upload_failures",
        "Failed uploads since the last success.",
        commits.upload_failures,
    );
    out.gauge(
        "lost_segments",
        "Segments that the store acknowledged and turned out not to have.",
        commits.lost_segments,
    );
    out.gauge(
        "unconfirmed_segments",
        "Segments that the store acknowledged and whose end was not read back yet.",
        commits.unconfirmed_segments,
    );
    out.gauge(
        "pinned_bytes",
        "Bytes of segments pinned on the local disk until they are read back.",
        commits.pinned_bytes,
    );
    out.counter(
        "segments_put_again_total",
        "Segments that the store had dropped and that were put again.",
        commits.segments_put_again,
    );
    out.gauge(
        "altered_segments",
        "Segments of which the store has other bytes than were put.",
        commits.altered_segments,
    );
    out.gauge("journal_used_bytes", "Journal in use.", journal.used_bytes);
    out.gauge(
        "journal_capacity_bytes",
        "Journal that may be used.",
        journal.capacity_bytes,
    );
    out.counter("journal_records_total", "Records appended.", journal.records);
    out.counter(
        "journal_syncs_total",
        "Syncs of the journal's disk.",
        journal.syncs,
    );
    out.counter(
        "journal_space_waits_total",
        "Requests that waited for space in the journal.",
        journal.space_waits,
    );
    out.gauge(
        "journal_stalled",
        "1 while the journal cannot write.",
        journal.stalled.is_some(),
    );
    let places = |memory: u64, disk: u64| [([("place", "memory")], memory), ([("place", "disk")], disk)];
    out.gauges(
        "cache_bytes",
        "Cache in use.",
        places(cache.memory_bytes, cache.disk_bytes),
    );
    out.gauges(
        "cache_capacity_bytes",
        "Cache that may be used.",
        places(cache.memory_capacity_bytes, cache.disk_capacity_bytes),
    );
    out.counters(
        "cache_hits_total",
        "Objects found in a cache.",
        places(cache.memory_hits, cache.disk_hits),
    );
    out.counter(
        "cache_misses_total",
        "Objects that had to be fetched.",
        cache.misses,
    );
    out.counter(
        "cache_given_up_bytes_total",
        "Evicted from the disk cache because the disk was full: the journal goes first.",
        cache.disk_given_up_bytes,
    );
    out.counter(
        "cache_damages_total",
        "Damaged bytes found in the disk cache, and fetched again.",
        cache.cache_damages,
    );
    let kinds = [
        ("healed", cache.store_damages),
        ("damaged", cache.store_damaged),
        ("missing", cache.store_missing),
    ];
    out.counters("store_damages_total",
        "Wrong answers of the store: bytes that were right at the second try, that stayed wrong, segments that are not there.",
        kinds.map(|(kind, count)| ([("kind", kind)], count)),
    );
    out.gauge(
        "damaged_files",
        "Files that could not be read whole, as far as readers met them.",
        snapshot.damaged_files().len() as u64 + snapshot.more_damages,
    );
    let usage = &store.usage;
    let classes = [
        ("put", usage.puts),
        ("get", usage.gets),
        ("ranged_get", usage.ranged_gets),
        ("head", usage.heads),
        ("list", usage.lists),
        ("delete", usage.deletes),
    ];
    out.counters(
        "store_requests_total",
        "Requests sent to the store, each try.",
        classes.map(|(class, count)| ([("class", class)], count)),
    );
    out.counter(
        "store_failures_total",
        "Requests that the store could not or would not do.",
        usage.failures,
    );
    out.counters(
        "store_bytes_total",
        "Object bytes moved.",
        [("up", usage.bytes_up), ("down", usage.bytes_down)]
            .map(|(way, bytes)| ([("direction", way)], bytes)),
    );
    out.counters(
        "store_dollars_total",
        "What the store's requests and transfers cost at list prices.",
        [(
            [("price_book", store.price_book.as_str())],
            store.nanodollars as f64 / NANOS,
        )],
    );
    out.counter(
        "table_requests_total",
        "Requests sent to the table.",
        table.requests,
    );
    out.counter("table_read_units_total", "Read units used.", table.read_units);
    out.counter("table_write_units_total", "Write units used.", table.write_units);
    out.counter(
        "table_dollars_total",
        "What the table's units cost at list prices.",
        table.nanodollars as f64 / NANOS,
    );
    out.gauge("nfs_mounts", "Mounts known, as clients told.", nfs.mounts.len());
    super::protocols::of_volume(out, snapshot);
    cleaning(out, snapshot);
    super::audits::expose(out, &snapshot.audit);
    super::manifest::expose(out, &snapshot.manifest);
    super::second::expose(out, snapshot.second.as_ref());
}

/// Work in the background at the stores, which is bounded for all volumes together.
fn background(out: &mut Families, background: &BackgroundStatistics) {
    out.gauge(
        "background_requests",
        "Requests of audits, repairs, the mirror and the cleaner inside that are under way.",
        background.in_flight,
    );
    out.gauge(
        "background_requests_waiting",
        "Those that wait for clients and uploads, or for each other.",
        background.waiting,
    );
    out.counter(
        "background_requests_total",
        "Those of all since the start.",
        background.admitted,
    );
    out.counter(
        "background_requests_delayed_total",
        "Those of them that had to wait.",
        background.delayed,
    );
}

/// NFS, which is one for all volumes.
fn of_server(out: &mut Families, snapshot: &Snapshot) {
    background(out, &snapshot.background);
    let nfs = &snapshot.nfs;
    super::protocols::of_server(out, snapshot);
    out.gauge("nfs_connections", "Connections of clients.", nfs.connections);
    let turned = &nfs.turned;
    out.counters(
        "nfs_closed_connections_total",
        "Connections (of strangers datagrams, too) that the edge closed, by why.",
        [
            ("stranger", turned.strangers),
            ("full", turned.full),
            ("not_accepted", turned.failed),
            ("slow", turned.slow),
        ]
        .map(|(why, count)| ([("reason", why)], count)),
    );
    out.counter(
        "nfs_slow_calls_total",
        "Calls of clients that took as long as log.slow_call or longer.",
        nfs.slow_calls,
    );
    out.gauge(
        "locks_held",
        "Byte-range locks and share reservations of all protocols.",
        nfs.locks.held,
    );
    out.gauge(
        "locks_waiting",
        "Requests that wait for a lock.",
        nfs.locks.waiting,
    );
    let log = snapshot.access_log.as_ref();
    out.counter(
        "access_log_lines_total",
        "Lines of the access log written.",
        log.map_or(0, |log| log.lines),
    );
    out.counter(
        "access_log_lost_total",
        "Events of clients that the access log lost, because it could not be written or not fast enough.",
        log.map_or(0, |log| log.lost),
    );
    out.gauge(
        "access_log_failing",
        "1 while the access log cannot be written.",
        log.is_some_and(|log| log.failing.is_some()),
    );
    let syslog = log.and_then(|log| log.syslog.as_ref());
    out.counter(
        "access_log_syslog_lost_total",
        "Lines of the access log that syslog did not take; the file has them.",
        syslog.map_or(0, |syslog| syslog.lost),
    );
    let mut operations = |name: &str, help: &str, value: fn(&OperationPart) -> Value| {
        let samples = nfs.operations.iter().map(|one| {
            let labels = [
                ("program", one.program.as_str()),
                ("procedure", one.procedure.as_str()),
            ];
            (labels, value(one))
        });
        out.counters(name, help, samples);
    };
    operations("rpc_calls_total", "Calls answered.", |one| one.calls.into());
    operations(
        "rpc_failures_total",
        "Calls answered with an error of the protocol.",
        |one| one.failed.into(),
    );
    operations("rpc_refusals_total", "Calls refused or dropped.", |one| {
        one.refused.into()
    });
    operations("rpc_received_bytes_total", "Bytes of the calls.", |one| {
        one.received_bytes.into()
    });
    operations("rpc_sent_bytes_total", "Bytes of the replies.", |one| {
        one.sent_bytes.into()
    });
    operations("rpc_seconds_total", "Time from call to reply, summed.", |one| {
        Value::Measure(one.latency_sum_us as f64 / 1e6)
    });
}

/// What the cleaner inside did, and what of any cleaner's work was taken over.
fn cleaning(out: &mut Families, snapshot: &Snapshot) {
    let (cleaner, merging) = (&snapshot.cleaner, &snapshot.merging);
    out.counter("cleaner_runs_total", "Runs of the cleaner inside.", cleaner.runs);
    out.counter(
        "cleaner_failures_total",
        "Of them, those that failed.",
        cleaner.failures,
    );
    out.gauge(
        "cleaner_last_run_timestamp_seconds",
        "When the last run ended; 0 if none did.",
        cleaner.last_ended_at_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.counter(
        "cleaner_retired_bytes_total",
        "Segments that nothing leads to any more.",
        cleaner.retired_bytes,
    );
    out.counter(
        "cleaner_written_bytes_total",
        "What was moved, and what leads there.",
        cleaner.written_bytes,
    );
    out.counter(
        "cleaner_deleted_bytes_total",
        "Segments that were deleted.",
        cleaner.deleted_bytes,
    );
    out.gauge(
        "cleaner_waiting_segments",
        "Retired segments whose grace is not over.",
        cleaner.waiting_segments,
    );
    out.gauge(
        "cleaner_held_segments",
        "Segments that the store does not let the cleaner delete.",
        cleaner.held_segments,
    );
    out.gauge(
        "cleaner_hold_segments",
        "Retired segments that wait until the parity groups in the second store are written without them.",
        cleaner.hold_segments,
    );
    out.gauge(
        "cleaner_damaged_objects",
        "Damaged objects that the last run met.",
        cleaner.damaged_objects,
    );
    out.gauge(
        "cleaner_missing_segments",
        "Segments that the last run found neither in the bucket nor retired.",
        cleaner.missing_segments,
    );
    out.counter(
        "cleaner_dollars_total",
        "What its requests and transfers cost at list prices; part of the store's.",
        cleaner.nanodollars as f64 / NANOS,
    );
    out.counter(
        "merged_proposals_total",
        "Proposals of cleaners that were taken over.",
        merging.proposals,
    );
}
