//! From a URL and credentials to a store.

use crate::{
    azure::AzureContainer,
    cloud::{Api, CloudStore},
    refusal::RefusalConnector,
    s3::S3Bucket,
    sessions::{self, Sessions},
};
use firn_env::{DiskError, Env, RealDisk};
use firn_store::{DirectoryStore, Store, StoreUrl};
use object_store::{
    BackoffConfig, ClientOptions, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::GoogleCloudStorageBuilder,
};
use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

/// A host that does not accept a connection by then will not: three SYNs have been lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The region of requests to S3 where nothing names one; that of `object_store`.
const DEFAULT_REGION: &str = "us-east-1";

/// Who Firn is to a store.
#[derive(Clone, Default)]
pub enum Credentials {
    /// What the environment holds: the providers' usual variables, web identity, or the machine's role.
    #[default]
    Environment,
    /// An access key of S3.
    S3 {
        /// The key's public name.
        access_key_id: String,
        /// The key.
        secret_access_key: String,
        /// For temporary keys.
        session_token: Option<String>,
    },
    /// A storage account's access key, in base 64 as Azure shows it.
    AzureKey(String),
    /// A shared access signature (`sv=…&sig=…`).
    AzureSas(String),
    /// The path of a Google service account's JSON key.
    GcsServiceAccount(PathBuf),
    /// Credentials of S3 or Azure that end by themselves, from whoever gives them.
    Sessions(Arc<dyn Sessions>),
}

/// Names what is there, never a secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind())
    }
}

impl Credentials {
    fn kind(&self) -> &'static str {
        match self {
            Self::Environment => "credentials from the environment",
            Self::S3 { .. } => "an S3 access key",
            Self::AzureKey(_) => "an Azure account key",
            Self::AzureSas(_) => "an Azure shared access signature",
            Self::GcsServiceAccount(_) => "a Google service account",
            Self::Sessions(_) => "sessions of S3 or Azure",
        }
    }
}

/// A configuration no store can be opened with.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is not there. It is not made, since a disk that is not mounted would look the same.
    #[error("store directory {path}: {source}; mount its disk, or make it with: mkdir -p {path}")]
    Directory {
        /// The directory.
        path: String,
        /// What the operating system said.
        source: DiskError,
    },
    /// Credentials for another kind of store.
    #[error("{given} cannot open {url}; it takes {takes}")]
    WrongCredentials {
        /// What was given.
        given: &'static str,
        /// The store.
        url: String,
        /// What would do.
        takes: &'static str,
    },
    /// Something is missing or malformed.
    #[error("cannot open {url}: {detail}")]
    Configuration {
        /// The store.
        url: String,
        /// What is wrong and what to do.
        detail: String,
    },
}

/// Opens a store. No request is sent yet: whether it can be reached and is fit, [`firn_store::probe`] tells.
///
/// The result is a bare backend without timeouts or retries; [`firn_store::Stack`] adds them.
///
/// # Errors
/// If the configuration cannot be right.
pub async fn open(env: &Env, url: &StoreUrl, credentials: &Credentials) -> Result<Arc<dyn Store>, OpenError> {
    match url {
        StoreUrl::Directory { path } => {
            // A directory needs none, and takes any: configurations are moved between stores.
            let failed = |source| OpenError::Directory {
                path: path.display().to_string(),
                source,
            };
            let disk = RealDisk::open(path).map_err(failed)?;
            let env = env.with_disk(Arc::new(disk));
            let store = DirectoryStore::open(&env, "").await.map_err(failed)?;
            Ok(Arc::new(store))
        }
        StoreUrl::S3 {
            bucket,
            prefix,
            endpoint,
            region,
            path_style,
        } => {
            let mut builder = s3(env, url, credentials, bucket, endpoint.as_deref(), *path_style)?;
            if let Some(region) = region {
                builder = builder.with_region(region);
            }
            let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
            let region = region.as_deref().unwrap_or(DEFAULT_REGION);
            let named = builder
                .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
                .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
            let bucket_url = s3_bucket_url(named.as_deref(), bucket, region, *path_style);
            let store = builder.build().map_err(|error| configuration(url, &error))?;
            let options = client_options(endpoint.as_deref());
            let bucket = S3Bucket::new(store, &options, region, bucket_url)
                .map_err(|error| configuration(url, &error))?;
            Ok(Arc::new(CloudStore::new(Api::S3(bucket), prefix)))
        }
        StoreUrl::Azure {
            container,
            prefix,
            account,
            endpoint,
        } => {
            let container = azure(
                env,
                url,
                credentials,
                container,
                account.clone(),
                endpoint.clone(),
            )?;
            Ok(Arc::new(CloudStore::new(Api::Azure(container), prefix)))
        }
        StoreUrl::Gcs {
            bucket,
            prefix,
            endpoint,
        } => {
            let builder = gcs(url, credentials, bucket, endpoint.as_deref())?;
            let store = builder.build().map_err(|error| configuration(url, &error))?;
            Ok(Arc::new(CloudStore::new(Api::Gcs(store), prefix)))
        }
    }
}

