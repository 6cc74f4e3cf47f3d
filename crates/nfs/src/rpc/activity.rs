//! The activity of one connection: when it last moved, and whether it is slow.
//!
//! A record, and the replies being written, have one deadline each, counted from their beginning: so long, and longer by what
//! has moved of them at the lowest rate that is accepted. Neither fragments nor single bytes put it off, and however much moved
//! at first, something must move within each such time. Time in which the server itself kept the connection waiting does not
//! count.

use firn_env::Monotonic;
use std::{
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How slow a connection may be: it has `base`, and a second more for each `bytes_per_second` that have moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) base: Duration,
    pub(super) bytes_per_second: u64,
}

impl Pace {
    /// While memory is short: whoever holds some must move as a line of half a megabit does.
    pub(super) const WHILE_OTHERS_WAIT: Self = Self {
        base: Duration::from_secs(2),
        bytes_per_second: 64 << 10,
    };

    /// Otherwise `base`, and the rate of a line of a quarter of a megabit: 1 MiB in half a minute more.
    pub(super) fn ordinary(base: Duration) -> Self {
        Self {
            base,
            bytes_per_second: 32 << 10,
        }
    }

    pub(super) fn is_missed(self, began: Monotonic, moved_bytes: u64, now: Monotonic) -> bool {
        let credit = Duration::from_millis(moved_bytes.saturating_mul(1000) / self.bytes_per_second);
        now.since(began) > self.base.saturating_add(credit)
    }
}

/// Something that moves bytes: since when (zero: nothing does), and how many so far.
#[derive(Debug, Default)]
pub(super) struct Movement {
    began: AtomicU64,
    last: AtomicU64,
    bytes: AtomicU64,
    paused: AtomicBool,
}

impl Movement {
    pub(super) fn begin(&self, now: Monotonic) {
        self.bytes.store(0, Relaxed);
        self.last.store(now.0, Relaxed);
        self.began.store(now.0.max(1), Relaxed);
    }

    pub(super) fn end(&self) {
        self.began.store(0, Relaxed);
    }

    /// The record that is awaited has so many bytes; `None` if none is.
    pub(super) fn has(&self, bytes: Option<usize>, now: Monotonic) {
        match bytes {
            None => self.end(),
            Some(bytes) => {
                if self.began.load(Relaxed) == 0 {
                    self.begin(now);
                }
                if self.bytes.swap(bytes as u64, Relaxed) != bytes as u64 {
                    self.last.store(now.0, Relaxed);
                }
            }
        }
    }

