//! Nodes: registration, heartbeats, drain.
//!
//! A node is alive as long as its item keeps changing; the coordinator watches that on its own monotonic clock, so nobody's
//! calendar matters. A node that cannot reach the table goes on serving: as long as the table is unreachable nobody can
//! change a row either, and once it was taken out of a row the row's version keeps its answers from being believed.

use crate::{
    Placement, PlacementError,
    capacity::room,
    record::{self, ATTEMPTS, Outcome, Stored, unchanged},
};
use firn_blockd_protocol::{NodeId, Replication};
use firn_table::Write;
use serde::{Deserialize, Serialize};

/// What an administrator wants of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It takes part.
    Serving,
    /// It is being emptied: it keeps its replicas until others have copied them, and gets no new ones.
    Draining,
}

/// Whether a node takes writes, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeCondition {
    /// It does.
    #[default]
    Writable,
    /// It refused a write for want of a free frame, and holds nothing that it could give up.
    OutOfTracts,
    /// Its file system is full: it serves reads and refuses writes until there is room.
    ReadOnly,
}

/// A node in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Which.
    #[serde(with = "firn_ids::digits")]
    pub node: NodeId,
    /// Where it listens, `host:port`.
    pub address: String,
    /// What fails together: a rack, a zone. The replicas of a row lie in different ones where there are enough.
    pub domain: String,
    /// Tracts it has room for.
    pub capacity_tracts: u64,
    /// Tracts it holds.
    pub used_tracts: u64,
    /// What is wanted of it.
    pub state: NodeState,
    /// Whether it takes writes.
    #[serde(default)]
    pub condition: NodeCondition,
    /// Which start of the node this is.
    pub incarnation: u64,
    /// Counts its heartbeats.
    pub beat: u64,
    /// Its calendar at the last heartbeat, for people.
    pub beat_unix_ms: i64,
}

/// What a node tells at each heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeReport {
    /// Tracts it has room for.
    pub capacity_tracts: u64,
    /// Tracts it holds.
    pub used_tracts: u64,
    /// Whether it takes writes.
    pub condition: NodeCondition,
}

/// A node's hold on its item.
#[derive(Clone, Debug)]
pub struct Registration {
    node: NodeId,
    incarnation: u64,
}

impl Placement {
    /// Registers a node that has just started. From now on an earlier process of the same node finds itself superseded.
    ///
    /// # Errors
    /// [`PlacementError`]; to be repeated.
    pub async fn register(
        &self,
        node: NodeId,
        incarnation: u64,
        address: &str,
        domain: &str,
        report: NodeReport,
    ) -> Result<Registration, PlacementError> {
        let key = self.node_key(node);
        for attempt in 0..ATTEMPTS {
            let old: Option<Stored<NodeRecord>> = self.read(&key).await?;
            if let Some(old) = &old
                && old.value.incarnation == incarnation
            {
                return Ok(Registration { node, incarnation });
            }
            let record = NodeRecord {
                node,
                address: address.to_owned(),
                domain: domain.to_owned(),
                capacity_tracts: report.capacity_tracts,
                used_tracts: report.used_tracts,
                state: old.as_ref().map_or(NodeState::Serving, |old| old.value.state),
                condition: report.condition,
                incarnation,
                beat: old.as_ref().map_or(0, |old| old.value.beat) + 1,
                beat_unix_ms: self.env.wall().as_millis(),
            };
            let outcome = self
                .transact(vec![Write::Put {
                    key: key.clone(),
                    value: record::encode(&record),
                    condition: unchanged(old.map(|old| old.version)),
                }])
                .await?;
            // Whatever became of it, the next look tells: our incarnation stands there, or not.
            if let Outcome::Unknown(_) | Outcome::Conflict = outcome {
                self.back_off(attempt).await;
            }
        }
        Err(PlacementError::Contention { what: "the node" })
    }

