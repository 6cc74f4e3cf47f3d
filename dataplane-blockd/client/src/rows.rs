//! Locator table cache of a client: a copy, as old as the last node that said it was.

use firn_blockd_placement::{Cluster, DiskTable, PlacementError};
use firn_blockd_protocol::{DiskId, Replication, Row, RowIndex, TractId};
use firn_env::{Env, Monotonic};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// The least time between two looks at the table for one row: many stores ask at once when a node dies.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

struct Known {
    row: Row,
    looked_at: Monotonic,
}

pub(crate) struct Rows {
    env: Env,
    table: Arc<dyn DiskTable>,
    cluster: Cluster,
    replication: Replication,
    disk: DiskId,
    known: Mutex<BTreeMap<RowIndex, Known>>,
}

impl Rows {
    /// Reads the whole table.
    pub(crate) async fn read(
        env: &Env,
        table: &Arc<dyn DiskTable>,
        replication: Replication,
        disk: DiskId,
    ) -> Result<Self, PlacementError> {
        let rows = Self {
            env: env.clone(),
            table: table.clone(),
            cluster: table.cluster().await?,
            replication,
            disk,
            known: Mutex::default(),
        };
        rows.read_again().await?;
        Ok(rows)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<RowIndex, Known>> {
        self.known.lock().expect("no panic under this lock")
    }

    /// Reads the whole table again.
    pub(crate) async fn read_again(&self) -> Result<(), PlacementError> {
        for row in self.table.rows(self.replication).await? {
            self.learn(row);
        }
        Ok(())
    }

    /// Which row a tract lies in.
    pub(crate) fn index(&self, tract: u32) -> RowIndex {
        let tract = TractId {
            disk: self.disk,
            index: tract,
        };
        self.cluster.row_of(self.replication, tract)
    }

    /// The row of a tract as it is known.
    pub(crate) async fn of_tract(&self, tract: u32) -> Result<Row, PlacementError> {
        let index = self.index(tract);
        if let Some(known) = self.known().get(&index) {
            return Ok(known.row.clone());
        }
        self.look_up(index).await
    }

    /// The rows in which the disk's first `tracts` tracts lie.
    pub(crate) fn of_disk(&self, tracts: u32) -> Vec<Row> {
        let rows = self.cluster.rows(self.replication);
        let indexes: BTreeSet<RowIndex> = (0..tracts.min(rows)).map(|tract| self.index(tract)).collect();
        let known = self.known();
        indexes
            .iter()
            .filter_map(|index| known.get(index).map(|known| known.row.clone()))
            .collect()
    }

    /// Takes note of a row that a node or the table told of; true if it is newer.
    pub(crate) fn learn(&self, row: Row) -> bool {
        if row.replication != self.replication {
            return false;
        }
        let looked_at = self.env.now();
        let mut known = self.known();
        match known.get_mut(&row.index) {
            Some(known) if known.row.version >= row.version => false,
            Some(known) => {
                *known = Known { row, looked_at };
                true
            }
            None => {
                known.insert(row.index, Known { row, looked_at });
                true
            }
        }
    }

    /// Looks a row up in the table, unless somebody just did; true if it is newer than what was known.
    pub(crate) async fn refresh(&self, index: RowIndex) -> Result<bool, PlacementError> {
        {
            let mut known = self.known();
            if let Some(known) = known.get_mut(&index) {
                let now = self.env.now();
                if now.since(known.looked_at) < LOOK_AGAIN_AFTER {
                    return Ok(false);
                }
                known.looked_at = now;
            }
        }
        let row = self.table.row(self.replication, index).await?;
        Ok(self.learn(row))
    }

    async fn look_up(&self, index: RowIndex) -> Result<Row, PlacementError> {
        let row = self.table.row(self.replication, index).await?;
        self.learn(row.clone());
        Ok(row)
    }
}
