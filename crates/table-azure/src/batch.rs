//! Entity group transactions: several operations in one multipart body, and what came of them.
//!
//! ```text
//! --batch_B
//! Content-Type: multipart/mixed; boundary=changeset_C
//!
//! --changeset_C                                      one part for each operation
//! Content-Type: application/http
//! Content-Transfer-Encoding: binary
//!
//! PUT https://…/table(PartitionKey='…',RowKey='…') HTTP/1.1
//! If-Match: …
//!
//! {…}
//! ```
//!
//! The answer has as many parts with a status each, or one part with the status of the operation that failed, and then nothing happened.
//! Source: Microsoft's "Performing entity group transactions".

use crate::failure::Refusal;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, header};
use serde_json::Value;
use std::fmt::Write as _;

/// One operation on an entity, alone or in a group.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// Begins with a slash.
    pub(crate) path: String,
    pub(crate) if_match: Option<String>,
    pub(crate) body: Option<Value>,
}

impl Operation {
    /// Its headers and its body, as a request of its own.
    pub(crate) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = vec![
            (
                header::ACCEPT,
                HeaderValue::from_static("application/json;odata=minimalmetadata"),
            ),
            (
                HeaderName::from_static("dataserviceversion"),
                HeaderValue::from_static("3.0;NetFx"),
            ),
            (
                HeaderName::from_static("maxdataserviceversion"),
                HeaderValue::from_static("3.0;NetFx"),
            ),
        ];
        if self.method == Method::POST {
            headers.push((
                HeaderName::from_static("prefer"),
                HeaderValue::from_static("return-no-content"),
            ));
        }
        if self.body.is_some() {
            headers.push((header::CONTENT_TYPE, HeaderValue::from_static("application/json")));
        }
        if let Some(tag) = &self.if_match
            && let Ok(tag) = HeaderValue::try_from(tag)
        {
            headers.push((header::IF_MATCH, tag));
        }
        headers
    }

    pub(crate) fn body_bytes(&self) -> Bytes {
        self.body
            .as_ref()
            .map(|body| body.to_string().into())
            .unwrap_or_default()
    }
}

/// The content type and the body of a group. `random` makes boundaries that no content has.
pub(crate) fn encode(operations: &[Operation], endpoint: &str, random: [u8; 16]) -> (HeaderValue, Bytes) {
    let random = data_encoding::HEXLOWER.encode(&random);
    let (batch, changeset) = (format!("batch_{random}"), format!("changeset_{random}"));
    let mut text = format!("--{batch}\r\nContent-Type: multipart/mixed; boundary={changeset}\r\n\r\n");
    for operation in operations {
        let (method, path) = (&operation.method, &operation.path);
        let _ = write!(
            text,
            "--{changeset}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
             {method} {endpoint}{path} HTTP/1.1\r\n"
        );
        for (name, value) in operation.headers() {
            let _ = write!(text, "{name}: {}\r\n", value.to_str().unwrap_or_default());
        }
        text.push_str("\r\n");
        if let Some(body) = &operation.body {
            let _ = write!(text, "{body}");
        }
        text.push_str("\r\n");
    }
    let _ = write!(text, "--{changeset}--\r\n--{batch}--\r\n");
    let content_type = HeaderValue::try_from(format!("multipart/mixed; boundary={batch}"))
        .expect("it is ASCII without controls");
    (content_type, text.into())
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All happened; the entity tags, of deletions `None`.
    Done(Vec<Option<String>>),
    /// Nothing happened.
    Refused(Refusal),
    /// It says neither.
    Unclear,
}

/// Reads the answer to a group of so many operations.
pub(crate) fn decode(operations: usize, body: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(body);
    let mut tags = Vec::new();
    for part in text.split("HTTP/1.1 ").skip(1) {
        let status: u16 = match part.get(..3).map(str::parse) {
            Some(Ok(status)) => status,
            _ => return Outcome::Unclear,
        };
        let (head, rest) = part.split_once("\r\n\r\n").unwrap_or((part, ""));
        if !(200..300).contains(&status) {
            let document = rest.lines().find(|line| line.starts_with('{')).unwrap_or(rest);
            return Outcome::Refused(Refusal::read(status, "", document.trim().as_bytes()));
        }
        tags.push(head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            (name.eq_ignore_ascii_case("etag") && !value.is_empty()).then(|| value.to_owned())
        }));
    }
    if tags.len() == operations {
        Outcome::Done(tags)
    } else {
        Outcome::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str = "--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_2\r\n\r\n\
        --changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
        HTTP/1.1 204 No Content\r\nETag: W/\"datetime'2026'\"\r\n\r\n\r\n\
        --changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
        HTTP/1.1 204 No Content\r\nX-Content-Type-Options: nosniff\r\n\r\n\r\n\
        --changesetresponse_2--\r\n--batchresponse_1--\r\n";
    const FAILED: &str = "--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_2\r\n\r\n\
        --changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
        HTTP/1.1 412 Precondition Failed\r\nContent-Type: application/json\r\n\r\n\
        {\"odata.error\":{\"code\":\"UpdateConditionNotSatisfied\",\"message\":{\"lang\":\"en-US\",\"value\":\"1:Not so.\"}}}\r\n\
        --changesetresponse_2--\r\n--batchresponse_1--\r\n";

    #[test]
    fn all_statuses_or_the_one_that_failed_are_read() {
        let tag = Some("W/\"datetime'2026'\"".to_owned());
        assert_eq!(decode(2, DONE.as_bytes()), Outcome::Done(vec![tag, None]));
        match decode(2, FAILED.as_bytes()) {
            Outcome::Refused(refusal) => {
                assert!(refusal.is_conflict(), "{refusal:?}");
                assert_eq!(refusal.code, "UpdateConditionNotSatisfied");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_that_is_cut_short_or_none_says_nothing() {
        let half = DONE.find("--changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nHTTP/1.1 204 No Content\r\nX-").unwrap();
        for body in [&DONE[..half], "", "<html>", "HTTP/1.1 ", "HTTP/1.1 2"] {
            assert_eq!(decode(2, body.as_bytes()), Outcome::Unclear, "{body:?}");
        }
    }
}
