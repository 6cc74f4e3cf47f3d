//! Probe of a store that someone configured, for fitness: asked once, when a volume is formatted or a configuration is
//! checked, because some servers that speak S3 ignore the condition of a create-only put without a word, and then two
//! writers of one name would destroy each other's data.

use crate::{ObjectKey, PutMode, Store, StoreError};
use firn_env::Env;

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
}

/// Puts, puts again, reads, lists and deletes one small object under `probe/`.
///
/// # Errors
/// If the store fails at any of it, or does something else than it was told.
pub async fn probe(env: &Env, store: &dyn Store) -> Result<ProbeReport, ProbeError> {
    let failed = |step| move |source| ProbeError::Failed { step, source };
    let key = ObjectKey::new(&format!(
        "probe/{:016x}{:016x}",
        env.random_u64(),
        env.random_u64()
    ));
    let content: [u8; 32] = env.random_bytes();
    let first = content.to_vec();
    store
        .put(&key, vec![first.into()], PutMode::Create)
        .await
        .map_err(failed("creating an object"))?;
    match store.put(&key, vec!["second".into()], PutMode::Create).await {
        Err(StoreError::AlreadyExists { .. }) => {}
        Err(source) => return Err(failed("refusing a second creation")(source)),
        Ok(()) => {
            // The store is unfit whether or not this one object can be removed.
            let _ = store.delete(&key).await;
            return Err(ProbeError::NotCreateOnly);
        }
    }
    let whole = store.get(&key).await.map_err(failed("reading an object"))?;
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
    let listed = store.list(key.as_str(), None).await.map_err(failed("listing"))?;
    if listed.objects.iter().all(|object| object.key != key) {
        return Err(ProbeError::Altered { what: "listing" });
    }
    match store.delete(&key).await {
        Ok(()) => Ok(ProbeReport { left_behind: None }),
        Err(StoreError::Denied { .. }) => Ok(ProbeReport {
            left_behind: Some(key),
        }),
        Err(source) => Err(failed("deleting an object")(source)),
    }
}
