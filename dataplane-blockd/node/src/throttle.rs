//! A limit on bytes in a second, for copying and scrubbing.

use firn_env::{Env, Monotonic};
use std::{sync::Mutex, time::Duration};

/// Lets bytes pass at a rate: each caller waits until those before it have had their time.
pub(crate) struct Throttle {
    env: Env,
    bytes_per_second: u64,
    free_at: Mutex<Monotonic>,
}

impl Throttle {
    pub(crate) fn new(env: &Env, bytes_per_second: u64) -> Self {
        Self {
            env: env.clone(),
            bytes_per_second: bytes_per_second.max(1),
            free_at: Mutex::new(env.now()),
        }
    }

    pub(crate) async fn pass(&self, bytes: usize) {
        let now = self.env.now();
        let nanos = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let wait = {
            let mut free_at = self.free_at.lock().expect("no panic under this lock");
            let begins = (*free_at).max(now);
            *free_at = begins.after(takes);
            begins.since(now)
        };
        if !wait.is_zero() {
            self.env.sleep(wait).await;
        }
    }
}
