//! Requests to the services of a cloud beside its object store, signed as its own tools sign them.

use anyhow::{Context, Result, ensure};
use http::{HeaderValue, Method};
use object_store::{
    ClientOptions,
    aws::{AwsAuthorizer, AwsCredential},
    client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector},
};
use serde_json::Value;
use std::time::Duration;

/// A function is given a minute; this is for that and its start.
const TIMEOUT: Duration = Duration::from_secs(150);

/// Services of AWS on an emulator.
pub struct Aws {
    /// The emulator's address.
    pub endpoint: String,
}

impl Aws {
    /// A service with a JSON protocol that names the action in a header (SQS, EventBridge).
    pub async fn action(&self, service: &str, target: &str, body: &Value) -> Result<Value> {
        let kind = format!("application/x-amz-json-1.{}", u8::from(service != "sqs"));
        let headers = [("content-type", &*kind), ("x-amz-target", target)];
        self.json(service, Method::POST, "/", &headers, body.to_string())
            .await
    }

    /// A service whose paths are its actions (Lambda).
    pub async fn path(
        &self,
        service: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let headers = [("content-type", "application/json")];
        self.json(service, method, path, &headers, body).await
    }

    /// A service of the older kind, with a form as its body (IAM). What it answers is XML.
    pub async fn form(&self, service: &str, fields: &[(&str, &str)]) -> Result<String> {
        let encode = |text: &str| -> String {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            text.bytes()
                .map(|byte| {
                    if plain(byte) {
                        char::from(byte).to_string()
                    } else {
                        format!("%{byte:02X}")
                    }
                })
                .collect()
        };
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let answer = self
            .signed(service, Method::POST, "/", &headers, pairs.join("&"))
            .await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn json(
        &self,
        service: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Value> {
        let answer = self.signed(service, method, path, headers, body).await?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn signed(
        &self,
        service: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Vec<u8>> {
        let credential = AwsCredential {
            key_id: "firntest".into(),
            secret_key: "firntest".into(),
            token: None,
        };
        let mut request = request(method, &format!("{}{path}", self.endpoint), headers, body)?;
        AwsAuthorizer::new(&credential, service, "us-east-1").try_authorize(&mut request, None)?;
        let (status, answer) = send(request).await?;
        let said = String::from_utf8_lossy(&answer[..answer.len().min(2000)]);
        ensure!((200..300).contains(&status), "{service} {path}: {status}: {said}");
        Ok(answer)
    }
}

/// Posts JSON without any signature; the status and what was answered.
pub async fn post_json(url: &str, headers: &[(&str, &str)], body: &Value) -> Result<(u16, Value)> {
    let mut all = vec![("content-type", "application/json")];
    all.extend(headers);
    let (status, answer) = send(request(Method::POST, url, &all, body.to_string())?).await?;
    Ok((status, serde_json::from_slice(&answer).unwrap_or(Value::Null)))
}

/// The status of a page.
pub async fn status_of(url: &str) -> Result<u16> {
    Ok(send(request(Method::GET, url, &[], String::new())?).await?.0)
}

fn request(method: Method, url: &str, headers: &[(&str, &str)], body: String) -> Result<HttpRequest> {
    let mut request = HttpRequest::new(HttpRequestBody::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = url.parse()?;
    for (name, value) in headers {
        let name: http::HeaderName = name.parse()?;
        request.headers_mut().insert(name, HeaderValue::from_str(value)?);
    }
    Ok(request)
}

async fn send(request: HttpRequest) -> Result<(u16, Vec<u8>)> {
    let options = ClientOptions::new().with_allow_http(true).with_timeout(TIMEOUT);
    let client = ReqwestConnector::default().connect(&options)?;
    let uri = request.uri().to_string();
    let response = client.execute(request).await.with_context(|| uri.clone())?;
    let status = response.status().as_u16();
    let body = response.into_body().bytes().await.with_context(|| uri)?;
    Ok((status, body.to_vec()))
}
