//! A bound on bytes in flight, shared fairly between connections.
//!
//! Every connection may hold a quarter of the whole, so one that sends much and reads nothing cannot starve the others.
//! Waiters are served in order. Whoever holds a charge finishes without asking for more of the same budget, so waiting
//! for one never deadlocks.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that all connections together may hold.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    whole: Arc<Semaphore>,
    share_bytes: usize,
}

/// One connection's part of a [`Budget`].
#[derive(Clone, Debug)]
pub(super) struct Share {
    whole: Arc<Semaphore>,
    own: Arc<Semaphore>,
    share_bytes: usize,
}

/// Bytes held; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    _own: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
}

impl Budget {
    /// Of `bytes`; a connection may hold a quarter of it, but always `largest_bytes`, the largest single charge.
    pub(super) fn new(bytes: usize, largest_bytes: usize) -> Self {
        let bytes = bytes.max(largest_bytes).min(u32::MAX as usize);
        Self {
            whole: Arc::new(Semaphore::new(bytes)),
            share_bytes: (bytes / 4).max(largest_bytes).min(bytes),
        }
    }

    pub(super) fn share(&self) -> Share {
        Share {
            whole: self.whole.clone(),
            own: Arc::new(Semaphore::new(self.share_bytes)),
            share_bytes: self.share_bytes,
        }
    }

    #[cfg(test)]
    pub(super) fn available_bytes(&self) -> usize {
        self.whole.available_permits()
    }
}

impl Share {
    /// Waits until `bytes` may be held. More than a whole share counts as a share.
    pub(super) async fn charge(&self, bytes: usize) -> Charge {
        let permits = bytes.min(self.share_bytes) as u32;
        const OPEN: &str = "budgets are never closed";
        Charge {
            _own: self.own.clone().acquire_many_owned(permits).await.expect(OPEN),
            _whole: self.whole.clone().acquire_many_owned(permits).await.expect(OPEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn one_connection_cannot_take_what_belongs_to_the_others() {
        let budget = Budget::new(4096, 100);
        let (greedy, modest) = (budget.share(), budget.share());
        let held = greedy
            .charge(1024)
            .now_or_never()
            .expect("a share is free at first");
        assert!(greedy.charge(1).now_or_never().is_none(), "the share is used up");
        let other = modest.charge(1024).now_or_never();
        assert!(other.is_some(), "others still have theirs");
        drop((held, other));
        assert_eq!(budget.available_bytes(), 4096);
    }

    #[test]
    fn a_charge_larger_than_a_share_takes_the_share_and_does_not_hang() {
        let share = Budget::new(4096, 100).share();
        assert!(share.charge(1 << 30).now_or_never().is_some());
    }
}
