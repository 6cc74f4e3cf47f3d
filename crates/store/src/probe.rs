//! Probe of a store that someone configured, for fitness: asked once, when a volume is formatted or a configuration is
//! checked, because some servers that speak S3 ignore the condition of a create-only put without a word, and then two
//! writers of one name would destroy each other's data.

use crate::{ObjectKey, PutMode, Store, StoreError};
use bytes::Bytes;
use firn_env::Env;
use std::time::Duration;

/// Why a store is not fit for use.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A request failed that must not.
    #[error("the store fails at {step}: {source}")]
    Failed {
        /// What was tried.
        step: &'static str,
        /// What the store said.
        source: StoreError,
    },
    /// The store replaced an object that was to be created only if absent.
    #[error(
        "the store replaces an object though it was asked to create it only if absent; use a store that honours \
         \"If-None-Match: *\" (Amazon S3, Azure Blob, Google Cloud Storage, recent MinIO, Ceph and versitygw do)"
    )]
    NotCreateOnly,
    /// The store returned other bytes than it was given.
    #[error(
        "the store returns other bytes than were put ({what}); something between here and the store alters data"
    )]
    Altered {
        /// Of which request.
        what: &'static str,
    },
}

/// What the probe found besides that the store is fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// The probe's object, if these credentials may not delete; that is right for an edge whose bucket a cleaner tends.
    pub left_behind: Option<ObjectKey>,
    /// What each request took.
    pub took: ProbeTimes,
}

/// How long one small request of each kind took, with whatever retries the store makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTimes {
    /// The first one, with the connection that it had to make.
    pub first_put: Duration,
    /// On a connection that was there.
    pub put: Duration,
    /// Of the whole object.
    pub get: Duration,
    /// One page of names.
    pub list: Duration,
}

/// How fast a large object goes and comes, by one request at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throughput {
    /// What was moved, each way.
    pub bytes: u64,
    /// Going.
    pub put: Duration,
    /// Coming.
    pub get: Duration,
    /// The object, if these credentials may not delete.
    pub left_behind: Option<ObjectKey>,
}

/// Puts, puts again, reads, lists and deletes one small object under `probe/`.
///
/// # Errors
/// If the store fails at any of it, or does something else than it was told.
pub async fn probe(env: &Env, store: &dyn Store) -> Result<ProbeReport, ProbeError> {
    let key = probe_key(env);
    let content: [u8; 32] = env.random_bytes();
    let mut took = ProbeTimes::default();
    let began = env.now();
    store
        .put(&key, vec![content.to_vec().into()], PutMode::Create)
        .await
        .map_err(failed("creating an object"))?;
    took.first_put = env.now().since(began);
    let began = env.now();
    match store.put(&key, vec!["second".into()], PutMode::Create).await {
        Err(StoreError::AlreadyExists { .. }) => took.put = env.now().since(began),
        Err(source) => return Err(failed("refusing a second creation")(source)),
        Ok(()) => {
            // The store is unfit whether or not this one object can be removed.
            let _ = store.delete(&key).await;
            return Err(ProbeError::NotCreateOnly);
        }
    }
    let began = env.now();
    let whole = store.get(&key).await.map_err(failed("reading an object"))?;
    took.get = env.now().since(began);
    if whole != content[..] {
        return Err(ProbeError::Altered { what: "whole object" });
    }
    let range = store
        .get_range(&key, 5, 7)
        .await
        .map_err(failed("reading a part of an object"))?;
    if range != content[5..12] {
        return Err(ProbeError::Altered {
            what: "part of an object",
        });
    }
    let began = env.now();
    let listed = store.list(key.as_str(), None).await.map_err(failed("listing"))?;
    took.list = env.now().since(began);
    if listed.objects.iter().all(|object| object.key != key) {
        return Err(ProbeError::Altered { what: "listing" });
    }
    let left_behind = remove(store, key).await?;
    Ok(ProbeReport { left_behind, took })
}

/// Puts, reads and deletes one object of `bytes` under `probe/`.
///
/// # Errors
/// If the store fails at any of it, or returns other bytes than were put.
pub async fn measure(env: &Env, store: &dyn Store, bytes: u64) -> Result<Throughput, ProbeError> {
    let key = probe_key(env);
    // Nothing that could be compressed on the way.
    let mut content = Vec::with_capacity(bytes as usize);
    while (content.len() as u64) < bytes {
        content.extend_from_slice(&env.random_bytes::<4096>());
    }
    content.truncate(bytes as usize);
    let content = Bytes::from(content);
    let began = env.now();
    store
        .put(&key, vec![content.clone()], PutMode::Create)
        .await
        .map_err(failed("creating a large object"))?;
    let put = env.now().since(began);
    let began = env.now();
    let whole = store.get(&key).await.map_err(failed("reading a large object"))?;
    let get = env.now().since(began);
    if whole != content {
        return Err(ProbeError::Altered { what: "large object" });
    }
    Ok(Throughput {
        bytes,
        put,
        get,
        left_behind: remove(store, key).await?,
    })
}

fn failed(step: &'static str) -> impl Fn(StoreError) -> ProbeError {
    move |source| ProbeError::Failed { step, source }
}

/// A name that nobody else has.
fn probe_key(env: &Env) -> ObjectKey {
    ObjectKey::new(&format!(
        "probe/{:016x}{:016x}",
        env.random_u64(),
        env.random_u64()
    ))
}

/// Deletes the object; gives its name if that is denied.
async fn remove(store: &dyn Store, key: ObjectKey) -> Result<Option<ObjectKey>, ProbeError> {
    match store.delete(&key).await {
        Ok(()) => Ok(None),
        Err(StoreError::Denied { .. }) => Ok(Some(key)),
        Err(source) => Err(failed("deleting an object")(source)),
    }
}
