//! From what a provider answered to what the caller can do about it.
//!
//! | answer | means |
//! |---|---|
//! | 404 | `NotFound`; `Invalid` if it is the bucket that does not exist |
//! | 409, 412 to a create-only put | `AlreadyExists`; `Unavailable` if it only lost to a concurrent request |
//! | 401, 403, expired tokens, retention and leases | `Denied` |
//! | 408, 429, 5xx, no or no intelligible answer | `Unavailable` |
//! | 3xx, 501, 505, other 4xx | `Invalid` |
//!
//! A detail ends with what to do, wherever a person has to do something.

use crate::refusal::Refusal;
use firn_store::{ObjectKey, StoreError};
use object_store::client::HttpError;
use std::error::Error;

/// The object is there or was not touched, but another request for it was under way; asking again decides.
const LOST_TO_A_CONCURRENT_REQUEST: [&str; 5] = [
    "ConditionalRequestConflict",
    "OperationAborted",
    "ContainerBeingDeleted",
    "ContainerBeingDisabled",
    "AccountBeingCreated",
];

const NO_SUCH_BUCKET: [&str; 4] = [
    "NoSuchBucket",
    "ContainerNotFound",
    "ResourceNotFound",
    "AccountNotFound",
];

/// Errors that some servers send as 400 although time heals them.
const TRANSIENT_CODES: [&str; 5] = [
    "RequestTimeout",
    "SlowDown",
    "InternalError",
    "ServerBusy",
    "OperationTimedOut",
];

const EXPIRED_CODES: [&str; 3] = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"];

/// The key's owner is not known there. Servers differ in the case of the last letter and in the status: some say 404, as of a
/// bucket that is not there.
const UNKNOWN_KEY_CODES: [&str; 4] = [
    "InvalidAccessKeyId",
    "NoSuchUser",
    "InvalidClientTokenId",
    "XAdminUserNotFound",
];

/// Objects that may not be changed or removed yet.
const RETENTION_CODES: [&str; 5] = [
    "BlobImmutableDueToPolicy",
    "BlobImmutableDueToLegalHold",
    "LeaseIdMissing",
    "LeaseAlreadyPresent",
    "SnapshotsPresent",
];

/// A request as errors name it.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) operation: &'static str,
    pub(crate) key: &'a ObjectKey,
    pub(crate) is_create: bool,
}

impl Request<'_> {
    /// Sorts a failure of this request.
    pub(crate) fn failed(&self, error: &object_store::Error) -> StoreError {
        if let Some(refusal) = find::<Refusal>(error) {
            return self.refused(refusal);
        }
        let mut detail = words(error);
        if detail.contains("169.254.169.254") || detail.contains("metadata.google.internal") {
            detail.push_str(
                "; there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the provider's like), \
                 name them in the configuration, or run on a machine with a role",
            );
        }
        // No refusal, so no answer at all, or one that made no sense: a captive portal, a proxy, a torn connection.
        self.unavailable(detail)
    }

    fn refused(&self, refusal: &Refusal) -> StoreError {
        let code = refusal.code.as_str();
        let is = |codes: &[&str]| codes.contains(&code);
        if is(&TRANSIENT_CODES) {
            return self.unavailable(refusal.to_string());
        }
        if UNKNOWN_KEY_CODES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(code))
        {
            return self.denied(format!(
                "{refusal}; the store does not know this access key: check AWS_ACCESS_KEY_ID and the store's URL"
            ));
        }
        if is(&EXPIRED_CODES) {
            return self.denied(format!("{refusal}; renew the credentials"));
        }
        match refusal.status {
            403 if self.is_create && code == "UnauthorizedBlobOverwrite" => {
                StoreError::already_exists(self.key)
            }
            401 | 403 => self.denied(match code {
                "RequestTimeTooSkewed" => format!("{refusal}; set this machine's clock"),
                "SignatureDoesNotMatch" => format!("{refusal}; check the secret key"),
                _ => format!("{refusal}; check the credentials and what their policy allows"),
            }),
            404 if is(&NO_SUCH_BUCKET) || matches!(self.operation, "put" | "list") => self.invalid(format!(
                "{refusal}; create the bucket or container, or correct the store's URL"
            )),
            404 => StoreError::not_found(self.key),
            409 | 412 if is(&LOST_TO_A_CONCURRENT_REQUEST) => self.unavailable(refusal.to_string()),
            409 | 412 if is(&RETENTION_CODES) && !self.is_create => self.denied(format!(
                "{refusal}; the object is held by a retention policy, a legal hold or a lease"
            )),
            409 | 412 if self.is_create => StoreError::already_exists(self.key),
            408 | 429 => self.unavailable(refusal.to_string()),
            501 | 505 => self.invalid(format!("{refusal}; this server lacks what Firn needs")),
            500..=599 => self.unavailable(refusal.to_string()),
            status => self.invalid(match (&refusal.region, status) {
                (Some(region), _) => {
                    format!("{refusal}; the bucket is in region {region}: set region={region}")
                }
                (None, 300..=399) => {
                    format!("{refusal}; set the bucket's region or endpoint in the store's URL")
                }
                (None, _) => refusal.to_string(),
            }),
        }
    }

    pub(crate) fn unavailable(&self, detail: String) -> StoreError {
        StoreError::unavailable(self.operation, self.key, detail)
    }

    pub(crate) fn invalid(&self, detail: String) -> StoreError {
        StoreError::invalid(self.operation, self.key, detail)
    }

    fn denied(&self, detail: String) -> StoreError {
        StoreError::Denied {
            operation: self.operation,
            key: self.key.clone(),
            detail,
        }
    }
}