/// Deadlines are those of firn-store's retrying layer, which knows how many bytes a request moves.
pub(crate) fn client_options(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        // The URL's parser has let plain HTTP pass only where that is right.
        .with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
        .with_user_agent(http::HeaderValue::from_static(concat!(
            "firn/",
            env!("CARGO_PKG_VERSION")
        )))
}

fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::ZERO,
    }
}

fn s3(
    env: &Env,
    url: &StoreUrl,
    credentials: &Credentials,
    bucket: &str,
    endpoint: Option<&str>,
    path_style: bool,
) -> Result<AmazonS3Builder, OpenError> {
    let mut builder = match credentials {
        Credentials::Environment => AmazonS3Builder::from_env(),
        Credentials::S3 {
            access_key_id,
            secret_access_key,
            session_token,
        } => {
            let builder = AmazonS3Builder::new()
                .with_access_key_id(access_key_id)
                .with_secret_access_key(secret_access_key);
            match session_token {
                Some(token) => builder.with_token(token),
                None => builder,
            }
        }
        Credentials::Sessions(given) => {
            AmazonS3Builder::new().with_credentials(Arc::new(sessions::s3(env, given.clone())))
        }
        other => return Err(wrong_credentials(url, other, "an S3 access key")),
    };
    builder = builder
        .with_bucket_name(bucket)
        .with_virtual_hosted_style_request(!path_style)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_client_options(client_options(endpoint))
        .with_retry(no_retries())
        .with_http_connector(RefusalConnector);
    Ok(match endpoint {
        Some(endpoint) => builder.with_endpoint(s3_endpoint(endpoint, bucket, path_style)),
        None => builder,
    })
}

/// `object_store` takes an endpoint in virtual style with the bucket in it already.
fn s3_endpoint(endpoint: &str, bucket: &str, path_style: bool) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !path_style => format!("{scheme}://{bucket}.{host}"),
        _ => endpoint.to_owned(),
    }
}

/// Where the bucket's own requests go; `endpoint` is as [`s3_endpoint`] gives it.
fn s3_bucket_url(endpoint: Option<&str>, bucket: &str, region: &str, path_style: bool) -> String {
    match (endpoint, path_style) {
        (Some(endpoint), true) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
        (Some(endpoint), false) => endpoint.trim_end_matches('/').to_owned(),
        (None, true) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
        (None, false) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
    }
}

/// Who Firn is to a storage account, and the account's name: for its blobs and its tables.
pub(crate) fn azure_builder(
    env: &Env,
    url: &dyn fmt::Display,
    credentials: &Credentials,
    account: Option<String>,
) -> Result<(MicrosoftAzureBuilder, String), OpenError> {
    let builder = match credentials {
        Credentials::Environment => MicrosoftAzureBuilder::from_env(),
        Credentials::AzureKey(key) => MicrosoftAzureBuilder::new().with_access_key(key),
        Credentials::AzureSas(signature) => {
            let pairs =
                object_store::azure::split_sas(signature).map_err(|error| configuration(url, &error))?;
            MicrosoftAzureBuilder::new().with_sas_authorization(pairs)
        }
        Credentials::Sessions(given) => {
            MicrosoftAzureBuilder::new().with_credentials(Arc::new(sessions::azure(env, given.clone())))
        }
        other => {
            let takes = "an Azure account key or shared access signature";
            return Err(wrong_credentials(url, other, takes));
        }
    };
    let account = account
        .or_else(|| std::env::var("AZURE_STORAGE_ACCOUNT_NAME").ok())
        .ok_or_else(|| OpenError::Configuration {
            url: url.to_string(),
            detail:
                "the storage account is not known; add account=… to the URL or set AZURE_STORAGE_ACCOUNT_NAME"
                    .into(),
        })?;
    let builder = builder
        .with_account(&account)
        .with_retry(no_retries())
        .with_http_connector(RefusalConnector);
    Ok((builder, account))
}

/// The account's key, if there is one.
pub(crate) fn azure_key(builder: &MicrosoftAzureBuilder) -> Option<String> {
    builder.get_config_value(&AzureConfigKey::AccessKey)
}

