//! Putting a key ring into a bucket that is open, whichever cloud it is in.

use crate::cloud::{CloudError, RingObject};
use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, path::Path};

/// What an error of the store means: a no that stays one, or no answer.
pub(crate) fn refused(what: &str, error: object_store::Error) -> CloudError {
    match error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. }
        | object_store::Error::NotFound { .. }
        | object_store::Error::AlreadyExists { .. }
        | object_store::Error::Precondition { .. } => CloudError::Refused(format!("{what}: {error}")),
        error => CloudError::Unavailable(format!("{what}: {error}")),
    }
}

/// Puts a key ring, unless it is there.
///
/// # Errors
/// [`CloudError::Refused`] if something else has its name, or the store refuses it.
pub(crate) async fn keep_in(store: &dyn ObjectStore, ring: &RingObject) -> Result<(), CloudError> {
    let key = Path::parse(ring.object_key()).map_err(|error| CloudError::Refused(error.to_string()))?;
    let put = PutPayload::from(ring.bytes.clone());
    match store.put_opts(&key, put, PutMode::Create.into()).await {
        Ok(_) => return Ok(()),
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
        Err(error) => return Err(refused("putting the key ring", error)),
    }
    let read = async { store.get(&key).await?.bytes().await };
    let found: Bytes = read
        .await
        .map_err(|error| refused("reading the key ring back", error))?;
    if found == ring.bytes {
        return Ok(());
    }
    Err(CloudError::Refused(format!(
        "something else lies under {key} than the key ring of that generation; remove it"
    )))
}
