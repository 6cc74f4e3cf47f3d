//! Metrics for Prometheus, on a listener of their own: how many connections each listener has, in which phase, and how many ended
//! that did not end by themselves.

use crate::connections::{Connections, Phase};
use axum::{Router, http::header, routing::get};
use std::{fmt::Write as _, sync::Arc};

/// Listeners by name.
pub(crate) type Seen = Vec<(&'static str, Connections)>;

pub(crate) fn router(seen: Seen) -> Router {
    let seen = Arc::new(seen);
    let metrics = move || {
        let text = exposition(&seen);
        async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text) }
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "serving\n" }))
}

fn exposition(seen: &Seen) -> String {
    let mut text = String::from(
        "# HELP firn_api_connections Connections of a listener by what they are doing.\n# TYPE firn_api_connections gauge\n",
    );
    for (name, connections) in seen {
        for (phase, count) in Phase::ALL.iter().zip(connections.phases()) {
            let phase = phase.as_str();
            // A String takes everything.
            let _ = writeln!(
                text,
                "firn_api_connections{{listener=\"{name}\",phase=\"{phase}\"}} {count}"
            );
        }
    }
    text.push_str(
        "# HELP firn_api_connections_ended_total Connections ended by the service: displaced by newcomers, too long in a phase, \
         refused.\n# TYPE firn_api_connections_ended_total counter\n",
    );
    for (name, connections) in seen {
        let ended = connections.ended();
        for (why, count) in [
            ("displaced", ended.displaced),
            ("late", ended.late),
            ("refused", ended.refused),
        ] {
            let _ = writeln!(
                text,
                "firn_api_connections_ended_total{{listener=\"{name}\",why=\"{why}\"}} {count}"
            );
        }
    }
    text
}
