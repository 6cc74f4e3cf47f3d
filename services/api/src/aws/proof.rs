//! Objects that the service puts itself, with a session for that one object: a proof that a bucket is reached with what a tenant
//! granted, and key rings.

use crate::{
    cloud::{AwsSession, CloudError, Place, RingObject},
    keeping::{keep_in, refused},
};
use firn_env::Env;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    aws::{AmazonS3, AmazonS3Builder, resolve_bucket_region},
    path::Path,
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The bucket of a place, with a session's credentials. `endpoint` is for a store that is not Amazon's own.
async fn bucket(place: &Place, session: &AwsSession, endpoint: Option<&str>) -> Result<AmazonS3, CloudError> {
    let options = ClientOptions::new().with_timeout(TIMEOUT);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&place.bucket)
        .with_access_key_id(&session.access_key_id)
        .with_secret_access_key(&session.secret_access_key)
        .with_retry(object_store::RetryConfig {
            max_retries: 2,
            retry_timeout: TIMEOUT,
            ..Default::default()
        });
    if !session.session_token.is_empty() {
        builder = builder.with_token(&session.session_token);
    }
    builder = match endpoint {
        Some(endpoint) => builder
            .with_endpoint(endpoint)
            .with_allow_http(endpoint.starts_with("http:"))
            .with_region("us-east-1"),
        None => {
            let region = resolve_bucket_region(&place.bucket, &options)
                .await
                .map_err(|error| refused("the bucket's region", error))?;
            builder.with_region(region)
        }
    };
    builder
        .build()
        .map_err(|error| CloudError::Refused(error.to_string()))
}

/// Puts a key ring, unless it is there. `endpoint` is for a store that is not Amazon's own.
///
/// # Errors
/// [`CloudError::Refused`] if something else has its name, or the store refuses it.
pub async fn keep_ring(
    env: &Env,
    ring: &RingObject,
    session: &AwsSession,
    endpoint: Option<&str>,
) -> Result<(), CloudError> {
    let work = async {
        let store = bucket(&ring.place, session, endpoint).await?;
        keep_in(&store, ring).await
    };
    env.timeout(2 * TIMEOUT, work)
        .await
        .map_err(|_| CloudError::Unavailable("the bucket takes too long".into()))?
}

/// Puts, reads and removes one object with the session's credentials. `endpoint` is for a store that is not Amazon's own.
///
/// # Errors
/// [`CloudError::Refused`] if the store refuses it, or gives back something else.
pub async fn prove_objects(
    env: &Env,
    place: &Place,
    nonce: &str,
    session: &AwsSession,
    endpoint: Option<&str>,
) -> Result<(), CloudError> {
    let store = bucket(place, session, endpoint).await?;
    let key = Path::parse(place.proof_key(nonce)).map_err(|error| CloudError::Refused(error.to_string()))?;
    let content = format!("firn proof of control {nonce}\n").into_bytes();
    let work = async {
        let put = PutPayload::from(content.clone());
        store
            .put_opts(&key, put, PutMode::Create.into())
            .await
            .map_err(|error| refused("putting an object", error))?;
        // No more than was put, whatever somebody has put in its place since.
        let read = store.get_range(&key, 0..content.len() as u64 + 1);
        let found = read.await.map_err(|error| refused("reading it back", error))?;
        if found != content {
            return Err(CloudError::Refused(
                "what was read back is not what was put".into(),
            ));
        }
        store
            .delete(&key)
            .await
            .map_err(|error| refused("removing it", error))
    };
    env.timeout(2 * TIMEOUT, work)
        .await
        .map_err(|_| CloudError::Unavailable("the bucket takes too long".into()))?
}
