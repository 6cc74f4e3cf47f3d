//! The layers over a backend, put together in the one order that counts and charges rightly.

use crate::{
    FaultConfig, FaultConfigError, FaultControl, Faulty, Meter, Metered, RetryPolicy, Retrying, Store,
    UploadLimit, UploadSchedule,
};
use firn_env::Env;
use std::sync::Arc;

/// How the layers behave.
#[derive(Clone, Debug, Default)]
pub struct StackConfig {
    /// Tries, deadlines and requests at once.
    pub retry: RetryPolicy,
    /// When how much may be uploaded.
    pub upload: UploadSchedule,
    /// Faults to inject, for tests.
    pub faults: Option<FaultConfig>,
}

/// A backend with all its layers: retrying (with the upload limit) over metering over faults, if any, over the backend.
pub struct Stack {
    /// What the engine is given.
    pub store: Arc<dyn Store>,
    /// Counts every try.
    pub meter: Meter,
    /// For its statistics.
    pub retrying: Arc<Retrying>,
    /// The switchboard of the faults, if there are any.
    pub faults: Option<FaultControl>,
}

impl Stack {
    /// Builds the layers over `backend`.
    ///
    /// # Errors
    /// If the faults make no sense.
    pub fn new(env: &Env, backend: Arc<dyn Store>, config: StackConfig) -> Result<Self, FaultConfigError> {
        let (backend, faults) = match config.faults {
            None => (backend, None),
            Some(faults) => {
                let faulty = Faulty::new(env, backend, faults)?;
                let control = faulty.control();
                (Arc::new(faulty) as Arc<dyn Store>, Some(control))
            }
        };
        let metered = Metered::new(backend);
        let meter = metered.meter();
        let limit = Arc::new(UploadLimit::new(env, config.upload));
        let retrying = Arc::new(Retrying::new(env, Arc::new(metered), config.retry).with_upload_limit(limit));
        Ok(Self {
            store: retrying.clone(),
            meter,
            retrying,
            faults,
        })
    }
}
