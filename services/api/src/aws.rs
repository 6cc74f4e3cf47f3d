//! The few calls to AWS that the control plane makes, signed by the object store's own signer rather than by one more SDK: sessions
//! for edges ([`sts`]), machines for nodes ([`ec2`]).
//!
//! Such services take a form and answer in XML (the "query" protocol), so one request and one way to read a reply do for all.

pub(crate) mod ec2;
pub(crate) mod proof;
pub(crate) mod sts;

use crate::http_client::{self, ask};
use bytes::Bytes;
use firn_env::Env;
use http::{HeaderValue, Method, header};
use object_store::{
    aws::{AmazonS3Builder, AwsAuthorizer, AwsCredentialProvider},
    client::{HttpClient, HttpRequest, HttpRequestBody},
};
use std::fmt::Write as _;

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
    ) -> Result<Xml, AwsError> {
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
        let reply = Xml::read(&body).ok_or_else(|| unavailable("the reply is no text".into()))?;
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

/// RFC 3986, as signatures want it.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // a String takes everything
        }
    }
    encoded
}

/// A reply whose elements are looked up by name: the replies read here use no name twice with two meanings.
pub(crate) struct Xml(String);

impl Xml {
    fn read(bytes: &Bytes) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(|text| Self(text.to_owned()))
    }

    /// The text of the first element of this name.
    pub(crate) fn first(&self, name: &str) -> Option<String> {
        element(&self.0, name).map(plain)
    }

    /// The items of all lists of this name, each whole, in whatever order its elements are.
    pub(crate) fn items(&self, list: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut rest = &*self.0;
        while let Some((_, after)) = rest.split_once(&format!("<{list}>")) {
            let Some((content, behind)) = after.split_once(&format!("</{list}>")) else {
                break;
            };
            found.extend(top_items(content));
            rest = behind;
        }
        found
    }

    /// The value of a resource's tag.
    pub(crate) fn tag(&self, key: &str) -> Option<String> {
        let mut tags = self.items("tagSet").into_iter();
        let tag = tags.find(|tag| tag.first("key").as_deref() == Some(key))?;
        tag.first("value")
    }
}

/// The items of a list's content that lie in no other item.
fn top_items(content: &str) -> Vec<Xml> {
    const OPEN: &str = "<item>";
    const CLOSE: &str = "</item>";
    let (mut found, mut depth, mut begin, mut at) = (Vec::new(), 0_usize, 0, 0);
    while let Some(next) = content[at..].find('<') {
        at += next;
        let rest = &content[at..];
        if rest.starts_with(OPEN) {
            if depth == 0 {
                begin = at + OPEN.len();
            }
            depth += 1;
        } else if rest.starts_with(CLOSE) && depth > 0 {
            depth -= 1;
            if depth == 0 {
                found.push(Xml(content[begin..at].to_owned()));
            }
        }
        at += 1;
    }
    found
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("<{name}>"))?;
    Some(after.split_once(&format!("</{name}>"))?.0)
}

fn plain(text: &str) -> String {
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text.trim().to_owned(), |text, (escaped, letter)| {
        text.replace(escaped, letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_name_and_escapes_resolved() {
        let text = "<R><a>1 &amp;lt; 2</a><item><id> x </id></item><item><id>y</id></item><open></R>";
        let xml = Xml::read(&Bytes::from_static(text.as_bytes())).unwrap();
        assert_eq!(xml.first("a").as_deref(), Some("1 &lt; 2"), "resolved once");
        assert_eq!(xml.first("id").as_deref(), Some("x"));
        assert_eq!(xml.first("open"), None, "one that does not end is none");
        let lists = "<set><item>1</item> <item><in><item>2</item></in><id>x</id></item><item/></set><set></set><set><item>3</item></set>\
            <set><item>that does not end</set>";
        let items: Vec<_> = Xml(lists.into())
            .items("set")
            .into_iter()
            .map(|item| item.0)
            .collect();
        assert_eq!(items, ["1", "<in><item>2</item></in><id>x</id>", "3"]);
        assert_eq!(xml.items("none").len(), 0);
        // In either order.
        let tags = Xml(
            "<tagSet><item><key>a</key><value>1</value></item><item><value>&lt;</value><key>b</key></item></tagSet>".into(),
        );
        assert_eq!(tags.tag("b").as_deref(), Some("<"));
        assert_eq!(tags.tag("c"), None);
        assert!(Xml::read(&Bytes::from_static(b"\xff")).is_none());
    }

    #[test]
    fn what_a_form_would_misread_is_encoded() {
        assert_eq!(encoded("a b&c=é/~"), "a%20b%26c%3D%C3%A9%2F~");
    }
}
