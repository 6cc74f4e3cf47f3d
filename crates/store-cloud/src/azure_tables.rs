//! Signed requests to the table service of a storage account, with the credentials that open its blobs.
//!
//! `object_store` signs for blobs only. What differs with an account's key is the text that is signed; tokens of identities and shared
//! access signatures are used alike, and `object_store` gets, caches and renews them.
//!
//! ```text
//! signed text   VERB, Content-MD5, Content-Type, x-ms-date, /account/path; a line each, and of the query only comp=
//! header        Authorization: SharedKey account:base64(HMAC-SHA256(key, text))
//! ```
//!
//! Source: Microsoft's "Authorize with Shared Key", for the Table service.

use crate::{
    Credentials, OpenError,
    open::{azure_builder, azure_key, client_options, configuration},
    refusal::Refusal,
};
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use firn_env::Env;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header::AUTHORIZATION};
use object_store::{
    azure::{AzureAuthorizer, AzureCredential, AzureCredentialProvider},
    client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector},
};
use std::{error::Error, fmt};

const DATE: HeaderName = HeaderName::from_static("x-ms-date");
const VERSION: HeaderName = HeaderName::from_static("x-ms-version");
/// Tokens of identities are taken from 2020-12-06 on.
const SERVICE_VERSION: HeaderValue = HeaderValue::from_static("2023-11-03");
/// The builder of credentials wants a container; no request is sent to it.
const NO_CONTAINER: &str = "firn";

/// The table service of one storage account.
#[derive(Clone)]
pub struct AzureTables {
    env: Env,
    client: HttpClient,
    credentials: AzureCredentialProvider,
    /// The account's key, if that is what opens it.
    key: Option<hmac::Key>,
    account: String,
    endpoint: String,
}

impl fmt::Debug for AzureTables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AzureTables({})", self.endpoint)
    }
}

/// A request to it.
#[derive(Clone, Debug)]
pub struct TableRequest {
    /// The method.
    pub method: Method,
    /// What follows the service's address; begins with a slash. Escaped where it has to be.
    pub path_and_query: String,
    /// Headers beside those of dates, versions and credentials.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
}

/// What was answered, whatever it says.
#[derive(Clone, Debug)]
pub struct TableAnswer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TableRequestError {
    /// Nothing was sent: there are no credentials, or whoever gives them refuses.
    #[error("no credentials of Azure: {0}")]
    NoCredentials(String),
    /// Nothing was sent: whoever gives the credentials does not answer.
    #[error("the credentials of Azure are out of reach: {0}")]
    CredentialsAway(String),
    /// It may have been sent.
    #[error("{0}")]
    Unanswered(String),
    /// The answer is longer than the caller takes.
    #[error("an answer of more than {limit_bytes} bytes")]
    TooLong {
        /// What the caller takes.
        limit_bytes: usize,
    },
}

impl AzureTables {
    /// Prepares requests to an account; none is sent yet. `endpoint` is where its tables are served, if not at Microsoft's own address;
    /// `shown` is what errors call the table.
    ///
    /// # Errors
    /// If the configuration cannot be right.
    pub fn open(
        env: &Env,
        shown: &dyn fmt::Display,
        credentials: &Credentials,
        account: Option<String>,
        endpoint: Option<String>,
    ) -> Result<Self, OpenError> {
        let (builder, account) = azure_builder(env, shown, credentials, account)?;
        let options = client_options(endpoint.as_deref());
        let key = azure_key(&builder)
            .map(|text| {
                let bytes = STANDARD.decode(text).map_err(|_| OpenError::Configuration {
                    url: shown.to_string(),
                    detail: "the account's key is not base 64, as Azure shows it".into(),
                })?;
                Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
            })
            .transpose()?;
        let failed = |error: object_store::Error| configuration(shown, &error);
        let store = builder
            .with_container_name(NO_CONTAINER)
            .with_client_options(options.clone())
            .build()
            .map_err(failed)?;
        let endpoint = endpoint.unwrap_or_else(|| format!("https://{account}.table.core.windows.net"));
        Ok(Self {
            env: env.clone(),
            client: ReqwestConnector::default().connect(&options).map_err(failed)?,
            credentials: store.credentials().clone(),
            key,
            account,
            endpoint,
        })
    }

