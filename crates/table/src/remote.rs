//! A table behind a service: see [`wire`](crate::wire).

use crate::{
    Applied, Item, ItemKey, Page, Table, TableAnswer, TableCall, TableError, TableWrite, Write, limits,
    wire::read_version,
};
use async_trait::async_trait;
use std::sync::OnceLock;

/// Carries calls to the service.
#[async_trait]
pub trait TableService: Send + Sync {
    /// Makes a call.
    ///
    /// # Errors
    /// [`TableError::Unavailable`] if there was no answer, or none that can be understood: it may have happened.
    /// [`TableError::Refused`] if the service does not let the caller in. [`TableError::Limit`] if it does not take the call.
    async fn call(&self, call: &TableCall) -> Result<TableAnswer, TableError>;
}

/// One partition of a service's table, under whatever name its user knows it by.
///
/// The service decides which partition it is, so a second name is refused: it would mean the same items.
pub struct RemoteTable<S> {
    service: S,
    partition: OnceLock<String>,
}

impl<S: TableService> RemoteTable<S> {
    /// A table that asks `service`. Makes no request.
    pub fn new(service: S) -> Self {
        Self {
            service,
            partition: OnceLock::new(),
        }
    }

    fn check_partition(&self, asked: &str) -> Result<(), TableError> {
        let known = self.partition.get_or_init(|| asked.to_owned());
        if known == asked {
            return Ok(());
        }
        Err(TableError::Limit(format!(
            "the service keeps one partition for this caller, which is {known}; {asked} was asked for"
        )))
    }
}

/// An answer to another question: nothing is known of what happened.
fn nonsense() -> TableError {
    TableError::Unavailable("the service's answer is not one to what was asked".into())
}

/// What cannot be read in an answer is no fault of the question.
fn unreadable(error: TableError) -> TableError {
    TableError::Unavailable(format!("the service's answer cannot be read: {error}"))
}

#[async_trait]
impl<S: TableService> Table for RemoteTable<S> {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        limits::check_key(key)?;
        self.check_partition(&key.partition)?;
        let call = TableCall::Get {
            sort: key.sort.clone(),
        };
        match self.service.call(&call).await? {
            TableAnswer::Item { item: None } => Ok(None),
            TableAnswer::Item { item: Some(item) } if item.sort == key.sort => {
                item.read(&key.partition).map(Some).map_err(unreadable)
            }
            TableAnswer::Item { .. }
            | TableAnswer::Page { .. }
            | TableAnswer::Applied { .. }
            | TableAnswer::ConditionFailed { .. } => Err(nonsense()),
        }
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        self.check_partition(partition)?;
        let call = TableCall::Query {
            prefix: prefix.to_owned(),
            after: after.map(str::to_owned),
            limit,
        };
        let TableAnswer::Page { items, next } = self.service.call(&call).await? else {
            return Err(nonsense());
        };
        // A page that does not go forward would be read for ever.
        let goes_on = match (&next, after) {
            (Some(next), Some(after)) => next.as_str() > after,
            (Some(_), None) | (None, _) => true,
        };
        let fits = items.len() <= limit
            && goes_on
            && items.iter().all(|item| {
                item.sort.starts_with(prefix) && after.is_none_or(|after| item.sort.as_str() > after)
            })
            && items.is_sorted_by(|left, right| left.sort < right.sort);
        if !fits {
            return Err(nonsense());
        }
        let items = items
            .into_iter()
            .map(|item| item.read(partition).map_err(unreadable))
            .collect::<Result<_, _>>()?;
        Ok(Page { items, next })
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        limits::check_transaction(&writes)?;
        for write in &writes {
            self.check_partition(&write.key().partition)?;
        }
        let puts: Vec<bool> = writes
            .iter()
            .map(|write| matches!(write, Write::Put { .. }))
            .collect();
        let call = TableCall::Transact {
            writes: writes.into_iter().map(TableWrite::of).collect(),
        };
        match self.service.call(&call).await? {
            TableAnswer::Applied { versions } => {
                let fits = versions.len() == puts.len()
                    && versions
                        .iter()
                        .zip(&puts)
                        .all(|(version, is_put)| version.is_some() == *is_put);
                if !fits {
                    return Err(nonsense());
                }
                versions
                    .into_iter()
                    .map(|version| {
                        version
                            .map(|text| read_version(&text))
                            .transpose()
                            .map_err(unreadable)
                    })
                    .collect()
            }
            TableAnswer::ConditionFailed { index } if index < puts.len() => {
                Err(TableError::ConditionFailed { index })
            }
            TableAnswer::ConditionFailed { .. } | TableAnswer::Item { .. } | TableAnswer::Page { .. } => {
                Err(nonsense())
            }
        }
    }
}
