//! How often and how long a request is tried.

use crate::failure::Failure;
use firn_env::Env;
use firn_table::TableError;
use std::{future::Future, time::Duration};

/// Tries of one request at most.
const ATTEMPTS: u32 = 12;
/// No new try begins after this long: a caller that has to slow its clients down wants to know.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest first pause; doubled for each further one. A conflict or a throttled partition clears within tens of ms.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// Longest pause at all.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Sends until it succeeds, fails for good, or patience ends. `send` is told whether an earlier try is in doubt.
pub(crate) async fn persist<T, F>(env: &Env, mut send: impl FnMut(bool) -> F) -> Result<T, TableError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let start = env.now();
    let mut in_doubt = false;
    let mut tries = 0;
    loop {
        let why = match send(in_doubt).await {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Busy(why)) => why,
            Err(Failure::Doubt(why)) => {
                in_doubt = true;
                why
            }
        };
        tries += 1;
        let pause = pause(env, tries);
        if tries >= ATTEMPTS || env.now().since(start) + pause >= TIMEOUT {
            return Err(TableError::Unavailable(format!(
                "DynamoDB, after {tries} tries: {why}"
            )));
        }
        tracing::debug!(tries, %why, "DynamoDB request is tried again");
        env.sleep(pause).await;
    }
}

/// Exponential, with full jitter: clients that collided do not collide again.
fn pause(env: &Env, tries: u32) -> Duration {
    let ceiling = FIRST_PAUSE
        .saturating_mul(1 << (tries - 1).min(16))
        .min(LONGEST_PAUSE);
    let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(env.random_below(nanos.max(1)))
}
