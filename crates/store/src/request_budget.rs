//! Request budget: what background work (audits, repairs, the mirror, the cleaner inside an edge) may ask of the stores of a process, so that
//! clients' reads and uploads go first.
//!
//! | | in flight at once | bytes | behind whom |
//! |---|---|---|---|
//! | foreground | its store's own bound ([`RetryPolicy`](crate::RetryPolicy)) | the upload limit | foreground that came earlier |
//! | background, while foreground is in flight or waits, and [`QUIET`] after it | `beside_clients`, of all stores together | `bytes_per_second` | those, and the background that came earlier |
//! | background, else | `requests_at_once`, likewise | the same | the background that came earlier |
//!
//! What is in flight is not taken back: a foreground request that comes to an idle edge finds `requests_at_once` of background before it at the
//! most, and `beside_clients` once those are over. Background is never stopped: `beside_clients` go on, so that a busy office is audited, too. An
//! upload takes the line for as long as a hundred challenges, so one in the background waits while there are any of the foreground; after
//! [`UPLOAD_DEADLINE`] it goes beside them, alone: a second store falls behind an office that uploads without a pause, and not for ever.
//!
//! A scheduler with priorities, a concurrency limit and a rate limiter (a virtual clock); source: Iris §6.2, where one budget orders all
//! that asks the cloud.

use crate::UploadLimit;
use firn_env::{Env, Monotonic};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Requests in flight at most, whatever is configured: each takes a connection and up to a segment of memory.
const REQUESTS_AT_ONCE_MAX: u32 = 4096;

/// A client that reads one block after the other comes back sooner.
const QUIET: Duration = Duration::from_secs(1);

/// How long an upload in the background waits for uploads of the foreground. A segment of 4 MiB each half minute is 1 Mbit/s.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(30);

/// What background work may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackgroundPolicy {
    /// Requests in flight while there are none of clients and uploads.
    pub requests_at_once: u32,
    /// Requests in flight beside those of clients and uploads.
    pub beside_clients: u32,
    /// Bytes to and from the stores; none: no limit.
    pub bytes_per_second: Option<u64>,
}

/// 64 keep a line of 100 Mbit/s and 30 ms busy with challenges of 36 KB, and delay a read there by a fifth of a second, once; 4 by a hundredth.
impl Default for BackgroundPolicy {
    fn default() -> Self {
        Self {
            requests_at_once: 64,
            beside_clients: 4,
            bytes_per_second: None,
        }
    }
}

impl BackgroundPolicy {
    /// Whether it can be meant.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=REQUESTS_AT_ONCE_MAX).contains(&self.requests_at_once) {
            return Err(format!(
                "requests_at_once must be between 1 and {REQUESTS_AT_ONCE_MAX}"
            ));
        }
        if !(1..=self.requests_at_once).contains(&self.beside_clients) {
            return Err("beside_clients must be between 1 and requests_at_once".into());
        }
        if self.bytes_per_second.is_some_and(|rate| rate < 1024) {
            return Err("bytes_per_second must be 1024 at least; without it there is no limit".into());
        }
        Ok(())
    }
}

/// How background work stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackgroundStatistics {
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that wait for others.
    pub waiting: u64,
    /// Requests of clients and uploads, in flight or waiting.
    pub foreground: u64,
    /// Background requests let through since the start.
    pub admitted: u64,
    /// Those of them that had to wait.
    pub delayed: u64,
    /// Their bytes, as far as they are known before.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    foreground: usize,
    /// When the last of them ended; none: there was none yet.
    idle_since: Option<Monotonic>,
    /// Foreground puts, in flight or waiting.
    foreground_uploads: usize,
    in_flight: usize,
    waiting: VecDeque<oneshot::Sender<BackgroundPermit>>,
    /// When the bytes let through so far are paid for.
    paid_at: Option<Monotonic>,
    admitted: u64,
    delayed: u64,
    bytes: u64,
}

/// See the module; one for all stores and volumes of a process.
pub struct RequestBudget {
    env: Env,
    policy: BackgroundPolicy,
    state: Mutex<State>,
    uploads_changed: Notify,
    /// One upload in the background goes beside those of the foreground.
    upload: tokio::sync::Mutex<()>,
    /// One upload in the background is in the queue of the upload limit, where nobody overtakes.
    limited: tokio::sync::Mutex<()>,
}

/// A foreground request; it counts until it is dropped.
pub struct ForegroundPermit {
    budget: Arc<RequestBudget>,
}

/// A foreground put, until it is dropped.
pub struct ForegroundUpload {
    budget: Arc<RequestBudget>,
}

/// A background request in flight, until it is dropped.
pub struct BackgroundPermit {
    /// `None`: it was taken back.
    budget: Option<Arc<RequestBudget>>,
}

