//! Latency estimate of a disk: how long syncs and writes have lately taken, and whether the next one may be made in place.
//!
//! A sync on a fast device (NVMe, or a controller with a protected cache) takes 20 to 200 µs. Handing it to another thread
//! and back costs two wake-ups, 50 to 100 µs on a small machine: as much again. So while syncs are short they are made on the
//! caller's thread, where they hold up other tasks for no longer than sealing a block does. The first long one sends those
//! after it to threads, until they have been short again for a while. A disk that stalls now and then holds up one thread of
//! the executor, once. Where there is nobody to hold up, at queue depth 1, syncs of a few times that length are short, too.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Below this mean a sync counts as short: a tenth of the time slice that an operating system gives a thread.
const SHORT: Duration = Duration::from_micros(400);

/// Below this mean a sync counts as short where only the one who asked for it waits (decision 0228).
const SHORT_FOR_ONE: Duration = Duration::from_micros(1500);

/// What is written with a sync in place at most; more is work for another thread, however fast the device.
const SHORT_BYTES: usize = 128 << 10;

/// A sync of this length or more ends doing it in place at once.
const LONG: Duration = Duration::from_millis(2);

/// Who waits while a call is made in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhoWaits {
    /// Only the one whose request needs the call, as far as is known.
    One,
    /// Perhaps others, too.
    Others,
}

/// A moving mean of the lengths of syncs, or of writes, of all files of a disk.
pub(super) struct Pace {
    /// In nanoseconds; starts above [`SHORT`], so that a device proves itself first.
    mean_ns: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            mean_ns: AtomicU64::new(LONG.as_nanos() as u64),
        }
    }
}

impl Pace {
    /// Whether a call that writes and syncs so many bytes is expected to be short.
    pub(super) fn is_short(&self, bytes: usize, who_waits: WhoWaits) -> bool {
        let short = match who_waits {
            WhoWaits::One => SHORT_FOR_ONE,
            WhoWaits::Others => SHORT,
        };
        bytes <= SHORT_BYTES && self.mean_ns.load(Relaxed) <= short.as_nanos() as u64
    }

    /// Makes the call and takes note of its length, if it says something about small ones.
    #[allow(
        clippy::disallowed_methods,
        reason = "measures the real device; the simulated disk has its own"
    )]
    pub(super) fn measure<T>(&self, bytes: usize, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let start = std::time::Instant::now();
        let result = call();
        if bytes <= SHORT_BYTES {
            self.note(start.elapsed());
        }
        result
    }

    /// Takes note of a call that took so long.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Lost updates among threads only make the mean a little older.
        let mean = self.mean_ns.load(Relaxed);
        let next = if took >= LONG.as_nanos() as u64 {
            took.max(mean)
        } else {
            mean - mean / 8 + took / 8
        };
        self.mean_ns.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{LONG, Pace, SHORT, SHORT_BYTES, SHORT_FOR_ONE, WhoWaits};
    use std::time::Duration;

    fn noted(pace: &Pace, took: Duration, times: usize) {
        for _ in 0..times {
            pace.note(took);
        }
    }

    #[test]
    fn a_device_proves_itself_before_it_is_waited_for_in_place() {
        let pace = Pace::default();
        assert!(!pace.is_short(1, WhoWaits::Others));
        noted(&pace, SHORT / 4, 3);
        assert!(!pace.is_short(1, WhoWaits::Others));
        noted(&pace, SHORT / 4, 30);
        assert!(pace.is_short(SHORT_BYTES, WhoWaits::Others));
        assert!(!pace.is_short(SHORT_BYTES + 1, WhoWaits::One));
    }

    #[test]
    fn one_long_sync_sends_the_next_to_threads_until_they_are_short_again() {
        let pace = Pace::default();
        noted(&pace, SHORT / 4, 40);
        pace.note(LONG * 10);
        assert!(!pace.is_short(1, WhoWaits::Others));
        noted(&pace, SHORT / 4, 10);
        assert!(!pace.is_short(1, WhoWaits::Others));
        noted(&pace, SHORT / 4, 60);
        assert!(pace.is_short(1, WhoWaits::Others));
    }

    #[test]
    fn a_device_that_is_not_quite_fast_is_waited_for_in_place_by_one_alone() {
        let pace = Pace::default();
        noted(&pace, SHORT * 2, 1000);
        assert!(!pace.is_short(1, WhoWaits::Others));
        assert!(pace.is_short(1, WhoWaits::One));
        assert!(pace.is_short(SHORT_BYTES, WhoWaits::One));
        pace.note(LONG);
        assert!(!pace.is_short(1, WhoWaits::One), "one was long a moment ago");
    }

    #[test]
    fn a_device_that_is_slow_is_never_waited_for_in_place() {
        let pace = Pace::default();
        noted(&pace, SHORT_FOR_ONE * 5 / 4, 1000);
        assert!(!pace.is_short(1, WhoWaits::One));
        noted(&pace, Duration::MAX, 3);
        assert!(!pace.is_short(1, WhoWaits::One));
    }
}
