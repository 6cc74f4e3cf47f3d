//! Nodes in memory that take their time, and are away now and then.

use async_trait::async_trait;
use firn_blockd_disk::{
    AttachError, Body, DiskEngine, FlushPolicy, Incarnation, LogConfig, Regions, ReplicaError, Replicas,
    Stored, StripedConfig, Unit, Version, VirtualDisk, WritePolicy, log, striped,
};
use firn_blockd_nbd::{BlockDevice, Piece};
use firn_env::Env;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

pub const BLOCK_BYTES: u32 = 512;
pub const BLOCKS: u64 = 32;
pub const DISK_BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;

/// What all attaches share.
#[derive(Default)]
pub struct Cluster {
    /// A store goes to all nodes at once, as where a table names them; else to each by itself.
    pub one_path: bool,
    /// All nodes are out of reach.
    pub away: bool,
    pub fences: Vec<Incarnation>,
    pub units: Vec<BTreeMap<Unit, Stored>>,
    pub stores: u64,
}

/// One attach's connections. Each call takes a while and may find the node away.
pub struct Nodes {
    env: Env,
    cluster: Arc<Mutex<Cluster>>,
    incarnation: Incarnation,
}

impl Nodes {
    async fn travel(&self, replica: usize) -> Result<(), ReplicaError> {
        self.env
            .sleep(Duration::from_micros(self.env.random_below(3000)))
            .await;
        let away = self.cluster.lock().unwrap().away;
        if self.env.random_below(20) > 0 && !away {
            return Ok(());
        }
        let why = "it restarts".to_owned();
        Err(ReplicaError::Unreachable { replica, why })
    }

    /// The nodes behind a path.
    fn behind(&self, cluster: &Cluster, path: usize) -> std::ops::Range<usize> {
        if cluster.one_path {
            0..cluster.fences.len()
        } else {
            path..path + 1
        }
    }

    fn check(&self, cluster: &Cluster, replica: usize) -> Result<(), ReplicaError> {
        let by = cluster.fences[replica];
        if self.incarnation < by {
            Err(ReplicaError::Fenced { by })
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Replicas for Nodes {
    fn copies(&self) -> usize {
        self.cluster.lock().unwrap().fences.len()
    }

    fn paths(&self) -> usize {
        let cluster = self.cluster.lock().unwrap();
        if cluster.one_path { 1 } else { cluster.fences.len() }
    }

    async fn fence(&self, path: usize, incarnation: Incarnation) -> Result<(), ReplicaError> {
        let mut cluster = self.cluster.lock().unwrap();
        for node in self.behind(&cluster, path) {
            let by = cluster.fences[node];
            if incarnation <= by {
                return Err(ReplicaError::Fenced { by });
            }
            cluster.fences[node] = incarnation;
        }
        Ok(())
    }

    async fn store(&self, path: usize, unit: Unit, version: Version, body: Body) -> Result<(), ReplicaError> {
        let behind = self.behind(&self.cluster.lock().unwrap(), path);
        // One node after the other, and any may be away: what was done so far stays.
        for node in behind {
            self.travel(node).await?;
            let mut cluster = self.cluster.lock().unwrap();
            self.check(&cluster, node)?;
            cluster.stores += 1;
            let held = cluster.units[node].get(&unit);
            if held.is_none_or(|held| held.version < version) {
                let body = body.clone();
                cluster.units[node].insert(unit, Stored { version, body });
            }
        }
        Ok(())
    }

    async fn load(&self, replica: usize, unit: Unit) -> Result<Option<Stored>, ReplicaError> {
        self.travel(replica).await?;
        let cluster = self.cluster.lock().unwrap();
        self.check(&cluster, replica)?;
        Ok(cluster.units[replica].get(&unit).cloned())
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Striped(WritePolicy),
    Log,
}

/// Attaches, as often as it takes while nodes are away.
pub async fn attach(env: &Env, cluster: &Arc<Mutex<Cluster>>, kind: Kind, next: &mut u64) -> VirtualDisk {
    for _ in 0..10_000 {
        *next += 1;
        match attach_as(env, cluster, kind, Incarnation(*next)).await {
            Ok(disk) => return disk,
            Err(error) => assert!(error.to_string().contains("cannot be reached"), "{error}"),
        }
    }
    panic!("the nodes are never there together");
}

/// One attempt, under an incarnation that is said.
pub async fn attach_as(
    env: &Env,
    cluster: &Arc<Mutex<Cluster>>,
    kind: Kind,
    incarnation: Incarnation,
) -> Result<VirtualDisk, AttachError> {
    let nodes = Arc::new(Nodes {
        env: env.clone(),
        cluster: cluster.clone(),
        incarnation,
    });
    let engine = match kind {
        Kind::Striped(write) => {
            let config = StripedConfig {
                blocks: BLOCKS,
                write,
                flush: FlushPolicy::Durable,
                dirty_bytes_max: 4096,
                regions: Regions {
                    blocks: 8,
                    ..Regions::default()
                },
            };
            striped::attach(&*nodes, incarnation, config)
                .await
                .map(|attached| Box::new(attached.engine) as Box<dyn DiskEngine>)
        }
        Kind::Log => {
            let config = LogConfig {
                flush: FlushPolicy::Durable,
                dirty_bytes_max: 4096,
                checkpoint_entries: 40,
            };
            log::recover(&*nodes, incarnation, config)
                .await
                .map(|engine| Box::new(engine) as Box<dyn DiskEngine>)
        }
    };
    Ok(VirtualDisk::new(env.clone(), nodes, engine?, BLOCK_BYTES))
}

pub async fn new_cluster(env: &Env, kind: Kind) -> Arc<Mutex<Cluster>> {
    let cluster = Cluster {
        one_path: env.random_below(2) == 0,
        away: false,
        fences: vec![Incarnation(0); 2],
        units: vec![BTreeMap::new(); 2],
        stores: 0,
    };
    let cluster = Arc::new(Mutex::new(cluster));
    if matches!(kind, Kind::Log) {
        let mut number = 0;
        loop {
            number += 1;
            let incarnation = Incarnation(number);
            let nodes = Nodes {
                env: env.clone(),
                cluster: cluster.clone(),
                incarnation,
            };
            if log::format(&nodes, incarnation, BLOCKS, BLOCKS + 16, 5)
                .await
                .is_ok()
            {
                break;
            }
        }
    }
    cluster
}

pub async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    bytes_of(device.read(0, DISK_BYTES as u32).await.unwrap())
}

pub fn bytes_of(pieces: Vec<Piece>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeroes(length) => bytes.resize(bytes.len() + length as usize, 0),
        }
    }
    bytes
}
