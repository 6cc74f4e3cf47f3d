//! A table of one partition, seen as one of many: so that the suite, which needs partitions of its own, runs on it too.

use crate::{Applied, Item, ItemKey, Page, Table, TableError, Write, limits};
use async_trait::async_trait;
use std::sync::Arc;

/// Keeps every partition in one: the partition's name in hexadecimal digits begins the sort keys.
pub struct Folded {
    table: Arc<dyn Table>,
    partition: String,
}

impl Folded {
    /// Folds all partitions into `partition` of `table`.
    pub fn new(table: Arc<dyn Table>, partition: impl Into<String>) -> Self {
        Self {
            table,
            partition: partition.into(),
        }
    }

    fn within(partition: &str) -> String {
        let digits = partition.bytes().map(|byte| format!("{byte:02x}"));
        format!("{}/", digits.collect::<String>())
    }

    fn key(&self, key: ItemKey) -> ItemKey {
        ItemKey::new(
            &*self.partition,
            format!("{}{}", Self::within(&key.partition), key.sort),
        )
    }
}

#[async_trait]
impl Table for Folded {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        limits::check_key(key)?;
        let found = self.table.get(&self.key(key.clone())).await?;
        Ok(found.map(|item| Item {
            key: key.clone(),
            ..item
        }))
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        let within = Self::within(partition);
        let (prefix, after) = (
            format!("{within}{prefix}"),
            after.map(|after| format!("{within}{after}")),
        );
        let page = self
            .table
            .query(&self.partition, &prefix, after.as_deref(), limit)
            .await?;
        let sort = |folded: String| folded.strip_prefix(&within).unwrap_or(&folded).to_owned();
        Ok(Page {
            items: page
                .items
                .into_iter()
                .map(|item| Item {
                    key: ItemKey::new(partition, sort(item.key.sort)),
                    ..item
                })
                .collect(),
            next: page.next.map(sort),
        })
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        limits::check_transaction(&writes)?;
        let folded = writes.into_iter().map(|write| match write {
            Write::Put {
                key,
                value,
                condition,
            } => Write::Put {
                key: self.key(key),
                value,
                condition,
            },
            Write::Delete { key, version } => Write::Delete {
                key: self.key(key),
                version,
            },
            Write::Check { key, condition } => Write::Check {
                key: self.key(key),
                condition,
            },
        });
        self.table.transact(folded.collect()).await
    }
}
