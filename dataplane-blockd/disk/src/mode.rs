//! Write and flush policies: when each is answered, and within what bounds.

/// When a flush is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushPolicy {
    /// When everything answered before it is durable on all replicas.
    Durable,
    /// At once, as an order only: after a crash a tail of flushed writes may be gone, never a middle. Must be asked for by
    /// name. Nothing more is answered while the oldest write that is not durable is older than `lag_ms_max`.
    Ordered {
        /// Bound of that age.
        lag_ms_max: u64,
    },
}

/// How a striped disk answers writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WritePolicy {
    /// When durable on all replicas (`write-through`).
    Durable,
    /// From memory (`write-back`, `flush-epoch`).
    Memory,
}

/// Which requests answered from memory may go out: a queue in order, held back by the bounds.
///
/// What is answered and not durable is what a crash loses, so its bytes and age are bounded here, in one place.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Answers {
    dirty_bytes_max: u64,
    lag_ms_max: Option<u64>,
    held: std::collections::VecDeque<crate::types::RequestId>,
}

impl Answers {
    pub(crate) fn new(dirty_bytes_max: u64, flush: FlushPolicy) -> Self {
        Self {
            dirty_bytes_max,
            lag_ms_max: match flush {
                FlushPolicy::Durable => None,
                FlushPolicy::Ordered { lag_ms_max } => Some(lag_ms_max),
            },
            held: std::collections::VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, request: crate::types::RequestId) {
        self.held.push_back(request);
    }

    /// Takes all: what they wrote was made safe in another way.
    pub(crate) fn release_all(&mut self) -> impl Iterator<Item = crate::types::RequestId> + '_ {
        self.held.drain(..)
    }

    /// Takes those that may be answered now. `oldest_ms` is when the oldest write that is not durable arrived.
    pub(crate) fn release(
        &mut self,
        dirty_bytes: u64,
        oldest_ms: Option<u64>,
        now_ms: u64,
    ) -> impl Iterator<Item = crate::types::RequestId> + '_ {
        let late = match (self.lag_ms_max, oldest_ms) {
            (Some(most), Some(oldest)) => now_ms.saturating_sub(oldest) > most,
            _ => false,
        };
        let open = dirty_bytes <= self.dirty_bytes_max && !late;
        let count = if open { self.held.len() } else { 0 };
        self.held.drain(..count)
    }
}
