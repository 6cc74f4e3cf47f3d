//! [`DynamoDbTable`].

use crate::{
    attributes::{
        Attributes, PARTITION_NAME, SORT_NAME, decode, expression, item_attributes, key_attributes, text,
        version_of,
    },
    failure::{SERVICE, is_busy, judge},
    open::{AwsCredentials, open},
};
use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError, transact_write_items::TransactWriteItemsError,
    },
    types::{
        CancellationReason, ConditionCheck, ConsumedCapacity, Delete, Put, ReturnConsumedCapacity,
        ReturnValuesOnConditionCheckFailure, TransactWriteItem,
    },
};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use firn_env::Env;
use firn_table::{
    Applied, Condition, DynamoDbUrl, Item, ItemKey, ItemVersion, Page, RequestFailure as Failure, Table,
    TableError, Write, limits, persist,
};
use std::sync::{Arc, Mutex};

const CONDITION_FAILED: &str = "ConditionalCheckFailed";

/// Capacity that DynamoDB reported for requests that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConsumedUnits {
    /// Read units; halves are possible.
    pub read: f64,
    /// Write units.
    pub write: f64,
}

/// Partitions of a table that are kept in another: credentials can be given for that one alone, and a transaction spans both.
#[derive(Clone)]
struct Apart {
    /// What their names begin with.
    prefix: Arc<str>,
    /// The other table.
    name: Arc<str>,
}

/// A DynamoDB table; cheap to clone.
#[derive(Clone)]
pub struct DynamoDbTable {
    env: Env,
    client: Client,
    name: Arc<str>,
    /// Partitions that are kept in another table of the same region and account.
    apart: Option<Apart>,
    consumed: Arc<Mutex<ConsumedUnits>>,
}

impl DynamoDbTable {
    /// Reaches the table, creates it if the address says so, waits until it is active and checks its schema.
    ///
    /// # Errors
    /// [`TableError::Refused`] with what to do about it, or [`TableError::Unavailable`] if DynamoDB does not answer.
    pub async fn open(env: &Env, url: &DynamoDbUrl) -> Result<Self, TableError> {
        Self::open_as(env, url, None).await
    }

    /// As [`DynamoDbTable::open`], with these credentials instead of those that the machine has.
    ///
    /// # Errors
    /// As [`DynamoDbTable::open`].
    pub async fn open_as(
        env: &Env,
        url: &DynamoDbUrl,
        credentials: Option<AwsCredentials>,
    ) -> Result<Self, TableError> {
        Ok(Self {
            env: env.clone(),
            client: open(env, url, credentials).await?,
            name: url.table.as_str().into(),
            apart: None,
            consumed: Arc::default(),
        })
    }

    /// Keeps the partitions whose names begin with `prefix` in `other`, a table of the same region, account and endpoint. Nothing is moved.
    #[must_use]
    pub fn with_partitions_in(self, prefix: &str, other: &Self) -> Self {
        let apart = Apart {
            prefix: prefix.into(),
            name: other.name.clone(),
        };
        Self {
            apart: Some(apart),
            ..self
        }
    }

    /// The table in which a partition lies.
    fn table_of(&self, partition: &str) -> &str {
        match &self.apart {
            Some(apart) if partition.starts_with(&*apart.prefix) => &apart.name,
            Some(_) | None => &self.name,
        }
    }

    /// What DynamoDB says was consumed. Failed conditions consume too, but are not reported.
    pub fn consumed(&self) -> ConsumedUnits {
        *self.consumed.lock().expect("no panic under this lock")
    }

    fn record_read(&self, capacity: Option<&ConsumedCapacity>) {
        let units = capacity.and_then(ConsumedCapacity::capacity_units);
        self.consumed.lock().expect("no panic under this lock").read += units.unwrap_or_default();
    }

    fn record_write(&self, capacity: &[ConsumedCapacity]) {
        let units: f64 = capacity.iter().filter_map(ConsumedCapacity::capacity_units).sum();
        self.consumed.lock().expect("no panic under this lock").write += units;
    }

