//! Calls of the Functions host, when a trigger fires, and the answers that they must get.
//!
//! ```json
//! {"Data": {"timer": {"Schedule": …, "ScheduleStatus": …, "IsPastDue": false}}, "Metadata": {"sys": {…}}}
//! {"Data": {"message": "{\"family\": \"…\"}"},                                   "Metadata": {"sys": {…}}}
//! ```
//!
//! A message of a queue comes as a text; hosts differ in whether that text is the message or the message written once more as
//! a JSON text, so both are read. Names of bindings are ours (`app/*/function.json`).

use firn_cleaner_host::{Work, WorkError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Queue messages have at most 64 KiB, escaped twice and with their metadata.
pub const MAX_CALL_BYTES: usize = 256 << 10;

/// Why a call cannot be read; calling again helps in no case.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Longer than [`MAX_CALL_BYTES`].
    #[error("the call's body is longer than {MAX_CALL_BYTES} bytes")]
    TooLong,
    /// Not what the Functions host sends.
    #[error("the call is not {{\"Data\": {{…}}, \"Metadata\": {{…}}}}: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The binding that function.json names is not there.
    #[error("\"Data\" has no {binding:?}; function.json must call its trigger so")]
    NoBinding {
        /// Its name.
        binding: &'static str,
    },
    /// A timer's data are an object.
    #[error("the timer's data are no object")]
    Timer,
    /// A message's data are a text or an object.
    #[error("the message is neither a text nor an object")]
    Message,
    /// The message itself.
    #[error(transparent)]
    Work(#[from] WorkError),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Call {
    data: BTreeMap<String, Value>,
}

/// Checks that a body is a timer's call.
///
/// # Errors
/// [`CallError`].
pub fn timer(body: &[u8]) -> Result<(), CallError> {
    match binding(body, "timer")? {
        Value::Object(_) => Ok(()),
        // As with messages: some hosts send the object as a text.
        Value::String(text) if serde_json::from_str::<BTreeMap<String, Value>>(&text).is_ok() => Ok(()),
        _ => Err(CallError::Timer),
    }
}

/// Reads the work that a message asks for.
///
/// # Errors
/// [`CallError`].
pub fn message(body: &[u8]) -> Result<Work, CallError> {
    let text = match binding(body, "message")? {
        Value::Object(object) => Value::Object(object).to_string(),
        Value::String(text) => serde_json::from_str(&text).unwrap_or(text),
        _ => return Err(CallError::Message),
    };
    Ok(Work::parse(text.as_bytes())?)
}

fn binding(body: &[u8], name: &'static str) -> Result<Value, CallError> {
    if body.len() > MAX_CALL_BYTES {
        return Err(CallError::TooLong);
    }
    let mut call: Call = serde_json::from_slice(body)?;
    call.data
        .remove(name)
        .ok_or(CallError::NoBinding { binding: name })
}

/// What the host is answered when the function has done its work.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Answer {
    /// Output bindings: there are none.
    pub outputs: BTreeMap<String, Value>,
    /// Lines for the invocation's log.
    pub logs: Vec<String>,
    /// What was done.
    pub return_value: Value,
}

impl Answer {
    /// An answer that carries `done`.
    pub fn new(done: Value) -> Self {
        Self {
            outputs: BTreeMap::new(),
            logs: vec![done.to_string()],
            return_value: done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FAMILY: &str = "00112233445566778899aabbccddeeff";

    fn read(data: Value) -> Result<Work, CallError> {
        message(
            json!({"Data": data, "Metadata": {"sys": {}}})
                .to_string()
                .as_bytes(),
        )
    }

    #[test]
    fn a_message_is_read_however_often_it_was_written_as_a_text() {
        let work = json!({ "family": FAMILY });
        let once = work.to_string();
        let twice = json!(once).to_string();
        for message in [work, json!(once), json!(twice)] {
            let work = read(json!({ "message": message })).expect("work");
            assert_eq!(work.target.family.to_string(), FAMILY);
        }
    }

    #[test]
    fn what_is_no_call_is_refused_with_what_was_expected() {
        for (data, said) in [
            (json!({}), "no \"message\""),
            (json!({"timer": {}}), "no \"message\""),
            (json!({"message": 7}), "neither a text nor an object"),
            (json!({"message": "clean all"}), "the message is not"),
            (json!({"message": {"family": "main"}}), "32 hexadecimal digits"),
            (json!({"message": " ".repeat(5000)}), "5000 bytes"),
            (json!([]), "the call is not"),
        ] {
            let error = read(data).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let cases: [(&[u8], &str); 4] = [
            (b"", "the call is not"),
            (b"{}", "missing field `Data`"),
            (b"{\"Data\":{\"timer\":7}}", "no object"),
            (b"{\"Data\":{\"timer\":\"now\"}}", "no object"),
        ];
        for (body, said) in cases {
            let error = timer(body).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let long = vec![b' '; MAX_CALL_BYTES + 1];
        assert!(matches!(timer(&long), Err(CallError::TooLong)));
        timer(br#"{"Data":{"timer":{"IsPastDue":true}},"Metadata":{}}"#).expect("a timer's call");
    }
}
