//! The table of the anchor's roots beside the control plane's: which one it is, remembered, and the way into it.
//!
//! In DynamoDB the partitions `anchor/…` lie in a table of their own, so that a cleaner's or an anchor's credentials open no table in which
//! a tenant's records are; a commit's transaction spans both (decision 0164). Which table it is stands in the control plane's, since with
//! another, or without, every volume would look as if it had never been committed:
//!
//! ```text
//! recorded     configured   at the start
//! nothing      nothing      serves an embedded table, or tenants as they were before; refuses a new installation in DynamoDB
//! nothing      T            records T if there is no tenant yet; otherwise refuses: the roots are to be moved first
//! T            T            serves
//! T            another      refuses
//! moving to T  any          refuses until the move is done
//! ```

use crate::{
    backup::{KnownTenant, TENANTS},
    handlers::VolumeRecord,
    problem::Problem,
    store::{self, Record, roots_partition},
};
use firn_table::{Condition, Item, ItemKey, Table, TableError, Write};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the names of the anchor's partitions begin with.
pub const ANCHOR_PARTITIONS: &str = "anchor/";

/// Items read at a time.
const PAGE: usize = 100;
/// Looks at a record that others write at the same time.
const ATTEMPTS: usize = 8;

/// Which table holds the roots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AnchorTable {
    table: String,
    /// A move into it was begun and is not done.
    moving: bool,
}

impl Record for AnchorTable {
    const KIND: &'static str = "anchor-table";
}

pub(crate) fn marker() -> ItemKey {
    ItemKey::new("service", "anchor-table")
}

/// Why a service does not start with this table of roots, or roots are not moved.
#[derive(Debug, thiserror::Error)]
pub enum AnchorTableError {
    /// The table failed.
    #[error("the table: {0}")]
    Table(#[from] TableError),
    /// A record that cannot be read.
    #[error(transparent)]
    Record(#[from] Problem),
    /// Another one is in use.
    #[error(
        "the roots of this installation are in the table {recorded}; --anchor-table says {}. Nothing was started or changed: \
         with another table every volume would seem to be empty",
        configured.as_deref().unwrap_or("nothing")
    )]
    Another {
        /// In which they are.
        recorded: String,
        /// Which was given.
        configured: Option<String>,
    },
    /// A new installation in DynamoDB without one.
    #[error(
        "a new installation in DynamoDB keeps the roots in a table of their own, which credentials of cleaners can be held to: give \
         --anchor-table, such as dynamodb://firn-anchor with the region of --table. Nothing was started"
    )]
    NoneGiven,
    /// They are in the control plane's table still.
    #[error(
        "there are tenants in this installation, and their roots are in the control plane's own table; stop all instances and cleaners \
         and move them: firn-api move-roots --table … --anchor-table {0}. Nothing was started"
    )]
    NotMoved(String),
    /// A move was cut off.
    #[error(
        "a move of the roots into the table {0} was cut off; nothing is lost: run firn-api move-roots again"
    )]
    Moving(String),
}

async fn recorded(table: &Arc<dyn Table>) -> Result<Option<(AnchorTable, Item)>, AnchorTableError> {
    match table.get(&marker()).await? {
        None => Ok(None),
        Some(item) => Ok(Some((store::decode(&item)?, item))),
    }
}

async fn is_new(table: &Arc<dyn Table>) -> Result<bool, TableError> {
    Ok(table.query(TENANTS, "", None, 1).await?.items.is_empty())
}