    async fn read(&self, key: &ItemKey) -> Result<Option<Attributes>, TableError> {
        persist(&self.env, SERVICE, |_| async {
            let result = self
                .client
                .get_item()
                .table_name(self.table_of(&key.partition))
                .set_key(Some(key_attributes(key)))
                .consistent_read(true)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await;
            let output = result.map_err(|error| judge(self.table_of(&key.partition), &error))?;
            self.record_read(output.consumed_capacity());
            Ok(output.item)
        })
        .await
    }

    async fn put_one(
        &self,
        key: &ItemKey,
        version: ItemVersion,
        value: &Bytes,
        condition: Condition,
    ) -> Result<(), TableError> {
        persist(&self.env, SERVICE, |in_doubt| async move {
            let expression = expression(condition);
            let result = self
                .client
                .put_item()
                .table_name(self.table_of(&key.partition))
                .set_item(Some(item_attributes(key, version, value)))
                .condition_expression(expression.text)
                .set_expression_attribute_names(Some(expression.names))
                .set_expression_attribute_values(expression.values)
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await;
            match result {
                Ok(output) => {
                    self.record_write(output.consumed_capacity.as_slice());
                    Ok(())
                }
                Err(error) => match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                        let found = failed.item().and_then(version_of);
                        if found == Some(version) {
                            // Our earlier try, whose reply was lost.
                            Ok(())
                        } else {
                            Err(Failure::condition_failed(SERVICE, in_doubt, 0))
                        }
                    }
                    _ => Err(judge(self.table_of(&key.partition), &error)),
                },
            }
        })
        .await
    }

    async fn delete_one(&self, key: &ItemKey, version: ItemVersion) -> Result<(), TableError> {
        persist(&self.env, SERVICE, |in_doubt| async move {
            let expression = expression(Condition::Version(version));
            let result = self
                .client
                .delete_item()
                .table_name(self.table_of(&key.partition))
                .set_key(Some(key_attributes(key)))
                .condition_expression(expression.text)
                .set_expression_attribute_names(Some(expression.names))
                .set_expression_attribute_values(expression.values)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await;
            match result {
                Ok(output) => {
                    self.record_write(output.consumed_capacity.as_slice());
                    Ok(())
                }
                Err(error) => match error.as_service_error() {
                    Some(DeleteItemError::ConditionalCheckFailedException(_)) => {
                        Err(Failure::condition_failed(SERVICE, in_doubt, 0))
                    }
                    _ => Err(judge(self.table_of(&key.partition), &error)),
                },
            }
        })
        .await
    }

    async fn check_one(&self, key: &ItemKey, condition: Condition) -> Result<(), TableError> {
        let found = self.read(key).await?;
        if condition.holds(found.as_ref().and_then(version_of)) {
            Ok(())
        } else {
            Err(TableError::ConditionFailed { index: 0 })
        }
    }

    async fn transact_all(&self, writes: &[Write], versions: &Applied) -> Result<(), TableError> {
        let token = HEXLOWER.encode(&self.env.random_bytes::<16>());
        let items = writes
            .iter()
            .zip(versions)
            .map(|(write, version)| self.transact_item(write, *version))
            .collect::<Result<Vec<_>, _>>()?;
        persist(&self.env, SERVICE, |in_doubt| {
            let request = self
                .client
                .transact_write_items()
                .set_transact_items(Some(items.clone()))
                .client_request_token(&token)
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            async move {
                match request.send().await {
                    Ok(output) => {
                        self.record_write(output.consumed_capacity());
                        Ok(())
                    }
                    Err(error) => match error.as_service_error() {
                        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => Err(self
                            .judge_cancelled(
                                in_doubt,
                                cancelled.cancellation_reasons(),
                                cancelled.message(),
                            )),
                        _ => Err(judge(&self.name, &error)),
                    },
                }
            }
        })
        .await
    }

    fn judge_cancelled(
        &self,
        in_doubt: bool,
        reasons: &[CancellationReason],
        message: Option<&str>,
    ) -> Failure {
        let codes = || reasons.iter().map(|reason| reason.code().unwrap_or("None"));
        if let Some(index) = codes().position(|code| code == CONDITION_FAILED) {
            return Failure::condition_failed(SERVICE, in_doubt, index);
        }
        let words = message.unwrap_or("transaction cancelled").to_owned();
        if codes().any(is_busy) && codes().all(|code| code == "None" || is_busy(code)) {
            return Failure::Busy(words);
        }
        Failure::Final(TableError::Refused(format!(
            "DynamoDB table {:?}: {words}",
            self.name
        )))
    }

    fn transact_item(
        &self,
        write: &Write,
        version: Option<ItemVersion>,
    ) -> Result<TransactWriteItem, TableError> {
        let invalid = |error| TableError::Refused(format!("{error}"));
        let expression = expression(write.condition());
        let item = TransactWriteItem::builder();
        let item = match (write, version) {
            (Write::Put { key, value, .. }, Some(version)) => item.put(
                Put::builder()
                    .table_name(self.table_of(&key.partition))
                    .set_item(Some(item_attributes(key, version, value)))
                    .condition_expression(expression.text)
                    .set_expression_attribute_names(Some(expression.names))
                    .set_expression_attribute_values(expression.values)
                    .build()
                    .map_err(invalid)?,
            ),
            (Write::Delete { key, .. }, _) => item.delete(
                Delete::builder()
                    .table_name(self.table_of(&key.partition))
                    .set_key(Some(key_attributes(key)))
                    .condition_expression(expression.text)
                    .set_expression_attribute_names(Some(expression.names))
                    .set_expression_attribute_values(expression.values)
                    .build()
                    .map_err(invalid)?,
            ),
            (Write::Check { key, .. } | Write::Put { key, .. }, _) => item.condition_check(
                ConditionCheck::builder()
                    .table_name(self.table_of(&key.partition))
                    .set_key(Some(key_attributes(key)))
                    .condition_expression(expression.text)
                    .set_expression_attribute_names(Some(expression.names))
                    .set_expression_attribute_values(expression.values)
                    .build()
                    .map_err(invalid)?,
            ),
        };
        Ok(item.build())
    }
}