/// A background put; if it goes beside those of the foreground, no other does until it is dropped.
pub struct BackgroundUpload<'a> {
    _one: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl RequestBudget {
    /// Nothing is in flight yet. Values of zero count as one.
    pub fn new(env: &Env, policy: BackgroundPolicy) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            policy,
            state: Mutex::default(),
            uploads_changed: Notify::new(),
            upload: tokio::sync::Mutex::new(()),
            limited: tokio::sync::Mutex::new(()),
        })
    }

    /// By which rules.
    pub fn policy(&self) -> &BackgroundPolicy {
        &self.policy
    }

    /// This moment.
    pub fn statistics(&self) -> BackgroundStatistics {
        let state = self.lock();
        BackgroundStatistics {
            in_flight: state.in_flight as u64,
            waiting: state.waiting.len() as u64,
            foreground: state.foreground as u64,
            admitted: state.admitted,
            delayed: state.delayed,
            bytes: state.bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no panic under the request budget's lock")
    }

    /// Background requests that may be in flight now.
    fn allowed(&self, state: &State) -> usize {
        let is_quiet = state.foreground == 0
            && state
                .idle_since
                .is_none_or(|idle_since| self.env.now().since(idle_since) >= QUIET);
        let allowed = match is_quiet {
            true => self.policy.requests_at_once,
            false => self.policy.beside_clients,
        };
        allowed.max(1) as usize
    }

    /// Counts a request of the foreground; it waits for nothing here.
    pub fn foreground(self: &Arc<Self>) -> ForegroundPermit {
        self.lock().foreground += 1;
        ForegroundPermit { budget: self.clone() }
    }

    /// Counts a put of the foreground.
    pub fn foreground_upload(self: &Arc<Self>) -> ForegroundUpload {
        self.lock().foreground_uploads += 1;
        ForegroundUpload { budget: self.clone() }
    }

    /// Completes when a request of the background may go, in the order in which they came; who stops waiting is passed by.
    pub async fn background(self: &Arc<Self>, bytes: u64) -> BackgroundPermit {
        let waiting = {
            let mut state = self.lock();
            state.admitted += 1;
            state.bytes = state.bytes.saturating_add(bytes);
            if state.waiting.is_empty() && state.in_flight < self.allowed(&state) {
                state.in_flight += 1;
                None
            } else {
                let (sender, receiver) = oneshot::channel();
                state.waiting.push_back(sender);
                state.delayed += 1;
                Some(receiver)
            }
        };
        let permit = match waiting {
            None => BackgroundPermit {
                budget: Some(self.clone()),
            },
            Some(receiver) => receiver
                .await
                .expect("the budget keeps who waits until it lets them go"),
        };
        self.pay(bytes).await;
        permit
    }

    /// Waits until the bytes of those before are paid for.
    async fn pay(&self, bytes: u64) {
        let Some(rate) = self.policy.bytes_per_second else {
            return;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let (now, begins_at) = {
            let mut state = self.lock();
            let now = self.env.now();
            let begins_at = state.paid_at.map_or(now, |paid_at| paid_at.max(now));
            let lasts = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            state.paid_at = Some(begins_at.after(lasts));
            (now, begins_at)
        };
        let wait = begins_at.since(now);
        if wait > Duration::ZERO {
            self.env.sleep(wait).await;
        }
    }

    /// Completes when a put of the background may go and the upload limit lets it.
    pub async fn background_upload(&self, limit: Option<&UploadLimit>, bytes: u64) -> BackgroundUpload<'_> {
        let Some(limit) = limit else {
            return self.upload_alone().await;
        };
        let _limited = self.limited.lock().await;
        let upload = self.upload_alone().await;
        limit.admit(bytes).await;
        upload
    }

    /// Completes when a put of the background may go: there is none of the foreground, or it has waited for long.
    async fn upload_alone(&self) -> BackgroundUpload<'_> {
        if self.lock().foreground_uploads == 0 {
            return BackgroundUpload { _one: None };
        }
        let one = self.upload.lock().await;
        let end = self.env.now().after(UPLOAD_DEADLINE);
        loop {
            let changed = self.uploads_changed.notified();
            if self.lock().foreground_uploads == 0 {
                return BackgroundUpload { _one: None };
            }
            let left = end.since(self.env.now());
            if left == Duration::ZERO || self.env.timeout(left, changed).await.is_err() {
                return BackgroundUpload { _one: Some(one) };
            }
        }
    }

    /// Lets go who waits, as far as there is room.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                if state.in_flight >= self.allowed(&state) {
                    return;
                }
                let Some(next) = state.waiting.pop_front() else {
                    return;
                };
                state.in_flight += 1;
                next
            };
            let permit = BackgroundPermit {
                budget: Some(self.clone()),
            };
            if let Err(mut unwanted) = next.send(permit) {
                // Not by its drop, which would come here again.
                unwanted.budget = None;
                self.lock().in_flight -= 1;
            }
        }
    }
}

impl Drop for ForegroundPermit {
    /// Whoever waits is let go once it was quiet for a while, when one of those in flight ends: while some wait, some are.
    fn drop(&mut self) {
        let now = self.budget.env.now();
        let mut state = self.budget.lock();
        state.foreground -= 1;
        state.idle_since = Some(now);
    }
}

impl Drop for ForegroundUpload {
    fn drop(&mut self) {
        self.budget.lock().foreground_uploads -= 1;
        self.budget.uploads_changed.notify_waiters();
    }
}

impl Drop for BackgroundPermit {
    fn drop(&mut self) {
        if let Some(budget) = self.budget.take() {
            budget.lock().in_flight -= 1;
            budget.grant();
        }
    }
}
