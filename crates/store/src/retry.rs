//! Retries with backoff and a deadline: they turn an unreliable link into a slow one.
//!
//! Only [`StoreError::Unavailable`] is tried again; every other answer is the store's last word. Between tries lies a random
//! pause below a bound that doubles (full jitter), so that clients that failed together do not return together. Each try
//! has a deadline that grows with the bytes it moves, and doubles after each try that ran into it, so that a line slower
//! than expected still gets through. Requests under way are bounded, reads apart from writes: a burst of uploads does not
//! hold up a read. Waiting for a permit or for the upload limit does not count against the deadline of a try. What is done in the background has the
//! permits of the [`RequestBudget`] instead, so that no client waits for them.
//!
//! **A create-only put whose reply was lost.** The first try may have made the object, then the second is told that it
//! exists. Names are never used by two writers, so it is almost surely ours; to be sure it is read back, and the put has
//! succeeded iff the content is the same, byte for byte. If it differs, that is "exists already"; if it cannot be read back
//! yet, that try has failed. A put told so by its very first try is not compared.

use crate::{
    ListPage, ObjectInfo, ObjectKey, PutMode, RequestBudget, Store, StoreError, UploadLimit, VersionPage,
    request_budget::{BackgroundPermit, BackgroundUpload, ForegroundPermit, ForegroundUpload},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Backoff, Env, Monotonic};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How often, how long and how much at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Tries of one request, the first included.
    pub tries_max: u32,
    /// Bound of the first pause.
    pub pause_ms: u64,
    /// Bound of any pause.
    pub pause_max_ms: u64,
    /// Deadline of a first try that moves no bytes.
    pub try_deadline_ms: u64,
    /// Bytes extend a first try's deadline as if they moved at this rate.
    pub slowest_bytes_per_second: u64,
    /// Deadline of any try.
    pub try_deadline_max_ms: u64,
    /// Time after which a request is not tried again, and a try under way is ended; none by default, the tries bound it.
    pub give_up_after_ms: Option<u64>,
    /// Gets, heads and lists under way.
    pub reads_at_once: u32,
    /// Puts and deletes under way.
    pub writes_at_once: u32,
}

/// Eight tries take about half a minute when the store refuses at once: longer than a provider's hiccup, short enough for
/// the engine to notice an outage and slow its clients. 32 uploads at once fill a fast line at 30 ms round trips.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries_max: 8,
            pause_ms: 200,
            pause_max_ms: 20_000,
            try_deadline_ms: 15_000,
            slowest_bytes_per_second: 128 << 10,
            try_deadline_max_ms: 300_000,
            give_up_after_ms: None,
            reads_at_once: 64,
            writes_at_once: 32,
        }
    }
}

/// What retrying has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryStatistics {
    /// Tries after a first one.
    pub retries: u64,
    /// Tries ended by their deadline.
    pub timeouts: u64,
    /// Requests that failed for good though they might have succeeded later.
    pub gave_up: u64,
    /// Create-only puts found to have succeeded by reading back.
    pub read_back: u64,
}

#[derive(Default)]
struct Counters {
    retries: AtomicU64,
    timeouts: AtomicU64,
    gave_up: AtomicU64,
    read_back: AtomicU64,
}

/// A store that tries again.
pub struct Retrying {
    env: Env,
    inner: Arc<dyn Store>,
    policy: RetryPolicy,
    backoff: Backoff,
    upload_limit: Option<Arc<UploadLimit>>,
    budget: Option<Arc<RequestBudget>>,
    is_background: bool,
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    counters: Arc<Counters>,
}

/// What a try holds while it is under way.
enum Permit<'a> {
    Foreground {
        _place: SemaphorePermit<'a>,
        _counted: Option<ForegroundPermit>,
        _upload: Option<ForegroundUpload>,
    },
    Background {
        _place: BackgroundPermit,
        _upload: Option<BackgroundUpload<'a>>,
    },
}

/// One request as the loop sees it.
struct Request<'a> {
    operation: &'static str,
    key: &'a ObjectKey,
    permits: &'a Semaphore,
    /// What the deadline allows for, and the upload limit charges if the request is a put.
    bytes: u64,
    is_upload: bool,
}

