//! The tract locator tables: one for each number of copies, in pages of 64 rows.
//!
//! ```text
//! page = version u8 | rows u16 | (length u16 | row)*        a row as in the protocol
//! ```
//!
//! Every change of a page raises the cluster's epoch in the same transaction, so a node or client that remembers the epoch
//! finds out with one small read whether anything has changed.

use crate::{
    Placement, PlacementError,
    record::{self, ATTEMPTS, Outcome, Stored, unchanged},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use firn_blockd_protocol::{
    DiskId, NodeId, ReplicaState, Replication, Row, RowAt, RowIndex, RowVersion, TractId,
};
use firn_table::{Item, ItemVersion, Write};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows in one item: about 12 KB with three replicas, far below the table's 400 KB even with eight, and few enough that two
/// changes rarely meet in one page.
pub const ROWS_PER_PAGE: u32 = 64;
/// Rows of one answer of [`Placement::rows_from`]: sixteen pages, some 200 KB.
pub const ROWS_AT_ONCE: u32 = 16 * ROWS_PER_PAGE;
/// More rows than any cluster needs (FDS uses about the square of the number of nodes), in pages that one query can hold.
const MAX_ROWS: u32 = 1 << 16;
const PAGE_VERSION: u8 = 1;

/// What a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cluster {
    /// Rows in the tables of one, two and three copies. Never changes: it decides where tracts lie.
    pub rows: [u32; 3],
    /// Raised at every change of a row.
    pub epoch: u64,
}

impl Cluster {
    /// Rows in a table.
    pub fn rows(&self, replication: Replication) -> u32 {
        self.rows[replication.copies() - 1]
    }

    /// The row of a tract of a disk with that many copies.
    pub fn row_of(&self, replication: Replication, tract: TractId) -> RowIndex {
        row_index(tract.disk, tract.index, self.rows(replication))
    }
}

/// The row of a disk's tract in a table of `rows`: neighbouring tracts have neighbouring rows.
pub fn row_index(disk: DiskId, tract: u32, rows: u32) -> RowIndex {
    let start = u64::from_le_bytes(disk.0[..8].try_into().expect("eight bytes"));
    let index = (start % u64::from(rows) + u64::from(tract)) % u64::from(rows);
    RowIndex(u32::try_from(index).expect("below a number of 32 bits"))
}

/// A page as it was read.
#[derive(Clone, Debug)]
pub(crate) struct StoredPage {
    pub(crate) rows: Vec<Row>,
    pub(crate) version: Option<ItemVersion>,
}

pub(crate) fn encode_page(rows: &[Row]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(PAGE_VERSION);
    bytes.put_u16_le(u16::try_from(rows.len()).expect("a page has 64 rows"));
    for row in rows {
        let row = row.to_bytes();
        bytes.put_u16_le(u16::try_from(row.len()).expect("a row is below 3 KB"));
        bytes.put_slice(&row);
    }
    bytes.freeze()
}

fn decode_page(item: &Item) -> Result<Vec<Row>, PlacementError> {
    let damaged = |reason: &str| PlacementError::Damaged {
        key: format!("{}/{}", item.key.partition, item.key.sort),
        reason: reason.into(),
    };
    let mut bytes = item.value.clone();
    if bytes.len() < 3 {
        return Err(damaged("it is too short"));
    }
    if bytes.get_u8() != PAGE_VERSION {
        return Err(damaged("its version is of a later build"));
    }
    let count = bytes.get_u16_le();
    let mut rows = Vec::new();
    for _ in 0..count {
        if bytes.len() < 2 {
            return Err(damaged("it ends inside a row"));
        }
        let length = usize::from(bytes.get_u16_le());
        if bytes.len() < length {
            return Err(damaged("it ends inside a row"));
        }
        let row = Row::from_bytes(bytes.split_to(length)).map_err(|error| damaged(&error.to_string()))?;
        rows.push(row);
    }
    Ok(rows)
}

impl Placement {
    /// Sets a cluster up with tables of these lengths. Once for ever; again with the same lengths is fine.
    ///
    /// # Errors
    /// [`PlacementError::ClusterExists`] with other lengths.
    pub async fn initialise(&self, rows: [u32; 3]) -> Result<Cluster, PlacementError> {
        if let Some(wrong) = rows.into_iter().find(|rows| *rows == 0 || *rows > MAX_ROWS) {
            return Err(PlacementError::Size {
                tracts: wrong.into(),
                reason: "a table has 1 to 65536 rows",
            });
        }
        for attempt in 0..ATTEMPTS {
            match self.cluster().await {
                Ok(cluster) if cluster.rows == rows => return Ok(cluster),
                Ok(_) => return Err(PlacementError::ClusterExists),
                Err(PlacementError::NoCluster) => {}
                Err(error) => return Err(error),
            }
            let write = Write::Put {
                key: self.cluster_key(),
                value: record::encode(&Cluster { rows, epoch: 1 }),
                condition: unchanged(None),
            };
            if self.transact(vec![write]).await? != Outcome::Done {
                self.back_off(attempt).await;
            }
        }
        Err(PlacementError::Contention { what: "the cluster" })
    }

