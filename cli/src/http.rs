//! Requests to the service: TLS 1.3, bounded replies, mutations repeated safely under one idempotency key.

use crate::failure::{Exit, Failure};
use reqwest::{Certificate, Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use std::{pin::pin, time::Duration};

/// The largest reply read: a page of a hundred things is far below.
const MAX_REPLY_BYTES: usize = 16 << 20;
/// Tries of one request. Between them: a second, then two.
const TRIES: u32 = 3;
/// One try takes no longer.
const TRY_LIMIT: Duration = Duration::from_secs(30);
/// Until a connection is there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After so long without an answer it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(3);

/// The way to a service.
#[derive(Clone)]
pub struct Http {
    client: Client,
    server: Url,
}

/// What came back.
pub struct Reply {
    pub body: Value,
    pub text: String,
    pub etag: Option<String>,
    /// The server's clock, as its reply says.
    pub date: Option<String>,
}

impl Http {
    /// Prepares; nothing is sent.
    pub fn new(server: &str, authority: Option<&str>) -> Result<Self, Failure> {
        let server: Url = server.parse().map_err(|_| {
            Failure::usage(format!(
                "{server:?} is no address such as https://api.example.org"
            ))
        })?;
        let is_local = matches!(server.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        if server.scheme() != "https" && !(server.scheme() == "http" && is_local) {
            return Err(Failure::usage(format!(
                "{server} would send secrets in the clear; use https (http only to this machine)"
            )));
        }
        let mut builder = Client::builder()
            .tls_version_min(reqwest::tls::Version::TLS_1_3)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("firn/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_LIMIT)
            .timeout(TRY_LIMIT);
        if let Some(pem) = authority {
            let certificate = Certificate::from_pem(pem.as_bytes()).map_err(|error| {
                Failure::usage(format!("the authority's file holds no certificate: {error}"))
            })?;
            builder = builder.tls_certs_only([certificate]);
        }
        let client = builder
            .build()
            .map_err(|error| Failure::failed(format!("TLS: {error}")))?;
        Ok(Self { client, server })
    }

    /// Sends a request and reads the reply.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
        if_match: Option<&str>,
    ) -> Result<Reply, Failure> {
        let url = self.server.join(path).map_err(|_| {
            Failure::usage(format!(
                "{path:?} is no path; was a name given where an id belongs?"
            ))
        })?;
        let key = crate::random::random_hex::<16>()?;
        let mut last = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(Duration::from_secs(u64::from(attempt))).await;
            }
            let mut request = self.client.request(method.clone(), url.clone());
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            if method != Method::GET {
                request = request.header("idempotency-key", &key);
            }
            if let Some(etag) = if_match {
                request = request.header("if-match", etag);
            }
            if let Some(body) = body {
                request = request
                    .header("content-type", "application/json")
                    .body(body.to_string());
            }
            match self.answer(request, attempt).await {
                Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    last = "the service is not available".into();
                    if let Some(id) = response
                        .headers()
                        .get("x-request-id")
                        .and_then(|id| id.to_str().ok())
                    {
                        last = format!("{last} (request {})", id);
                    }
                }
                Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
                    last = "the service asks for fewer requests".into();
                }
                Ok(response) => return read(response).await,
                Err(error) => last = reason(&error),
            }
        }
        Err(Failure::new(
            Exit::Unavailable,
            format!("{} did not answer: {last}", self.server),
        )
        .next("the same command may be repeated"))
    }

    /// Sends one try; while nobody answers, says so.
    async fn answer(&self, request: RequestBuilder, attempt: u32) -> Result<Response, reqwest::Error> {
        let mut sent = pin!(request.send());
        if let Ok(answered) = tokio::time::timeout(SILENCE, &mut sent).await {
            return answered;
        }
        crate::screen::note(&format!(
            "waiting for {} to answer: try {} of {TRIES}, {} s each at most",
            self.server,
            attempt + 1,
            TRY_LIMIT.as_secs()
        ));
        sent.await
    }
}

/// The innermost reason, which is the one that helps.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

async fn read(mut response: Response) -> Result<Reply, Failure> {
    let status = response.status();
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let (etag, date, kind, request_id) = (
        header("etag"),
        header("date"),
        header("content-type").unwrap_or_default(),
        header("x-request-id"),
    );
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() <= MAX_REPLY_BYTES => {
                bytes.extend_from_slice(&chunk)
            }
            Ok(Some(_)) => {
                return Err(Failure::failed(
                    "the service's reply is larger than any of its replies can be",
                ));
            }
            Ok(None) => break,
            Err(error) => {
                return Err(Failure::new(
                    Exit::Unavailable,
                    format!("the reply was cut off: {}", reason(&error)),
                )
                .next("it may have been done: look before repeating it"));
            }
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| Failure::failed("the service's reply is no text"))?;
    let body = if kind.contains("json") {
        serde_json::from_str(&text)
            .map_err(|_| Failure::failed("the service's reply is no JSON; is this the right address?"))?
    } else {
        Value::Null
    };
    if status.is_success() {
        return Ok(Reply {
            body,
            text,
            etag,
            date,
        });
    }
    Err(refused(status, &body, request_id.as_deref()))
}

/// A problem document as a failure.
fn refused(status: StatusCode, body: &Value, request_id: Option<&str>) -> Failure {
    let (exit, next) = match status.as_u16() {
        401 => (Exit::Credentials, Some("run: firn login")),
        402 => (
            Exit::Quota,
            Some("an owner or billing member can raise it: firn budget raise AMOUNT"),
        ),
        403 if body["code"] == "quota_exceeded" => (Exit::Quota, None),
        400 | 422 => (Exit::Usage, None),
        403 => (Exit::NotAllowed, Some("firn whoami shows your role")),
        404 => (Exit::NotFound, None),
        409 | 412 => (Exit::Conflict, None),
        500..=599 => (
            Exit::Failed,
            Some("firn doctor --bundle FILE collects what support needs"),
        ),
        _ => (Exit::Failed, None),
    };
    let detail = crate::screen::field(body, "detail");
    let title = crate::screen::field(body, "title");
    let what = match (title.as_str(), detail.as_str()) {
        // Who typed a value never saw the body that the title speaks of.
        (_, detail) if exit == Exit::Usage && !detail.is_empty() => format!("{detail}; nothing was changed"),
        ("", _) => format!("the address answered {status}; is it the service's?"),
        (title, "") => title.to_owned(),
        (title, detail) => format!("{title} {detail}"),
    };
    // What the service's own log says of it is found by this.
    let what = match request_id.filter(|_| status.is_server_error()) {
        Some(id) => format!("{what} (request {})", id),
        None => what,
    };
    let failure = Failure::new(exit, what);
    match next {
        Some(next) => failure.next(next),
        None => failure,
    }
}
