//! A limit on the rate of one kind of warning: the first is written, then at most one a minute (or a few), with the count of those
//! between.
//!
//! What a stranger can cause must not fill the disk with logs.

use crate::Monotonic;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Between two lines of the same kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts events and says which of them to log.
#[derive(Debug)]
pub struct LogLimiter {
    lines: u32,
    total: AtomicU64,
    logged: Mutex<Logged>,
}

/// What was logged in the minute that began with `first`.
#[derive(Debug, Default)]
struct Logged {
    first: Option<Monotonic>,
    lines: u32,
    total_before: u64,
}

impl Default for LogLimiter {
    fn default() -> Self {
        Self::lines(1)
    }
}

impl LogLimiter {
    /// Lets so many lines pass in a minute.
    pub fn lines(lines: u32) -> Self {
        Self {
            lines,
            total: AtomicU64::new(0),
            logged: Mutex::default(),
        }
    }

    /// Counts an event. `Some` if it is to be logged: how many there were since the last that was, this one included.
    pub fn count(&self, now: Monotonic) -> Option<u64> {
        let total = self.total.fetch_add(1, Relaxed) + 1;
        let mut logged = self.logged.lock().expect("no panic under this lock");
        match logged.first {
            Some(first) if now.since(first) < INTERVAL => {
                if logged.lines == self.lines {
                    return None;
                }
            }
            _ => (logged.first, logged.lines) = (Some(now), 0),
        }
        logged.lines += 1;
        let before = std::mem::replace(&mut logged.total_before, total);
        Some(total.saturating_sub(before))
    }

    /// Events since the start.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_stands_for_all_of_it() {
        let limiter = LogLimiter::default();
        let at = |seconds: u64| Monotonic(seconds * 1_000_000_000);
        assert_eq!(limiter.count(at(5)), Some(1));
        for second in 6..65 {
            assert_eq!(limiter.count(at(second)), None);
        }
        assert_eq!(limiter.count(at(65)), Some(60));
        assert_eq!(limiter.count(at(300)), Some(1));
        assert_eq!(limiter.total(), 62);
    }

    #[test]
    fn of_a_few_lines_a_minute_each_tells_of_those_before_it() {
        let limiter = LogLimiter::lines(3);
        let at = |seconds: u64| Monotonic(seconds * 1_000_000_000);
        let logged = [0, 1, 2, 3, 4, 61, 62].map(|second| limiter.count(at(second)));
        assert_eq!(logged, [Some(1), Some(1), Some(1), None, None, Some(3), Some(1)]);
    }
}
