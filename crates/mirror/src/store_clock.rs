//! The second store's clock, by which the ages of what it has are judged. A machine whose clock jumps ahead must not delete early what can undo a bad
//! cleaner: of both clocks the earlier one counts, and while the store's is not known nothing is old enough.
//!
//! The store says its time once: it dates the nonce of the alias check. From there on this machine's monotonic clock counts, which nobody sets; asleep
//! with the machine it is late, and never early.

use firn_env::{Env, Monotonic};
use std::time::Duration;

/// Clocks further apart than this are told: clouds refuse what is signed by such a machine.
pub(crate) const APART: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    /// By the store, milliseconds since 1970.
    dated_ms: i64,
    /// Not before that moment.
    seen_at: Monotonic,
}

impl StoreClock {
    /// An object that was put just now has this date.
    pub fn new(env: &Env, dated_ms: i64) -> Self {
        Self {
            dated_ms,
            seen_at: env.now(),
        }
    }

    /// Not later than the store's time.
    fn store_ms(self, env: &Env) -> i64 {
        let since_ms = env.now().since(self.seen_at).as_millis();
        self.dated_ms
            .saturating_add(i64::try_from(since_ms).unwrap_or(i64::MAX))
    }

    /// The moment by which ages are judged.
    pub fn now_ms(self, env: &Env) -> i64 {
        let here_ms = env.wall().as_millis();
        match firn_env::planted!("mirror.local_clock_alone") {
            true => here_ms,
            false => here_ms.min(self.store_ms(env)),
        }
    }

    /// How much this machine's clock is ahead of the store's, in milliseconds, if that is to be told; negative if it is behind.
    pub fn ahead_ms(self, env: &Env) -> Option<i64> {
        let ahead_ms = env.wall().as_millis().saturating_sub(self.store_ms(env));
        (u128::from(ahead_ms.unsigned_abs()) > APART.as_millis()).then_some(ahead_ms)
    }
}