/// Whether a range lay wholly behind the object's end.
pub(crate) fn is_behind_the_end(error: &object_store::Error) -> bool {
    find::<Refusal>(error).is_some_and(|refusal| refusal.status == 416)
}

/// Whether a server does not know what was asked of it.
pub(crate) fn is_not_implemented(error: &object_store::Error) -> bool {
    find::<Refusal>(error).is_some_and(|refusal| refusal.status == 501)
}

/// Whether a server answered, and did not refuse, but `object_store` could make nothing of it.
pub(crate) fn is_unintelligible(error: &object_store::Error) -> bool {
    find::<HttpError>(error).is_none()
}

/// An error and its sources, the outermost first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The first error of this type in the chain.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// All that the sources say, each once: the outer ones often only say that a request failed.
fn words(error: &(dyn Error + 'static)) -> String {
    // From the transport down, if it was the transport: what lies above repeats it around URLs and retry counts.
    let start = find::<HttpError>(error).map_or(error, |transport| transport as _);
    let mut words = String::new();
    for error in chain(start) {
        let text = error.to_string();
        if !words.contains(&text) {
            if !words.is_empty() {
                words.push_str(": ");
            }
            words.push_str(&text);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpErrorKind;

    fn error(source: impl Error + Send + Sync + 'static) -> object_store::Error {
        object_store::Error::Generic {
            store: "S3",
            source: Box::new(HttpError::new(HttpErrorKind::Unknown, source)),
        }
    }

    fn classified(operation: &'static str, is_create: bool, status: u16, code: &str) -> StoreError {
        let key = ObjectKey::new("k");
        let request = Request {
            operation,
            key: &key,
            is_create,
        };
        request.failed(&error(Refusal {
            status,
            code: code.into(),
            message: "words".into(),
            region: (status == 301).then(|| "eu-west-1".into()),
        }))
    }

    #[test]
    fn each_refusal_says_what_can_be_done() {
        let kind = |operation, is_create, status, code| match classified(operation, is_create, status, code) {
            StoreError::NotFound { .. } => "not found",
            StoreError::AlreadyExists { .. } => "exists",
            StoreError::Unavailable { .. } => "unavailable",
            StoreError::Denied { .. } => "denied",
            StoreError::Invalid { .. } => "invalid",
        };
        for (operation, is_create, status, code, expected) in [
            ("get", false, 404, "NoSuchKey", "not found"),
            ("get", false, 404, "BlobNotFound", "not found"),
            ("head", false, 404, "", "not found"),
            ("get", false, 404, "NoSuchBucket", "invalid"),
            ("put", true, 404, "", "invalid"),
            ("list", false, 404, "", "invalid"),
            ("put", true, 412, "PreconditionFailed", "exists"),
            ("put", true, 409, "BlobAlreadyExists", "exists"),
            ("put", true, 403, "UnauthorizedBlobOverwrite", "exists"),
            ("put", true, 409, "ConditionalRequestConflict", "unavailable"),
            ("put", true, 409, "OperationAborted", "unavailable"),
            ("delete", false, 409, "BlobImmutableDueToPolicy", "denied"),
            ("delete", false, 412, "LeaseIdMissing", "denied"),
            ("put", false, 412, "", "invalid"),
            ("get", false, 401, "", "denied"),
            ("get", false, 403, "AccessDenied", "denied"),
            ("get", false, 400, "ExpiredToken", "denied"),
            ("put", false, 400, "RequestTimeout", "unavailable"),
            ("get", false, 408, "", "unavailable"),
            ("get", false, 429, "", "unavailable"),
            ("get", false, 500, "InternalError", "unavailable"),
            ("get", false, 503, "SlowDown", "unavailable"),
            ("put", true, 501, "NotImplemented", "invalid"),
            ("get", false, 301, "PermanentRedirect", "invalid"),
            ("get", false, 400, "AuthorizationHeaderMalformed", "invalid"),
        ] {
            assert_eq!(
                kind(operation, is_create, status, code),
                expected,
                "{operation} {status} {code}"
            );
        }
    }

    #[test]
    fn what_a_person_must_do_is_said() {
        for (status, code, advice) in [
            (404, "NoSuchBucket", "create the bucket"),
            (403, "RequestTimeTooSkewed", "clock"),
            (403, "SignatureDoesNotMatch", "secret key"),
            (403, "AccessDenied", "policy"),
            (400, "ExpiredToken", "renew"),
            (403, "InvalidAccessKeyId", "does not know this access key"),
            (404, "InvalidAccessKeyID", "does not know this access key"),
            (404, "XAdminUserNotFound", "does not know this access key"),
            (301, "PermanentRedirect", "region=eu-west-1"),
        ] {
            let said = classified("get", false, status, code).to_string();
            assert!(said.contains(advice), "{said}");
        }
    }

    #[test]
    fn no_answer_is_unavailable_with_the_innermost_words() {
        let key = ObjectKey::new("k");
        let request = Request {
            operation: "get",
            key: &key,
            is_create: false,
        };
        let cause = std::io::Error::new(
            std::io::ErrorKind::ConnectionRefused,
            "connection refused by peer",
        );
        let said = request.failed(&error(cause));
        assert!(
            matches!(&said, StoreError::Unavailable { detail, .. } if detail.contains("refused by peer")),
            "{said}"
        );
        let cause = std::io::Error::other("connecting to http://169.254.169.254/latest timed out");
        let said = request.failed(&error(cause)).to_string();
        assert!(said.contains("AWS_ACCESS_KEY_ID"), "{said}");
    }
}
