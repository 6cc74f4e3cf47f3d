//! Counting what a store is asked: the basis of every bill, cost table and fetch decision.
//!
//! A request counts when it is sent, whatever its outcome, since providers charge for refusals too; so does a request that
//! the caller gave up on. Bytes up count when sent, bytes down when they arrive. The sums are therefore what a provider can
//! charge at most: it waives its own failures.

use crate::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage};
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{
    fmt::Display,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tracing::{Instrument, Span};

/// Requests by class and bytes by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Objects stored.
    pub puts: u64,
    /// Whole objects read.
    pub gets: u64,
    /// Parts of objects read.
    pub ranged_gets: u64,
    /// Sizes asked for, and whether versions are kept.
    pub heads: u64,
    /// Listing pages asked for, of objects or of versions.
    pub lists: u64,
    /// Objects and versions removed.
    pub deletes: u64,
    /// Of all these, the ones the store could not or would not do (not those that found or did not find an object).
    pub failures: u64,
    /// Object bytes sent.
    pub bytes_up: u64,
    /// Object bytes received.
    pub bytes_down: u64,
}

impl Usage {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.puts + self.gets + self.ranged_gets + self.heads + self.lists + self.deletes
    }

    /// What was used after `earlier`, a snapshot of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combined(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    fn combined(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            puts: with(self.puts, other.puts),
            gets: with(self.gets, other.gets),
            ranged_gets: with(self.ranged_gets, other.ranged_gets),
            heads: with(self.heads, other.heads),
            lists: with(self.lists, other.lists),
            deletes: with(self.deletes, other.deletes),
            failures: with(self.failures, other.failures),
            bytes_up: with(self.bytes_up, other.bytes_up),
            bytes_down: with(self.bytes_down, other.bytes_down),
        }
    }
}

#[derive(Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    ranged_gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    failures: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

/// Reads the counters of a [`Metered`] store; cheap to clone, and stays valid when the store is gone.
#[derive(Clone, Default)]
pub struct Meter {
    counters: Arc<Counters>,
}

impl Meter {
    /// The counts so far. Each is exact; requests under way may be in one and not yet in another.
    pub fn usage(&self) -> Usage {
        let counters = &*self.counters;
        Usage {
            puts: counters.puts.load(Relaxed),
            gets: counters.gets.load(Relaxed),
            ranged_gets: counters.ranged_gets.load(Relaxed),
            heads: counters.heads.load(Relaxed),
            lists: counters.lists.load(Relaxed),
            deletes: counters.deletes.load(Relaxed),
            failures: counters.failures.load(Relaxed),
            bytes_up: counters.bytes_up.load(Relaxed),
            bytes_down: counters.bytes_down.load(Relaxed),
        }
    }
}

/// A store whose every request is counted.
pub struct Metered {
    inner: Arc<dyn Store>,
    meter: Meter,
}

impl Metered {
    /// Counts what passes to `inner`, from zero.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            meter: Meter::default(),
        }
    }

    /// The meter, to be kept when the store is handed on.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The counts so far.
    pub fn usage(&self) -> Usage {
        self.meter.usage()
    }

    fn counters(&self) -> &Counters {
        &self.meter.counters
    }

    fn noted<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::AlreadyExists { .. }) => {}
            Err(StoreError::Unavailable { .. } | StoreError::Denied { .. } | StoreError::Invalid { .. }) => {
                self.counters().failures.fetch_add(1, Relaxed);
            }
        }
        result
    }

    /// Sends a request: its failure is counted, and the debug log has it within the call that it is for.
    async fn sent<T>(
        &self,
        span: Span,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answered = async {
            tracing::debug!("asked");
            let result = answer.await;
            match &result {
                Ok(_) => tracing::debug!("answered"),
                Err(error) => tracing::debug!(%error, "answered"),
            }
            result
        };
        self.noted(answered.instrument(span).await)
    }

    fn received(&self, bytes: &Bytes) {
        self.counters().bytes_down.fetch_add(bytes.len() as u64, Relaxed);
    }
}

fn span(request: &'static str, object: &dyn Display) -> Span {
    tracing::debug_span!("store", request, %object)
}

#[async_trait]
impl Store for Metered {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let sent: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.counters().puts.fetch_add(1, Relaxed);
        self.counters().bytes_up.fetch_add(sent, Relaxed);
        self.sent(span("put", &key), self.inner.put(key, parts, mode))
            .await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.counters().gets.fetch_add(1, Relaxed);
        self.sent(span("get", &key), self.inner.get(key))
            .await
            .inspect(|bytes| self.received(bytes))
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.counters().ranged_gets.fetch_add(1, Relaxed);
        let span = tracing::debug_span!("store", request = "get_range", object = %key, offset, length);
        self.sent(span, self.inner.get_range(key, offset, length))
            .await
            .inspect(|bytes| self.received(bytes))
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.counters().heads.fetch_add(1, Relaxed);
        self.sent(span("head", &key), self.inner.head(key)).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.counters().deletes.fetch_add(1, Relaxed);
        self.sent(span("delete", &key), self.inner.delete(key)).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.counters().lists.fetch_add(1, Relaxed);
        self.sent(span("list", &prefix), self.inner.list(prefix, after))
            .await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        self.counters().heads.fetch_add(1, Relaxed);
        self.sent(span("keeps_versions", &"bucket"), self.inner.keeps_versions())
            .await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        self.counters().lists.fetch_add(1, Relaxed);
        self.sent(span("versions", &key), self.inner.versions(key)).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        self.counters().deletes.fetch_add(1, Relaxed);
        self.sent(
            span("delete_version", &key),
            self.inner.delete_version(key, version),
        )
        .await
    }
}
