//! A small cluster under the simulator, and a client that writes through to all replicas.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod certificates;
mod client;
mod stage;
pub mod store;

pub use certificates::Named;
pub use client::{CalledBy, Client, GaveUp};
pub use stage::{Stage, Stranger, TRACTS, as_a_stranger, fill, filled, list, stage, staged};

use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::{
    Env,
    mutants::planting,
    sim::{Machine, Simulation},
};
use firn_identity::{
    Capability, CapabilityIssuer, CapabilityVerifier, HolderHash, MAX_CAPABILITY_SECONDS, Rights, UnixTime,
};
use firn_table::MemoryTable;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

pub const TENANT: TenantId = TenantId([9; 16]);
pub const KEY: [u8; 32] = [7; 32];
pub const ROWS: u32 = 4;

/// Two tracts and room for one in flight.
pub fn tiny() -> Geometry {
    Geometry {
        groups: 1,
        home_frames: 2,
        scratch_frames: 1,
        journal_bytes: 64 << 10,
    }
}

/// As small as a store can be: journal files fill and groups run out of scratch in no time.
pub fn small_geometry() -> Geometry {
    Geometry {
        groups: 2,
        home_frames: 8,
        scratch_frames: 1,
        journal_bytes: 64 << 10,
    }
}

pub fn placement(env: &Env, table: &MemoryTable) -> Placement {
    Placement::new(env.clone(), table.connect(env), "test").expect("the name is fine")
}

/// The content of a block under a generation: tells both.
pub fn content(tract: TractId, block: u16, generation: Generation) -> Bytes {
    let mut bytes = vec![0; BLOCK_BYTES];
    let seed = [
        u64::from(tract.index) << 16 | u64::from(block),
        u64::from(generation.fence.0),
        generation.sequence,
    ];
    for (at, chunk) in bytes.chunks_mut(24).enumerate() {
        for (part, seed) in chunk.chunks_mut(8).zip(seed) {
            let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64);
            part.copy_from_slice(&mixed.to_le_bytes()[..part.len()]);
        }
    }
    bytes.into()
}

pub fn node_options(name: &str) -> NodeOptions {
    NodeOptions {
        listen: "0.0.0.0:7300".into(),
        domain: name.into(),
        heartbeat: Duration::from_millis(500),
        scrub_interval: Duration::from_secs(3600),
        drop_after: Duration::from_secs(30),
        ..NodeOptions::default()
    }
}

/// What a node of a store is secured with.
pub type SecurityOf = Arc<dyn Fn(&Env, NodeId) -> Security + Send + Sync>;

/// A machine with a node on it that is started again whenever it was down.
#[derive(Clone)]
pub struct Host {
    pub machine: Machine,
    pub running: Arc<Mutex<Option<Node>>>,
    pub security: SecurityOf,
}

impl Host {
    /// Without certificates.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            running: Arc::default(),
            security: Arc::new(security),
        }
    }
}

pub struct TestCluster {
    pub simulation: Simulation,
    pub table: MemoryTable,
    pub hosts: Vec<Host>,
}

/// A capability of the cluster's issuer that lasts for a day from now.
pub fn capability(env: &Env, scope: Scope) -> Bytes {
    let expires = UnixTime::from_wall(env.wall()).plus(MAX_CAPABILITY_SECONDS);
    capability_until(env, scope, expires)
}

pub fn capability_until(env: &Env, scope: Scope, expires: UnixTime) -> Bytes {
    capability_of(env, TENANT, scope, expires)
}

pub fn capability_of(env: &Env, tenant: TenantId, scope: Scope, expires: UnixTime) -> Bytes {
    capability_for(env, tenant, scope, expires, None)
}

/// The same, good for nobody but `holder`.
pub fn capability_for(
    env: &Env,
    tenant: TenantId,
    scope: Scope,
    expires: UnixTime,
    holder: Option<HolderHash>,
) -> Bytes {
    let (tenant, disk, rights, fence) = match scope {
        Scope::Disk {
            disk,
            fence,
            write,
            attach,
        } => {
            let mut rights = Rights::READ;
            if write {
                rights = rights.and(Rights::WRITE);
            }
            if attach {
                rights = rights.and(Rights::ATTACH);
            }
            (tenant.0, disk.0, rights, fence.0.into())
        }
        Scope::Node(node) => (node.0, [0; 16], Rights::REPAIR, 0),
    };
    let capability = Capability {
        tenant: TenantId(tenant),
        disk: DiskId(disk),
        rights,
        fence,
        not_before: UnixTime::from_wall(env.wall()).minus(60),
        expires,
        holder,
    };
    Bytes::copy_from_slice(&CapabilityIssuer::from_seed(KEY).issue(&capability))
}

