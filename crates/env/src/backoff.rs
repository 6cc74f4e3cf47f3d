//! Retrying: how often something that failed is tried again, after what pauses, and when to stop.
//!
//! ```text
//! Backoff   the pause after the n-th failure: first · 2^(n-1), at most longest, with jitter. Alone it is for what must happen
//!           before anything else can, and is tried until its task ends
//! Retry     a backoff with its bounds: tries or time in all, time of one try
//! Attempts  one request under a Retry: counts its failures, waits between them, gives the last error back at the end
//! ```
//!
//! What is worth another try is its caller's to say: by a `match` that calls [`Attempts::again`] for those errors, or as the
//! closure of [`Env::retry`]. Jitter keeps clients that collided, or lost a server together, from coming back together.

use crate::{Elapsed, Env, Monotonic};
use std::{future::Future, time::Duration};

/// Doublings after which every real pause has reached its longest.
const DOUBLINGS_MAX: u32 = 20;

/// How much of a pause is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jitter {
    /// Anything below the pause: for many who collide.
    Full,
    /// Between half of the pause and all of it: for one who must not come back at once.
    Half,
    /// Nothing.
    None,
}

/// Pauses that double with each failure up to a longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// Below `first` after the first failure, below twice that after the second, never above `longest` (full jitter).
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            jitter: Jitter::Full,
        }
    }

    /// The same pause after every failure.
    pub const fn constant(pause: Duration) -> Self {
        Self::new(pause, pause).without_jitter()
    }

    /// At least half of each pause is kept, the other half is left to chance.
    #[must_use]
    pub const fn with_half_jitter(self) -> Self {
        Self {
            jitter: Jitter::Half,
            ..self
        }
    }

    /// Nothing is left to chance: for one who competes with nobody.
    #[must_use]
    pub const fn without_jitter(self) -> Self {
        Self {
            jitter: Jitter::None,
            ..self
        }
    }

    /// The longest pause after `failures` failures in a row; zero before the first.
    pub fn ceiling(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            _ => self
                .first
                .saturating_mul(1 << (failures - 1).min(DOUBLINGS_MAX))
                .min(self.longest),
        }
    }

    /// The pause after `failures` failures in a row, drawn anew at each call; zero before the first.
    pub fn pause(&self, env: &Env, failures: u32) -> Duration {
        let ceiling = self.ceiling(failures);
        let below = |most: Duration| {
            let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(env.random_below(nanos.max(1)))
        };
        match self.jitter {
            _ if failures == 0 => Duration::ZERO,
            Jitter::Full => below(ceiling),
            Jitter::Half => ceiling / 2 + below(ceiling / 2),
            Jitter::None => ceiling,
        }
    }

    /// Waits as long as [`Backoff::pause`] says; returns at once before the first failure.
    pub async fn wait(&self, env: &Env, failures: u32) {
        let pause = self.pause(env, failures);
        if !pause.is_zero() {
            env.sleep(pause).await;
        }
    }
}

/// A backoff with its bounds: of tries, of time, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    backoff: Backoff,
    /// The first try included; none where time alone is the bound.
    tries_max: Option<u32>,
    /// No try begins later than this after the first.
    within: Option<Duration>,
    /// One try takes no longer.
    try_limit: Option<Duration>,
}

impl Retry {
    /// At most `tries_max` tries, the first included; zero counts as one.
    pub const fn new(backoff: Backoff, tries_max: u32) -> Self {
        Self {
            backoff,
            tries_max: Some(if tries_max == 0 { 1 } else { tries_max }),
            within: None,
            try_limit: None,
        }
    }

    /// As many tries as begin before `limit` has passed since the first.
    pub const fn lasting(backoff: Backoff, limit: Duration) -> Self {
        Self {
            backoff,
            tries_max: None,
            within: Some(limit),
            try_limit: None,
        }
    }

    /// And no try begins once `limit` has passed since the first began.
    #[must_use]
    pub const fn within(self, limit: Duration) -> Self {
        Self {
            within: Some(limit),
            ..self
        }
    }

    /// One try under [`Attempts::bounded`] takes no longer than `limit`.
    #[must_use]
    pub const fn each_within(self, limit: Duration) -> Self {
        Self {
            try_limit: Some(limit),
            ..self
        }
    }

    /// Begins a request.
    pub fn begin(&self, env: &Env) -> Attempts {
        Attempts {
            env: env.clone(),
            retry: *self,
            began: env.now(),
            failures: 0,
        }
    }
}

/// One request that is tried until it succeeds or its [`Retry`] ends it.
pub struct Attempts {
    env: Env,
    retry: Retry,
    began: Monotonic,
    failures: u32,
}

