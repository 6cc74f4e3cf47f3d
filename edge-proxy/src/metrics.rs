//! `/metrics` for Prometheus and `/healthz` for load balancers, over plain HTTP on an address of its own.
//!
//! `/healthz` answers 200 while clients are served and 503 with the reason otherwise. Its text is `serving`, or `degraded` with
//! what cannot be read: taking an edge out of service would make a damaged file no better. It says nothing about the cloud, since
//! an edge that is cut off still serves, unless the edge started without it. Alerts about that belong on
//! `firn_oldest_uncommitted_seconds` and `firn_detached`.

mod connections;

use crate::{
    failure::Failure,
    report::span,
    snapshot::{Observed, Snapshot},
};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use connections::Bounded;
use firn_env::Task;
use std::{fmt::Write, sync::Arc};

/// Serves both until the task is aborted.
pub async fn serve(address: &str, observed: Arc<Observed>) -> Result<Task<()>, Failure> {
    let listener = firn_env::listen_tcp(address).await.map_err(|error| {
        Failure::usage(format!(
            "cannot serve metrics on {address} (metrics.listen): {error}"
        ))
    })?;
    let env = observed.env.clone();
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(observed);
    let bounded = Bounded::new(listener, &env);
    Ok(env.spawn("metrics", async move {
        if let Err(error) = axum::serve(bounded, router).await {
            tracing::error!(%error, "metrics are no longer served");
        }
    }))
}

async fn metrics(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let kind = [
        (header::CONTENT_TYPE, "text/plain; version=0.0.4"),
        (header::CONNECTION, "close"),
    ];
    (kind, exposition(&observed.snapshot()))
}

async fn health(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let snapshot = observed.snapshot();
    let close = [(header::CONNECTION, "close")];
    let damaged = snapshot.damaged_files();
    let lost = snapshot.commits.lost_segments;
    if let Some(detached) = snapshot.detached.as_ref().filter(|_| snapshot.is_serving()) {
        let text = format!(
            "degraded: detached for {}: {}; what is cached is read, writes are safe in the journal (level 1)\n",
            span(detached.for_ms),
            detached.words()
        );
        (StatusCode::OK, close, text)
    } else if snapshot.is_serving() && damaged.is_empty() && lost == 0 {
        (StatusCode::OK, close, "serving\n".to_owned())
    } else if snapshot.is_serving() {
        let named: Vec<_> = damaged.iter().take(DAMAGES_NAMED).map(String::as_str).collect();
        let count = damaged.len() as u64 + snapshot.more_damages;
        let text = format!(
            "degraded: the store has lost {lost} segments of new commits, and lost or altered parts of {count} files: {}\n",
            named.join(", ")
        );
        (StatusCode::OK, close, text)
    } else {
        let reason = snapshot.volume.reason.unwrap_or_default();
        let text = format!("{} {reason}\n", snapshot.volume.state);
        (StatusCode::SERVICE_UNAVAILABLE, close, text)
    }
}

struct Exposition(String);

