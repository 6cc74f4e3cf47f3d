//! `/metrics` for Prometheus and `/healthz` for load balancers, over plain HTTP on an address of its own.
//!
//! `/healthz` answers 200 while clients are served and 503 with the reason otherwise. Its text is `serving`, or `degraded` with
//! what cannot be read: taking an edge out of service would make a damaged file no better. It says nothing about the cloud, since
//! an edge that is cut off still serves, unless the edge started without it. Alerts about that belong on
//! `firn_oldest_uncommitted_seconds` and `firn_detached`.
//!
//! An edge with several volumes tells of each: its figures have a label `volume`, and `/healthz` answers 200 while any of them is served.

mod audits;
mod by_inode;
mod families;
mod figures;
mod level_two;
mod manifest;
mod protocols;
mod second;

use crate::{
    failure::Failure,
    following::FollowingPart,
    report::span,
    snapshot::{Snapshot, VolumeState},
    volumes::Volumes,
};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use firn_env::Task;
use firn_metrics::Metrics;
use std::{fmt::Write as _, sync::Arc};

/// Serves both until the task is aborted.
pub async fn serve(address: &str, volumes: Arc<Volumes>) -> Result<Task<()>, Failure> {
    let env = volumes.env.clone();
    let asked = volumes.clone();
    let metrics = Metrics::new("firn", move |out| {
        figures::expose(&asked.shown(), asked.has_names).expose(out);
    });
    let health = Router::new().route("/healthz", get(health)).with_state(volumes);
    let served = firn_metrics::serve(&env, address, metrics, health).await;
    let served = served.map_err(|error| {
        Failure::usage(format!(
            "cannot serve metrics on {address} (metrics.listen): {error}"
        ))
    })?;
    Ok(served.task)
}

async fn health(State(volumes): State<Arc<Volumes>>) -> impl IntoResponse {
    let shown = volumes.shown();
    let close = [(header::CONNECTION, "close")];
    let is_any_served = shown.iter().any(is_served);
    let code = if is_any_served {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut text = String::new();
    for volume in &shown {
        let said = health_of(volume);
        let _ = match volumes.has_names {
            true => writeln!(text, "{}: {said}", volume.name),
            false => writeln!(text, "{said}"),
        };
    }
    (code, close, text)
}

fn is_served(volume: &VolumeState) -> bool {
    volume
        .snapshot
        .as_ref()
        .is_some_and(|snapshot| snapshot.is_serving())
}

fn health_of(volume: &VolumeState) -> String {
    match volume.snapshot.as_ref().filter(|_| is_served(volume)) {
        Some(snapshot) => degraded(snapshot).map_or("serving".into(), |why| format!("degraded: {why}")),
        None => format!(
            "{} {}",
            volume.state,
            volume.reason.as_deref().unwrap_or_default()
        ),
    }
}

/// What of a volume that is served does not work.
fn degraded(snapshot: &Snapshot) -> Option<String> {
    let damaged = snapshot.damaged_files();
    let lost = snapshot.commits.lost_segments;
    if let Some(detached) = &snapshot.detached {
        return Some(format!(
            "detached for {}: {}; what is cached is read, writes are safe in the journal (level 1)",
            span(detached.for_ms),
            detached.words()
        ));
    }
    if let Some(trouble) = snapshot.following.as_ref().and_then(FollowingPart::trouble) {
        return Some(trouble);
    }
    if let Some(shared) = snapshot
        .shared
        .as_ref()
        .filter(|shared| shared.lease_holds == Some(false))
    {
        return shared.troubles().into_iter().next();
    }
    if let Some(by_inode) = snapshot.by_inode.as_ref().filter(|part| !part.lease_holds) {
        return by_inode.troubles().into_iter().next();
    }
    if !damaged.is_empty() || lost > 0 {
        let named: Vec<_> = damaged.iter().take(DAMAGES_NAMED).map(String::as_str).collect();
        let count = damaged.len() as u64 + snapshot.more_damages;
        return Some(format!(
            "the store has lost {lost} segments of new commits, and lost or altered parts of {count} files: {}",
            named.join(", ")
        ));
    }
    let altered = snapshot.commits.altered_segments;
    if altered > 0 {
        return Some(format!(
            "the store has other bytes under the names of {altered} segments than were put ({}); they are read from this machine's disk, \
             which must not be lost",
            snapshot.commits.altered_keys.join(", ")
        ));
    }
    let smb = snapshot.smb.as_ref();
    let smb = smb.filter(|smb| smb.state != "starting" && !smb.is_serving())?;
    let reason = smb.reason.as_deref().unwrap_or_default();
    Some(format!("SMB is {}: {reason}; NFS is served", smb.state))
}

/// Damaged files that `/healthz` names.
const DAMAGES_NAMED: usize = 8;
