//! A disk at work on simulated machines: slow replicas that are away at times, many requests at once, takeovers.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_disk::{
    Body, Engine, FlushPolicy, GrowError, Incarnation, LogConfig, Planted, ReplicaError, Replicas, Stored,
    StripedConfig, Unit, Version, VirtualDisk, WritePolicy, log, striped,
};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, DeviceError, Durability, Piece};
use firn_env::{Env, sim::Simulation};
use futures::future::join_all;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

const BLOCK_BYTES: u32 = 512;
const BLOCKS: u64 = 32;
const DISK_BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;

#[derive(Default)]
struct Cluster {
    /// A store goes to all nodes at once, as where a table names them; else to each by itself.
    one_path: bool,
    fences: Vec<Incarnation>,
    units: Vec<BTreeMap<Unit, Stored>>,
    stores: u64,
}

/// One attach's connections. Each call takes a while and may find the node away.
struct Nodes {
    env: Env,
    cluster: Arc<Mutex<Cluster>>,
    incarnation: Incarnation,
}

impl Nodes {
    async fn travel(&self, replica: usize) -> Result<(), ReplicaError> {
        self.env
            .sleep(Duration::from_micros(self.env.random_below(3000)))
            .await;
        if self.env.random_below(20) > 0 {
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
enum Kind {
    Striped(WritePolicy),
    Log,
}

/// Attaches, as often as it takes while nodes are away.
async fn attach(env: &Env, cluster: &Arc<Mutex<Cluster>>, kind: Kind, next: &mut u64) -> VirtualDisk {
    for _ in 0..10_000 {
        *next += 1;
        let incarnation = Incarnation(*next);
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
                    region_blocks: 8,
                    planted: Planted::default(),
                };
                striped::attach(&*nodes, incarnation, config)
                    .await
                    .map(|attached| Engine::Striped(Box::new(attached.engine)))
            }
            Kind::Log => {
                let config = LogConfig {
                    flush: FlushPolicy::Durable,
                    dirty_bytes_max: 4096,
                    checkpoint_entries: 40,
                    planted: Planted::default(),
                };
                log::recover(&*nodes, incarnation, config)
                    .await
                    .map(|engine| Engine::Log(Box::new(engine)))
            }
        };
        match engine {
            Ok(engine) => return VirtualDisk::new(env.clone(), nodes, engine, BLOCK_BYTES),
            Err(error) => assert!(error.to_string().contains("cannot be reached"), "{error}"),
        }
    }
    panic!("the nodes are never there together");
}

async fn new_cluster(env: &Env, kind: Kind) -> Arc<Mutex<Cluster>> {
    let cluster = Cluster {
        one_path: env.random_below(2) == 0,
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

async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in device.read(0, DISK_BYTES as u32).await.unwrap() {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeroes(length) => bytes.resize(bytes.len() + length as usize, 0),
        }
    }
    bytes
}

fn on_machines<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Env, Kind) -> F) {
    for kind in [
        Kind::Striped(WritePolicy::Durable),
        Kind::Striped(WritePolicy::Memory),
        Kind::Log,
    ] {
        for seed in 0..6 {
            let simulation = Simulation::new(seed);
            let env = simulation.machine("client").env();
            simulation
                .run(test(env, kind))
                .unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
        }
    }
}