impl Exposition {
    fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, f64)> + 'a,
    ) {
        let _ = writeln!(self.0, "# HELP firn_{name} {help}\n# TYPE firn_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "firn_{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, [(String::new(), value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help, [(String::new(), value as f64)]);
    }
}

fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Damaged files that `/healthz` names.
const DAMAGES_NAMED: usize = 8;

const NANOS: f64 = 1e9;

fn exposition(snapshot: &Snapshot) -> String {
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
    let mut out = Exposition(String::with_capacity(16 << 10));
    let about = [
        label("version", &snapshot.version),
        label("volume", &volume.name),
        label("owner", &owner.name),
    ];
    out.family(
        "edge_info",
        "gauge",
        "Always 1; what runs is in the labels.",
        [(format!("{{{}}}", about.join(",")), 1.0)],
    );
    out.gauge(
        "serving",
        "1 while clients are served.",
        f64::from(u8::from(snapshot.is_serving())),
    );
    let detached = snapshot.detached.as_ref();
    out.gauge(
        "detached",
        "1 while clients are served without the cloud, since it was away when the edge started.",
        f64::from(u8::from(detached.is_some())),
    );
    out.gauge(
        "detached_seconds",
        "How long they have been; 0 if they are not.",
        detached.map_or(0, |detached| detached.for_ms) as f64 / 1e3,
    );
    let away = |why: Option<&Option<String>>| f64::from(u8::from(why.is_some_and(Option::is_some)));
    out.family(
        "cloud_away",
        "gauge",
        "1 for what did not answer a detached edge when it was last asked.",
        [
            (
                format!("{{{}}}", label("part", "store")),
                away(detached.map(|detached| &detached.store_away)),
            ),
            (
                format!("{{{}}}", label("part", "table")),
                away(detached.map(|detached| &detached.table_away)),
            ),
        ],
    );
    out.gauge(
        "epoch",
        "The epoch under which this edge owns the volume.",
        owner.epoch as f64,
    );
    out.gauge(
        "up_seconds",
        "Since the volume was opened.",
        volume.up_ms as f64 / 1e3,
    );
    out.gauge("files", "Inodes of the volume.", volume.files as f64);
    out.gauge("used_bytes", "Data of the volume.", volume.used_bytes as f64);
    out.gauge(
        "quota_bytes",
        "Size of the volume as df shows it.",
        volume.quota_bytes as f64,
    );
    out.gauge(
        "dirty_bytes",
        "Acknowledged, in the journal, not yet in a checkpoint.",
        uncommitted.bytes as f64,
    );
    out.gauge(
        "dirty_memory_bytes",
        "Of them, kept in memory.",
        uncommitted.memory_bytes as f64,
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
        commits.upload_failures as f64,
    );
    out.gauge(
        "lost_segments",
        "Segments that the store acknowledged and turned out not to have.",
        commits.lost_segments as f64,
    );
    out.gauge("journal_used_bytes", "Journal in use.", journal.used_bytes as f64);
    out.gauge(
        "journal_capacity_bytes",
        "Journal that may be used.",
        journal.capacity_bytes as f64,
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
        f64::from(u8::from(journal.stalled.is_some())),
    );
    let places = |memory: u64, disk: u64| {
        [
            (format!("{{{}}}", label("place", "memory")), memory as f64),
            (format!("{{{}}}", label("place", "disk")), disk as f64),
        ]
    };
    out.family(
        "cache_bytes",
        "gauge",
        "Cache in use.",
        places(cache.memory_bytes, cache.disk_bytes),
    );
    out.family(
        "cache_capacity_bytes",
        "gauge",
        "Cache that may be used.",
        places(cache.memory_capacity_bytes, cache.disk_capacity_bytes),
    );
    out.family(
        "cache_hits_total",
        "counter",
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
    out.family(
        "store_damages_total",
        "counter",
        "Wrong answers of the store: bytes that were right at the second try, that stayed wrong, segments that are not there.",
        kinds.map(|(kind, count)| (format!("{{{}}}", label("kind", kind)), count as f64)),
    );
    out.gauge(
        "damaged_files",
        "Files that could not be read whole, as far as readers met them.",
        snapshot.damaged_files().len() as f64 + snapshot.more_damages as f64,
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
    out.family(
        "store_requests_total",
        "counter",
        "Requests sent to the store, each try.",
        classes.map(|(class, count)| (format!("{{{}}}", label("class", class)), count as f64)),
    );
    out.counter(
        "store_failures_total",
        "Requests that the store could not or would not do.",
        usage.failures,
    );
    out.family(
        "store_bytes_total",
        "counter",
        "Object bytes moved.",
        [("up", usage.bytes_up), ("down", usage.bytes_down)]
            .map(|(way, bytes)| (format!("{{{}}}", label("direction", way)), bytes as f64)),
    );
    let book = label("price_book", &store.price_book);
    out.family(
        "store_dollars_total",
        "counter",
        "What the store's requests and transfers cost at list prices.",
        [(format!("{{{book}}}"), store.nanodollars as f64 / NANOS)],
    );
    out.counter(
        "table_requests_total",
        "Requests sent to the table.",
        table.requests,
    );
    out.counter("table_read_units_total", "Read units used.", table.read_units);
    out.counter("table_write_units_total", "Write units used.", table.write_units);
    out.family(
        "table_dollars_total",
        "counter",
        "What the table's units cost at list prices.",
        [(String::new(), table.nanodollars as f64 / NANOS)],
    );
    out.gauge(
        "nfs_connections",
        "Connections of clients.",
        nfs.connections as f64,
    );
    let turned = &nfs.turned;
    out.family(
        "nfs_closed_connections_total",
        "counter",
        "Connections (of strangers datagrams, too) that the edge closed, by why.",
        [
            ("stranger", turned.strangers),
            ("full", turned.full),
            ("not_accepted", turned.failed),
            ("slow", turned.slow),
        ]
        .map(|(why, count)| (format!("{{{}}}", label("reason", why)), count as f64)),
    );
    out.gauge(
        "nfs_mounts",
        "Mounts known, as clients told.",
        nfs.mounts.len() as f64,
    );
    cleaning(&mut out, snapshot);
    let labels = |operation: &crate::snapshot::OperationPart| {
        format!(
            "{{{},{}}}",
            label("program", &operation.program),
            label("procedure", &operation.procedure)
        )
    };
    let mut operations = |name: &str, help: &str, value: fn(&crate::snapshot::OperationPart) -> f64| {
        let samples: Vec<_> = nfs
            .operations
            .iter()
            .map(|one| (labels(one), value(one)))
            .collect();
        out.family(name, "counter", help, samples);
    };
    operations("rpc_calls_total", "Calls answered.", |one| one.calls as f64);
    operations(
        "rpc_failures_total",
        "Calls answered with an error of the protocol.",
        |one| one.failed as f64,
    );
    operations("rpc_refusals_total", "Calls refused or dropped.", |one| {
        one.refused as f64
    });
    operations("rpc_received_bytes_total", "Bytes of the calls.", |one| {
        one.received_bytes as f64
    });
    operations("rpc_sent_bytes_total", "Bytes of the replies.", |one| {
        one.sent_bytes as f64
    });
    operations("rpc_seconds_total", "Time from call to reply, summed.", |one| {
        one.latency_sum_us as f64 / 1e6
    });
    out.0
}

/// What the cleaner inside did, and what of any cleaner's work was taken over.
fn cleaning(out: &mut Exposition, snapshot: &Snapshot) {
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
        cleaner.waiting_segments as f64,
    );
    out.gauge(
        "cleaner_held_segments",
        "Segments that the store does not let the cleaner delete.",
        cleaner.held_segments as f64,
    );
    out.gauge(
        "cleaner_damaged_objects",
        "Damaged objects that the last run met.",
        cleaner.damaged_objects as f64,
    );
    out.family(
        "cleaner_dollars_total",
        "counter",
        "What its requests and transfers cost at list prices; part of the store's.",
        [(String::new(), cleaner.nanodollars as f64 / NANOS)],
    );
    out.counter(
        "merged_proposals_total",
        "Proposals of cleaners that were taken over.",
        merging.proposals,
    );
}
