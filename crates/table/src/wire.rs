//! The calls of a table as text, for a table that is reached through a service which guards it.
//!
//! ```text
//! caller ── [`RemoteTable`] ── TableCall as JSON ──▶ service: who is it? ── [`TableCall::perform`] ──▶ one partition of a table
//! ```
//!
//! A call names no partition: the service knows which one is the caller's. To every transaction the service adds **guards**, checks
//! of items of its own, so that what was true of the caller when it was let in is still true in the instant of its write.
//!
//! Versions are decimal digits in a text, since many readers of JSON round numbers of 64 bits; values are base64 without padding.

use crate::{Condition, Item, ItemKey, ItemVersion, Page, Table, TableError, Write};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One call of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TableCall {
    /// Reads one item.
    Get {
        /// Its name.
        sort: String,
    },
    /// Reads a page of items in order of their names.
    Query {
        /// What their names begin with.
        prefix: String,
        /// The name after which the page begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// How many, at most.
        #[cfg_attr(feature = "schema", schema(minimum = 1))]
        limit: usize,
    },
    /// Changes items: all of them, or none.
    Transact {
        /// What is changed.
        #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 98))]
        writes: Vec<TableWrite>,
    },
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TableWrite {
    /// Stores a value.
    Put {
        /// The item's name.
        sort: String,
        /// Its content, base64 without padding.
        value: String,
        /// The version that must be there; without one there must be no such item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// Removes an item.
    Delete {
        /// The item's name.
        sort: String,
        /// The version that must be there.
        version: String,
    },
    /// Changes nothing, but must hold for the others to happen.
    Check {
        /// The item's name.
        sort: String,
        /// The version that must be there; without one there must be no such item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
}

/// What became of a [`TableCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TableAnswer {
    /// The item that was asked for, if there is one.
    Item {
        /// The item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<TableItem>,
    },
    /// A page.
    Page {
        /// The items, in order of their names.
        items: Vec<TableItem>,
        /// The name after which the next page begins; absent on the last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    },
    /// The transaction happened.
    Applied {
        /// For each of its writes the version that a put stored; null for deletes and checks.
        versions: Vec<Option<String>>,
    },
    /// A condition did not hold; nothing was changed.
    ConditionFailed {
        /// The first write whose condition did not hold, from 0.
        index: usize,
    },
}

/// A stored item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TableItem {
    /// Its name.
    pub sort: String,
    /// Which put made it what it is.
    pub version: String,
    /// Its content, base64 without padding.
    pub value: String,
}

impl TableItem {
    fn of(item: Item) -> Self {
        Self {
            sort: item.key.sort,
            version: version_text(item.version),
            value: STANDARD_NO_PAD.encode(&item.value),
        }
    }

    pub(crate) fn read(self, partition: &str) -> Result<Item, TableError> {
        Ok(Item {
            version: read_version(&self.version)?,
            value: read_value(&self.value)?,
            key: ItemKey::new(partition, self.sort),
        })
    }
}

impl TableCall {
    /// Makes the call in one partition of `table`. A transaction happens only if the `guards` hold as well.
    ///
    /// # Errors
    /// [`TableError::ConditionFailed`] if a guard does not hold (the caller's own conditions are an answer);
    /// [`TableError::Limit`] if the call is malformed or breaks a limit, guards included; otherwise what the table says.
    pub async fn perform(
        self,
        table: &dyn Table,
        partition: &str,
        guards: Vec<Write>,
    ) -> Result<TableAnswer, TableError> {
        match self {
            Self::Get { sort } => {
                let item = table.get(&ItemKey::new(partition, sort)).await?;
                Ok(TableAnswer::Item {
                    item: item.map(TableItem::of),
                })
            }
            Self::Query { prefix, after, limit } => {
                let Page { items, next } = table.query(partition, &prefix, after.as_deref(), limit).await?;
                Ok(TableAnswer::Page {
                    items: items.into_iter().map(TableItem::of).collect(),
                    next,
                })
            }
            Self::Transact { writes } => {
                let asked = writes.len();
                if asked == 0 {
                    return Err(TableError::Limit("a transaction without operations".into()));
                }
                // The caller's first, so that indices are the caller's own.
                let mut all = writes
                    .into_iter()
                    .map(|write| write.read(partition))
                    .collect::<Result<Vec<_>, _>>()?;
                all.extend(guards);
                match table.transact(all).await {
                    Ok(applied) => Ok(TableAnswer::Applied {
                        versions: applied
                            .into_iter()
                            .take(asked)
                            .map(|version| version.map(version_text))
                            .collect(),
                    }),
                    Err(TableError::ConditionFailed { index }) if index < asked => {
                        Ok(TableAnswer::ConditionFailed { index })
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl TableWrite {
    pub(crate) fn of(write: Write) -> Self {
        let version = |condition| match condition {
            Condition::Absent => None,
            Condition::Version(version) => Some(version_text(version)),
        };
        match write {
            Write::Put {
                key,
                value,
                condition,
            } => Self::Put {
                sort: key.sort,
                value: STANDARD_NO_PAD.encode(&value),
                version: version(condition),
            },
            Write::Delete { key, version } => Self::Delete {
                sort: key.sort,
                version: version_text(version),
            },
            Write::Check { key, condition } => Self::Check {
                sort: key.sort,
                version: version(condition),
            },
        }
    }

    fn read(self, partition: &str) -> Result<Write, TableError> {
        let key = |sort: String| ItemKey::new(partition, sort);
        let condition = |version: Option<String>| match version {
            None => Ok(Condition::Absent),
            Some(text) => read_version(&text).map(Condition::Version),
        };
        match self {
            Self::Put { sort, value, version } => Ok(Write::Put {
                key: key(sort),
                value: read_value(&value)?,
                condition: condition(version)?,
            }),
            Self::Delete { sort, version } => Ok(Write::Delete {
                key: key(sort),
                version: read_version(&version)?,
            }),
            Self::Check { sort, version } => Ok(Write::Check {
                key: key(sort),
                condition: condition(version)?,
            }),
        }
    }
}

fn version_text(version: ItemVersion) -> String {
    version.0.to_string()
}

pub(crate) fn read_version(text: &str) -> Result<ItemVersion, TableError> {
    // `parse` would also take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .map(ItemVersion)
        .ok_or_else(|| TableError::Limit("a version that is no number of 64 bits".into()))
}

fn read_value(text: &str) -> Result<Bytes, TableError> {
    STANDARD_NO_PAD
        .decode(text)
        .map(Bytes::from)
        .map_err(|_| TableError::Limit("a value that is not base64 without padding".into()))
}
