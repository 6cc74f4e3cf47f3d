//! The move of a cluster into a table of its own.
//!
//! Every node opens its cluster's table, so what else lies in that table is every node's to read and write. A cluster that shares
//! one with other things is moved, while nothing of it runs: its items are copied, the record that makes them a cluster last; then
//! that record is removed from the old table, so that whatever is still configured for it finds no cluster there; then the rest.
//! Each step may be cut off and the move begun again.

use crate::{Placement, PlacementError, disks::DiskRecord, nodes::NodeRecord, record::Outcome};
use firn_blockd_protocol::{NodeId, Replication};
use firn_table::{Condition, Item, ItemKey, Write};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Tries at one item, against a table that does not answer.
const ATTEMPTS: u32 = 8;

impl Placement {
    /// Everything of the cluster of the same name in the table of `from` is here when this returns, and not there any more; gives
    /// the number of items. Nodes are given `watched` to show that they live.
    ///
    /// # Errors
    /// [`PlacementError::NodeAlive`] if a node of the cluster still runs; [`PlacementError::ClusterExists`] if another cluster of
    /// that name is here; [`PlacementError::NoCluster`] if there is none in either table. After an error the cluster is whole in
    /// one of the tables: calling again goes on.
    pub async fn move_from(&self, from: &Self, watched: Duration) -> Result<u64, PlacementError> {
        let marker = self.cluster_key();
        let (old, new) = (from.table.get(&marker).await?, self.table.get(&marker).await?);
        match (&old, &new) {
            (None, None) => return Err(PlacementError::NoCluster),
            // Everything is here; what is left there is of no use to anybody.
            (None, Some(_)) => return from.remove_items().await,
            (Some(old), Some(new)) if old.value != new.value => return Err(PlacementError::ClusterExists),
            (Some(_), _) => {}
        }
        if let Some(node) = from.living_node(watched).await? {
            return Err(PlacementError::NodeAlive(node));
        }
        let mut copied = 0;
        for partition in from.partitions().await? {
            for item in from.items(&partition).await? {
                if item.key != marker {
                    self.put_copy(&item).await?;
                    copied += 1;
                }
            }
        }
        if let Some(old) = old {
            self.put_copy(&old).await?;
            from.remove_item(&old).await?;
            copied += 1;
        }
        from.remove_items().await?;
        Ok(copied)
    }

    /// A node that beats while it is watched.
    async fn living_node(&self, watched: Duration) -> Result<Option<NodeId>, PlacementError> {
        let beats = async || -> Result<BTreeMap<NodeId, u64>, PlacementError> {
            let nodes = self.read_all::<NodeRecord>(&self.partition("nodes")).await?;
            Ok(nodes
                .into_iter()
                .map(|node| (node.value.node, node.value.beat))
                .collect())
        };
        let before = beats().await?;
        if before.is_empty() {
            return Ok(None);
        }
        self.env.sleep(watched).await;
        let after = beats().await?;
        Ok(after
            .into_iter()
            .find(|(node, beat)| before.get(node) != Some(beat))
            .map(|(node, _)| node))
    }

    /// All partitions that this cluster has items in; that of the record which makes it one is the last.
    async fn partitions(&self) -> Result<Vec<String>, PlacementError> {
        let disks = self.read_all::<DiskRecord>(&self.partition("disks")).await?;
        let tenants: BTreeSet<_> = disks.iter().map(|disk| disk.value.tenant).collect();
        let mut partitions = vec![self.partition("nodes")];
        for replication in Replication::ALL {
            partitions.push(self.partition(&format!("rows/{}", replication.copies())));
        }
        partitions.extend(
            tenants
                .iter()
                .map(|tenant| self.partition(&format!("names/{}", tenant.hex()))),
        );
        // After the names, which are found by them.
        partitions.push(self.partition("disks"));
        partitions.push(self.partition("cluster"));
        Ok(partitions)
    }

    async fn remove_items(&self) -> Result<u64, PlacementError> {
        let mut removed = 0;
        for partition in self.partitions().await? {
            for item in self.items(&partition).await? {
                self.remove_item(&item).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    async fn put_copy(&self, item: &Item) -> Result<(), PlacementError> {
        self.until_done(&item.key, |found| match found {
            Some(found) if found.value == item.value => None,
            found => Some(Write::Put {
                key: item.key.clone(),
                value: item.value.clone(),
                condition: found.map_or(Condition::Absent, |found| Condition::Version(found.version)),
            }),
        })
        .await
    }

    async fn remove_item(&self, item: &Item) -> Result<(), PlacementError> {
        self.until_done(&item.key, |found| {
            found.map(|found| Write::Delete {
                key: item.key.clone(),
                version: found.version,
            })
        })
        .await
    }

    /// Reads the item and does what it asks for, until it asks for nothing.
    async fn until_done(
        &self,
        key: &ItemKey,
        next: impl Fn(Option<Item>) -> Option<Write>,
    ) -> Result<(), PlacementError> {
        for attempt in 0..ATTEMPTS {
            let Some(write) = next(self.table.get(key).await?) else {
                return Ok(());
            };
            match self.transact(vec![write]).await? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention {
            what: "an item of the cluster",
        })
    }
}
