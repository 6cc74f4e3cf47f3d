//! The way to the control plane: TLS 1.3, known authorities, bounded replies.

use crate::failure::Failure;
use firn_identity::{SigningKey, pem};
use reqwest::{Certificate, Client, Identity, RequestBuilder, StatusCode, tls::Version};
use std::time::Duration;
use zeroize::Zeroizing;

/// A service that takes longer is taken for one that does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest reply: a thousand rows of a locator table.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// A client that believes `authority` (PEM; nothing: what this machine believes) and shows a certificate, if it has one.
///
/// # Errors
/// If one of them is none.
pub fn client(authority: Option<&[u8]>, identity: Option<(&SigningKey, &[u8])>) -> Result<Client, Failure> {
    let mut builder = Client::builder()
        .tls_version_min(Version::TLS_1_3)
        .redirect(reqwest::redirect::Policy::none())
        .https_only(true)
        .user_agent(concat!("firn-blockd/", env!("CARGO_PKG_VERSION")))
        .timeout(TIMEOUT);
    if let Some(authority) = authority {
        let certificate = Certificate::from_pem(authority)
            .map_err(|error| Failure::usage(format!("the service's authority is no certificate: {error}")))?;
        builder = builder.tls_certs_only([certificate]);
    }
    if let Some((key, certificate)) = identity {
        let texts = [
            pem("PRIVATE KEY", &key.to_pkcs8()),
            pem("CERTIFICATE", certificate),
        ];
        let text: Zeroizing<String> = Zeroizing::new(texts.iter().map(|text| text.as_str()).collect());
        let identity = Identity::from_pem(text.as_bytes())
            .map_err(|error| Failure::new(format!("this machine's certificate: {error}")))?;
        builder = builder.identity(identity);
    }
    builder
        .build()
        .map_err(|error| Failure::new(format!("TLS: {error}")))
}

/// Sends a request and reads its reply.
///
/// # Errors
/// Why there is none, for people: no connection, no end in time, or none at all.
pub async fn exchange(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), String> {
    let mut response = request.send().await.map_err(|error| told(&error))?;
    let status = response.status();
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| told(&error))? {
        if text.len() + chunk.len() > REPLY_BYTES_MAX {
            return Err("its reply does not end".into());
        }
        text.extend_from_slice(&chunk);
    }
    Ok((status, text))
}

/// The whole chain: the first error only says that there was one.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
