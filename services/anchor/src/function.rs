//! The way to an anchor service that is an AWS Lambda function: each call one POST to the function's URL, signed with the caller's
//! credentials of AWS (Signature Version 4), which AWS checks before the function is called.
//!
//! Credentials are those of the environment, as for a bucket of S3: variables, a container's role, a web identity, an instance's role.

use crate::{
    client::{ANSWER_BYTES_MAX, TIMEOUT, told, understood},
    tally::Tally,
    url::FunctionUrl,
};
use async_trait::async_trait;
use firn_anchor::{AnchorAnswer, AnchorBackend, AnchorCall};
use firn_table::{TableError, TableUsage};
use futures::StreamExt as _;
use http::{HeaderValue, Method, header};
use object_store::{
    ClientOptions,
    aws::{AmazonS3Builder, AwsAuthorizer, AwsCredentialProvider},
    client::{HttpClient, HttpConnector as _, HttpRequest, HttpRequestBody, ReqwestConnector},
};

/// Who the caller is to AWS: the service's name in a signature.
const SERVICE: &str = "lambda";

/// An anchor behind a function.
pub struct FunctionAnchor {
    url: FunctionUrl,
    credentials: AwsCredentialProvider,
    client: HttpClient,
    tally: Tally,
}

impl FunctionAnchor {
    /// Asks this function. Makes no request.
    ///
    /// # Errors
    /// What is missing in the environment.
    pub fn new(url: &FunctionUrl) -> Result<Self, String> {
        // Only its chain of credentials is used, the one that the bucket's are found by.
        let chain = AmazonS3Builder::from_env()
            .with_region(&url.region)
            .with_bucket_name("none")
            .build();
        let chain = chain.map_err(|error| told(&error))?;
        let options = ClientOptions::new()
            .with_allow_http(url.endpoint.is_some())
            .with_timeout(TIMEOUT);
        let client = ReqwestConnector::default().connect(&options);
        Ok(Self {
            url: url.clone(),
            credentials: chain.credentials().clone(),
            client: client.map_err(|error| told(&error))?,
            tally: Tally::default(),
        })
    }

    /// How many calls were made; what AWS takes for them is not known here.
    pub fn usage(&self) -> TableUsage {
        self.tally.usage()
    }

    async fn request(&self, body: Vec<u8>) -> Result<HttpRequest, String> {
        let credential = self.credentials.get_credential().await;
        let credential = credential.map_err(|error| format!("credentials of AWS: {}", told(&error)))?;
        let (host, path) = (self.url.host(), format!("/v1/anchor/{}", self.url.volume));
        let address = |place: &str| {
            format!("{place}{path}")
                .parse::<http::Uri>()
                .map_err(|error| told(&error))
        };
        let mut request = HttpRequest::new(HttpRequestBody::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = address(&format!("https://{host}"))?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        AwsAuthorizer::new(&credential, SERVICE, &self.url.region)
            .try_authorize(&mut request, None)
            .map_err(|error| told(&error))?;
        if let Some(endpoint) = &self.url.endpoint {
            // An emulator knows the function by the name that was signed, wherever it listens.
            *request.uri_mut() = address(endpoint)?;
            let host = HeaderValue::from_str(&host).map_err(|error| told(&error))?;
            request.headers_mut().insert(header::HOST, host);
        }
        Ok(request)
    }

    async fn exchange(&self, call: &AnchorCall) -> Result<AnchorAnswer, TableError> {
        let unavailable = |why: String| TableError::Unavailable(format!("the anchor did not answer: {why}"));
        let body = serde_json::to_vec(call)
            .map_err(|error| TableError::Limit(format!("the call has no JSON form: {error}")))?;
        let request = self.request(body).await.map_err(unavailable)?;
        let answered = self.client.execute(request).await;
        let response = answered.map_err(|error| unavailable(told(&error)))?;
        let status = response.status().as_u16();
        let mut chunks = response.into_body().bytes_stream();
        let mut text = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| unavailable(told(&error)))?;
            if text.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(TableError::InvalidAnswer(
                    "the anchor's answer does not end".into(),
                ));
            }
            text.extend_from_slice(&chunk);
        }
        understood(status, &text)
    }
}

#[async_trait]
impl AnchorBackend for FunctionAnchor {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let answer = self.exchange(&call).await;
        self.tally.count(&call, &answer);
        answer
    }
}
