//! A throttle for warnings: one a minute, with the number of those it stands for, so that whoever causes warnings cannot fill a
//! disk with them.

use firn_env::Monotonic;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Default)]
pub(crate) struct Throttle {
    last: Option<Monotonic>,
    count: u64,
}

impl Throttle {
    /// Counts one more; gives how many there were since the last warning if it is time for the next.
    pub(crate) fn note(&mut self, now: Monotonic) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now < last.after(PERIOD)) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;

    #[test]
    fn the_first_is_told_at_once_and_the_others_once_a_minute_with_their_number() {
        let now = Simulation::new(1).env().now();
        let mut throttle = Throttle::default();
        assert_eq!(throttle.note(now), Some(1));
        for second in 1..60 {
            assert_eq!(throttle.note(now.after(Duration::from_secs(second))), None);
        }
        assert_eq!(throttle.note(now.after(PERIOD)), Some(60));
    }
}
