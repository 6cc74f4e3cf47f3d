//! The retry state of one store or load: since when it is tried, and what people see of its waiting.

use crate::waits::{Wait, Waits};
use firn_env::{Backoff, Env, Monotonic};
use std::time::Duration;

/// Before a node is asked again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500)).without_jitter();

/// See the module.
pub(crate) struct RetryState {
    began: Monotonic,
    failures: u32,
    immediate_retries: u32,
    /// For people, from the first pause on.
    wait: Option<Wait>,
}

/// Times that something new is followed at once, in one store or load. More of them mean that somebody is confused.
const IMMEDIATE_RETRIES_MAX: u32 = 8;

impl RetryState {
    pub(crate) fn new(env: &Env) -> Self {
        Self {
            began: env.now(),
            failures: 0,
            immediate_retries: 0,
            wait: None,
        }
    }

    /// Asks again at once, or says why not.
    pub(crate) fn retry_at_once(&mut self) -> Option<String> {
        self.immediate_retries += 1;
        (self.immediate_retries > IMMEDIATE_RETRIES_MAX)
            .then(|| "the row keeps changing, or a node keeps forgetting its fence".into())
    }

    /// When the request began.
    pub(crate) fn began(&self) -> Monotonic {
        self.began
    }

    /// Says for people why it waits.
    pub(crate) fn say(&mut self, waits: &Waits, why: &str) {
        match &self.wait {
            Some(wait) => wait.say(why.to_owned()),
            None => self.wait = Some(waits.begin(self.began, why.to_owned())),
        }
    }

    /// Waits before the nodes are asked again.
    pub(crate) async fn pause(&mut self, env: &Env) {
        self.failures += 1;
        BACKOFF.wait(env, self.failures).await;
    }
}
