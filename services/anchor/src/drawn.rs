//! Writers by grantee: the numbers of the logs that each edge drew that a volume was granted to.
//!
//! ```text
//! item drawn/<tenant>/<edge> of the family's partition: the last writers, newest last
//!   the transaction that draws a writer ── also ──▶ its number at the end of the list, if that is still the version that was read
//! ```
//!
//! Whoever gives such an edge credentials of the store holds them to these logs: a number that another drew is never in the list,
//! not even for a moment.

use crate::GrantedCaller;
use bytes::Bytes;
use firn_format::WriterId;
use firn_table::{Condition, ItemKey, Table, TableError, Write};
use serde::{Deserialize, Serialize};

/// One to go on with, one of a salvage clone, and those of the term before, whose uploads may still be under way.
const WRITERS_KEPT: usize = 4;

/// A list as it is stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    writers: Vec<u64>,
}

fn key(partition: &str, caller: GrantedCaller) -> ItemKey {
    ItemKey::new(partition, format!("drawn/{caller}"))
}

fn decode(value: &Bytes) -> Result<Drawn, TableError> {
    serde_json::from_slice(value)
        .map_err(|error| TableError::InvalidAnswer(format!("a list of a grantee's writers: {error}")))
}

/// What notes that this caller drew a writer, to be made in the transaction that draws it.
///
/// # Errors
/// If the list cannot be read.
pub(crate) async fn one_more(
    table: &dyn Table,
    partition: &str,
    caller: GrantedCaller,
    writer: WriterId,
) -> Result<Write, TableError> {
    let key = key(partition, caller);
    let item = table.get(&key).await?;
    let (mut drawn, condition) = match &item {
        Some(item) => (decode(&item.value)?, Condition::Version(item.version)),
        None => (Drawn::default(), Condition::Absent),
    };
    drawn.writers.retain(|known| *known != writer.0);
    drawn.writers.push(writer.0);
    let old = drawn.writers.len().saturating_sub(WRITERS_KEPT);
    drawn.writers.drain(..old);
    let value = serde_json::to_vec(&drawn)
        .expect("numbers have a JSON form")
        .into();
    Ok(Write::Put {
        key,
        value,
        condition,
    })
}

/// The writers that this caller drew last.
///
/// # Errors
/// If they cannot be read.
pub(crate) async fn last(
    table: &dyn Table,
    partition: &str,
    caller: GrantedCaller,
) -> Result<Vec<WriterId>, TableError> {
    let item = table.get(&key(partition, caller)).await?;
    let drawn = item
        .map(|item| decode(&item.value))
        .transpose()?
        .unwrap_or_default();
    Ok(drawn.writers.into_iter().map(WriterId).collect())
}
