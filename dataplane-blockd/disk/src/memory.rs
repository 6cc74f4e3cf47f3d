//! Nodes in memory: what a disk is tested on when the nodes are not the question.
//!
//! They hold what real ones would: sealed bytes. So a whole disk, sealing included, can be served to real clients without a
//! cluster. What they hold is gone with the process.

use crate::{
    replicas::{ReplicaError, Replicas, Stored},
    seal::{Sealed, Sealer},
    types::{Body, Incarnation, Unit, Version},
};
use async_trait::async_trait;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

#[derive(Default)]
struct Node {
    fence: Incarnation,
    units: HashMap<Unit, (Version, Sealed)>,
}

/// One to three nodes.
pub struct MemoryNodes {
    nodes: Vec<Mutex<Node>>,
}

impl MemoryNodes {
    /// Empty ones.
    pub fn new(count: usize) -> Arc<Self> {
        assert!((1..=3).contains(&count), "a disk has one to three replicas");
        Arc::new(Self {
            nodes: (0..count).map(|_| Mutex::default()).collect(),
        })
    }

    /// The nodes as one attach sees them.
    pub fn attach(self: &Arc<Self>, incarnation: Incarnation, key: [u8; 32]) -> MemoryReplicas {
        MemoryReplicas {
            nodes: self.clone(),
            incarnation,
            sealer: Sealer::new(key),
        }
    }
}

/// See [`MemoryNodes::attach`].
pub struct MemoryReplicas {
    nodes: Arc<MemoryNodes>,
    incarnation: Incarnation,
    sealer: Sealer,
}

impl MemoryReplicas {
    fn node(&self, replica: usize) -> Result<MutexGuard<'_, Node>, ReplicaError> {
        let node = self.nodes.nodes[replica]
            .lock()
            .expect("no panic under this lock");
        let by = node.fence;
        if self.incarnation < by {
            return Err(ReplicaError::Fenced { by });
        }
        Ok(node)
    }
}

#[async_trait]
impl Replicas for MemoryReplicas {
    fn copies(&self) -> usize {
        self.nodes.nodes.len()
    }

    async fn fence(&self, replica: usize, incarnation: Incarnation) -> Result<(), ReplicaError> {
        let mut node = self.node(replica)?;
        if incarnation <= node.fence {
            return Err(ReplicaError::Fenced { by: node.fence });
        }
        node.fence = incarnation;
        Ok(())
    }

    async fn store(
        &self,
        replica: usize,
        unit: Unit,
        version: Version,
        body: Body,
    ) -> Result<(), ReplicaError> {
        let sealed = self.sealer.seal(unit, version, &body);
        let mut node = self.node(replica)?;
        if node.units.get(&unit).is_none_or(|(held, _)| *held < version) {
            node.units.insert(unit, (version, sealed));
        }
        Ok(())
    }

    async fn load(&self, replica: usize, unit: Unit) -> Result<Option<Stored>, ReplicaError> {
        let Some((version, sealed)) = self.node(replica)?.units.get(&unit).cloned() else {
            return Ok(None);
        };
        self.sealer
            .open(unit, version, &sealed)
            .map(Some)
            .map_err(|_| ReplicaError::Damaged { replica, unit })
    }
}
