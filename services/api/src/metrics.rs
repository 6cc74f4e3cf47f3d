//! Metrics for Prometheus, on a listener of their own: requests by how they ended, how many connections each listener has, in which
//! phase, and how many ended that did not end by themselves.

use crate::{
    app::App,
    connections::{Connections, Phase},
};
use axum::{
    Router,
    http::{StatusCode, header},
    routing::get,
};
use firn_metrics::{CONTENT_TYPE, Exposition, Metrics};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// How a request ended for its caller.
#[derive(Clone, Copy)]
enum Outcome {
    Answered,
    /// The caller's fault.
    Refused,
    /// Too many of one caller.
    Limited,
    /// The service's fault, or its table's.
    Failed,
}

impl Outcome {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Answered, "answered"),
        (Self::Refused, "refused"),
        (Self::Limited, "limited"),
        (Self::Failed, "failed"),
    ];

    fn of(status: StatusCode) -> Self {
        if status == StatusCode::TOO_MANY_REQUESTS {
            Self::Limited
        } else if status.is_server_error() {
            Self::Failed
        } else if status.is_client_error() {
            Self::Refused
        } else {
            Self::Answered
        }
    }
}

/// Requests since the start.
#[derive(Default)]
pub(crate) struct RequestFigures {
    ended: [AtomicU64; Outcome::ALL.len()],
    slow: AtomicU64,
}

impl RequestFigures {
    pub(crate) fn count(&self, status: StatusCode, is_slow: bool) {
        self.ended[Outcome::of(status) as usize].fetch_add(1, Relaxed);
        self.slow.fetch_add(is_slow.into(), Relaxed);
    }
}

/// Listeners by name.
pub(crate) type Seen = Vec<(&'static str, Connections)>;

pub(crate) fn router(app: &App, seen: Seen) -> Router {
    let app = app.clone();
    let metrics = Arc::new(Metrics::new("firn_api", move |out| {
        expose(out, &app, &seen);
    }));
    let metrics = move || {
        let text = metrics.text();
        async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], text) }
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "serving\n" }))
}

fn expose(out: &mut Exposition<'_>, app: &App, seen: &Seen) {
    let served = app.served();
    let requests = Outcome::ALL.map(|(outcome, name)| {
        let count = served.ended[outcome as usize].load(Relaxed);
        ([("outcome", name)], count)
    });
    out.counters("requests_total", "Requests by how they ended.", requests);
    out.counter(
        "slow_requests_total",
        "Requests that took a second or longer; but those that ask to be kept waiting.",
        served.slow.load(Relaxed),
    );
    out.gauge(
        "unrecorded_operations",
        "Requests of customers that are counted and not written down yet: what the bill lacks if the process dies.",
        app.counts().unrecorded(),
    );
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
