//! Serving while the cloud is away: what is known of the outage, and the wait for its end.
//!
//! | state | event | next |
//! |---|---|---|
//! | detached | store or table does not answer | detached; asked again after 1 s, doubled up to 30 s |
//! | detached | both answer | stopped cleanly, and opened as at any start ([`crate::run`]) |
//! | opened anew | fails, and one of them is away again | detached |
//!
//! The store is asked for what readers want only while it answers: who waits for an object that cannot come is told at once to try
//! again later.

use crate::{
    config::Config,
    outage::{Away, Of, look},
    parts::Outside,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Backoff, Env};
use firn_store::{ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Between two looks, at most 30 s: some 100,000 requests a month to each, if an outage lasted so long.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_half_jitter();

/// An outage as `status` and `/metrics` show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedPart {
    /// When the edge began to serve without the cloud, milliseconds since 1970.
    pub since_ms: i64,
    /// How long ago that was.
    pub for_ms: u64,
    /// Why the store does not answer, if it does not.
    pub store_away: Option<String>,
    /// Why the table does not answer, if it does not.
    pub table_away: Option<String>,
    /// How often both were asked since.
    pub looks: u64,
}

impl DetachedPart {
    /// What is away, for people.
    pub fn words(&self) -> String {
        let (store, table) = (self.store_away.clone(), self.table_away.clone());
        Away { store, table }.words()
    }
}

/// See the module.
pub struct Detached {
    env: Env,
    of: Of,
    part: Mutex<DetachedPart>,
    store_answers: Arc<AtomicBool>,
}

impl Detached {
    pub fn new(env: &Env, of: Of, away: &Away) -> Self {
        let detached = Self {
            env: env.clone(),
            of,
            part: Mutex::new(DetachedPart {
                since_ms: env.wall().as_millis(),
                ..DetachedPart::default()
            }),
            store_answers: Arc::default(),
        };
        detached.note(away);
        detached
    }

    fn lock(&self) -> MutexGuard<'_, DetachedPart> {
        self.part.lock().expect("no panic under this lock")
    }

    fn note(&self, away: &Away) {
        self.store_answers.store(away.store.is_none(), Ordering::Release);
        let mut part = self.lock();
        part.store_away.clone_from(&away.store);
        part.table_away.clone_from(&away.table);
        part.looks += 1;
    }

    /// This moment.
    pub fn part(&self) -> DetachedPart {
        let part = self.lock().clone();
        let for_ms = self.env.wall().as_millis().saturating_sub(part.since_ms);
        DetachedPart {
            for_ms: for_ms.max(0).unsigned_abs(),
            ..part
        }
    }

    /// The store for readers: asked only while it answers.
    pub fn store(&self, outside: &Outside) -> Arc<dyn Store> {
        Arc::new(WhileItAnswers {
            store: outside.stack.store.clone(),
            answers: self.store_answers.clone(),
        })
    }

    /// Completes when store and table answer.
    pub async fn until_back(&self, outside: &Outside, config: &Config) {
        for failures in 1.. {
            BACKOFF.wait(&self.env, failures).await;
            let away = look(outside, config, self.of).await;
            self.note(&away);
            if !away.is_away() {
                return;
            }
            tracing::debug!(away = away.words(), "still without the cloud");
        }
    }
}

/// Gives what readers want while the store answers, and nothing else: what is detached commits nothing.
struct WhileItAnswers {
    store: Arc<dyn Store>,
    answers: Arc<AtomicBool>,
}

impl WhileItAnswers {
    fn check(&self, operation: &'static str, key: &ObjectKey) -> Result<(), StoreError> {
        if self.answers.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(StoreError::unavailable(operation, key, "the store is away"))
    }
}

fn refused(operation: &'static str, key: &ObjectKey) -> StoreError {
    StoreError::unavailable(operation, key, "a detached edge changes nothing in the store")
}

#[async_trait]
impl Store for WhileItAnswers {
    async fn put(&self, key: &ObjectKey, _: Vec<Bytes>, _: PutMode) -> Result<(), StoreError> {
        Err(refused("put", key))
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.check("get", key)?;
        self.store.get(key).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.check("get", key)?;
        self.store.get_range(key, offset, length).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.check("head", key)?;
        self.store.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(refused("delete", key))
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.check("list", &ObjectKey::of_prefix(prefix))?;
        self.store.list(prefix, after).await
    }
}
