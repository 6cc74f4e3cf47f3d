//! Requests to one table of a storage account, each with a deadline.

use crate::{
    batch::{self, Operation, Outcome},
    entity::{Entities, Entity, Found},
    failure::{Refusal, unanswered},
    keys,
};
use bytes::Bytes;
use firn_env::Env;
use firn_store_cloud::{AzureTables, TableAnswer, TableRequest, TableRequestError};
use firn_table::{ItemKey, RequestFailure as Failure, TableError};
use http::{Method, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{sync::Arc, time::Duration};

/// Time for one try, a transaction of 4 MiB included.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Of an answer that is no list of items: a hundred parts of a group, or the largest item in base 64.
const ANSWER_BYTES: usize = 1 << 20;
/// Of a list of items. Azure itself ends a page earlier; a server that does not is asked for fewer.
const PAGE_BYTES: usize = 8 << 20;

/// What a query keeps as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// What became of a conditional write.
pub(crate) enum Written {
    /// It happened; the entity tags, of deletions `None`.
    Done(Vec<Option<String>>),
    /// Nothing happened: an item is not as the request supposes.
    Conflict(String),
}

/// What a part of a query found.
pub(crate) enum Part {
    Items {
        entities: Vec<Entity>,
        /// Where the server wants to go on.
        next: Option<Continuation>,
    },
    /// Fewer are to be asked for.
    TooLong,
}

/// Azure's mark of where a query was interrupted.
pub(crate) struct Continuation {
    partition: String,
    row: Option<String>,
}

/// One table.
#[derive(Clone)]
pub(crate) struct Service {
    env: Env,
    tables: AzureTables,
    table: Arc<str>,
}

impl Service {
    pub(crate) fn new(env: &Env, tables: AzureTables, table: &str) -> Self {
        Self {
            env: env.clone(),
            tables,
            table: table.into(),
        }
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Where an entity is; its encoded key needs no escaping.
    pub(crate) fn path_of(&self, key: &ItemKey) -> String {
        format!(
            "/{}(PartitionKey='{}',RowKey='{}')",
            self.table,
            keys::encode(&key.partition),
            keys::encode(&key.sort)
        )
    }

    /// Where entities are inserted.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.table)
    }

    pub(crate) async fn ask(&self, operation: &Operation) -> Result<TableAnswer, Failure> {
        let answer = self.send(operation, ANSWER_BYTES).await?;
        answer.map_err(|error| unanswered(&self.table, &error))
    }

    async fn send(
        &self,
        operation: &Operation,
        limit_bytes: usize,
    ) -> Result<Result<TableAnswer, TableRequestError>, Failure> {
        let request = TableRequest {
            method: operation.method.clone(),
            path_and_query: operation.path.clone(),
            headers: operation.headers(),
            body: operation.body_bytes(),
        };
        let sent = self.tables.send(request, limit_bytes);
        let answered = self.env.timeout(TRY_TIMEOUT, sent).await;
        answered.map_err(|elapsed| Failure::Doubt(elapsed.to_string()))
    }

    /// An answer that is not what was hoped for.
    pub(crate) fn refused(&self, answer: &TableAnswer) -> Failure {
        Refusal::of(answer).judge(&self.table)
    }

    /// What is under a key, with its entity tag.
    pub(crate) async fn read(&self, key: &ItemKey) -> Result<Option<(Found, String)>, Failure> {
        let answer = self
            .ask(&Operation {
                method: Method::GET,
                path: self.path_of(key),
                if_match: None,
                body: None,
            })
            .await?;
        if answer.status != 200 {
            let refusal = Refusal::of(&answer);
            return match refusal.is_conflict() {
                true => Ok(None),
                false => Err(refusal.judge(&self.table)),
            };
        }
        let mut entity: Entity = understood(&answer.body)?;
        let of_header = answer.headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let tag = of_header.map(str::to_owned).or_else(|| entity.tag.take());
        let tag = tag.ok_or_else(|| unclear("an entity without a tag"))?;
        let (found_key, found) = entity.decode(&key.partition).map_err(Failure::Final)?;
        if found_key != *key {
            return Err(unclear("another entity than the one that was asked for"));
        }
        Ok(Some((found, tag)))
    }

    /// Entities for which `filter` holds, in order.
    pub(crate) async fn query(
        &self,
        filter: &str,
        limit: usize,
        from: Option<&Continuation>,
    ) -> Result<Part, Failure> {
        let mut path = format!(
            "/{}()?$filter={}&$top={limit}",
            self.table,
            utf8_percent_encode(filter, ESCAPED)
        );
        if let Some(from) = from {
            let escaped = |text| utf8_percent_encode(text, ESCAPED);
            path.push_str(&format!("&NextPartitionKey={}", escaped(&from.partition)));
            if let Some(row) = &from.row {
                path.push_str(&format!("&NextRowKey={}", escaped(row)));
            }
        }
        let operation = Operation {
            method: Method::GET,
            path,
            if_match: None,
            body: None,
        };
        let answer = match self.send(&operation, PAGE_BYTES).await? {
            Ok(answer) => answer,
            Err(TableRequestError::TooLong { .. }) if limit > 1 => return Ok(Part::TooLong),
            Err(error) => return Err(unanswered(&self.table, &error)),
        };
        if answer.status != 200 {
            return Err(self.refused(&answer));
        }
        let mark = |name| {
            let value = answer.headers.get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let next = mark("x-ms-continuation-nextpartitionkey").map(|partition| Continuation {
            partition,
            row: mark("x-ms-continuation-nextrowkey"),
        });
        let entities: Entities = understood(&answer.body)?;
        Ok(Part::Items {
            entities: entities.value,
            next,
        })
    }

    /// Does all of the operations or none.
    pub(crate) async fn write(&self, operations: &[Operation]) -> Result<Written, Failure> {
        if let [operation] = operations {
            let answer = self.ask(operation).await?;
            if (200..300).contains(&answer.status) {
                let tag = answer.headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
                return Ok(Written::Done(vec![tag.map(str::to_owned)]));
            }
            return self.not_written(&Refusal::of(&answer));
        }
        let (content_type, body) = batch::encode(operations, self.tables.endpoint(), self.env.random_bytes());
        let request = TableRequest {
            method: Method::POST,
            path_and_query: "/$batch".into(),
            headers: vec![(header::CONTENT_TYPE, content_type)],
            body,
        };
        let sent = self.tables.send(request, ANSWER_BYTES);
        let answered = self.env.timeout(TRY_TIMEOUT, sent).await;
        let answer = answered
            .map_err(|elapsed| Failure::Doubt(elapsed.to_string()))?
            .map_err(|error| unanswered(&self.table, &error))?;
        if !(200..300).contains(&answer.status) {
            return self.not_written(&Refusal::of(&answer));
        }
        match batch::decode(operations.len(), &answer.body) {
            Outcome::Done(tags) => Ok(Written::Done(tags)),
            Outcome::Refused(refusal) => self.not_written(&refusal),
            Outcome::Unclear => Err(unclear("an answer to a transaction that says nothing of it")),
        }
    }

    fn not_written(&self, refusal: &Refusal) -> Result<Written, Failure> {
        match refusal.is_conflict() {
            true => Ok(Written::Conflict(format!("{refusal:?}"))),
            false => Err(refusal.judge(&self.table)),
        }
    }
}

fn understood<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(body)
        .map_err(|error| unclear(&format!("an answer that is none of a table's: {error}")))
}

fn unclear(what: &str) -> Failure {
    Failure::Final(TableError::InvalidAnswer(what.to_owned()))
}