impl Attempts {
    /// Tries that failed so far.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Runs one try within what the [`Retry`] leaves it; dropping it at its end must be safe for the caller.
    ///
    /// # Errors
    /// [`Elapsed`] when its time was over: whether it took effect is not known.
    pub async fn bounded<T>(&self, attempt: impl Future<Output = T>) -> Result<T, Elapsed> {
        match self.retry.try_limit {
            None => Ok(attempt.await),
            Some(limit) => self.env.timeout(limit, attempt).await,
        }
    }

    /// Notes that a try failed with `error`, and waits before the next one.
    ///
    /// # Errors
    /// `error` itself, at once, if there is to be no next try.
    pub async fn again<E>(&mut self, error: E) -> Result<(), E> {
        self.failures = self.failures.saturating_add(1);
        let pause = self.retry.backoff.pause(&self.env, self.failures);
        let is_last = self.retry.tries_max.is_some_and(|most| self.failures >= most)
            || self
                .retry
                .within
                .is_some_and(|limit| self.env.now().since(self.began) + pause >= limit);
        if is_last {
            return Err(error);
        }
        self.env.sleep(pause).await;
        Ok(())
    }
}

impl Env {
    /// Calls `attempt` (with the number of earlier failures) until it succeeds, fails with an error that `is_transient` does
    /// not hold for, or `retry` ends it. Cancel-safe if one try is.
    ///
    /// # Errors
    /// The last try's.
    pub async fn retry<T, E, F>(
        &self,
        retry: &Retry,
        is_transient: impl Fn(&E) -> bool,
        mut attempt: impl FnMut(u32) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut attempts = retry.begin(self);
        loop {
            match attempt(attempts.failures()).await {
                Err(error) if is_transient(&error) => attempts.again(error).await?,
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Simulation;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Env) -> F) {
        let simulation = Simulation::new(7);
        let env = simulation.machine("one").env();
        simulation.run(test(env)).expect("it comes to its end");
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_jitter_stays_below() {
        run(|env| async move {
            let full = Backoff::new(FIRST, LONGEST);
            let (half, none) = (full.with_half_jitter(), full.without_jitter());
            let mut drawn = std::collections::BTreeSet::new();
            for failures in 0..100 {
                let ceiling = match failures {
                    0 => Duration::ZERO,
                    1..=6 => FIRST * (1 << (failures - 1)),
                    _ => LONGEST,
                };
                assert_eq!(full.ceiling(failures), ceiling);
                assert_eq!(none.pause(&env, failures), ceiling);
                let (one, other) = (full.pause(&env, failures), half.pause(&env, failures));
                assert!(one <= ceiling && other <= ceiling && other >= ceiling / 2);
                drawn.insert(one);
            }
            assert!(drawn.len() > 90, "pauses are drawn: {}", drawn.len());
            assert_eq!(full.ceiling(u32::MAX), LONGEST);
            assert_eq!(Backoff::constant(FIRST).pause(&env, 9), FIRST);
        });
    }

    #[test]
    fn tries_are_bounded_by_number_and_the_last_error_comes_back() {
        run(|env| async move {
            let retry = Retry::new(Backoff::new(FIRST, LONGEST), 4);
            let tries = AtomicU32::new(0);
            let result: Result<(), u32> = env
                .retry(
                    &retry,
                    |_| true,
                    |failures| {
                        assert_eq!(failures, tries.fetch_add(1, Relaxed));
                        async move { Err(failures) }
                    },
                )
                .await;
            assert_eq!((result, tries.load(Relaxed)), (Err(3), 4));
            let once = Retry::new(Backoff::constant(FIRST), 0);
            assert_eq!(once.begin(&env).again("only").await, Err("only"));
        });
    }

    #[test]
    fn what_is_not_transient_is_tried_once_and_what_succeeds_ends_it() {
        run(|env| async move {
            let retry = Retry::lasting(Backoff::new(FIRST, LONGEST), 100 * LONGEST);
            let failed: Result<(), &str> = env.retry(&retry, |_| false, |_| async { Err("final") }).await;
            assert_eq!(failed, Err("final"));
            let done = env
                .retry(
                    &retry,
                    |_: &&str| true,
                    |failures| async move { if failures < 50 { Err("busy") } else { Ok(failures) } },
                )
                .await;
            assert_eq!(done, Ok(50));
        });
    }

    #[test]
    fn no_try_begins_after_the_time_in_all_and_none_takes_longer_than_its_own() {
        run(|env| async move {
            let retry = Retry::lasting(Backoff::constant(LONGEST), Duration::from_secs(10))
                .each_within(Duration::from_secs(2));
            let began = env.now();
            let mut attempts = retry.begin(&env);
            loop {
                let elapsed = attempts
                    .bounded(env.sleep(Duration::from_secs(60)))
                    .await
                    .expect_err("too long");
                if attempts.again(elapsed).await.is_err() {
                    break;
                }
            }
            // Three seconds a round: the fourth try ends at 11 s, and a fifth would begin too late.
            assert_eq!(attempts.failures(), 4);
            assert_eq!(env.now().since(began), Duration::from_secs(11));
        });
    }
}