#[async_trait]
impl Table for DynamoDbTable {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        limits::check_key(key)?;
        self.read(key).await?.map(decode).transpose()
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        // DynamoDB wants a start that lies in the range asked for.
        let start = match after {
            Some(after) if after < prefix || after.is_empty() => None,
            Some(after) if after.starts_with(prefix) => Some(key_attributes(&ItemKey::new(partition, after))),
            Some(_) => return Ok(Page::default()),
            None => None,
        };
        let mut names = vec![PARTITION_NAME];
        let mut values = vec![(":p", text(partition))];
        let mut condition = "#p = :p";
        if !prefix.is_empty() {
            names.push(SORT_NAME);
            values.push((":s", text(prefix)));
            condition = "#p = :p AND begins_with(#s, :s)";
        }
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        persist(&self.env, SERVICE, |_| {
            let mut request = self
                .client
                .query()
                .table_name(self.table_of(partition))
                .key_condition_expression(condition)
                .consistent_read(true)
                .limit(limit)
                .set_exclusive_start_key(start.clone())
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            for (placeholder, name) in &names {
                request = request.expression_attribute_names(*placeholder, *name);
            }
            for (placeholder, value) in &values {
                request = request.expression_attribute_values(*placeholder, value.clone());
            }
            async move {
                let output = request
                    .send()
                    .await
                    .map_err(|error| judge(self.table_of(partition), &error))?;
                self.record_read(output.consumed_capacity());
                let more = output.last_evaluated_key.is_some();
                let items = output
                    .items
                    .unwrap_or_default()
                    .into_iter()
                    .map(decode)
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(Failure::Final)?;
                let next = items.last().filter(|_| more).map(|last| last.key.sort.clone());
                Ok(Page { items, next })
            }
        })
        .await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        limits::check_transaction(&writes)?;
        let versions: Applied = writes
            .iter()
            .map(|write| matches!(write, Write::Put { .. }).then(|| ItemVersion(self.env.random_u64())))
            .collect();
        match (&writes[..], &versions[..]) {
            (
                [
                    Write::Put {
                        key,
                        value,
                        condition,
                    },
                ],
                [Some(version)],
            ) => {
                self.put_one(key, *version, value, *condition).await?;
            }
            ([Write::Delete { key, version }], _) => self.delete_one(key, *version).await?,
            ([Write::Check { key, condition }], _) => self.check_one(key, *condition).await?,
            _ => self.transact_all(&writes, &versions).await?,
        }
        Ok(versions)
    }
}
