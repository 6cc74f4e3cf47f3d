//! Retry policy of requests to a table service: attempts, backoff, deadline, and what an earlier attempt leaves in doubt.
//!
//! An engine sorts each failed request into one of three ([`RequestFailure`]); this repeats it until it succeeds, fails for good, or is
//! tried no more. It is one policy for all services, so that an edge behaves alike on each.

use crate::TableError;
use firn_env::{Backoff, Env, Retry};
use std::{future::Future, time::Duration};

/// A conflict or a throttled partition clears within tens of milliseconds; a caller that has to slow its clients down wants to
/// know after 20 s.
const RETRY: Retry = Retry::new(
    Backoff::new(Duration::from_millis(25), Duration::from_secs(2)),
    12,
)
.within(Duration::from_secs(20));

/// A failed request, by what it is right to do next.
#[derive(Debug)]
pub enum RequestFailure {
    /// It did not happen, and may be sent again: throttled, or in conflict with another transaction.
    Busy(String),
    /// It may have happened or may still happen: no answer, or one that says nothing.
    Doubt(String),
    /// Sending it again will not help.
    Final(TableError),
}

impl RequestFailure {
    /// A condition that does not hold. It proves that nothing happened only if no earlier try is in doubt: that one may have happened
    /// before others changed the item again, or may still be on its way.
    pub fn condition_failed(service: &str, in_doubt: bool, index: usize) -> Self {
        Self::Final(if in_doubt {
            TableError::Unavailable(format!(
                "{service} did not answer a first try, and a second one came too late to tell"
            ))
        } else {
            TableError::ConditionFailed { index }
        })
    }
}

/// Sends until it succeeds, fails for good, or is tried no more. `send` learns whether an earlier try is in doubt; `service` is what people
/// call what is asked.
///
/// # Errors
/// The final failure, or [`TableError::Unavailable`] after the last try.
pub async fn persist<T, F>(env: &Env, service: &str, mut send: impl FnMut(bool) -> F) -> Result<T, TableError>
where
    F: Future<Output = Result<T, RequestFailure>>,
{
    let mut in_doubt = false;
    let mut attempts = RETRY.begin(env);
    loop {
        let why = match send(in_doubt).await {
            Ok(value) => return Ok(value),
            Err(RequestFailure::Final(error)) => return Err(error),
            Err(RequestFailure::Busy(why)) => why,
            Err(RequestFailure::Doubt(why)) => {
                in_doubt = true;
                why
            }
        };
        tracing::debug!(failures = attempts.failures(), %why, service, "a request to the table failed");
        if let Err(why) = attempts.again(why).await {
            return Err(TableError::Unavailable(format!(
                "{service}, after {} tries: {why}",
                attempts.failures()
            )));
        }
    }
}