    /// Tells that the node lives; returns its record, with what is wanted of it.
    ///
    /// # Errors
    /// [`PlacementError::Superseded`]: another process is this node now, and this one must stop serving.
    pub async fn heartbeat(
        &self,
        registration: &Registration,
        report: NodeReport,
    ) -> Result<NodeRecord, PlacementError> {
        let key = self.node_key(registration.node);
        for attempt in 0..ATTEMPTS {
            let Some(old) = self.read::<NodeRecord>(&key).await? else {
                return Err(PlacementError::NoNode(registration.node));
            };
            if old.value.incarnation != registration.incarnation {
                return Err(PlacementError::Superseded(registration.node));
            }
            let record = NodeRecord {
                capacity_tracts: report.capacity_tracts,
                used_tracts: report.used_tracts,
                condition: report.condition,
                beat: old.value.beat + 1,
                beat_unix_ms: self.env.wall().as_millis(),
                ..old.value
            };
            let outcome = self
                .transact(vec![Write::Put {
                    key: key.clone(),
                    value: record::encode(&record),
                    condition: unchanged(Some(old.version)),
                }])
                .await?;
            match outcome {
                Outcome::Done => return Ok(record),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the node" })
    }

    /// All nodes, in order of their identifiers.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, PlacementError> {
        Ok(self
            .stored_nodes()
            .await?
            .into_iter()
            .map(|stored| stored.value)
            .collect())
    }

    pub(crate) async fn stored_nodes(&self) -> Result<Vec<Stored<NodeRecord>>, PlacementError> {
        self.read_all(&self.partition("nodes")).await
    }

    /// Says what is wanted of a node: [`NodeState::Draining`] empties it.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn set_node_state(&self, node: NodeId, state: NodeState) -> Result<(), PlacementError> {
        let key = self.node_key(node);
        for attempt in 0..ATTEMPTS {
            let Some(old) = self.read::<NodeRecord>(&key).await? else {
                return Err(PlacementError::NoNode(node));
            };
            if old.value.state == state {
                return Ok(());
            }
            let record = NodeRecord { state, ..old.value };
            let outcome = self
                .transact(vec![Write::Put {
                    key: key.clone(),
                    value: record::encode(&record),
                    condition: unchanged(Some(old.version)),
                }])
                .await?;
            match outcome {
                Outcome::Done => return Ok(()),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the node" })
    }

    /// Whether no row has the node, so that nobody needs what it holds.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn is_node_unused(&self, node: NodeId) -> Result<bool, PlacementError> {
        Ok(self.most_copies(node).await? == 0)
    }

    /// Whether a node can be emptied: its rows need as many other nodes as they have copies, and all that is promised to disks must
    /// fit those that remain. A node that died counts as long as it is not being emptied: it may come back. What is true now need
    /// not be true when the node is half empty.
    ///
    /// # Errors
    /// [`PlacementError::TooFewNodes`], [`PlacementError::NoRoomToDrain`], or what the table says.
    pub async fn check_drain(&self, node: NodeId) -> Result<(), PlacementError> {
        let copies = self.most_copies(node).await?;
        let nodes = self.nodes().await?;
        let remaining = nodes
            .iter()
            .filter(|other| other.node != node && other.state == NodeState::Serving)
            .count();
        if remaining < copies {
            return Err(PlacementError::TooFewNodes { copies, remaining });
        }
        if copies == 0 {
            return Ok(());
        }
        let others = nodes
            .iter()
            .filter(|other| other.node != node && other.state == NodeState::Serving);
        let room_tracts = room(others.map(|other| other.capacity_tracts));
        let promised_tracts = self.capacity().await?.reserved_tracts;
        if promised_tracts > room_tracts {
            return Err(PlacementError::NoRoomToDrain {
                promised_tracts,
                room_tracts,
            });
        }
        Ok(())
    }

    /// Of the rows that have the node, the most copies that one has; 0 if none has it.
    async fn most_copies(&self, node: NodeId) -> Result<usize, PlacementError> {
        let mut most = 0;
        for replication in Replication::ALL {
            let rows = self.rows(replication).await?;
            let has_it = rows
                .iter()
                .flat_map(|row| &row.replicas)
                .any(|replica| replica.node == node);
            if has_it {
                most = most.max(replication.copies());
            }
        }
        Ok(most)
    }

    /// Takes the record of a node that is being emptied and is unused out of the table; one that is not there is gone.
    ///
    /// # Errors
    /// [`PlacementError::NodeInUse`] if it still serves, or a row has it.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), PlacementError> {
        let key = self.node_key(node);
        for attempt in 0..ATTEMPTS {
            let Some(old) = self.read::<NodeRecord>(&key).await? else {
                return Ok(());
            };
            // Rows are given to nodes that serve only: what is unused now stays so.
            if old.value.state == NodeState::Serving || !self.is_node_unused(node).await? {
                return Err(PlacementError::NodeInUse(node));
            }
            let outcome = self
                .transact(vec![Write::Delete {
                    key: key.clone(),
                    version: old.version,
                }])
                .await?;
            match outcome {
                Outcome::Done => return Ok(()),
                // A heartbeat came in between, or the reply was lost: look again.
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the node" })
    }
}
