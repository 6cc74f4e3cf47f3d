//! Locks on ranges of a device, granted in the order in which they were asked for.
//!
//! Whoever must read a block, change a part and write it back needs that nobody writes the block in between. A range waits
//! for every earlier overlapping one, so nobody starves and overlapping writes keep the order of their arrival.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::oneshot;

#[derive(Default)]
struct State {
    next: u64,
    /// Held or waited for, by order of arrival.
    claims: BTreeMap<u64, Claim>,
}

struct Claim {
    range: Range<u64>,
    /// Earlier overlapping claims that are not yet released.
    blockers: u64,
    wake: Option<oneshot::Sender<()>>,
}

/// Ranges held by callers. Cheap to clone; clones share the ranges.
#[derive(Clone, Default)]
pub struct RangeLock {
    state: Arc<Mutex<State>>,
}

/// A range that is held until this is dropped.
pub struct RangeGuard {
    state: Arc<Mutex<State>>,
    ticket: u64,
}

impl RangeLock {
    /// Waits until no earlier caller holds any of `range`. Dropping the future gives the place up.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard {
        let (guard, wait) = self.claim(range);
        if let Some(wait) = wait {
            // The sender lives in the claim, which the guard keeps.
            let _ = wait.await;
        }
        guard
    }

    fn claim(&self, range: Range<u64>) -> (RangeGuard, Option<oneshot::Receiver<()>>) {
        let mut state = locked(&self.state);
        let ticket = state.next;
        state.next += 1;
        let blockers = state
            .claims
            .values()
            .filter(|claim| overlap(&claim.range, &range))
            .count() as u64;
        let (wake, wait) = oneshot::channel();
        let wake = (blockers > 0).then_some(wake);
        let wait = (blockers > 0).then_some(wait);
        state.claims.insert(
            ticket,
            Claim {
                range,
                blockers,
                wake,
            },
        );
        let guard = RangeGuard {
            state: self.state.clone(),
            ticket,
        };
        (guard, wait)
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = locked(&self.state);
        let released = state
            .claims
            .remove(&self.ticket)
            .expect("a claim lives as long as its guard");
        for (_, later) in state.claims.range_mut(self.ticket..) {
            if overlap(&later.range, &released.range) {
                later.blockers -= 1;
                if later.blockers == 0
                    && let Some(wake) = later.wake.take()
                {
                    let _ = wake.send(());
                }
            }
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic under this lock")
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn overlapping_ranges_wait_in_order_and_others_do_not() {
        let lock = RangeLock::default();
        let first = lock.lock(0..10).now_or_never().expect("nobody holds it");
        assert!(lock.lock(10..20).now_or_never().is_some());
        let mut second = Box::pin(lock.lock(5..15));
        assert!(second.as_mut().now_or_never().is_none());
        // It would be free, but the second came first.
        let mut third = Box::pin(lock.lock(12..14));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        let held = second.as_mut().now_or_never().expect("it was next");
        assert!(third.as_mut().now_or_never().is_none());
        drop(held);
        assert!(third.as_mut().now_or_never().is_some());
    }

    #[test]
    fn whoever_stops_waiting_holds_nobody_up() {
        let lock = RangeLock::default();
        let first = lock.lock(0..10).now_or_never().expect("nobody holds it");
        let mut second = Box::pin(lock.lock(0..10));
        assert!(second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(lock.lock(0..10));
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_some());
        assert!(locked(&lock.state).claims.is_empty());
    }
}
