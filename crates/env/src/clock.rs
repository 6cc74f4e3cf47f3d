//! Time, in two kinds that must not be mixed: monotonic (for durations and deadlines) and wall (for what users see).

use futures::future::BoxFuture;
use std::time::Duration;

/// A point on the monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `duration` after this one.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// A calendar time in nanoseconds since 1970-01-01T00:00:00Z; negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub i64);

impl WallTime {
    /// Milliseconds since the epoch, rounded down.
    pub fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }
}

/// The limit of a [`timeout`](crate::Env::timeout) came before its future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {} ms", limit.as_millis())]
pub struct Elapsed {
    /// The limit that was set.
    pub limit: Duration,
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// See [`Env::now`](crate::Env::now).
    fn now(&self) -> Monotonic;
    /// See [`Env::wall`](crate::Env::wall).
    fn wall(&self) -> WallTime;
    /// Completes once `duration` has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// See [`Env::sleep_precisely`](crate::Env::sleep_precisely).
    fn sleep_precisely(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep(duration)
    }
}
