//! The layers over a backend, put together in the one order that counts and charges rightly.

use crate::{Meter, Metered, RetryPolicy, Retrying, Store, UploadLimit, UploadSchedule};
use firn_env::Env;
use std::sync::Arc;

/// How the layers behave.
#[derive(Clone, Debug, Default)]
pub struct StackConfig {
    /// Tries, deadlines and requests at once.
    pub retry: RetryPolicy,
    /// When how much may be uploaded.
    pub upload: UploadSchedule,
}

/// A backend with all its layers: retrying (with the upload limit) over metering over the backend.
pub struct Stack {
    /// What the engine is given.
    pub store: Arc<dyn Store>,
    /// The same without trying again, for whoever asks whether the store answers at all.
    pub once: Arc<dyn Store>,
    /// Counts every try.
    pub meter: Meter,
    /// For its statistics.
    pub retrying: Arc<Retrying>,
}

impl Stack {
    /// Builds the layers over `backend`, which tests make faulty before.
    pub fn new(env: &Env, backend: Arc<dyn Store>, config: StackConfig) -> Self {
        let metered = Metered::new(backend);
        let meter = metered.meter();
        let once: Arc<dyn Store> = Arc::new(metered);
        let limit = Arc::new(UploadLimit::new(env, config.upload));
        let retrying = Arc::new(Retrying::new(env, once.clone(), config.retry).with_upload_limit(limit));
        Self {
            store: retrying.clone(),
            once,
            meter,
            retrying,
        }
    }
}
