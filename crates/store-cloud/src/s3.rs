//! The versions of one object in an S3 bucket.
//!
//! `object_store` reads versions and cannot list or delete them. The three requests that takes are made here, signed by
//! `object_store`: `GetBucketVersioning`, `ListObjectVersions` and `DeleteObject` with a version.

use crate::{refusal::RefusalConnector, request::generic};
use bytes::BytesMut;
use firn_store::VersionPage;
use futures::StreamExt;
use http::{Method, Uri};
use object_store::{
    ClientOptions,
    aws::{AmazonS3, AwsAuthorizer},
    client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody, HttpResponse},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// Versions in one page: Firn writes an object once, so that is one and perhaps a mark.
const PAGE: usize = 100;

/// Of an answer: a page of versions has some 500 bytes for each.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A bucket, with what its plain requests need.
pub(crate) struct S3Bucket {
    pub(crate) store: AmazonS3,
    client: HttpClient,
    region: String,
    /// `https://bucket.s3.region.amazonaws.com`, or `http://host:port/bucket`.
    bucket_url: String,
}

#[derive(Debug, Deserialize)]
struct Versioning {
    #[serde(rename = "Status")]
    status: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(rename = "IsTruncated", default)]
    is_truncated: bool,
    #[serde(rename = "DeleteMarker", default)]
    marks: Vec<Version>,
    #[serde(rename = "Version", default)]
    versions: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "VersionId")]
    id: String,
}

impl S3Bucket {
    pub(crate) fn new(
        store: AmazonS3,
        options: &ClientOptions,
        region: &str,
        bucket_url: String,
    ) -> object_store::Result<Self> {
        Ok(Self {
            store,
            client: RefusalConnector.connect(options)?,
            region: region.to_owned(),
            bucket_url,
        })
    }

    /// Whether versioning is on, or was: a bucket in which it is suspended goes on to keep what it has.
    pub(crate) async fn keeps_versions(&self) -> object_store::Result<bool> {
        let answer = self
            .send(Method::GET, format!("{}?versioning", self.bucket_url))
            .await?;
        let versioning: Versioning = read(answer).await?;
        Ok(versioning.status.is_some_and(|status| !status.is_empty()))
    }

    /// The versions of an object, marks of deletion first.
    pub(crate) async fn versions(&self, name: &str) -> object_store::Result<VersionPage> {
        let uri = format!(
            "{}?max-keys={PAGE}&prefix={}&versions",
            self.bucket_url,
            utf8_percent_encode(name, ESCAPED)
        );
        let answer = self.send(Method::GET, uri).await?;
        let listed: Listed = read(answer).await?;
        Ok(of_object(listed, name))
    }

    /// Removes a version of an object, whose name needs no escaping since it is made from a prefix and a key.
    pub(crate) async fn delete_version(&self, name: &str, version: &str) -> object_store::Result<()> {
        let uri = format!(
            "{}/{name}?versionId={}",
            self.bucket_url,
            utf8_percent_encode(version, ESCAPED)
        );
        self.send(Method::DELETE, uri).await?;
        Ok(())
    }

    async fn send(&self, method: Method, uri: String) -> object_store::Result<HttpResponse> {
        let credential = self.store.credentials().get_credential().await?;
        let uri: Uri = uri.parse().map_err(failed)?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        AwsAuthorizer::new(&credential, "s3", &self.region).try_authorize(&mut request, None)?;
        self.client.execute(request).await.map_err(failed)
    }
}

/// Of a list of all names that begin with an object's, which sorts the object itself first.
fn of_object(listed: Listed, name: &str) -> VersionPage {
    let all = || listed.marks.iter().chain(&listed.versions);
    let is_whole = !listed.is_truncated || all().any(|version| version.key != name);
    VersionPage {
        versions: all()
            .filter(|version| version.key == name)
            .map(|version| version.id.clone())
            .collect(),
        more: !is_whole,
    }
}

async fn read<T: for<'de> Deserialize<'de>>(answer: HttpResponse) -> object_store::Result<T> {
    let mut stream = answer.into_body().bytes_stream();
    let mut body = BytesMut::new();
    while let Some(part) = stream.next().await {
        body.extend_from_slice(&part.map_err(failed)?);
        if body.len() > ANSWER_BYTES_MAX {
            return Err(failed(std::io::Error::other(format!(
                "the answer has more than {ANSWER_BYTES_MAX} bytes"
            ))));
        }
    }
    quick_xml::de::from_reader(&body[..]).map_err(failed)
}

/// What a query keeps as it is: what RFC 3986 calls unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    generic("S3", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Listed {
        quick_xml::de::from_reader(text.as_bytes()).expect("a list")
    }

    #[test]
    fn versions_of_other_objects_are_left_out_and_marks_come_first() {
        let list = listed(
            "<?xml version=\"1.0\"?><ListVersionsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
             <Prefix>p/a</Prefix><IsTruncated>true</IsTruncated>\
             <Version><Key>p/a</Key><VersionId>2</VersionId><IsLatest>false</IsLatest></Version>\
             <DeleteMarker><Key>p/a</Key><VersionId>3</VersionId><Owner><ID>x</ID></Owner></DeleteMarker>\
             <Version><Key>p/a</Key><VersionId>null</VersionId></Version>\
             <Version><Key>p/a1</Key><VersionId>9</VersionId></Version></ListVersionsResult>",
        );
        let page = of_object(list, "p/a");
        assert_eq!(page.versions, ["3", "2", "null"]);
        assert!(!page.more, "what follows is another object's");
    }

    #[test]
    fn a_page_that_is_the_objects_alone_may_not_be_the_last() {
        let list = listed(
            "<ListVersionsResult><IsTruncated>true</IsTruncated><Version><Key>a</Key><VersionId>2</VersionId></Version>\
             </ListVersionsResult>",
        );
        assert!(of_object(list, "a").more);
        let none = of_object(listed("<ListVersionsResult/>"), "a");
        assert_eq!(none, VersionPage::default());
    }

    #[test]
    fn a_query_holds_no_character_with_a_meaning() {
        assert_eq!(
            utf8_percent_encode("p/a b+c&d=ü~-._9", ESCAPED).to_string(),
            "p%2Fa%20b%2Bc%26d%3D%C3%BC~-._9"
        );
    }

    #[test]
    fn a_bucket_in_which_nobody_ever_switched_versioning_on_says_nothing() {
        let never: Versioning =
            quick_xml::de::from_str("<VersioningConfiguration xmlns=\"x\"/>").expect("an answer");
        assert_eq!(never.status, None);
        let on: Versioning = quick_xml::de::from_str(
            "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>",
        )
        .expect("an answer");
        assert_eq!(on.status.as_deref(), Some("Suspended"));
    }
}
