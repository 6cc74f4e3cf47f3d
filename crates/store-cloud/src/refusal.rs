//! The HTTP layer below `object_store`: passes requests on, and turns every answer that is not a success into an error that
//! carries the status and the provider's code and words.
//!
//! `object_store` has no public type for a refusal, but keeps the chain of sources; so the [`Refusal`] made here is found
//! again at its end.

use futures::StreamExt;
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};

/// Of a refusal's body: S3's and Azure's fit into 1 KiB, and a proxy's page is of no use beyond.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Characters of a body without code and message that are worth showing.
const EXCERPT_CHARS: usize = 200;

/// What a server answered instead of doing the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HTTP {status}{}{}", named(" ", code), named(": ", message))]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// Such as `NoSuchBucket`; empty for an answer without a body.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The bucket's region, where S3 says so.
    pub(crate) region: Option<String>,
}

fn named(separator: &str, text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("{separator}{text}"),
    }
}

impl Refusal {
    fn new(status: u16, headers: &http::HeaderMap, body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let header = |name| {
            let value = headers.get(name)?.to_str().ok()?;
            (!value.is_empty()).then(|| value.to_owned())
        };
        let code = element(&body, "Code").or_else(|| header("x-ms-error-code"));
        let message = element(&body, "Message").unwrap_or_else(|| excerpt(&body));
        Self {
            status,
            code: code.unwrap_or_default(),
            // Azure appends the request id and time on lines of their own.
            message: message.lines().next().unwrap_or_default().trim().to_owned(),
            region: header("x-amz-bucket-region").or_else(|| element(&body, "Region")),
        }
    }
}

/// The text of the first `<name>…</name>`: enough of XML for the flat error documents of all three providers.
fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let text = text
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">");
    Some(text.replace("&amp;", "&"))
}

fn excerpt(body: &str) -> String {
    let printable = body.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable
        .take(EXCERPT_CHARS)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Makes clients that report refusals.
#[derive(Debug, Default)]
pub(crate) struct RefusalConnector;

impl HttpConnector for RefusalConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(RefusalService { inner }))
    }
}

#[derive(Debug)]
struct RefusalService {
    inner: HttpClient,
}

#[async_trait::async_trait]
impl HttpService for RefusalService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.inner.execute(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let mut stream = body.bytes_stream();
        let mut text = Vec::new();
        while text.len() < BODY_BYTES_MAX
            && let Some(Ok(bytes)) = stream.next().await
        {
            text.extend_from_slice(&bytes[..bytes.len().min(BODY_BYTES_MAX - text.len())]);
        }
        let refusal = Refusal::new(parts.status.as_u16(), &parts.headers, &text);
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Refusal {
        let headers = headers
            .iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    http::HeaderValue::from_static(value),
                )
            })
            .collect();
        Refusal::new(status, &headers, body.as_bytes())
    }

    #[test]
    fn the_providers_code_and_words_are_kept() {
        let s3 = refusal(
            403,
            &[("x-amz-bucket-region", "eu-west-1")],
            "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Access &lt;Denied&gt; &amp;amp;</Message></Error>",
        );
        assert_eq!(s3.to_string(), "HTTP 403 AccessDenied: Access <Denied> &amp;");
        assert_eq!(s3.region.as_deref(), Some("eu-west-1"));
        let azure = refusal(
            409,
            &[("x-ms-error-code", "BlobAlreadyExists")],
            "\u{feff}<Error><Code>BlobAlreadyExists</Code><Message>The specified blob already exists.\nRequestId:1\nTime:2</Message></Error>",
        );
        assert_eq!(
            azure.to_string(),
            "HTTP 409 BlobAlreadyExists: The specified blob already exists."
        );
        assert_eq!(
            refusal(404, &[("x-ms-error-code", "BlobNotFound")], "").code,
            "BlobNotFound"
        );
    }

    #[test]
    fn a_page_that_is_no_error_document_is_shown_in_short() {
        let page = format!("<html>\u{7}{}", "x".repeat(1000));
        let shown = refusal(502, &[], &page).to_string();
        assert!(
            shown.starts_with("HTTP 502: <html> xxx") && shown.len() < 250,
            "{shown}"
        );
        assert_eq!(refusal(503, &[], "").to_string(), "HTTP 503");
    }
}
