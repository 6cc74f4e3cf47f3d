//! Periodic work of an edge, such as cleaning and auditing: the sign that it is under way, and its periods as the wall clock counts.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// What is shown of such work.
pub trait ShowsWork {
    fn set_running(&mut self, is_running: bool);
}

/// Shows work as under way for as long as it is not over or dropped.
pub struct Running<'a, P: ShowsWork>(&'a Mutex<P>);

impl<'a, P: ShowsWork> Running<'a, P> {
    pub fn begin(part: &'a Mutex<P>) -> Self {
        let mut shown: MutexGuard<'_, P> = part.lock().expect("no panic under this lock");
        shown.set_running(true);
        Self(part)
    }
}

impl<P: ShowsWork> Drop for Running<'_, P> {
    fn drop(&mut self) {
        if let Ok(mut part) = self.0.lock() {
            part.set_running(false);
        }
    }
}

/// A period in milliseconds; one that never ends if there are too many.
pub fn millis(period: Duration) -> i64 {
    i64::try_from(period.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ShowsWork for bool {
        fn set_running(&mut self, is_running: bool) {
            *self = is_running;
        }
    }

    #[test]
    fn work_that_is_broken_off_is_not_shown_as_under_way() {
        let part = Mutex::new(false);
        let running = Running::begin(&part);
        assert!(*part.lock().unwrap());
        drop(running);
        assert!(!*part.lock().unwrap());
    }

    #[test]
    fn no_period_overflows() {
        assert_eq!(millis(Duration::MAX), i64::MAX);
        assert_eq!(millis(Duration::from_secs(60)), 60_000);
    }
}
