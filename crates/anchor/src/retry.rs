//! How often and how long a change of a tuple is tried.

use firn_env::Env;
use std::time::Duration;

/// Tries of one change. The table engine has its own retries below; these are for tuples that others change meanwhile and
/// for replies that were lost. Eight writers that collide every time are all served within this many rounds.
pub(crate) const ATTEMPTS: u32 = 8;
/// Before the second try: about one round trip to the table.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits before try number `attempt` (from 1; before the first there is no wait): exponential with full jitter.
pub(crate) async fn pause(env: &Env, attempt: u32) {
    if attempt == 0 {
        return;
    }
    let ceiling = FIRST_PAUSE
        .saturating_mul(1 << attempt.min(16))
        .min(LONGEST_PAUSE);
    let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
    env.sleep(Duration::from_nanos(env.random_below(nanos.max(1))))
        .await;
}
