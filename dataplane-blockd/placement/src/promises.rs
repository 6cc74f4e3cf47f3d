//! Capacity promised to disks, row by row.
//!
//! A disk's tracts lie in rows that its identifier decides, so what a row has to hold at most is known before anything is written:
//! the coordinator places rows by that, and not by what happens to be written already. Kept within what nodes have room for, a
//! write never finds a node without a frame for it.

use crate::{Cluster, DiskRecord, DiskState, row_index};
use firn_blockd_protocol::{Replication, Row};

/// Tracts promised in each row of each table, one copy counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// By copies less one, then by row.
    tables: [Vec<u64>; 3],
}

impl Promises {
    /// Of these disks. A disk that is being deleted is promised nothing: what nodes still hold of it makes way.
    pub fn of<'a>(cluster: &Cluster, disks: impl Iterator<Item = &'a DiskRecord>) -> Self {
        let mut promises = Self::default();
        let mut in_all = [0; 3];
        for replication in Replication::ALL {
            let rows = cluster.rows(replication) as usize;
            promises.tables[replication.copies() - 1] = vec![0; rows];
        }
        for disk in disks.filter(|disk| disk.state == DiskState::Ready) {
            // A record that says something impossible holds nothing that could be found.
            let Ok(replication) = disk.replication() else {
                continue;
            };
            let (table, rows) = (replication.copies() - 1, cluster.rows(replication));
            in_all[table] += u64::from(disk.tracts / rows);
            for tract in 0..disk.tracts % rows {
                let row = row_index(disk.disk, tract, rows);
                promises.tables[table][row.0 as usize] += 1;
            }
        }
        for (table, more) in promises.tables.iter_mut().zip(in_all) {
            table.iter_mut().for_each(|row| *row += more);
        }
        promises
    }

    /// Tracts that each replica of a row has to hold.
    pub fn tracts(&self, row: &Row) -> u64 {
        let table = &self.tables[row.replication.copies() - 1];
        table.get(row.index.0 as usize).copied().unwrap_or(0)
    }

    /// Of the row that has to hold most.
    pub fn largest_row(&self) -> u64 {
        self.tables.iter().flatten().copied().max().unwrap_or(0)
    }
}