    /// The cluster, with its epoch: unchanged epoch, unchanged rows.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn cluster(&self) -> Result<Cluster, PlacementError> {
        Ok(self.stored_cluster().await?.value)
    }

    pub(crate) async fn stored_cluster(&self) -> Result<Stored<Cluster>, PlacementError> {
        self.read(&self.cluster_key())
            .await?
            .ok_or(PlacementError::NoCluster)
    }

    /// One row as it is now. A table nobody has built yet has rows without replicas.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn row(&self, replication: Replication, index: RowIndex) -> Result<Row, PlacementError> {
        let page = self.page(replication, index.0 / ROWS_PER_PAGE).await?;
        let at = (index.0 % ROWS_PER_PAGE) as usize;
        Ok(page
            .rows
            .get(at)
            .cloned()
            .unwrap_or_else(|| empty_row(replication, index)))
    }

    /// A whole table.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn rows(&self, replication: Replication) -> Result<Vec<Row>, PlacementError> {
        let items = self
            .items(&self.partition(&format!("rows/{}", replication.copies())))
            .await?;
        let mut rows = Vec::new();
        for item in &items {
            rows.extend(decode_page(item)?);
        }
        Ok(rows)
    }

    /// The rows from `first`, the first of a page, to the end of the table or of [`ROWS_AT_ONCE`] rows; of pages that nobody has built
    /// there are none.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn rows_from(
        &self,
        replication: Replication,
        first: RowIndex,
    ) -> Result<Vec<Row>, PlacementError> {
        let pages =
            first.0 / ROWS_PER_PAGE..(first.0 / ROWS_PER_PAGE).saturating_add(ROWS_AT_ONCE / ROWS_PER_PAGE);
        let last = self.cluster().await?.rows(replication).div_ceil(ROWS_PER_PAGE);
        let mut rows = Vec::new();
        for page in pages.start..pages.end.min(last) {
            rows.extend(self.page(replication, page).await?.rows);
        }
        Ok(rows)
    }

    async fn page(&self, replication: Replication, page: u32) -> Result<StoredPage, PlacementError> {
        match self.table.get(&self.page_key(replication, page)).await? {
            None => Ok(StoredPage {
                rows: Vec::new(),
                version: None,
            }),
            Some(item) => Ok(StoredPage {
                rows: decode_page(&item)?,
                version: Some(item.version),
            }),
        }
    }

    /// All pages of a table of `rows` rows, those not built yet included.
    pub(crate) async fn pages(
        &self,
        replication: Replication,
        rows: u32,
    ) -> Result<Vec<StoredPage>, PlacementError> {
        let items = self
            .items(&self.partition(&format!("rows/{}", replication.copies())))
            .await?;
        let mut found: BTreeMap<&str, &Item> = items.iter().map(|item| (&*item.key.sort, item)).collect();
        (0..rows.div_ceil(ROWS_PER_PAGE))
            .map(|page| {
                let first = page * ROWS_PER_PAGE;
                let last = rows.min(first + ROWS_PER_PAGE);
                match found.remove(&*self.page_key(replication, page).sort) {
                    Some(item) => Ok(StoredPage {
                        rows: decode_page(item)?,
                        version: Some(item.version),
                    }),
                    None => Ok(StoredPage {
                        rows: (first..last)
                            .map(|index| empty_row(replication, RowIndex(index)))
                            .collect(),
                        version: None,
                    }),
                }
            })
            .collect()
    }

    /// Makes `node` active in the rows that it joined and has copied, each at the version it copied. Returns how many rows
    /// were made so; the others have changed since and need another look.
    ///
    /// # Errors
    /// [`PlacementError`]; to be repeated.
    pub async fn promote(&self, node: NodeId, copied: &[RowAt]) -> Result<usize, PlacementError> {
        let mut pages: BTreeMap<(Replication, u32), Vec<RowAt>> = BTreeMap::new();
        for row in copied {
            pages
                .entry((row.replication, row.index.0 / ROWS_PER_PAGE))
                .or_default()
                .push(*row);
        }
        let mut promoted = 0;
        for ((replication, page), copied) in pages {
            promoted += self.promote_in_page(node, replication, page, &copied).await?;
        }
        Ok(promoted)
    }

    async fn promote_in_page(
        &self,
        node: NodeId,
        replication: Replication,
        page: u32,
        copied: &[RowAt],
    ) -> Result<usize, PlacementError> {
        let mut lost_reply = false;
        for attempt in 0..ATTEMPTS {
            let cluster = self.stored_cluster().await?;
            let mut stored = self.page(replication, page).await?;
            let mut promoted = 0;
            for row in &mut stored.rows {
                if !copied
                    .iter()
                    .any(|at| at.index == row.index && at.version == row.version)
                {
                    continue;
                }
                let mut changed = false;
                for replica in &mut row.replicas {
                    if replica.node == node && replica.state == ReplicaState::Joining {
                        replica.state = ReplicaState::Active;
                        changed = true;
                    }
                }
                if changed {
                    row.version = RowVersion(row.version.0 + 1);
                    promoted += 1;
                }
            }
            if promoted == 0 {
                // After a lost reply the first try may be what changed the rows.
                return Ok(if lost_reply { copied.len() } else { 0 });
            }
            let writes = vec![
                self.put_page(replication, page, &stored),
                self.put_epoch(&cluster),
            ];
            match self.transact(writes).await? {
                Outcome::Done => return Ok(promoted),
                Outcome::Conflict => {}
                Outcome::Unknown(_) => lost_reply = true,
            }
            self.back_off(attempt).await;
        }
        Err(PlacementError::Contention { what: "the rows" })
    }

    pub(crate) fn put_page(&self, replication: Replication, page: u32, stored: &StoredPage) -> Write {
        Write::Put {
            key: self.page_key(replication, page),
            value: encode_page(&stored.rows),
            condition: unchanged(stored.version),
        }
    }

    pub(crate) fn put_epoch(&self, cluster: &Stored<Cluster>) -> Write {
        Write::Put {
            key: self.cluster_key(),
            value: record::encode(&Cluster {
                epoch: cluster.value.epoch + 1,
                ..cluster.value
            }),
            condition: unchanged(Some(cluster.version)),
        }
    }
}

fn empty_row(replication: Replication, index: RowIndex) -> Row {
    Row {
        replication,
        index,
        version: RowVersion(0),
        replicas: Vec::new(),
    }
}
