//! The way to an anchor service: each call one POST over HTTPS, with a client certificate.
//!
//! | what comes back | error | happened? | is it away? |
//! |---|---|---|---|
//! | no connection, no end in time, 5xx, 408, 429, a change meanwhile | [`TableError::Unavailable`] | in doubt | yes |
//! | success that is no answer of an anchor, or one without end | [`TableError::InvalidAnswer`] | in doubt | no |
//! | 400, 413, 422 | [`TableError::Limit`] | no | no |
//! | any other refusal | [`TableError::Refused`] | no | no |
//!
//! The [`Anchor`](firn_anchor::Anchor) above resolves doubt by asking again. Only what is away lets an edge start without it: whoever
//! says nonsense is there, with a certificate that the edge trusts. A handshake that fails is no connection.

use crate::tally::Tally;
use async_trait::async_trait;
use firn_anchor::{AnchorAnswer, AnchorBackend, AnchorCall};
use firn_table::{TableError, TableUsage};
use serde::Deserialize;
use std::{
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

/// The largest answer: a page of a table, which ends with the item that crosses 1 MiB, in base64 and JSON.
pub(crate) const ANSWER_BYTES_MAX: usize = 3 << 20;
/// Keys and certificates are some kilobytes.
const PEM_BYTES_MAX: u64 = 64 << 10;
/// A service that takes longer is taken for one that does not answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Gives the HTTPS client, with the certificate that is to be used now.
pub trait Clients: Send + Sync {
    /// The client.
    ///
    /// # Errors
    /// Why there is none now. What cannot be read now may be readable later.
    fn client(&self) -> Result<reqwest::Client, String>;
}

/// An anchor behind a service.
pub struct HttpsAnchor<C> {
    url: String,
    clients: C,
    tally: Tally,
}

impl<C: Clients> HttpsAnchor<C> {
    /// Asks at this address. Makes no request.
    pub fn new(url: impl Into<String>, clients: C) -> Self {
        Self {
            url: url.into(),
            clients,
            tally: Tally::default(),
        }
    }

    /// How many calls were made; they cost nothing here.
    pub fn usage(&self) -> TableUsage {
        self.tally.usage()
    }

    async fn exchange(&self, call: &AnchorCall) -> Result<AnchorAnswer, TableError> {
        let unavailable = |why: String| TableError::Unavailable(format!("the anchor did not answer: {why}"));
        let body = serde_json::to_vec(call)
            .map_err(|error| TableError::Limit(format!("the call has no JSON form: {error}")))?;
        let client = self.clients.client().map_err(unavailable)?;
        let request = client
            .post(&self.url)
            .header("content-type", "application/json")
            .body(body);
        let mut response = request.send().await.map_err(|error| unavailable(told(&error)))?;
        let status = response.status();
        let mut text = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| unavailable(told(&error)))?
        {
            if text.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(TableError::InvalidAnswer(
                    "the anchor's answer does not end".into(),
                ));
            }
            text.extend_from_slice(&chunk);
        }
        understood(status.as_u16(), &text)
    }
}

/// The whole chain: the first error only says that there was one.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[async_trait]
impl<C: Clients> AnchorBackend for HttpsAnchor<C> {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let answer = self.exchange(&call).await;
        self.tally.count(&call, &answer);
        answer
    }
}

/// Why something was refused, as RFC 9457 has it.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    // AWS itself refuses a function's callers with `Message`.
    #[serde(default, alias = "Message")]
    detail: String,
}

pub(crate) fn understood(status: u16, text: &[u8]) -> Result<AnchorAnswer, TableError> {
    if status == 200 {
        return serde_json::from_slice(text).map_err(|error| {
            TableError::InvalidAnswer(format!("the anchor's answer cannot be read: {error}"))
        });
    }
    let Refusal { code, detail } = serde_json::from_slice(text).unwrap_or_default();
    let why = format!("the anchor says {status} {code}: {detail}");
    Err(match (status, &*code) {
        (408 | 429 | 500.., _) | (409, "changed_meanwhile") => TableError::Unavailable(why),
        (400 | 413 | 422, _) => TableError::Limit(why),
        _ => TableError::Refused(why),
    })
}

