//! `/metrics` for Prometheus and `/healthz` for load balancers, over plain HTTP on an address of its own.
//!
//! `/healthz` answers 200 while clients are served and 503 with the reason otherwise. Its text is `serving`, or `degraded` with
//! what cannot be read: taking an edge out of service would make a damaged file no better. It says nothing about the cloud, since
//! an edge that is cut off still serves, unless the edge started without it. Alerts about that belong on
//! `firn_oldest_uncommitted_seconds` and `firn_detached`.

mod figures;

use crate::{failure::Failure, report::span, snapshot::Observed};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use firn_env::Task;
use firn_metrics::Metrics;
use std::sync::Arc;

/// Serves both until the task is aborted.
pub async fn serve(address: &str, observed: Arc<Observed>) -> Result<Task<()>, Failure> {
    let env = observed.env.clone();
    let asked = observed.clone();
    let metrics = Metrics::new("firn", move |out| figures::expose(out, &asked.snapshot()));
    let health = Router::new().route("/healthz", get(health)).with_state(observed);
    let served = firn_metrics::serve(&env, address, metrics, health).await;
    let served = served.map_err(|error| {
        Failure::usage(format!(
            "cannot serve metrics on {address} (metrics.listen): {error}"
        ))
    })?;
    Ok(served.task)
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
    } else if let Some(smb) = snapshot.smb.as_ref().filter(|smb| {
        let is_starting = smb.state == "starting";
        snapshot.is_serving() && damaged.is_empty() && lost == 0 && !is_starting && !smb.is_serving()
    }) {
        let reason = smb.reason.as_deref().unwrap_or_default();
        let text = format!("degraded: SMB is {}: {reason}; NFS is served\n", smb.state);
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

/// Damaged files that `/healthz` names.
const DAMAGES_NAMED: usize = 8;
