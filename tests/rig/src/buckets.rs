//! Buckets of a program's own on servers of this machine, made as their providers' tools would make them.

use anyhow::{Context, Result, ensure};
use object_store::{
    ClientOptions,
    aws::{AwsAuthorizer, AwsCredential},
    azure::{AzureAccessKey, AzureAuthorizer, AzureCredential},
    client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector},
};

/// Azurite's published account; its key opens nothing else.
pub const AZURITE_ACCOUNT: &str = "devstoreaccount1";
/// See [`AZURITE_ACCOUNT`].
pub const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Makes a bucket on a server that speaks S3.
pub async fn create_s3(endpoint: &str, bucket: &str, key: &str, secret: &str) -> Result<()> {
    put_s3(key, secret, &format!("{endpoint}/{bucket}"), &[], "").await
}

/// Switches versioning on.
pub async fn keep_versions(endpoint: &str, bucket: &str, key: &str, secret: &str) -> Result<()> {
    let body = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Status>Enabled</Status>\
                </VersioningConfiguration>";
    put_s3(
        key,
        secret,
        &format!("{endpoint}/{bucket}?versioning="),
        &[],
        body,
    )
    .await
}

/// Makes a bucket that holds every object for a day against everybody.
pub async fn create_locked_s3(endpoint: &str, bucket: &str, key: &str, secret: &str) -> Result<()> {
    let uri = format!("{endpoint}/{bucket}");
    let lock = [("x-amz-bucket-object-lock-enabled", "true")];
    put_s3(key, secret, &uri, &lock, "").await?;
    let body = "<ObjectLockConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                <ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode>\
                <Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    put_s3(key, secret, &format!("{uri}?object-lock="), &[], body).await
}

/// Makes a table of DynamoDB that is somebody else's: its key is one number.
pub async fn create_foreign_table(endpoint: &str, table: &str) -> Result<()> {
    let body = format!(
        r#"{{"TableName":"{table}","BillingMode":"PAY_PER_REQUEST","AttributeDefinitions":[{{"AttributeName":"id","AttributeType":"N"}}],"KeySchema":[{{"AttributeName":"id","KeyType":"HASH"}}]}}"#
    );
    let mut request = HttpRequest::new(HttpRequestBody::from(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("{endpoint}/").parse()?;
    let headers = request.headers_mut();
    headers.insert("x-amz-target", "DynamoDB_20120810.CreateTable".parse()?);
    headers.insert("content-type", "application/x-amz-json-1.0".parse()?);
    let credential = AwsCredential {
        key_id: "firntest".into(),
        secret_key: "firntest".into(),
        token: None,
    };
    AwsAuthorizer::new(&credential, "dynamodb", "us-east-1").try_authorize(&mut request, None)?;
    send(request).await
}

async fn put_s3(
    key: &str,
    secret: &str,
    uri: &str,
    headers: &[(&'static str, &str)],
    body: &str,
) -> Result<()> {
    let credential = AwsCredential {
        key_id: key.into(),
        secret_key: secret.into(),
        token: None,
    };
    let status = ask_s3(&credential, "PUT", uri, headers, body).await?;
    ensure!((200..300).contains(&status), "{uri}: {status}");
    Ok(())
}

/// What a server that speaks S3 answers to one signed request: HTTP's status.
pub async fn ask_s3(
    credential: &AwsCredential,
    method: &str,
    uri: &str,
    headers: &[(&'static str, &str)],
    body: &str,
) -> Result<u16> {
    let mut request = HttpRequest::new(HttpRequestBody::from(body.to_owned()));
    *request.method_mut() = method.parse()?;
    *request.uri_mut() = uri.parse()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse()?);
    }
    AwsAuthorizer::new(credential, "s3", "us-east-1").try_authorize(&mut request, None)?;
    Ok(answer(request).await?.as_u16())
}

/// Makes a container on Azurite.
pub async fn create_azure(endpoint: &str, container: &str) -> Result<()> {
    let key = AzureAccessKey::try_new(AZURITE_KEY)?;
    let mut request = put(&format!("{endpoint}/{container}?restype=container"))?;
    AzureAuthorizer::new(&AzureCredential::AccessKey(key), AZURITE_ACCOUNT).try_authorize(&mut request)?;
    send(request).await
}

/// What Azurite answers to one request, whose signature is in `uri`: HTTP's status.
pub async fn ask_azure(method: &str, uri: &str, headers: &[(&'static str, &str)], body: &str) -> Result<u16> {
    Ok(answer(of_parts(method, uri, headers, body)?).await?.as_u16())
}

/// The same of the account's owner, who signs each request with its key.
pub async fn ask_azure_as_owner(
    method: &str,
    uri: &str,
    headers: &[(&'static str, &str)],
    body: &str,
) -> Result<u16> {
    let mut request = of_parts(method, uri, headers, body)?;
    let length = body.len().to_string().parse()?;
    request.headers_mut().insert(http::header::CONTENT_LENGTH, length);
    let key = AzureCredential::AccessKey(AzureAccessKey::try_new(AZURITE_KEY)?);
    AzureAuthorizer::new(&key, AZURITE_ACCOUNT).try_authorize(&mut request)?;
    Ok(answer(request).await?.as_u16())
}

fn of_parts(method: &str, uri: &str, headers: &[(&'static str, &str)], body: &str) -> Result<HttpRequest> {
    let mut request = HttpRequest::new(HttpRequestBody::from(body.to_owned()));
    *request.method_mut() = method.parse()?;
    *request.uri_mut() = uri.parse()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse()?);
    }
    Ok(request)
}

fn put(uri: &str) -> Result<HttpRequest> {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = http::Method::PUT;
    *request.uri_mut() = uri.parse()?;
    Ok(request)
}

async fn send(request: HttpRequest) -> Result<()> {
    let uri = request.uri().to_string();
    let status = answer(request).await?;
    ensure!(status.is_success(), "{uri}: {status}");
    Ok(())
}

async fn answer(request: HttpRequest) -> Result<http::StatusCode> {
    let options = ClientOptions::new().with_allow_http(true);
    let client = ReqwestConnector::default().connect(&options)?;
    let uri = request.uri().to_string();
    Ok(client.execute(request).await.with_context(|| uri)?.status())
}
