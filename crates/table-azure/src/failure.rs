//! Classification of answers and of their absence: not done and worth another try, in doubt, or final.

use firn_store_cloud::{TableAnswer, TableRequestError};
use firn_table::{RequestFailure, TableError};
use serde::Deserialize;

/// What people call it.
pub(crate) const SERVICE: &str = "Azure Table Storage";

/// Of what a server says, as much as a person reads.
const EXCERPT_CHARS: usize = 300;

/// A status with the code and the words of an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: String,
    message: String,
}

#[derive(Deserialize)]
struct ErrorDocument {
    #[serde(rename = "odata.error")]
    error: ODataError,
}

#[derive(Deserialize)]
struct ODataError {
    code: String,
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    value: String,
}

impl Refusal {
    pub(crate) fn of(answer: &TableAnswer) -> Self {
        let code = answer.headers.get("x-ms-error-code");
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or_default();
        Self::read(answer.status, code, &answer.body)
    }

    /// `code` is what the headers say, if they do.
    pub(crate) fn read(status: u16, code: &str, body: &[u8]) -> Self {
        let (found, message) = match serde_json::from_slice::<ErrorDocument>(body) {
            Ok(document) => (document.error.code, document.error.message.value),
            // XML, where the signature was refused: the code says it.
            Err(_) if body.starts_with(b"<?xml") => Default::default(),
            Err(_) => (String::new(), String::from_utf8_lossy(body).into_owned()),
        };
        let printable = |text: &str| -> String {
            let first = text.lines().next().unwrap_or_default();
            first
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(EXCERPT_CHARS)
                .collect()
        };
        let code = if code.is_empty() { &found } else { code };
        Self {
            status,
            code: printable(code),
            message: printable(&message),
        }
    }

    /// Whether it says that an item is not as the request supposes: there already, gone, or of another tag.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(
            (self.status, self.code.as_str()),
            (409, "EntityAlreadyExists") | (404, "ResourceNotFound" | "EntityNotFound") | (412, _)
        )
    }

    pub(crate) fn judge(&self, table: &str) -> RequestFailure {
        let said = format!("status {} {}: {}", self.status, self.code, self.message);
        let refused = |what: String| RequestFailure::Final(TableError::Refused(what));
        match (self.status, self.code.as_str()) {
            (429, _) | (_, "ServerBusy" | "TableBeingDeleted" | "AccountBeingCreated") => {
                RequestFailure::Busy(said)
            }
            (408 | 500.., _) => RequestFailure::Doubt(said),
            (404, "TableNotFound" | "ResourceNotFound") => refused(format!(
                "the storage account has no table {table:?}; create it, or let it be created by create=true"
            )),
            (401 | 403, _) => refused(format!(
                "Azure table {table:?}: {said}; check the account's key or the signature and this machine's clock; an identity needs the \
                 role Storage Table Data Contributor on the table, and the account's firewall has to let it in"
            )),
            (400..=499, _) => refused(format!("Azure table {table:?}: {said}")),
            _ => RequestFailure::Final(TableError::InvalidAnswer(said)),
        }
    }
}

/// Judges that there is no answer.
pub(crate) fn unanswered(table: &str, error: &TableRequestError) -> RequestFailure {
    let said = error.to_string();
    match error {
        TableRequestError::NoCredentials(_) => {
            RequestFailure::Final(TableError::Refused(format!("Azure table {table:?}: {said}")))
        }
        TableRequestError::CredentialsAway(_) => RequestFailure::Busy(said),
        TableRequestError::Unanswered(_) => RequestFailure::Doubt(said),
        TableRequestError::TooLong { .. } => RequestFailure::Final(TableError::InvalidAnswer(said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &[u8] =
        br#"{"odata.error":{"code":"TheCode","message":{"lang":"en-US","value":"Words.\nRequestId:1"}}}"#;

    #[test]
    fn code_and_words_are_kept_whoever_says_them() {
        let refusal = Refusal::read(400, "", DOCUMENT);
        assert_eq!(
            (refusal.code.as_str(), refusal.message.as_str()),
            ("TheCode", "Words.")
        );
        assert_eq!(Refusal::read(400, "Other", DOCUMENT).code, "Other");
        let page = Refusal::read(502, "", &[b'x'; 10_000]);
        assert!(page.message.len() == EXCERPT_CHARS && page.code.is_empty());
    }

    #[test]
    fn answers_are_sorted_by_what_is_right_to_do_next() {
        let judged = |status, code: &str| Refusal::read(status, code, b"").judge("roots");
        for (status, code) in [(429, ""), (503, "ServerBusy"), (409, "TableBeingDeleted")] {
            assert!(matches!(judged(status, code), RequestFailure::Busy(_)), "{code}");
        }
        for (status, code) in [(500, "OperationTimedOut"), (503, ""), (502, ""), (408, "")] {
            assert!(
                matches!(judged(status, code), RequestFailure::Doubt(_)),
                "{status}"
            );
        }
        for (status, code, said) in [
            (404, "TableNotFound", "create=true"),
            (403, "AuthenticationFailed", "clock"),
            (
                403,
                "AuthorizationPermissionMismatch",
                "Storage Table Data Contributor",
            ),
            (400, "InvalidInput", "InvalidInput"),
        ] {
            match judged(status, code) {
                RequestFailure::Final(TableError::Refused(why)) => assert!(why.contains(said), "{why}"),
                other => panic!("{code}: {other:?}"),
            }
        }
        assert!(matches!(
            judged(302, ""),
            RequestFailure::Final(TableError::InvalidAnswer(_))
        ));
    }
}
