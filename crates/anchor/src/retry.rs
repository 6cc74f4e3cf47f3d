//! Retry policy of changes of a tuple: attempts and backoff.

use firn_env::Backoff;
use std::time::Duration;

/// Tries of one change. The table engine has its own retries below; these are for tuples that others change meanwhile and
/// for replies that were lost. Eight writers that collide every time are all served within this many rounds.
pub(crate) const ATTEMPTS: u32 = 8;
/// Before the second try two round trips to the table at most.
pub(crate) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(1));
