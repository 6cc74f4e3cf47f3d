//! Metrics for Prometheus, on a listener of their own: how many connections each listener has, in which phase, and how many ended
//! that did not end by themselves.

use crate::connections::{Connections, Phase};
use axum::{Router, http::header, routing::get};
use firn_metrics::{CONTENT_TYPE, Exposition, Metrics};
use std::sync::Arc;

/// Listeners by name.
pub(crate) type Seen = Vec<(&'static str, Connections)>;

pub(crate) fn router(seen: Seen) -> Router {
    let metrics = Arc::new(Metrics::new("firn_api", move |out| expose(out, &seen)));
    let metrics = move || {
        let text = metrics.text();
        async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], text) }
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "serving\n" }))
}

fn expose(out: &mut Exposition<'_>, seen: &Seen) {
    out.gauges(
        "connections",
        "Connections of a listener by what they are doing.",
        seen.iter().flat_map(|(listener, connections)| {
            Phase::ALL
                .iter()
                .zip(connections.phases())
                .map(|(phase, count)| ([("listener", *listener), ("phase", phase.as_str())], count))
        }),
    );
    out.counters(
        "connections_ended_total",
        "Connections ended by the service: displaced by newcomers, too long in a phase, refused.",
        seen.iter().flat_map(|(listener, connections)| {
            let ended = connections.ended();
            [
                ("displaced", ended.displaced),
                ("late", ended.late),
                ("refused", ended.refused),
            ]
            .map(|(why, count)| ([("listener", *listener), ("why", why)], count))
        }),
    );
}
