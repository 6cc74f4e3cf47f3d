//! One request to a cloud: bounded in time, and in what is kept of the answer.

use bytes::{Bytes, BytesMut};
use firn_env::Env;
use futures::StreamExt;
use http::StatusCode;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector as _, HttpRequest, ReqwestConnector},
};
use std::time::Duration;

/// How long an answer is waited for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Replies to what is asked here have some kilobytes.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// A client for an emulator at `endpoint`, or for the cloud itself.
///
/// # Errors
/// If there is none to be had.
pub(crate) fn client(endpoint: Option<&str>) -> object_store::Result<HttpClient> {
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http:"));
    let options = ClientOptions::new()
        .with_allow_http(is_plain)
        .with_timeout(TIMEOUT);
    ReqwestConnector::default().connect(&options)
}

/// What was answered, whatever the status.
///
/// # Errors
/// Why there is no answer that can be read, for people.
pub(crate) async fn ask(
    env: &Env,
    client: &HttpClient,
    request: HttpRequest,
) -> Result<(StatusCode, Bytes), String> {
    let answered = async {
        let response = client.execute(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let mut stream = response.into_body().bytes_stream();
        let mut body = BytesMut::new();
        while let Some(part) = stream.next().await {
            body.extend_from_slice(&part.map_err(|error| error.to_string())?);
            if body.len() > REPLY_BYTES_MAX {
                return Err(format!("the reply has more than {REPLY_BYTES_MAX} bytes"));
            }
        }
        Ok((status, body.freeze()))
    };
    env.timeout(TIMEOUT, answered)
        .await
        .map_err(|_| format!("nothing came in {} s", TIMEOUT.as_secs()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpRequestBody;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server of one answer, whose body has so many bytes.
    #[expect(
        clippy::disallowed_methods,
        reason = "the client under test is on the real network"
    )]
    async fn answers(bytes: usize) -> Result<(StatusCode, Bytes), String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let served = async {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let reply = format!(
                "HTTP/1.1 409 Conflict\r\nContent-Length: {bytes}\r\n\r\n{}",
                "x".repeat(bytes)
            );
            // Who has read enough hangs up.
            let _ = stream.write_all(reply.as_bytes()).await;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let client = client(Some(&endpoint)).expect("a client");
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = endpoint.parse().expect("an address");
        let (answer, ()) = tokio::join!(ask(&env, &client, request), served);
        answer
    }

    #[tokio::test]
    async fn an_answer_is_given_whatever_its_status_and_a_flood_is_not_kept() {
        let (status, body) = answers(300_000).await.expect("an answer");
        assert_eq!((status, body.len()), (StatusCode::CONFLICT, 300_000));
        let why = answers(REPLY_BYTES_MAX + 1).await.expect_err("too long");
        assert!(why.contains("more than 1048576 bytes"), "{why}");
    }
}