#[test]
fn concurrent_users_read_what_they_wrote_and_all_of_it_survives_a_detach() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        let device = Arc::new(AnyAlignment::new(disk.clone()));
        // Each user has a quarter, which begins and ends within blocks that are shared.
        let users = (0..4_u64).map(|user| {
            let (env, device) = (env.clone(), device.clone());
            async move {
                let start = 100 + user * 3900;
                let mut model = vec![0_u8; 3900];
                for round in 0..30_u8 {
                    let from = env.random_below(3000) as usize;
                    let length = 1 + env.random_below(900) as usize;
                    let at = start + from as u64;
                    match env.random_below(5) {
                        0 => {
                            device
                                .write_zeroes(at, length as u64, true, Durability::Acknowledged)
                                .await
                                .unwrap();
                            model[from..from + length].fill(0);
                        }
                        1 => device.flush().await.unwrap(),
                        kind => {
                            let durability = if kind == 2 {
                                Durability::Durable
                            } else {
                                Durability::Acknowledged
                            };
                            device
                                .write(at, Bytes::from(vec![round + 1; length]), durability)
                                .await
                                .unwrap();
                            model[from..from + length].fill(round + 1);
                        }
                    }
                    let mut read = Vec::new();
                    for piece in device.read(start, 3900).await.unwrap() {
                        match piece {
                            Piece::Data(data) => read.extend_from_slice(&data),
                            Piece::Zeroes(length) => read.resize(read.len() + length as usize, 0),
                        }
                    }
                    assert!(read == model, "user {user}, round {round}");
                }
            }
        });
        join_all(users).await;
        let before = content(&disk).await;
        disk.detach().await.unwrap();
        assert_eq!(disk.dirty_bytes(), 0);
        assert_eq!(disk.flush().await, Err(DeviceError::Closing));
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        assert!(content(&disk).await == before);
    });
}

#[test]
fn whoever_was_taken_over_is_told_and_can_do_nothing_more() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let loser = attach(&env, &cluster, kind, &mut attaches).await;
        let block = |byte| Bytes::from(vec![byte; BLOCK_BYTES as usize]);
        loser.write(0, block(1), Durability::Durable).await.unwrap();
        let winner = attach(&env, &cluster, kind, &mut attaches).await;
        winner.write(512, block(2), Durability::Durable).await.unwrap();
        assert_eq!(
            loser.write(0, block(3), Durability::Durable).await,
            Err(DeviceError::Fenced)
        );
        assert_eq!(loser.read(0, 512).await, Err(DeviceError::Fenced));
        assert_eq!(loser.flush().await, Err(DeviceError::Fenced));
        assert_eq!(winner.read(0, 512).await, Ok(vec![Piece::Data(block(1))]));
    });
}

#[test]
fn an_idle_disk_sends_nothing() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        for round in 0..100_u64 {
            let block = Bytes::from(vec![round as u8; BLOCK_BYTES as usize]);
            let offset = round % BLOCKS * u64::from(BLOCK_BYTES);
            disk.write(offset, block, Durability::Acknowledged).await.unwrap();
        }
        disk.flush().await.unwrap();
        env.sleep(Duration::from_secs(60)).await;
        let before = cluster.lock().unwrap().stores;
        env.sleep(Duration::from_secs(3600)).await;
        assert_eq!(cluster.lock().unwrap().stores, before);
    });
}

#[test]
fn a_disk_grows_under_load_and_keeps_its_size() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        let block = |byte: u64| Bytes::from(vec![byte as u8; BLOCK_BYTES as usize]);
        let writing = {
            let (env, disk) = (env.clone(), disk.clone());
            env.clone().spawn("writer", async move {
                for round in 1..200_u64 {
                    let offset = env.random_below(BLOCKS) * u64::from(BLOCK_BYTES);
                    disk.write(offset, block(round), Durability::Acknowledged)
                        .await
                        .unwrap();
                }
            })
        };
        let refused = GrowError::NotLarger {
            has_blocks: BLOCKS,
            blocks: BLOCKS,
        };
        assert_eq!(disk.grow(BLOCKS, 1000, 1).await, Err(refused));
        disk.grow(BLOCKS + 8, BLOCKS + 40, 1).await.unwrap();
        assert_eq!(disk.geometry().size_bytes, (BLOCKS + 8) * u64::from(BLOCK_BYTES));
        disk.write(DISK_BYTES, block(7), Durability::Durable)
            .await
            .unwrap();
        writing.await.unwrap();
        if matches!(kind, Kind::Log) {
            let disk = attach(&env, &cluster, kind, &mut attaches).await;
            assert_eq!(disk.geometry().size_bytes, (BLOCKS + 8) * u64::from(BLOCK_BYTES));
            assert_eq!(
                disk.read(DISK_BYTES, BLOCK_BYTES).await,
                Ok(vec![Piece::Data(block(7))])
            );
        }
    });
}
