//! Records in items of the table, and their compare-and-swap.
//!
//! A record is JSON with its version in it: a person can read it, and fields can be added. Rows are binary, because there
//! are many. A change reads the item, computes the new one, and writes it under the condition that nobody did so meanwhile.
//! A lost reply is settled by reading again: the item then holds what we wrote, or what we can try again upon.

use crate::{Placement, PlacementError};
use bytes::Bytes;
use firn_env::Backoff;
use firn_table::{Condition, Item, ItemKey, ItemVersion, TableError, Write};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Tries against others that change the same item; each waits a little longer.
pub(crate) const ATTEMPTS: u32 = 12;
const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(10), Duration::from_millis(640)).with_half_jitter();
const RECORD_VERSION: u64 = 1;

/// A record with the version of its item.
#[derive(Clone, Debug)]
pub(crate) struct Stored<T> {
    pub(crate) value: T,
    pub(crate) version: ItemVersion,
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Bytes {
    let mut value = serde_json::to_value(record).expect("records have string keys");
    if let Some(fields) = value.as_object_mut() {
        fields.insert("record_version".into(), RECORD_VERSION.into());
    }
    value.to_string().into()
}

pub(crate) fn decode<T: DeserializeOwned>(item: &Item) -> Result<Stored<T>, PlacementError> {
    let damaged = |reason: String| PlacementError::Damaged {
        key: format!("{}/{}", item.key.partition, item.key.sort),
        reason,
    };
    let value: serde_json::Value =
        serde_json::from_slice(&item.value).map_err(|error| damaged(error.to_string()))?;
    match value.get("record_version").and_then(serde_json::Value::as_u64) {
        Some(RECORD_VERSION) => {}
        Some(version) => return Err(damaged(format!("record version {version} is of a later build"))),
        None => return Err(damaged("no record version".into())),
    }
    let value = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    Ok(Stored {
        value,
        version: item.version,
    })
}

impl Placement {
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        key: &ItemKey,
    ) -> Result<Option<Stored<T>>, PlacementError> {
        self.table.get(key).await?.as_ref().map(decode).transpose()
    }

    /// All records of a partition.
    pub(crate) async fn read_all<T: DeserializeOwned>(
        &self,
        partition: &str,
    ) -> Result<Vec<Stored<T>>, PlacementError> {
        self.items(partition).await?.iter().map(decode).collect()
    }

    pub(crate) async fn items(&self, partition: &str) -> Result<Vec<Item>, PlacementError> {
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.table.query(partition, "", after.as_deref(), 1000).await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(items);
            }
        }
    }

    /// One transaction: `Ok(false)` if a condition did not hold.
    ///
    /// An answer that was lost counts as "did not hold": the caller reads again and sees what became of it.
    pub(crate) async fn transact(&self, writes: Vec<Write>) -> Result<Outcome, PlacementError> {
        match self.table.transact(writes).await {
            Ok(_) => Ok(Outcome::Done),
            Err(TableError::ConditionFailed { .. }) => Ok(Outcome::Conflict),
            Err(TableError::Unavailable(reason)) => Ok(Outcome::Unknown(reason)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits before another try than number `attempt` (from 0), longer each time.
    pub(crate) async fn back_off(&self, attempt: u32) {
        BACKOFF.wait(&self.env, attempt + 1).await;
    }
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It happened.
    Done,
    /// It did not happen.
    Conflict,
    /// It may have happened, or happen still.
    Unknown(String),
}

/// The condition for a change of what was read.
pub(crate) fn unchanged(version: Option<ItemVersion>) -> Condition {
    version.map_or(Condition::Absent, Condition::Version)
}