fn azure(
    env: &Env,
    url: &StoreUrl,
    credentials: &Credentials,
    container: &str,
    account: Option<String>,
    endpoint: Option<String>,
) -> Result<AzureContainer, OpenError> {
    let (builder, account) = azure_builder(env, url, credentials, account)?;
    let options = client_options(endpoint.as_deref());
    let service = endpoint.unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let builder = builder
        .with_container_name(container)
        .with_endpoint(service.clone())
        .with_client_options(options.clone());
    let store = builder.build().map_err(|error| configuration(url, &error))?;
    AzureContainer::new(store, &options, &account, format!("{service}/{container}"))
        .map_err(|error| configuration(url, &error))
}

fn gcs(
    url: &StoreUrl,
    credentials: &Credentials,
    bucket: &str,
    endpoint: Option<&str>,
) -> Result<GoogleCloudStorageBuilder, OpenError> {
    let mut builder = match credentials {
        Credentials::Environment => GoogleCloudStorageBuilder::from_env(),
        Credentials::GcsServiceAccount(path) => {
            GoogleCloudStorageBuilder::new().with_service_account_path(path.to_string_lossy())
        }
        other => return Err(wrong_credentials(url, other, "a Google service account")),
    };
    builder = builder
        .with_bucket_name(bucket)
        .with_client_options(client_options(endpoint))
        .with_retry(no_retries())
        .with_http_connector(RefusalConnector);
    Ok(match endpoint {
        Some(endpoint) => builder.with_base_url(endpoint),
        None => builder,
    })
}

fn wrong_credentials(url: &dyn fmt::Display, given: &Credentials, takes: &'static str) -> OpenError {
    OpenError::WrongCredentials {
        given: given.kind(),
        url: url.to_string(),
        takes,
    }
}

pub(crate) fn configuration(url: &dyn fmt::Display, error: &object_store::Error) -> OpenError {
    OpenError::Configuration {
        url: url.to_string(),
        detail: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> (tempfile::TempDir, Env) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("the directory is there");
        (directory, env)
    }

    async fn error(url: &str, credentials: Credentials) -> String {
        let (_directory, env) = environment();
        let url = url.parse().expect("a valid URL");
        match open(&env, &url, &credentials).await {
            Ok(_) => panic!("{url} opens"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_bucket_goes_before_the_host_or_after_it() {
        assert_eq!(
            s3_endpoint("http://localhost:9", "b", false),
            "http://b.localhost:9"
        );
        assert_eq!(s3_endpoint("http://localhost:9", "b", true), "http://localhost:9");
    }

    #[test]
    fn requests_of_our_own_go_to_the_same_bucket() {
        assert_eq!(
            s3_bucket_url(None, "b", "eu-west-1", false),
            "https://b.s3.eu-west-1.amazonaws.com"
        );
        assert_eq!(
            s3_bucket_url(None, "b", "eu-west-1", true),
            "https://s3.eu-west-1.amazonaws.com/b"
        );
        let virtual_style = s3_endpoint("http://localhost:9", "b", false);
        assert_eq!(
            s3_bucket_url(Some(&virtual_style), "b", "x", false),
            "http://b.localhost:9"
        );
        assert_eq!(
            s3_bucket_url(Some("http://localhost:9/"), "b", "x", true),
            "http://localhost:9/b"
        );
    }

    #[tokio::test]
    async fn a_directory_that_is_not_there_is_not_made() {
        let said = error("file:///nowhere/at/all", Credentials::Environment).await;
        assert!(said.contains("mkdir -p /nowhere/at/all"), "{said}");
    }

    #[tokio::test]
    async fn a_directory_url_opens_a_directory_store() {
        let (directory, env) = environment();
        let url = format!("file://{}", directory.path().display())
            .parse()
            .expect("a valid URL");
        let store = open(&env, &url, &Credentials::Environment)
            .await
            .expect("it opens");
        firn_store::probe(&env, &*store).await.expect("it is fit for use");
    }

    #[tokio::test]
    async fn credentials_of_another_provider_are_refused_without_being_shown() {
        let said = error("s3://bucket", Credentials::AzureKey("c2VjcmV0".into())).await;
        assert!(
            said.contains("takes an S3 access key") && !said.contains("c2Vj"),
            "{said}"
        );
        let shown = format!("{:?}", Credentials::AzureKey("c2VjcmV0".into()));
        assert!(!shown.contains("c2Vj"), "{shown}");
    }

    #[tokio::test]
    async fn an_account_key_that_is_not_base64_is_refused() {
        let said = error(
            "azure://container?account=acme",
            Credentials::AzureKey("???".into()),
        )
        .await;
        assert!(said.contains("cannot open azure://container"), "{said}");
    }
}
