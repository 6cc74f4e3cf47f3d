//! The figures of a host of its own, for Prometheus: calls by how they ended, slow ones, connections.

use crate::Refusal;
use firn_anchor::AnchorAnswer;
use firn_env::ConnectionTable;
use firn_metrics::{Exposition, Metrics};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A commit is one write to the table: what takes as long keeps writers waiting.
const SLOW: Duration = Duration::from_secs(1);

/// How a call ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// Somebody was faster: what a race of owners or cleaners looks like.
    Conflict,
    /// The caller's fault: no grant, a call that cannot be made.
    Refused,
    /// The service's: its table is away.
    Failed,
}

impl Outcome {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Answered, "answered"),
        (Self::Conflict, "conflict"),
        (Self::Refused, "refused"),
        (Self::Failed, "failed"),
    ];

    fn of(answer: &Result<AnchorAnswer, Refusal>) -> Self {
        match answer {
            Ok(AnchorAnswer::Conflict { .. }) => Self::Conflict,
            Ok(_) => Self::Answered,
            Err(refusal) if refusal.status >= 500 => Self::Failed,
            Err(_) => Self::Refused,
        }
    }
}

/// What a host counts since its start.
#[derive(Debug)]
pub struct HostFigures {
    pub(crate) connections: ConnectionTable,
    /// Connections at once.
    pub(crate) limit: usize,
    calls: [AtomicU64; Outcome::ALL.len()],
    slow: AtomicU64,
    pub(crate) turned_away: AtomicU64,
}

impl HostFigures {
    /// Of a host with so many connections at once.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            connections: ConnectionTable::new(limit),
            limit,
            calls: Default::default(),
            slow: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
        })
    }

    pub(crate) fn count(&self, answer: &Result<AnchorAnswer, Refusal>, took: Duration) {
        self.calls[Outcome::of(answer) as usize].fetch_add(1, Relaxed);
        if took >= SLOW {
            self.slow.fetch_add(1, Relaxed);
        }
    }

    /// As Prometheus reads them.
    pub fn metrics(self: Arc<Self>) -> Metrics {
        Metrics::new("firn_anchor", move |out| self.expose(out))
    }

    fn expose(&self, out: &mut Exposition<'_>) {
        let calls = Outcome::ALL.map(|(outcome, name)| {
            let count = self.calls[outcome as usize].load(Relaxed);
            ([("outcome", name)], count)
        });
        out.counters("calls_total", "Calls by how they ended.", calls);
        out.counter(
            "slow_calls_total",
            "Calls that took a second or longer.",
            self.slow.load(Relaxed),
        );
        out.gauge("connections", "Connections open.", self.connections.len());
        out.counter(
            "connections_refused_total",
            "Connections beyond the limit, none of which could give way.",
            self.turned_away.load(Relaxed),
        );
    }
}
