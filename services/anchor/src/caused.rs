//! Commits by grantee: how many of a volume's root commits each edge made that it was granted to.
//!
//! ```text
//! item caused/<tenant>/<edge> of the family's partition: commits so far
//!   the transaction of a commit ── also ──▶ commits + 1, if that is still the version that was read
//! ```
//!
//! So a commit is counted here exactly when the volume's own tuple counts it, whoever dies when: the bill of the owner is split by
//! these without a remainder ([`crate::CommitMeter`]). Only edges with a grant have such an item; it costs such a commit one read and one write.

use bytes::Bytes;
use firn_identity::{EdgeId, TenantId};
use firn_table::{Condition, ItemKey, Table, TableError, Write};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

const PREFIX: &str = "caused/";
/// Edges by which a volume's commits are split. What others do beyond counts as the volume's own: a record of how far each was
/// counted has to fit one item.
const EDGES_MAX: usize = 1000;

/// An edge that a volume was granted to, and the tenant that pays for the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantedCaller {
    /// Whose edge it is.
    pub tenant: TenantId,
    /// Which.
    pub edge: EdgeId,
}

impl fmt::Display for GrantedCaller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.tenant, self.edge)
    }
}

/// A count as it is stored.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Caused {
    commits: u64,
}

fn decode(value: &Bytes) -> Result<Caused, TableError> {
    serde_json::from_slice(value)
        .map_err(|error| TableError::InvalidAnswer(format!("a count of a grantee's commits: {error}")))
}

/// What counts one more commit of this caller, to be made in the transaction of the commit.
///
/// # Errors
/// If the count cannot be read.
pub(crate) async fn one_more(
    table: &dyn Table,
    partition: &str,
    caller: GrantedCaller,
) -> Result<Write, TableError> {
    let key = ItemKey::new(partition, format!("{PREFIX}{caller}"));
    let item = table.get(&key).await?;
    let (caused, condition) = match &item {
        Some(item) => (decode(&item.value)?, Condition::Version(item.version)),
        None => (Caused::default(), Condition::Absent),
    };
    let next = Caused {
        commits: caused.commits.saturating_add(1),
    };
    let value = serde_json::to_vec(&next)
        .expect("a number has a JSON form")
        .into();
    Ok(Write::Put {
        key,
        value,
        condition,
    })
}

/// How many commits each caller made so far, by the names that [`GrantedCaller`] displays.
///
/// # Errors
/// If they cannot be read.
pub(crate) async fn all(table: &dyn Table, partition: &str) -> Result<BTreeMap<String, u64>, TableError> {
    let page = table.query(partition, PREFIX, None, EDGES_MAX).await?;
    let counted = page.items.iter().map(|item| {
        let name = item.key.sort.strip_prefix(PREFIX).unwrap_or_default();
        Ok((name.to_owned(), decode(&item.value)?.commits))
    });
    counted.collect()
}
