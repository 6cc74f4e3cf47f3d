//! A storage account of Azure's in which the service keeps managed volumes: a container for each, signatures for its edges.
//!
//! The account's key signs, so nobody has to be asked for a session, and a signature cannot be taken back before its end. The key comes
//! from the environment, and is nobody's but the service's. A container is as narrow a place as an account without directories knows.
//!
//! A tenant's own account is not reached: the service holds no key of it, and shall not.

mod signature;

use crate::{
    cloud::{
        CloudCredential, CloudError, CloudSession, CloudSessions, Place, ProofRequest, RingObject,
        SessionRequest,
    },
    http_client::{self, ask},
    keeping::keep_in,
};
use async_trait::async_trait;
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_env::Env;
use firn_identity::{TenantId, UnixTime, VolumeId};
use http::Method;
use object_store::{
    azure::{AzureAccessKey, AzureAuthorizer, AzureCredential, MicrosoftAzureBuilder},
    client::{HttpClient, HttpRequest, HttpRequestBody},
};
use signature::Signed;
use std::time::Duration;
use zeroize::Zeroizing;

/// For putting a key ring.
const KEEPING: Duration = Duration::from_secs(20);

/// A key of an account that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key of the storage account {account}: {why}")]
pub struct BadAccountKey {
    account: String,
    why: String,
}

/// Gives signatures for containers of one account.
pub struct AzureSessions {
    env: Env,
    account: String,
    region: String,
    endpoint: Option<String>,
    key: hmac::Key,
    credential: AzureCredential,
    /// The same key, for a store that signs by itself.
    access_key: Zeroizing<String>,
    client: HttpClient,
}

impl AzureSessions {
    /// `key` is the account's, in base 64 as Azure shows it; `region` is what tenants call the place. `endpoint` is where the account's
    /// blobs are, if not at Microsoft's.
    ///
    /// # Errors
    /// [`BadAccountKey`].
    pub fn new(
        env: &Env,
        account: &str,
        key: &str,
        region: &str,
        endpoint: Option<String>,
    ) -> Result<Self, BadAccountKey> {
        let wrong = |why: &dyn std::fmt::Display| BadAccountKey {
            account: account.to_owned(),
            why: why.to_string(),
        };
        let bytes = Zeroizing::new(STANDARD.decode(key).map_err(|_| wrong(&"it is not in base 64"))?);
        let known = AzureAccessKey::try_new(key).map_err(|error| wrong(&error))?;
        Ok(Self {
            env: env.clone(),
            account: account.to_owned(),
            region: region.to_owned(),
            client: http_client::client(endpoint.as_deref()).map_err(|error| wrong(&error))?,
            endpoint: endpoint.map(|endpoint| endpoint.trim_end_matches('/').to_owned()),
            key: hmac::Key::new(hmac::HMAC_SHA256, &bytes),
            credential: AzureCredential::AccessKey(known),
            access_key: Zeroizing::new(key.to_owned()),
        })
    }

    /// The container of a volume: 36 characters of the 63 that a name may have.
    fn container(volume: VolumeId) -> String {
        volume.to_string().replace('_', "-")
    }

    /// The signature for a place of this account, until then. Asks nobody.
    pub fn sign(&self, place: &Place, expires: UnixTime) -> String {
        self.sign_for(place, expires, false)
    }

    fn sign_for(&self, place: &Place, expires: UnixTime, is_read_only: bool) -> String {
        let signed = Signed {
            account: &self.account,
            container: &place.bucket,
            directory: &place.prefix,
            expires,
            is_read_only,
            plain_http: self
                .endpoint
                .as_ref()
                .is_some_and(|endpoint| endpoint.starts_with("http:")),
        };
        signed.query(&self.key)
    }

    /// Makes a container if it is not there.
    async fn make(&self, container: &str) -> Result<(), CloudError> {
        let unavailable = |why: String| CloudError::Unavailable(format!("making the container: {why}"));
        let blobs = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://{}.blob.core.windows.net", self.account),
        };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = format!("{blobs}/{container}?restype=container")
            .parse()
            .map_err(|_| CloudError::Refused(format!("{blobs} is no address")))?;
        // Azure takes no PUT without it.
        let length = http::HeaderValue::from_static("0");
        request.headers_mut().insert(http::header::CONTENT_LENGTH, length);
        AzureAuthorizer::new(&self.credential, &self.account)
            .try_authorize(&mut request)
            .map_err(|error| unavailable(error.to_string()))?;
        let (status, body) = ask(&self.env, &self.client, request).await.map_err(unavailable)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        match status.as_u16() {
            200..300 => Ok(()),
            409 if body.contains("ContainerAlreadyExists") => Ok(()),
            401 | 403 => Err(CloudError::Refused(format!(
                "making the container: {status}: {body}"
            ))),
            _ => Err(unavailable(format!("{status}: {body}"))),
        }
    }
}

#[async_trait]
impl CloudSessions for AzureSessions {
    fn managed(&self, region: &str, _tenant: TenantId, volume: VolumeId) -> Option<Place> {
        (region == self.region).then(|| Place {
            account: Some(self.account.clone()),
            bucket: Self::container(volume),
            prefix: String::new(),
        })
    }

    fn store_url(&self, place: &Place, _region: &str) -> Option<String> {
        let endpoint = self.endpoint.as_ref();
        let endpoint = endpoint.map_or(String::new(), |endpoint| format!("&endpoint={endpoint}"));
        Some(format!(
            "azure://{}?account={}{endpoint}",
            place.bucket, self.account
        ))
    }

    fn regions(&self) -> Option<Vec<String>> {
        Some(vec![self.region.clone()])
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        let place = &request.place;
        if request.role.is_some() || place.account.as_ref() != Some(&self.account) {
            return Err(CloudError::Refused(
                "the service holds no key of that storage account; the edge takes credentials of its own (AZURE_STORAGE_SAS_KEY)".into(),
            ));
        }
        self.make(&place.bucket).await?;
        let expires = UnixTime::from_wall(self.env.wall()).plus(request.seconds);
        Ok(CloudSession {
            credential: CloudCredential::AzureSas(self.sign_for(place, expires, request.is_read_only)),
            expires,
        })
    }

    async fn prove(&self, _request: &ProofRequest) -> Result<(), CloudError> {
        Err(CloudError::Refused(
            "a storage account of your own is not reached by the service; its edges take credentials of their own".into(),
        ))
    }

    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError> {
        if ring.role.is_some() || ring.place.account.as_ref() != Some(&self.account) {
            return Err(CloudError::Refused(
                "the service holds no key of that storage account; its edges put key rings themselves".into(),
            ));
        }
        self.make(&ring.place.bucket).await?;
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&self.account)
            .with_container_name(&ring.place.bucket)
            .with_access_key(&*self.access_key);
        if let Some(endpoint) = &self.endpoint {
            builder = builder
                .with_endpoint(endpoint.clone())
                .with_allow_http(endpoint.starts_with("http:"));
        }
        let store = builder
            .build()
            .map_err(|error| CloudError::Refused(error.to_string()))?;
        self.env
            .timeout(KEEPING, keep_in(&store, ring))
            .await
            .map_err(|_| CloudError::Unavailable("the container takes too long".into()))?
    }
}
