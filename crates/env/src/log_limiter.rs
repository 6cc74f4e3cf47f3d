//! A limit on the rate of one kind of warning: the first is written, then at most one a minute, with the count of those between.
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
#[derive(Debug, Default)]
pub struct LogLimiter {
    total: AtomicU64,
    logged: Mutex<Option<(Monotonic, u64)>>,
}

impl LogLimiter {
    /// Counts an event. `Some` if it is to be logged: how many there were since the last that was, this one included.
    pub fn count(&self, now: Monotonic) -> Option<u64> {
        let total = self.total.fetch_add(1, Relaxed) + 1;
        let mut logged = self.logged.lock().expect("no panic under this lock");
        let before = match *logged {
            Some((last, _)) if now.since(last) < INTERVAL => return None,
            Some((_, before)) => before,
            None => 0,
        };
        *logged = Some((now, total));
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
}
