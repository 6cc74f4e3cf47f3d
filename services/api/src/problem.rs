//! Problem documents (RFC 9457). Every code is explained in `docs/errors.md`; a test finds any that is not.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use firn_table::TableError;
use serde::Serialize;

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $status:ident, $text:literal, $title:literal;)*) => {
        /// Why a request was refused. Codes are for programs and never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$meta])* $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as programs read it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// One sentence that is the same for every such problem.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// The HTTP status it goes with.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or not of the documented shape.
    MalformedBody = BAD_REQUEST, "malformed_body", "The body is not what this operation takes.";
    /// A path or query parameter cannot be read.
    MalformedParameter = BAD_REQUEST, "malformed_parameter", "A parameter of the path or the query cannot be read.";
    /// A header cannot be read.
    MalformedHeader = BAD_REQUEST, "malformed_header", "A header cannot be read.";
    /// The body is too large.
    BodyTooLarge = PAYLOAD_TOO_LARGE, "body_too_large", "The body is larger than this operation takes.";
    /// The body did not come in time.
    BodyTimeout = REQUEST_TIMEOUT, "body_timeout", "The body did not come in time.";
    /// The body is not declared as JSON.
    WrongMediaType = UNSUPPORTED_MEDIA_TYPE, "wrong_media_type", "The body must be application/json.";
    /// A field is well-formed and still not acceptable.
    InvalidField = UNPROCESSABLE_ENTITY, "invalid_field", "A field of the body is not acceptable.";
    /// No credentials.
    NotAuthenticated = UNAUTHORIZED, "not_authenticated", "This operation needs a token or a client certificate.";
    /// A token that is refused.
    TokenRefused = UNAUTHORIZED, "token_refused", "The token is not accepted.";
    /// An API key, code or join secret that is refused.
    CredentialRefused = UNAUTHORIZED, "credential_refused", "The key, code or secret is not accepted.";
    /// The client certificate is not accepted.
    CertificateRefused = UNAUTHORIZED, "certificate_refused", "The client certificate is not accepted.";
    /// The policy says no.
    NotAllowed = FORBIDDEN, "not_allowed", "The role does not allow this operation.";
    /// A grant that was revoked.
    GrantRevoked = FORBIDDEN, "grant_revoked", "The grant of this volume was revoked.";
    /// No such thing in this tenant.
    NotFound = NOT_FOUND, "not_found", "There is no such thing in this tenant.";
    /// No such address.
    NoSuchOperation = NOT_FOUND, "no_such_operation", "There is no such operation.";
    /// The address exists, but not with this method.
    MethodNotAllowed = METHOD_NOT_ALLOWED, "method_not_allowed", "The operation does not take this method.";
    /// The name is taken.
    NameTaken = CONFLICT, "name_taken", "Something else has this name.";
    /// The thing is not in a state in which this can be done.
    WrongState = CONFLICT, "wrong_state", "This cannot be done in the present state.";
    /// Somebody else changed it meanwhile.
    ChangedMeanwhile = CONFLICT, "changed_meanwhile", "It was changed meanwhile by somebody else.";
    /// If-Match names another version.
    PreconditionFailed = PRECONDITION_FAILED, "precondition_failed", "It is no longer the version named in If-Match.";
    /// The idempotency key was used for another request.
    IdempotencyKeyReused = UNPROCESSABLE_ENTITY, "idempotency_key_reused", "The idempotency key was used with another request.";
    /// A key ring that does not follow.
    KeyRingRefused = UNPROCESSABLE_ENTITY, "key_ring_refused", "The key ring is not the tenant's next one.";
    /// The quota is used up.
    QuotaExceeded = FORBIDDEN, "quota_exceeded", "The tenant's quota does not allow it.";
    /// A hard cap of the budget is reached.
    BudgetExhausted = PAYMENT_REQUIRED, "budget_exhausted", "The tenant's budget is spent.";
    /// Too many requests of one tenant or address, too many mails to one recipient.
    RateLimited = TOO_MANY_REQUESTS, "rate_limited", "Too many requests.";
    /// No nodes can take the disk.
    NoCapacity = CONFLICT, "no_capacity", "No nodes can take this disk now.";
    /// Too few nodes would remain.
    TooFewNodes = CONFLICT, "too_few_nodes", "The nodes that would remain cannot hold what this one holds.";
    /// Storage did not answer.
    StorageUnavailable = SERVICE_UNAVAILABLE, "storage_unavailable", "The service's storage did not answer.";
    /// The mail could not be sent.
    MailUnavailable = SERVICE_UNAVAILABLE, "mail_unavailable", "The mail could not be sent.";
    /// A stored record that this build cannot read, or a bug.
    Internal = INTERNAL_SERVER_ERROR, "internal", "The service failed.";
}

/// A refusal, with what is particular to this request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct Problem {
    /// Which.
    pub code: Code,
    /// What is particular, and what to do; never a secret, never of another tenant.
    pub detail: String,
    /// After how many seconds trying again may help: sent where the status is one after which it may.
    pub retry_after_seconds: u32,
}

/// The document of a [`Problem`].
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument {
    /// Where the code is explained.
    #[serde(rename = "type")]
    kind: String,
    /// One sentence that is the same for every such problem.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// For programs: one of those in docs/errors.md.
    code: String,
    /// What is particular to this request.
    detail: String,
}

impl Problem {
    /// Makes one.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retry_after_seconds: 1,
        }
    }

    /// The same, to be tried again later than at once.
    pub(crate) fn retry_after(self, seconds: u32) -> Self {
        Self {
            retry_after_seconds: seconds,
            ..self
        }
    }

    /// A thing that is not there, or not this tenant's: the two look alike.
    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("{what} does not exist"))
    }

    /// A field that is refused.
    pub fn field(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidField, format!("{field}: {why}"))
    }

    /// A bug or a damaged record: logged here, told without its details.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "a request failed for a reason of our own");
        Self::new(
            Code::Internal,
            "it was logged; nothing was changed unless a later look shows it",
        )
    }

    /// The problem as a reply.
    pub fn reply(&self) -> Response<Body> {
        let document = ProblemDocument {
            kind: format!("https://firn.dev/errors#{}", self.code.as_str()),
            title: self.code.title().into(),
            status: self.code.status().as_u16(),
            code: self.code.as_str().into(),
            detail: self.detail.clone(),
        };
        let body = serde_json::to_vec(&document).expect("strings have a JSON form");
        let mut reply = Response::new(Body::from(body));
        *reply.status_mut() = self.code.status();
        let headers = reply.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.code.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(
            self.code.status(),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
        ) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_seconds));
        }
        reply
    }
}

impl From<TableError> for Problem {
    fn from(error: TableError) -> Self {
        match error {
            TableError::ConditionFailed { .. } => Self::new(
                Code::ChangedMeanwhile,
                "read it again, then decide; nothing was changed",
            ),
            TableError::Unavailable(why) | TableError::InvalidAnswer(why) => {
                tracing::warn!(%why, "the table did not answer");
                Self::new(
                    Code::StorageUnavailable,
                    "try again with the same idempotency key: the change may have happened",
                )
            }
            TableError::Limit(why) | TableError::Refused(why) => Self::internal(why),
        }
    }
}