/// A client whose key and certificate lie in a file, and are read again when it was replaced.
pub struct PemClients {
    identity: PathBuf,
    authority: PathBuf,
    known: Mutex<Option<(SystemTime, reqwest::Client)>>,
}

impl PemClients {
    /// `identity` holds a private key and a certificate, `authority` the certificates by which the service is known. Reads nothing.
    pub fn new(identity: impl Into<PathBuf>, authority: impl Into<PathBuf>) -> Self {
        Self {
            identity: identity.into(),
            authority: authority.into(),
            known: Mutex::new(None),
        }
    }
}

fn read(path: &Path) -> Result<(SystemTime, Vec<u8>), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.len() > PEM_BYTES_MAX {
        return Err(format!(
            "{}: {} bytes are no certificate",
            path.display(),
            metadata.len()
        ));
    }
    let written = metadata.modified().map_err(failed)?;
    Ok((written, std::fs::read(path).map_err(failed)?))
}

impl Clients for PemClients {
    fn client(&self) -> Result<reqwest::Client, String> {
        let (written, identity) = read(&self.identity)?;
        let mut known = self.known.lock().map_err(|_| "a panic".to_owned())?;
        if let Some((then, client)) = &*known
            && *then == written
        {
            return Ok(client.clone());
        }
        let wrong = |path: &Path, error: reqwest::Error| format!("{}: {error}", path.display());
        let identity =
            reqwest::Identity::from_pem(&identity).map_err(|error| wrong(&self.identity, error))?;
        let (_, authority) = read(&self.authority)?;
        let authority = reqwest::Certificate::from_pem_bundle(&authority)
            .map_err(|error| wrong(&self.authority, error))?;
        let client = reqwest::Client::builder()
            .tls_version_min(reqwest::tls::Version::TLS_1_3)
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .no_proxy()
            .user_agent(concat!("firn/", env!("CARGO_PKG_VERSION")))
            .tls_certs_only(authority)
            .identity(identity)
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| format!("TLS: {error}"))?;
        *known = Some((written, client.clone()));
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_anchor::Obstacle;

    #[test]
    fn a_clear_no_is_taken_for_one_nonsense_for_nonsense_and_the_rest_for_away() {
        assert_eq!(
            understood(200, br#"{"conflict":{"with":"tuple"}}"#).expect("an answer"),
            AnchorAnswer::Conflict {
                with: Obstacle::Tuple
            }
        );
        for text in [
            "<html>a gateway's page</html>",
            r#"{"conflict":{"with":"tuple","and":"more"}}"#,
            r#"{"key_ring":"AAAA"}"#,
            "",
        ] {
            let answer = understood(200, text.as_bytes());
            assert!(matches!(answer, Err(TableError::InvalidAnswer(_))), "{answer:?}");
        }
        for (status, text) in [
            (408, ""),
            (429, ""),
            (500, r#"{"code":"internal","detail":"it was logged"}"#),
            (503, "<html>a gateway's page</html>"),
            (409, r#"{"code":"changed_meanwhile","detail":"read it again"}"#),
        ] {
            let answer = understood(status, text.as_bytes());
            assert!(matches!(answer, Err(TableError::Unavailable(_))), "{answer:?}");
        }
        for (status, code) in [
            (401, "certificate_refused"),
            (403, "not_allowed"),
            (404, "not_found"),
            (409, "wrong_state"),
            (418, ""),
        ] {
            let text = format!(r#"{{"code":"{code}","detail":"its holder was removed"}}"#);
            let answer = understood(status, text.as_bytes());
            assert!(
                matches!(&answer, Err(TableError::Refused(why)) if why.contains("its holder was removed")),
                "{answer:?}"
            );
        }
        let answer = understood(403, br#"{"Message":"Forbidden"}"#);
        assert!(
            matches!(&answer, Err(TableError::Refused(why)) if why.contains("Forbidden")),
            "{answer:?}"
        );
        let answer = understood(422, br#"{"code":"invalid_field","detail":"too many"}"#);
        assert!(matches!(answer, Err(TableError::Limit(_))), "{answer:?}");
    }
}