    pub(super) fn moved(&self, bytes: usize, now: Monotonic) {
        self.last.store(now.0, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Stops the clock while the server keeps it waiting; give the result to [`Movement::resume`].
    pub(super) fn pause(&self) -> u64 {
        self.paused.store(true, Relaxed);
        self.began.swap(0, Relaxed)
    }

    /// Goes on after `waited`.
    pub(super) fn resume(&self, began: u64, waited: Duration) {
        if began != 0 {
            let last = Monotonic(self.last.load(Relaxed)).after(waited);
            self.last.store(last.0, Relaxed);
            self.began.store(Monotonic(began).after(waited).0, Relaxed);
        }
        self.paused.store(false, Relaxed);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn is_going_on(&self) -> bool {
        self.began.load(Relaxed) != 0
    }

    fn misses(&self, pace: Pace, now: Monotonic) -> bool {
        let began = self.began.load(Relaxed);
        let stands_still = now.since(Monotonic(self.last.load(Relaxed))) > pace.base;
        began != 0 && (stands_still || pace.is_missed(Monotonic(began), self.bytes(), now))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Activity {
    last_call: AtomicU64,
    last_reply: AtomicU64,
    /// Of a record that is not complete.
    pub(super) record: Movement,
    /// Of the replies being written.
    pub(super) writing: Movement,
    /// Bytes beyond which a record holds memory that others wait for.
    held_from: AtomicUsize,
    ended: AtomicBool,
    end: Notify,
}

impl Activity {
    pub(super) fn new(now: Monotonic, held_from: usize) -> Self {
        let activity = Self::default();
        activity.call(now);
        activity.held_from.store(held_from, Relaxed);
        activity
    }

    pub(super) fn call(&self, now: Monotonic) {
        self.last_call.store(now.0, Relaxed);
    }

    pub(super) fn reply(&self, now: Monotonic) {
        self.last_reply.store(now.0, Relaxed);
    }

    /// Since the last call or reply.
    pub(super) fn quiet_for(&self, now: Monotonic) -> Duration {
        let last = self.last_call.load(Relaxed).max(self.last_reply.load(Relaxed));
        now.since(Monotonic(last))
    }

    /// Why the connection is too slow; `None` if it is not.
    pub(super) fn is_slow(&self, pace: Pace, now: Monotonic) -> Option<&'static str> {
        if self.writing.misses(pace, now) {
            return Some("the client takes no replies");
        }
        self.record
            .misses(pace, now)
            .then_some("a record was not completed in time")
    }

    /// Whether it is slow and holds memory that others wait for.
    pub(super) fn holds_others_up(&self, now: Monotonic) -> bool {
        let pace = Pace::WHILE_OTHERS_WAIT;
        let held = self.record.bytes() >= self.held_from.load(Relaxed) as u64;
        self.writing.misses(pace, now) || held && self.record.misses(pace, now)
    }

    /// Ends the connection from outside.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.end.notify_one();
    }

    /// Completes when somebody called [`Activity::end`].
    pub(super) async fn ended(&self) {
        while !self.ended.load(SeqCst) {
            self.end.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * 1_000_000)
    }

    #[test]
    fn a_record_has_one_deadline_that_only_bytes_extend() {
        let pace = Pace::ordinary(Duration::from_secs(10));
        let activity = Activity::new(at(1), 1000);
        activity.record.has(Some(4), at(1));
        for fragment in 2..9_000 {
            activity.record.has(Some(4), at(fragment));
        }
        assert_eq!(activity.is_slow(pace, at(10_001)), None);
        assert!(activity.is_slow(pace, at(10_002)).is_some());
        activity.record.has(Some(4 + (32 << 10)), at(10_000));
        assert_eq!(activity.is_slow(pace, at(11_000)), None, "a second for 32 KiB");
        assert!(activity.is_slow(pace, at(11_002)).is_some());
        activity.record.has(None, at(11_000));
        assert_eq!(activity.is_slow(pace, at(99_000)), None);
    }

    #[test]
    fn what_the_server_lets_wait_does_not_count() {
        let pace = Pace::ordinary(Duration::from_secs(1));
        let activity = Activity::new(at(1), 0);
        activity.record.has(Some(1000), at(1));
        let began = activity.record.pause();
        assert_eq!(activity.is_slow(pace, at(50_000)), None);
        activity.record.resume(began, Duration::from_secs(50));
        assert_eq!(activity.is_slow(pace, at(50_500)), None);
        assert!(activity.is_slow(pace, at(51_100)).is_some());
    }

    #[test]
    fn only_who_holds_memory_and_is_slow_holds_others_up() {
        let activity = Activity::new(at(1), 16 << 10);
        activity.record.has(Some(100), at(1));
        assert!(!activity.holds_others_up(at(60_000)), "it holds nothing");
        activity.record.has(Some(16 << 10), at(1));
        assert!(!activity.holds_others_up(at(2_000)));
        assert!(activity.holds_others_up(at(2_002)));
        for second in 3..20 {
            let received = (16 << 10) + second as usize * (64 << 10);
            activity.record.has(Some(received), at(second * 1000));
            assert!(
                !activity.holds_others_up(at(second * 1000 + 900)),
                "as fast as it must be"
            );
        }
        assert!(activity.holds_others_up(at(22_000)), "and then it stops");
    }
}
