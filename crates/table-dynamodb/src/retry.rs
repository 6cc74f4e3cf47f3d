//! Retry policy of requests: attempts, backoff, deadline.

use crate::failure::Failure;
use firn_env::{Backoff, Env, Retry};
use firn_table::TableError;
use std::{future::Future, time::Duration};

/// A conflict or a throttled partition clears within tens of milliseconds; a caller that has to slow its clients down wants to
/// know after 20 s.
const RETRY: Retry = Retry::new(
    Backoff::new(Duration::from_millis(25), Duration::from_secs(2)),
    12,
)
.within(Duration::from_secs(20));

/// Sends until it succeeds, fails for good, or is tried no more. `send` learns whether an earlier try is in doubt.
pub(crate) async fn persist<T, F>(env: &Env, mut send: impl FnMut(bool) -> F) -> Result<T, TableError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut in_doubt = false;
    let mut attempts = RETRY.begin(env);
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
        tracing::debug!(failures = attempts.failures(), %why, "a DynamoDB request failed");
        if let Err(why) = attempts.again(why).await {
            return Err(TableError::Unavailable(format!(
                "DynamoDB, after {} tries: {why}",
                attempts.failures()
            )));
        }
    }
}
