//! The few calls to AWS that the control plane makes, signed by the object store's own signer rather than by one more SDK: sessions
//! for edges ([`sts`]), machines for nodes ([`ec2`]).
//!
//! Such services take a form and answer in XML (the "query" protocol), so one request and one way to read a reply do for all.

pub(crate) mod ec2;
pub(crate) mod proof;
pub(crate) mod sts;
mod xml;

use crate::http_client::{self, ask};
use firn_env::Env;
use http::{HeaderValue, Method, header};
use object_store::{
    aws::{AmazonS3Builder, AwsAuthorizer, AwsCredentialProvider},
    client::{HttpClient, HttpRequest, HttpRequestBody},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use xml::Element;

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AwsError {
    /// AWS refuses it; asking again changes nothing.
    #[error("{action}: {code}: {message}")]
    Refused {
        /// What was asked for.
        action: String,
        /// AWS's word for why, such as `AccessDenied`.
        code: String,
        /// For people.
        message: String,
    },
    /// It did not answer, or asks to come back later. It may have happened.
    #[error("{action} was not answered: {why}")]
    Unavailable {
        /// What was asked for.
        action: String,
        /// Why.
        why: String,
    },
}

/// An account in a region, as the environment names it (the variables and files of AWS's own tools).
#[derive(Clone)]
pub struct AwsAccount {
    client: HttpClient,
    credentials: AwsCredentialProvider,
    region: String,
    endpoint: Option<String>,
    env: Env,
}

impl AwsAccount {
    /// Takes credentials from the environment. `endpoint` is for an emulator; without it each service has its own.
    ///
    /// # Errors
    /// If the environment says something impossible.
    pub fn from_environment(env: &Env, region: &str, endpoint: Option<String>) -> Result<Self, AwsError> {
        Self::of(env, region, endpoint, AmazonS3Builder::from_env())
    }

    /// The same with one key, for tests and emulators.
    ///
    /// # Errors
    /// If the endpoint is none.
    pub fn with_key(
        env: &Env,
        region: &str,
        endpoint: Option<String>,
        key_id: &str,
        secret: &str,
    ) -> Result<Self, AwsError> {
        let builder = AmazonS3Builder::new()
            .with_access_key_id(key_id)
            .with_secret_access_key(secret);
        Self::of(env, region, endpoint, builder)
    }

    /// Takes the object store's chain of sources of credentials; no bucket is ever opened by it.
    fn of(
        env: &Env,
        region: &str,
        endpoint: Option<String>,
        sources: AmazonS3Builder,
    ) -> Result<Self, AwsError> {
        let wrong = |error: object_store::Error| AwsError::Refused {
            action: "credentials".into(),
            code: "Environment".into(),
            message: error.to_string(),
        };
        let chain = sources
            .with_region(region)
            .with_bucket_name("none")
            .build()
            .map_err(wrong)?;
        Ok(Self {
            client: http_client::client(endpoint.as_deref()).map_err(wrong)?,
            credentials: chain.credentials().clone(),
            region: region.to_owned(),
            endpoint,
            env: env.clone(),
        })
    }

    /// Calls an action of a service with the query protocol.
    pub(crate) async fn call(
        &self,
        service: &str,
        version: &str,
        action: &str,
        fields: &[(String, String)],
    ) -> Result<Element, AwsError> {
        let unavailable = |why: String| AwsError::Unavailable {
            action: action.to_owned(),
            why,
        };
        let own = [
            ("Action".to_owned(), action.to_owned()),
            ("Version".to_owned(), version.to_owned()),
        ];
        let pairs: Vec<String> = own
            .iter()
            .chain(fields)
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
            .collect();
        let mut request = HttpRequest::new(HttpRequestBody::from(pairs.join("&")));
        *request.method_mut() = Method::POST;
        let endpoint = match &self.endpoint {
            Some(endpoint) => format!("{}/", endpoint.trim_end_matches('/')),
            None => format!("https://{service}.{}.amazonaws.com/", self.region),
        };
        *request.uri_mut() = endpoint
            .parse()
            .map_err(|_| unavailable(format!("{endpoint} is no address")))?;
        let form = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
        request.headers_mut().insert(header::CONTENT_TYPE, form);
        let credential = self
            .credentials
            .get_credential()
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        AwsAuthorizer::new(&credential, service, &self.region)
            .try_authorize(&mut request, None)
            .map_err(|error| unavailable(error.to_string()))?;
        let (status, body) = ask(&self.env, &self.client, request).await.map_err(unavailable)?;
        let reply = Element::read(&body).ok_or_else(|| unavailable("the reply is no XML".into()))?;
        if status.is_success() {
            return Ok(reply);
        }
        let code = reply.first("Code").unwrap_or_else(|| status.to_string());
        let later = status.is_server_error()
            || status.as_u16() == 429
            || ["Throttling", "RequestLimitExceeded", "InternalError"].contains(&&*code);
        let message = reply.first("Message").unwrap_or_default();
        Err(if later {
            unavailable(format!("{code}: {message}"))
        } else {
            AwsError::Refused {
                action: action.to_owned(),
                code,
                message,
            }
        })
    }
}

/// What a form keeps as it is: what RFC 3986 calls unreserved, as signatures want it.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ESCAPED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_form_would_misread_is_encoded() {
        assert_eq!(encoded("a b&c=é/~").to_string(), "a%20b%26c%3D%C3%A9%2F~");
    }
}