    /// Where the tables are served.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Signs a request, sends it, and reads the whole answer, of at most so many bytes. There is no deadline.
    ///
    /// # Errors
    /// [`TableRequestError`]; a status is none.
    pub async fn send(
        &self,
        request: TableRequest,
        limit_bytes: usize,
    ) -> Result<TableAnswer, TableRequestError> {
        let request = self.signed(request).await?;
        let unanswered = |error: &(dyn Error + 'static)| TableRequestError::Unanswered(words(error));
        let response = self
            .client
            .execute(request)
            .await
            .map_err(|error| unanswered(&error))?;
        let (parts, body) = response.into_parts();
        let mut stream = body.bytes_stream();
        let mut body = Vec::new();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| unanswered(&error))?;
            if body.len() + bytes.len() > limit_bytes {
                return Err(TableRequestError::TooLong { limit_bytes });
            }
            body.extend_from_slice(&bytes);
        }
        Ok(TableAnswer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.into(),
        })
    }

    async fn signed(&self, request: TableRequest) -> Result<HttpRequest, TableRequestError> {
        let credential = self
            .credentials
            .get_credential()
            .await
            .map_err(|error| no_credentials(&error))?;
        let invalid = |error: &(dyn Error + 'static)| TableRequestError::NoCredentials(words(error));
        let uri: Uri = format!("{}{}", self.endpoint, request.path_and_query)
            .parse()
            .map_err(|error: http::uri::InvalidUri| invalid(&error))?;
        let mut signed = HttpRequest::new(HttpRequestBody::from(request.body));
        *signed.method_mut() = request.method;
        *signed.uri_mut() = uri;
        signed.headers_mut().extend(request.headers);
        signed.headers_mut().insert(VERSION, SERVICE_VERSION);
        match (&*credential, &self.key) {
            (AzureCredential::AccessKey(_), Some(key)) => self.sign(&mut signed, key),
            _ => AzureAuthorizer::new(&credential, &self.account)
                .try_authorize(&mut signed)
                .map_err(|error| invalid(&error))?,
        }
        Ok(signed)
    }

    fn sign(&self, request: &mut HttpRequest, key: &hmac::Key) {
        let date = rfc1123(self.env.wall().as_millis().div_euclid(1000));
        let content_type = request.headers().get(http::header::CONTENT_TYPE);
        let text = signed_text(
            request.method(),
            content_type
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default(),
            &date,
            &self.account,
            request.uri().path(),
        );
        let signature = STANDARD.encode(hmac::sign(key, text.as_bytes()));
        let headers = request.headers_mut();
        let header = |text: String| HeaderValue::try_from(text).expect("it is ASCII without controls");
        headers.insert(DATE, header(date));
        headers.insert(
            AUTHORIZATION,
            header(format!("SharedKey {}:{signature}", self.account)),
        );
    }
}

/// No request of ours has a query of which something would be signed (`comp=`), or a digest of its body.
fn signed_text(method: &Method, content_type: &str, date: &str, account: &str, path: &str) -> String {
    let no_digest = "";
    format!("{method}\n{no_digest}\n{content_type}\n{date}\n/{account}{path}")
}

/// `Thu, 26 Nov 2026 16:00:00 GMT`.
fn rfc1123(unix_seconds: i64) -> String {
    jiff::Timestamp::from_second(unix_seconds)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string()
}

fn no_credentials(error: &object_store::Error) -> TableRequestError {
    let said = words(error);
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(refusal) = current.downcast_ref::<Refusal>()
            && (400..500).contains(&refusal.status)
            && !matches!(refusal.status, 408 | 429)
        {
            return TableRequestError::NoCredentials(said);
        }
        source = current.source();
    }
    let advice = if said.contains("169.254.169.254") {
        "; set AZURE_STORAGE_ACCOUNT_KEY or the variables of a workload identity, or run where a managed identity is"
    } else {
        ""
    };
    TableRequestError::CredentialsAway(format!("{said}{advice}"))
}

/// An error with its sources, of which each is said once.
fn words(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(current) = source {
        let more = current.to_string();
        if !said.contains(&more) {
            said.push_str(": ");
            said.push_str(&more);
        }
        source = current.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_azure_reads_them() {
        assert_eq!(rfc1123(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(rfc1123(1_795_302_061), "Sat, 21 Nov 2026 23:01:01 GMT");
    }

    #[test]
    fn the_signed_text_is_the_one_that_the_table_service_makes() {
        assert_eq!(
            signed_text(
                &Method::POST,
                "application/json",
                "Sat, 21 Nov 2026 23:01:01 GMT",
                "acme",
                "/Tables"
            ),
            "POST\n\napplication/json\nSat, 21 Nov 2026 23:01:01 GMT\n/acme/Tables"
        );
    }
}
