//! One partition of a table under another name: what a service's own components see of what it keeps for a caller.

use crate::{Applied, Item, ItemKey, Page, Table, TableError, Write};
use async_trait::async_trait;
use std::sync::Arc;

/// The partition `kept` of a table, which its users call `known`; nothing else can be reached.
///
/// ```text
/// anchor's key  family/<family> ▸ volume/<volume>     stored as  anchor/<tenant>/<volume> ▸ volume/<volume>
/// ```
pub struct Within {
    table: Arc<dyn Table>,
    logical: String,
    physical: String,
    may_write: fn(&str) -> bool,
}

impl Within {
    /// Shows the physical partition as the logical one.
    pub fn new(table: Arc<dyn Table>, logical: impl Into<String>, physical: impl Into<String>) -> Self {
        Self {
            table,
            logical: logical.into(),
            physical: physical.into(),
            may_write: |_| true,
        }
    }

    /// Refuses to put or delete items whose sort key is not one of those.
    #[must_use]
    pub fn writing_only(self, may_write: fn(&str) -> bool) -> Self {
        Self { may_write, ..self }
    }

    fn check(&self, partition: &str) -> Result<(), TableError> {
        if partition == self.logical {
            return Ok(());
        }
        Err(TableError::Limit(format!(
            "{} is all that is kept here; {partition} was asked for",
            self.logical
        )))
    }

    fn stored(&self, key: ItemKey) -> Result<ItemKey, TableError> {
        self.check(&key.partition)?;
        Ok(ItemKey::new(&*self.physical, key.sort))
    }

    fn written(&self, key: ItemKey) -> Result<ItemKey, TableError> {
        if (self.may_write)(&key.sort) {
            return self.stored(key);
        }
        Err(TableError::Refused(format!(
            "{} is not to be written here",
            key.sort
        )))
    }

    fn shown(&self, item: Item) -> Item {
        Item {
            key: ItemKey::new(&*self.logical, item.key.sort),
            ..item
        }
    }
}

#[async_trait]
impl Table for Within {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        let item = self.table.get(&self.stored(key.clone())?).await?;
        Ok(item.map(|item| self.shown(item)))
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.check(partition)?;
        let page = self.table.query(&self.physical, prefix, after, limit).await?;
        Ok(Page {
            items: page.items.into_iter().map(|item| self.shown(item)).collect(),
            next: page.next,
        })
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        let writes = writes
            .into_iter()
            .map(|write| {
                Ok(match write {
                    Write::Put {
                        key,
                        value,
                        condition,
                    } => Write::Put {
                        key: self.written(key)?,
                        value,
                        condition,
                    },
                    Write::Delete { key, version } => Write::Delete {
                        key: self.written(key)?,
                        version,
                    },
                    Write::Check { key, condition } => Write::Check {
                        key: self.stored(key)?,
                        condition,
                    },
                })
            })
            .collect::<Result<_, TableError>>()?;
        self.table.transact(writes).await
    }
}
