//! From an event to an answer.
//!
//! | event | answer | failure |
//! |---|---|---|
//! | schedule | the round | the call fails if a family did: Lambda calls twice more, then the dead-letter queue has the event |
//! | queue | `{"batchItemFailures": […]}` | the messages named there come again, and at last go to the queue's dead-letter queue |
//! | by hand | the run | the call fails |

use crate::event::{EventError, Trigger};
use firn_cleaner_host::{Host, HostError};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The event.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The work.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Some families of a round.
    #[error("{failed} of {all} families were not cleaned; the first is {first}")]
    Families {
        /// How many failed.
        failed: usize,
        /// How many were tried.
        all: usize,
        /// What happened to the first of them.
        first: String,
    },
    /// The answer; never seen.
    #[error("the answer cannot be written: {0}")]
    Answer(#[from] serde_json::Error),
}

/// What SQS must be answered; nothing else may stand in it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct BatchAnswer {
    batch_item_failures: Vec<ItemFailure>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemFailure {
    item_identifier: String,
}

/// Works on an event within `left`.
///
/// # Errors
/// [`CallError`]; whatever was done stays done, and it is safe to call again.
pub async fn handle(host: &Host, event: Value, left: Duration) -> Result<Value, CallError> {
    match Trigger::read(event)? {
        Trigger::Schedule => {
            let round = host.clean_all(left).await?;
            if let Some(first) = round.failed.first() {
                return Err(CallError::Families {
                    failed: round.failed.len(),
                    all: round.failed.len() + round.cleaned.len(),
                    first: first.why.clone(),
                });
            }
            Ok(serde_json::to_value(round)?)
        }
        Trigger::Direct(work) => Ok(serde_json::to_value(host.clean(work, left).await?)?),
        Trigger::Queue(messages) => {
            let until = host.env().now().after(left);
            let mut answer = BatchAnswer::default();
            // A family that is named twice is cleaned once, and both messages share its fate.
            let mut done = BTreeMap::new();
            for message in messages {
                let well = match message.work {
                    Err(error) => {
                        tracing::error!(message = message.id, %error, "a message asks for nothing that can be done");
                        false
                    }
                    Ok(work) => match done.get(&work) {
                        Some(well) => *well,
                        None => {
                            let left = until.since(host.env().now());
                            let result = host.clean(work, left).await;
                            if let Err(error) = &result {
                                tracing::error!(message = message.id, %error, "a message's family was not cleaned");
                            }
                            done.insert(work, result.is_ok());
                            result.is_ok()
                        }
                    },
                };
                if !well {
                    answer.batch_item_failures.push(ItemFailure {
                        item_identifier: message.id,
                    });
                }
            }
            Ok(serde_json::to_value(answer)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_anchor::Anchor;
    use firn_cleaner_host::Settings;
    use firn_format::FamilyId;
    use firn_table::RedbTable;
    use serde_json::json;
    use std::sync::Arc;

    const LEFT: Duration = Duration::from_secs(60);

    /// A host over a directory and a table file in which there is one family, without a volume.
    async fn host(families: &str) -> (tempfile::TempDir, Host, String) {
        let place = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(place.path()).expect("an environment");
        let table = place.path().join("table.redb");
        let family = FamilyId([7; 16]);
        let opened = RedbTable::open(&env, &table).await.expect("a table");
        Anchor::new(Arc::new(opened), env.clone(), family)
            .create_family()
            .await
            .expect("a family");
        let variables = [
            ("FIRN_CLEANER_STORE", format!("file://{}", place.path().display())),
            ("FIRN_CLEANER_TABLE", format!("redb:{}", table.display())),
            ("FIRN_CLEANER_FAMILIES", families.to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let host = Host::new(env, Settings::from_variables(variables).expect("settings"));
        (place, host, family.to_string())
    }

    fn record(id: &str, body: &Value) -> Value {
        json!({"messageId": id, "body": body.to_string(), "eventSource": "aws:sqs"})
    }

    fn scheduled() -> Value {
        json!({"source": "aws.events", "detail-type": "Scheduled Event"})
    }

    #[tokio::test]
    async fn a_batch_is_answered_message_by_message() {
        let (_place, host, family) = host("").await;
        let sound = json!({ "family": family });
        let event = json!({"Records": [
            record("sound", &sound),
            record("malformed", &json!({"volume": "main"})),
            record("again", &sound),
        ]});
        let answer = handle(&host, event, LEFT).await.expect("an answer");
        assert_eq!(
            answer,
            json!({"batchItemFailures": [{"itemIdentifier": "malformed"}]})
        );
    }

    #[tokio::test]
    async fn messages_that_time_does_not_reach_come_again() {
        let (_place, host, family) = host("").await;
        let event = json!({"Records": [record("late", &json!({ "family": family }))]});
        let answer = handle(&host, event, Duration::from_secs(3))
            .await
            .expect("an answer");
        assert_eq!(answer, json!({"batchItemFailures": [{"itemIdentifier": "late"}]}));
    }

    #[tokio::test]
    async fn a_schedule_cleans_the_families_that_are_named() {
        let family = FamilyId([7; 16]).to_string();
        let (_place, host, _) = host(&family).await;
        let answer = handle(&host, scheduled(), LEFT).await.expect("an answer");
        assert_eq!(answer["cleaned"][0]["family"], json!(family), "{answer}");
        assert_eq!(answer["failed"], json!([]), "{answer}");
        let looked = handle(&host, json!({"family": family, "plan": true}), LEFT).await;
        let looked = looked.expect("a plan");
        assert_eq!(looked["plan"]["victims"], json!(0), "{looked}");
        let late = handle(&host, scheduled(), Duration::from_secs(3))
            .await
            .expect("an answer");
        assert_eq!(late["not_reached"], json!(1), "{late}");
    }

    #[tokio::test]
    async fn a_malformed_event_fails_the_call() {
        let (_place, host, _) = host("").await;
        let error = handle(&host, json!("clean"), LEFT).await.expect_err("no event");
        assert!(error.to_string().contains("it is a text"), "{error}");
    }
}