/// What nodes of simulations are secured with.
pub fn security(env: &Env, node: NodeId) -> Security {
    let env = env.clone();
    let verifier = CapabilityVerifier::new([CapabilityIssuer::from_seed(KEY).public()]);
    Security {
        transport: Transport::plain(),
        authenticator: Arc::new(CapabilityAuthenticator::new(verifier)),
        capability: Arc::new(move || Some(capability(&env, Scope::Node(node)))),
    }
}

/// Opens the store on a machine and starts its node; `None` if the machine ended meanwhile.
pub async fn start(env: Env, table: MemoryTable, name: String, security: SecurityOf) -> Node {
    loop {
        let store = Store::open(&env, StoreOptions::default())
            .await
            .expect("the store opens");
        let id = store.node();
        let started = Node::start(
            &env,
            store,
            placement(&env, &table),
            security(&env, id),
            node_options(&name),
        )
        .await;
        match started {
            Ok(node) => return node,
            Err(_) => env.sleep(Duration::from_millis(100)).await,
        }
    }
}

impl TestCluster {
    /// A cluster of `nodes` with a coordinator, and rows of up to `nodes` copies.
    pub fn new(seed: u64, nodes: usize) -> Self {
        Self::secured(seed, nodes, Arc::new(security))
    }

    /// The same with nodes that are secured so.
    pub fn secured(seed: u64, nodes: usize, security: SecurityOf) -> Self {
        let simulation = Simulation::new(seed);
        let table = MemoryTable::new();
        let hosts: Vec<Host> = (0..nodes)
            .map(|number| Host {
                security: security.clone(),
                ..Host::new(simulation.machine(&format!("node{number}")))
            })
            .collect();
        let env = simulation.env();
        let setup = table.clone();
        let envs: Vec<Env> = hosts.iter().map(|host| host.machine.env()).collect();
        simulation
            .run(async move {
                let placement = placement(&env, &setup);
                placement.initialise([ROWS; 3]).await.expect("it is set up");
                for env in envs {
                    Store::format(&env, small_geometry())
                        .await
                        .expect("it is formatted");
                }
                let settings = CoordinatorSettings {
                    lease: Duration::from_secs(3),
                    dead_after: Duration::from_secs(4),
                    ..CoordinatorSettings::default()
                };
                let coordinator = Coordinator::new(placement, settings);
                drop(env.spawn("coordinator", coordinator.run(Duration::from_millis(500))));
            })
            .expect("set-up ends");
        let cluster = Self {
            simulation,
            table,
            hosts,
        };
        for host in 0..nodes {
            cluster.launch(host);
        }
        cluster
    }

    /// Starts the node of a machine that runs.
    pub fn launch(&self, host: usize) {
        launch(&self.hosts[host], &self.table);
    }

    /// A client on a machine of its own.
    pub fn client(&self, name: &str) -> Client {
        let machine = self.simulation.machine(name);
        Client::new(machine.env(), &self.table)
    }
}

pub fn launch(host: &Host, table: &MemoryTable) {
    let env = host.machine.env();
    let (table, name, running) = (table.clone(), host.machine.name(), host.running.clone());
    let (starting, security) = (env.clone(), host.security.clone());
    drop(env.spawn("start node", async move {
        let node = start(starting, table, name, security).await;
        *running.lock().expect("no panic under this lock") = Some(node);
    }));
}

/// Brings a machine that is down back, with its node.
pub fn revive(host: &Host, table: &MemoryTable) {
    *host.running.lock().expect("no panic under this lock") = None;
    host.machine.restart();
    launch(host, table);
}

/// Waits until every row of `copies` has so many active replicas and no other.
pub async fn whole(env: &Env, placement: &Placement, copies: u8) -> bool {
    let replication = Replication::new(copies).expect("one to three");
    for _ in 0..240 {
        if let Ok(rows) = placement.rows(replication).await
            && rows.len() == ROWS as usize
            && rows.iter().all(|row| {
                row.active().count() == replication.copies() && row.replicas.len() == replication.copies()
            })
        {
            return true;
        }
        env.sleep(Duration::from_millis(500)).await;
    }
    false
}

/// What must hold, and must not with the bug planted.
pub type Scenario = fn() -> Result<(), String>;

/// Runs each scenario without its bug and with it.
///
/// # Panics
/// If one fails without its bug, or a bug goes unnoticed.
pub fn each_is_noticed(scenarios: &[(&str, Scenario)]) {
    let mut unnoticed = Vec::new();
    for (bug, scenario) in scenarios {
        assert_eq!(scenario(), Ok(()), "the scenario of {bug} without the bug");
        match planting(Some(bug), scenario) {
            Ok(()) => unnoticed.push(*bug),
            Err(noticed) => eprintln!("{bug}: {noticed}"),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

/// A durable write of one block.
pub fn durable_write(
    tract: TractId,
    row: RowVersion,
    generation: Generation,
    range: BlockRange,
    data: Bytes,
) -> Request {
    Request::Write {
        tract,
        row,
        generation,
        range,
        blocks: WriteBlocks::new(tract, range, data).expect("one block"),
    }
}
