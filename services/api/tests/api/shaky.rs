//! A table that is slow, and sometimes away: in virtual time.

use async_trait::async_trait;
use firn_env::Env;
use firn_table::{Applied, Item, ItemKey, Page, Table, TableError, Write};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A table that is slow, and sometimes away.
pub struct Shaky {
    pub env: Env,
    pub table: Arc<dyn Table>,
    pub is_away: Arc<AtomicBool>,
}

impl Shaky {
    async fn answer(&self) -> Result<(), TableError> {
        self.env
            .sleep(Duration::from_millis(self.env.random_below(50)))
            .await;
        if self.is_away.load(Ordering::SeqCst) {
            return Err(TableError::Unavailable("away".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Table for Shaky {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.answer().await?;
        self.table.get(key).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.answer().await?;
        self.table.query(partition, prefix, after, limit).await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.answer().await?;
        self.table.transact(writes).await
    }
}