async fn record(
    table: &Arc<dyn Table>,
    wanted: &AnchorTable,
    condition: Condition,
) -> Result<bool, AnchorTableError> {
    let put = Write::Put {
        key: marker(),
        value: store::encode(wanted),
        condition,
    };
    match table.transact(vec![put]).await {
        Ok(_) => Ok(true),
        // Somebody else was faster: to be looked at again.
        Err(TableError::ConditionFailed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to serve with another table of roots than the installation's; remembers it for a new one. `is_embedded`: the table is a file,
/// in which nothing can be apart.
///
/// # Errors
/// [`AnchorTableError`], which says what to do.
pub async fn require_anchor_table(
    table: &Arc<dyn Table>,
    configured: Option<&str>,
    is_embedded: bool,
) -> Result<(), AnchorTableError> {
    for _ in 0..ATTEMPTS {
        match (recorded(table).await?, configured) {
            (None, None) if is_embedded => return Ok(()),
            (None, None) if is_new(table).await? => return Err(AnchorTableError::NoneGiven),
            (None, None) => {
                tracing::warn!(
                    "the roots are in the control plane's own table, and so are whoever cleans them: move them with firn-api move-roots"
                );
                return Ok(());
            }
            (Some((known, _)), _) if known.moving => return Err(AnchorTableError::Moving(known.table)),
            (Some((known, _)), Some(name)) if known.table == name => return Ok(()),
            (Some((known, _)), _) => {
                return Err(AnchorTableError::Another {
                    recorded: known.table,
                    configured: configured.map(str::to_owned),
                });
            }
            (None, Some(name)) => {
                if !is_new(table).await? {
                    return Err(AnchorTableError::NotMoved(name.to_owned()));
                }
                let new = AnchorTable {
                    table: name.to_owned(),
                    moving: false,
                };
                if record(table, &new, Condition::Absent).await? {
                    return Ok(());
                }
            }
        }
    }
    Err(TableError::Unavailable("others change which table holds the roots".into()).into())
}

/// Notes the table of roots of an installation that a backup was put into.
pub(crate) async fn note(table: &Arc<dyn Table>, name: &str) -> Result<(), TableError> {
    let noted = AnchorTable {
        table: name.to_owned(),
        moving: false,
    };
    let put = Write::Put {
        key: marker(),
        value: store::encode(&noted),
        condition: Condition::Absent,
    };
    table.transact(vec![put]).await.map(drop)
}

/// Moves all roots out of the control plane's table into `anchor`, which is called `name`; gives the number of items. With every instance
/// and cleaner stopped. It can be cut off anywhere and begun again: until all is copied no service starts, and nothing is removed before.
///
/// # Errors
/// [`AnchorTableError`].
pub async fn move_roots(
    control: &Arc<dyn Table>,
    anchor: &Arc<dyn Table>,
    name: &str,
) -> Result<u64, AnchorTableError> {
    let wanted = |moving| AnchorTable {
        table: name.to_owned(),
        moving,
    };
    let is_copied = match recorded(control).await? {
        None => {
            record(control, &wanted(true), Condition::Absent).await?;
            false
        }
        Some((known, _)) if known.table == name => !known.moving,
        Some((known, _)) => {
            return Err(AnchorTableError::Another {
                recorded: known.table,
                configured: Some(name.to_owned()),
            });
        }
    };
    let partitions = partitions(control).await?;
    let mut items = 0;
    if !is_copied {
        for partition in &partitions {
            items += each(control, partition, async |item| copy(anchor, item).await).await?;
        }
        let Some((_, item)) = recorded(control).await? else {
            return Err(TableError::Unavailable("the note of the move is gone".into()).into());
        };
        if !record(control, &wanted(false), Condition::Version(item.version)).await? {
            return Err(AnchorTableError::Moving(name.to_owned()));
        }
    }
    for partition in &partitions {
        each(control, partition, async |item| {
            let delete = Write::Delete {
                key: item.key.clone(),
                version: item.version,
            };
            control.transact(vec![delete]).await.map(drop)
        })
        .await?;
    }
    Ok(items)
}

/// Puts an item as it is in the control plane's table, which counts until all is copied.
async fn copy(anchor: &Arc<dyn Table>, item: &Item) -> Result<(), TableError> {
    let condition = match anchor.get(&item.key).await? {
        Some(there) if there.value == item.value => return Ok(()),
        Some(there) => Condition::Version(there.version),
        None => Condition::Absent,
    };
    let put = Write::Put {
        key: item.key.clone(),
        value: item.value.clone(),
        condition,
    };
    anchor.transact(vec![put]).await.map(drop)
}

/// Calls `done` for every item of a partition; gives their number.
async fn each(
    table: &Arc<dyn Table>,
    partition: &str,
    mut done: impl AsyncFnMut(&Item) -> Result<(), TableError>,
) -> Result<u64, AnchorTableError> {
    let (mut items, mut after) = (0, None);
    loop {
        let page = table.query(partition, "", after.as_deref(), PAGE).await?;
        for item in &page.items {
            done(item).await?;
            items += 1;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(items),
        }
    }
}

/// The anchor's partitions: one for each volume of each tenant.
async fn partitions(table: &Arc<dyn Table>) -> Result<Vec<String>, AnchorTableError> {
    let mut tenants = Vec::new();
    each(table, TENANTS, async |item| {
        tenants.push(item.clone());
        Ok(())
    })
    .await?;
    let mut partitions = Vec::new();
    for tenant in tenants {
        let tenant = store::decode::<KnownTenant>(&tenant)?.tenant;
        let mut volumes = Vec::new();
        each(table, &format!("tenant/{tenant}"), async |item| {
            if item.key.sort.starts_with("volume/") {
                volumes.push(item.clone());
            }
            Ok(())
        })
        .await?;
        for volume in volumes {
            let volume = store::decode::<VolumeRecord>(&volume)?.volume.id;
            partitions.push(roots_partition(tenant, volume));
        }
    }
    Ok(partitions)
}