impl Retrying {
    /// Tries requests to `inner` as `policy` says. Values of zero in it count as one.
    pub fn new(env: &Env, inner: Arc<dyn Store>, policy: RetryPolicy) -> Self {
        Self {
            env: env.clone(),
            inner,
            upload_limit: None,
            budget: None,
            is_background: false,
            reads: Arc::new(Semaphore::new(policy.reads_at_once.max(1) as usize)),
            writes: Arc::new(Semaphore::new(policy.writes_at_once.max(1) as usize)),
            counters: Arc::default(),
            backoff: Backoff::new(
                Duration::from_millis(policy.pause_ms),
                Duration::from_millis(policy.pause_max_ms),
            ),
            policy,
        }
    }

    /// Makes every try of a put wait for `limit`.
    #[must_use]
    pub fn with_upload_limit(mut self, limit: Arc<UploadLimit>) -> Self {
        self.upload_limit = Some(limit);
        self
    }

    /// Counts its requests as those of clients and uploads, before which those of [`Retrying::background`] stand back.
    #[must_use]
    pub fn with_budget(mut self, budget: Arc<RequestBudget>) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The same store for work in the background. Without a budget it queues with the others.
    #[must_use]
    pub fn background(&self) -> Self {
        let mut background = Self::new(&self.env, self.inner.clone(), self.policy.clone());
        background.upload_limit.clone_from(&self.upload_limit);
        background.budget.clone_from(&self.budget);
        (background.reads, background.writes) = (self.reads.clone(), self.writes.clone());
        background.counters = self.counters.clone();
        background.is_background = !firn_env::planted!("store.background_as_foreground");
        background
    }

    /// Waits until a try may be made: for the upload limit, then for a place.
    async fn admitted<'a>(&'a self, request: &Request<'a>) -> Permit<'a> {
        let limit = self.upload_limit.as_ref().filter(|_| request.is_upload);
        if self.is_background
            && let Some(budget) = &self.budget
        {
            let upload = match request.is_upload {
                true => Some(
                    budget
                        .background_upload(limit.map(Arc::as_ref), request.bytes)
                        .await,
                ),
                false => None,
            };
            return Permit::Background {
                _place: budget.background(request.bytes).await,
                _upload: upload,
            };
        }
        let budget = self.budget.as_ref().filter(|_| request.is_upload);
        let upload = budget.map(RequestBudget::foreground_upload);
        if let Some(limit) = limit {
            limit.admit(request.bytes).await;
        }
        let counted = self.budget.as_ref().map(RequestBudget::foreground);
        let place = request.permits.acquire().await;
        Permit::Foreground {
            _place: place.expect("the semaphore is never closed"),
            _counted: counted,
            _upload: upload,
        }
    }

    /// What it has done so far.
    pub fn statistics(&self) -> RetryStatistics {
        RetryStatistics {
            retries: self.counters.retries.load(Relaxed),
            timeouts: self.counters.timeouts.load(Relaxed),
            gave_up: self.counters.gave_up.load(Relaxed),
            read_back: self.counters.read_back.load(Relaxed),
        }
    }

