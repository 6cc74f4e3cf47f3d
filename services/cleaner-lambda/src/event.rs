//! Events of Lambda, told apart and checked before anything is done.
//!
//! ```json
//! {"source": "aws.events", "detail-type": "Scheduled Event", …}                          a rule or a schedule of EventBridge
//! {"Records": [{"eventSource": "aws:sqs", "messageId": "…", "body": "{\"family\": …}"}]} a batch from a queue of SQS
//! {"family": "…", "plan": true}                                                          a person, by `aws lambda invoke`
//! ```

use firn_cleaner_host::{Work, WorkError};
use serde::Deserialize;
use serde_json::Value;

/// Messages in one batch. SQS may be told to send more, but a run takes as long as a batch of one.
pub const MAX_RECORDS: usize = 100;
/// A message's id has 36 characters; it is repeated in the answer.
const MAX_ID_BYTES: usize = 100;

/// An event that can be worked on.
#[derive(Debug)]
pub enum Trigger {
    /// Clean everything.
    Schedule,
    /// Clean what the messages name.
    Queue(Vec<Message>),
    /// Clean, or look at, one family.
    Direct(Work),
}

/// One message of a batch.
#[derive(Debug)]
pub struct Message {
    /// Under which it is reported as failed.
    pub id: String,
    /// What it asks for.
    pub work: Result<Work, WorkError>,
}

/// An event that is none of these.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// Not an object, or an object of another kind.
    #[error(
        "the event is neither a scheduled event of EventBridge, nor a batch of SQS, nor {{\"family\": …}}: {found}"
    )]
    Unknown {
        /// What was found instead.
        found: String,
    },
    /// More records than one call takes.
    #[error(
        "the batch has {records} records and at most {MAX_RECORDS} are taken; set BatchSize of the event source to 1"
    )]
    TooMany {
        /// How many.
        records: usize,
    },
    /// A record that is no message of SQS: then none can be answered for.
    #[error("record {index} of the batch is no message of SQS: {why}")]
    Record {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A person's request.
    #[error(transparent)]
    Work(#[from] WorkError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    message_id: String,
    event_source: String,
    body: String,
}

impl Trigger {
    /// Tells what an event is. Lambda itself bounds its length (6 MB, or 1 MiB where nobody waits for the answer).
    ///
    /// # Errors
    /// [`EventError`]. A malformed message within a sound batch is no error here, but one of that message.
    pub fn read(event: Value) -> Result<Self, EventError> {
        let Value::Object(mut event) = event else {
            return Err(EventError::Unknown {
                found: format!("it is {}", kind(&event)),
            });
        };
        if let Some(records) = event.remove("Records") {
            return Ok(Self::Queue(messages(records)?));
        }
        let text = |name: &str| event.get(name).and_then(Value::as_str);
        if matches!(text("source"), Some("aws.events" | "aws.scheduler"))
            && text("detail-type") == Some("Scheduled Event")
        {
            return Ok(Self::Schedule);
        }
        if event.contains_key("family") {
            return Ok(Self::Direct(Work::parse(
                Value::Object(event).to_string().as_bytes(),
            )?));
        }
        let keys: Vec<String> = event
            .keys()
            .take(8)
            .map(|key| key.chars().take(32).collect())
            .collect();
        Err(EventError::Unknown {
            found: format!("it has the keys {keys:?}"),
        })
    }
}

fn messages(records: Value) -> Result<Vec<Message>, EventError> {
    let Value::Array(records) = records else {
        return Err(EventError::Unknown {
            found: format!("\"Records\" is {}", kind(&records)),
        });
    };
    if records.len() > MAX_RECORDS {
        return Err(EventError::TooMany {
            records: records.len(),
        });
    }
    let message = |(index, record)| {
        let wrong = |why: String| EventError::Record { index, why };
        let record: Record = serde_json::from_value(record).map_err(|error| wrong(error.to_string()))?;
        if record.event_source != "aws:sqs" {
            let source: String = record.event_source.chars().take(64).collect();
            return Err(wrong(format!("it comes from {source:?}")));
        }
        if record.message_id.is_empty() || record.message_id.len() > MAX_ID_BYTES {
            return Err(wrong(format!(
                "its messageId has {} bytes",
                record.message_id.len()
            )));
        }
        Ok(Message {
            id: record.message_id,
            work: Work::parse(record.body.as_bytes()),
        })
    };
    records.into_iter().enumerate().map(message).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object of another kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FAMILY: &str = "00112233445566778899aabbccddeeff";

    fn record(id: &str, body: &str) -> Value {
        json!({"messageId": id, "receiptHandle": "r", "body": body, "attributes": {}, "eventSource": "aws:sqs"})
    }

    #[test]
    fn rules_schedules_queues_and_people_are_told_apart() {
        for source in ["aws.events", "aws.scheduler"] {
            let event =
                json!({"version": "0", "source": source, "detail-type": "Scheduled Event", "detail": {}});
            assert!(matches!(Trigger::read(event), Ok(Trigger::Schedule)));
        }
        let event = json!({"family": FAMILY, "plan": true});
        assert!(matches!(
            Trigger::read(event),
            Ok(Trigger::Direct(Work { plan: true, .. }))
        ));
        let sound = json!({"family": FAMILY}).to_string();
        let event =
            json!({"Records": [record("a", &sound), record("b", "{"), record("c", &" ".repeat(5000))]});
        let Ok(Trigger::Queue(messages)) = Trigger::read(event) else {
            panic!("it is a batch");
        };
        let sound: Vec<(&str, bool)> = messages
            .iter()
            .map(|message| (&*message.id, message.work.is_ok()))
            .collect();
        assert_eq!(sound, [("a", true), ("b", false), ("c", false)]);
    }

    #[test]
    fn what_is_no_event_is_refused_with_what_was_found() {
        let many: Vec<Value> = (0..=MAX_RECORDS).map(|_| record("a", "{}")).collect();
        let from_kinesis = json!({"messageId": "a", "body": "", "eventSource": "aws:kinesis"});
        for (event, said) in [
            (json!(null), "it is null"),
            (json!([1]), "it is a list"),
            (json!({}), "the keys []"),
            (
                json!({"source": "aws.s3", "detail-type": "Object Created"}),
                "\"detail-type\"",
            ),
            (json!({"Records": 7}), "\"Records\" is a number"),
            (json!({ "Records": many }), "101 records"),
            (json!({"Records": [{}]}), "record 0 of the batch"),
            (
                json!({"Records": [record("a", "{}"), from_kinesis]}),
                "record 1 of the batch is no message of SQS: it comes from",
            ),
            (
                json!({"Records": [record("", "{}")]}),
                "its messageId has 0 bytes",
            ),
            (json!({"family": "main"}), "32 hexadecimal digits"),
            (json!({"family": FAMILY, "force": true}), "unknown field `force`"),
        ] {
            let error = Trigger::read(event).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
