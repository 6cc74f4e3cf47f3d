//! The queue of what was put into the first store and is not in the second yet. Bounded: what finds no room is found again by the next
//! comparison of the listings, and the age of the copy counts from it meanwhile.

use firn_store::ObjectKey;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::{Notify, futures::Notified};

/// Of some 150 bytes each: 80 GiB of segments of 4 MiB, in 3 MB of memory.
const WAITING_MAX: usize = 20_000;

/// A member of the family that waits for its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub key: ObjectKey,
    pub bytes: u64,
    /// When it was put, by this machine's clock.
    pub since_ms: i64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    /// Since when something found no room.
    overflowed_since_ms: Option<i64>,
}

/// See the module.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    noted: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the queue's lock")
    }

    /// Something was put into the first store.
    pub(crate) fn note(&self, key: &ObjectKey, bytes: u64, now_ms: i64) {
        let mut state = self.lock();
        if state.waiting.len() >= WAITING_MAX {
            state.overflowed_since_ms.get_or_insert(now_ms);
            return;
        }
        state.bytes += bytes;
        state.waiting.push_back(Waiting {
            key: key.clone(),
            bytes,
            since_ms: now_ms,
        });
        drop(state);
        self.noted.notify_one();
    }

    /// The longest waiting, which stays until [`Queue::done`].
    pub(crate) fn first(&self) -> Option<Waiting> {
        self.lock().waiting.front().cloned()
    }

    /// The first was copied, or need not be.
    pub(crate) fn done(&self) {
        let mut state = self.lock();
        if let Some(copied) = state.waiting.pop_front() {
            state.bytes -= copied.bytes;
        }
    }

    /// The next time that something is noted.
    pub(crate) fn noted(&self) -> Notified<'_> {
        self.noted.notified()
    }

    /// Whether a comparison is needed to find what found no room.
    pub(crate) fn overflowed(&self) -> bool {
        self.lock().overflowed_since_ms.is_some()
    }

    /// A comparison that began at `began_ms` found all that had found no room before.
    pub(crate) fn forget_overflow(&self, began_ms: i64) {
        let mut state = self.lock();
        if state.overflowed_since_ms.is_some_and(|since| since <= began_ms) {
            state.overflowed_since_ms = None;
        }
    }

    /// Members and bytes that wait, and since when the longest.
    pub(crate) fn backlog(&self) -> (u64, u64, Option<i64>) {
        let state = self.lock();
        let first = state.waiting.front().map(|waiting| waiting.since_ms);
        let since = [first, state.overflowed_since_ms].into_iter().flatten().min();
        (state.waiting.len() as u64, state.bytes, since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_forgotten_and_its_age_is_not() {
        let queue = Queue::default();
        for number in 0..=WAITING_MAX as i64 {
            queue.note(&ObjectKey::new(&format!("k{number}")), 2, 1000 + number);
        }
        let (objects, bytes, since) = queue.backlog();
        assert_eq!(
            (objects, bytes, since),
            (WAITING_MAX as u64, 2 * WAITING_MAX as u64, Some(1000))
        );
        assert!(queue.overflowed());
        while queue.first().is_some() {
            queue.done();
        }
        let (objects, bytes, since) = queue.backlog();
        assert_eq!((objects, bytes, since), (0, 0, Some(1000 + WAITING_MAX as i64)));
        queue.forget_overflow(since.unwrap() - 1);
        assert!(queue.overflowed(), "that comparison began before it was put");
        queue.forget_overflow(since.unwrap());
        assert_eq!(queue.backlog(), (0, 0, None));
    }
}