    /// Calls `call` until it gives another answer than "unavailable" or the policy ends it. `call` learns whether an earlier
    /// try may have been done after all.
    async fn run<'a, T>(
        &self,
        request: Request<'_>,
        call: impl Fn(bool) -> BoxFuture<'a, Result<T, StoreError>> + Send + Sync,
    ) -> Result<T, StoreError> {
        let give_up_at = self
            .policy
            .give_up_after_ms
            .map(|limit| self.env.now().after(Duration::from_millis(limit)));
        let mut timeouts = 0;
        let mut tries = 0;
        loop {
            let permit = self.admitted(&request).await;
            let deadline = self.deadline(request.bytes, timeouts, give_up_at);
            let result = self.env.timeout(deadline, call(tries > 0)).await;
            drop(permit);
            tries += 1;
            let error = match result {
                Ok(Err(error)) if error.is_transient() => error,
                Ok(answer) => return answer,
                Err(elapsed) => {
                    timeouts += 1;
                    self.counters.timeouts.fetch_add(1, Relaxed);
                    StoreError::unavailable(request.operation, request.key, elapsed.to_string())
                }
            };
            let pause = self.backoff.pause(&self.env, tries);
            let out_of_time = give_up_at.is_some_and(|end| self.env.now().after(pause) >= end);
            if tries >= self.policy.tries_max || out_of_time {
                self.counters.gave_up.fetch_add(1, Relaxed);
                return Err(error);
            }
            tracing::debug!(%error, tries, "the store is asked again");
            self.counters.retries.fetch_add(1, Relaxed);
            self.env.sleep(pause).await;
        }
    }

    fn deadline(&self, bytes: u64, timeouts: u32, give_up_at: Option<Monotonic>) -> Duration {
        let transfer_ms = bytes.saturating_mul(1000) / self.policy.slowest_bytes_per_second.max(1);
        let first_ms = self.policy.try_deadline_ms.max(1).saturating_add(transfer_ms);
        let doubled_ms = first_ms.saturating_mul(1 << timeouts.min(20));
        let deadline = Duration::from_millis(doubled_ms.min(self.policy.try_deadline_max_ms.max(first_ms)));
        match give_up_at {
            None => deadline,
            Some(end) => deadline.min(end.since(self.env.now())),
        }
    }

    fn read<'a>(&'a self, operation: &'static str, key: &'a ObjectKey, bytes: u64) -> Request<'a> {
        Request {
            operation,
            key,
            permits: &self.reads,
            bytes,
            is_upload: false,
        }
    }

    fn removal<'a>(&'a self, operation: &'static str, key: &'a ObjectKey) -> Request<'a> {
        Request {
            operation,
            key,
            permits: &self.writes,
            bytes: 0,
            is_upload: false,
        }
    }

    /// Whether the object that stands in a put's way is the one that the put was to make.
    async fn is_ours(&self, key: &ObjectKey, parts: &[Bytes]) -> Result<bool, StoreError> {
        match self.inner.get(key).await {
            Ok(stored) => Ok(same_content(&stored, parts)),
            Err(StoreError::NotFound { .. }) => Err(StoreError::unavailable(
                "put",
                key,
                "the object is said to exist, but cannot be read back yet",
            )),
            Err(error) => Err(error),
        }
    }
}

fn same_content(stored: &[u8], parts: &[Bytes]) -> bool {
    let mut rest = stored;
    for part in parts {
        match rest.strip_prefix(&part[..]) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

/// A whole object's get does not know its size in advance; a segment's is what to allow for.
const USUAL_OBJECT_BYTES: u64 = 4 << 20;

#[async_trait]
impl Store for Retrying {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let request = Request {
            operation: "put",
            key,
            permits: &self.writes,
            bytes: parts.iter().map(|part| part.len() as u64).sum(),
            is_upload: true,
        };
        let parts = &parts;
        self.run(request, |in_doubt| {
            Box::pin(async move {
                let result = self.inner.put(key, parts.clone(), mode).await;
                match result {
                    Err(StoreError::AlreadyExists { .. }) if in_doubt && self.is_ours(key, parts).await? => {
                        self.counters.read_back.fetch_add(1, Relaxed);
                        Ok(())
                    }
                    other => other,
                }
            })
        })
        .await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.run(self.read("get", key, USUAL_OBJECT_BYTES), |_| self.inner.get(key))
            .await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.run(self.read("get", key, length), |_| {
            self.inner.get_range(key, offset, length)
        })
        .await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.run(self.read("head", key, 0), |_| self.inner.head(key))
            .await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.run(self.removal("delete", key), |_| self.inner.delete(key))
            .await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let key = ObjectKey::of_prefix(prefix);
        self.run(self.read("list", &key, 0), |_| self.inner.list(prefix, after))
            .await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        let bucket = ObjectKey::of_prefix("");
        self.run(self.read("see versioning", &bucket, 0), |_| {
            self.inner.keeps_versions()
        })
        .await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.run(self.read("list versions", key, 0), |_| self.inner.versions(key))
            .await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        self.run(self.removal("delete version", key), |_| {
            self.inner.delete_version(key, version)
        })
        .await
    }
}
