//! A small cluster on simulated machines: production nodes, placement and coordinator, a table, and clients.

use bytes::Bytes;
use firn_blockd_client::{Access, IssuedHere, ReplicaOptions};
use firn_blockd_node::{
    CapabilityAuthenticator, DiskModel, Geometry, Node, NodeOptions, Security, Store, StoreOptions,
};
use firn_blockd_placement::{Coordinator, CoordinatorSettings, Placement};
use firn_blockd_protocol::{ConnectionOptions, DiskId, NodeId, Replication, TenantId, Transport};
use firn_env::{
    Env,
    sim::{DiskImage, Limits, Machine, Simulation},
};
use firn_identity::{
    Capability, CapabilityIssuer, CapabilityVerifier, MAX_CAPABILITY_SECONDS, Rights, UnixTime,
};
use firn_table::MemoryTable;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Whose disks there are.
pub const TENANT: TenantId = TenantId([9; 16]);
/// Rows of each table of [`Size::SMALL`].
pub const ROWS: u32 = 4;
const ISSUER_SEED: [u8; 32] = [7; 32];

/// The cluster's part of a table, as a machine sees it.
pub fn placement(env: &Env, table: &MemoryTable) -> Placement {
    Placement::new(env.clone(), table.connect(env), "simulation").expect("the name is fine")
}

/// What a client of this cluster shows to nodes.
pub fn access(env: &Env) -> Access {
    let issuer = CapabilityIssuer::from_seed(ISSUER_SEED);
    Access {
        transport: Transport::plain(),
        capabilities: Arc::new(IssuedHere::new(env, issuer, None, 120)),
    }
}

/// Replica options whose limits fit the pauses of histories.
pub fn replica_options() -> ReplicaOptions {
    ReplicaOptions {
        deadline_after: Duration::from_secs(20),
        connection: ConnectionOptions {
            call_limit: Duration::from_secs(3),
            open_limit: Duration::from_secs(1),
            ..ConnectionOptions::default()
        },
        ..ReplicaOptions::default()
    }
}

fn node_security(env: &Env, node: NodeId) -> Security {
    let issuer = CapabilityIssuer::from_seed(ISSUER_SEED);
    let verifier = CapabilityVerifier::new([issuer.public()]);
    let env = env.clone();
    let capability = move || {
        let now = UnixTime::from_wall(env.wall());
        let capability = Capability {
            tenant: TenantId(node.0),
            disk: DiskId([0; 16]),
            rights: Rights::REPAIR,
            fence: 0,
            not_before: now,
            expires: now.plus(MAX_CAPABILITY_SECONDS),
            holder: None,
        };
        Some(Bytes::copy_from_slice(&issuer.issue(&capability)))
    };
    Security {
        transport: Transport::plain(),
        authenticator: Arc::new(CapabilityAuthenticator::new(verifier)),
        capability: Arc::new(capability),
    }
}

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rows of the tables of one, two and three copies.
    pub rows: [u32; 3],
    /// How each node's disk is cut.
    pub geometry: Geometry,
    /// How slow each node's disk is; nothing: not at all.
    pub model: Option<DiskModel>,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// How long nodes keep what is no longer theirs.
    pub drop_after: Duration,
    /// Polls of tasks before a run is given up.
    pub steps: u64,
}

impl Size {
    /// For histories.
    pub const SMALL: Self = Self {
        rows: [ROWS; 3],
        // As small as a store can be: journal files fill and groups run out of scratch in no time.
        geometry: Geometry {
            groups: 2,
            home_frames: 8,
            scratch_frames: 1,
            journal_bytes: 64 << 10,
        },
        model: None,
        heartbeat: Duration::from_millis(500),
        drop_after: Duration::from_secs(30),
        steps: 40_000_000,
    };
}

/// A machine with a node on it.
#[derive(Clone)]
pub struct Host {
    /// The machine.
    pub machine: Machine,
    running: Arc<Mutex<Option<Node>>>,
    table: MemoryTable,
    size: Size,
}

impl Host {
    /// Its machine dies, and all that was on its disk is gone.
    pub fn destroy(&self) {
        self.machine.crash();
        self.machine.disk().restore(&DiskImage::default());
    }

    /// Who runs there now.
    pub fn node(&self) -> Option<NodeId> {
        let running = self.running.lock().expect("no panic under this lock");
        running.as_ref().map(Node::id)
    }

    /// Blocks that this node copied from others.
    pub fn copied_blocks(&self) -> u64 {
        let running = self.running.lock().expect("no panic under this lock");
        running.as_ref().map_or(0, Node::copied_blocks)
    }

    fn launch(&self) {
        let env = self.machine.env();
        let (host, starting) = (self.clone(), env.clone());
        drop(env.spawn("start node", async move {
            let node = start(starting, &host.table, &host.machine.name(), host.size).await;
            *host.running.lock().expect("no panic under this lock") = Some(node);
        }));
    }

    /// Brings a machine that is down back, with its node.
    pub fn revive(&self) {
        *self.running.lock().expect("no panic under this lock") = None;
        self.machine.restart();
        self.launch();
    }

    /// The disk is lost for good; an empty node comes in its place after `away`.
    pub async fn replace(&self, env: &Env, away: Duration) {
        self.destroy();
        env.sleep(away).await;
        *self.running.lock().expect("no panic under this lock") = None;
        let fresh = self.machine.restart();
        Store::format(&fresh, self.size.geometry)
            .await
            .expect("an empty disk can be formatted");
        self.launch();
    }
}

async fn start(env: Env, table: &MemoryTable, name: &str, size: Size) -> Node {
    let modelled = size.model.map_or_else(|| env.clone(), |model| model.over(&env));
    loop {
        let store = Store::open(&modelled, StoreOptions::default())
            .await
            .expect("a node finds all that it acknowledged");
        let security = node_security(&env, store.node());
        let options = match size.model.and_then(DiskModel::seek_bytes) {
            Some(seek_bytes) => NodeOptions::default().with_arm(seek_bytes),
            None => NodeOptions::default(),
        };
        let options = NodeOptions {
            listen: "0.0.0.0:7300".into(),
            domain: name.into(),
            heartbeat: size.heartbeat,
            scrub_interval: Duration::from_secs(3600),
            drop_after: size.drop_after,
            ..options
        };
        let started = Node::start(&env, store, placement(&env, table), security, options).await;
        match started {
            Ok(node) => return node,
            Err(_) => env.sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A cluster.
pub struct Cluster {
    /// Its clock and network.
    pub simulation: Simulation,
    /// Its table.
    pub table: MemoryTable,
    /// Its nodes.
    pub hosts: Vec<Host>,
}

impl Cluster {
    /// With so many nodes, whose rows are being built.
    pub fn new(seed: u64, nodes: usize, size: Size) -> Result<Self, String> {
        let limits = Limits {
            steps: size.steps,
            ..Limits::default()
        };
        let simulation = Simulation::with_limits(seed, limits);
        let table = MemoryTable::new();
        let hosts: Vec<Host> = (0..nodes)
            .map(|number| Host {
                machine: simulation.machine(&format!("node{number}")),
                running: Arc::default(),
                table: table.clone(),
                size,
            })
            .collect();
        let (env, setup) = (simulation.env(), table.clone());
        let envs: Vec<Env> = hosts.iter().map(|host| host.machine.env()).collect();
        simulation
            .run(async move {
                let placement = placement(&env, &setup);
                placement.initialise(size.rows).await.expect("an empty table");
                for env in envs {
                    Store::format(&env, size.geometry).await.expect("an empty disk");
                }
                let settings = CoordinatorSettings {
                    lease: size.heartbeat * 6,
                    dead_after: size.heartbeat * 8,
                    ..CoordinatorSettings::default()
                };
                let coordinator = Coordinator::new(placement, settings);
                drop(env.spawn("coordinator", coordinator.run(Duration::from_millis(500))));
            })
            .map_err(|error| error.to_string())?;
        hosts.iter().for_each(Host::launch);
        Ok(Self {
            simulation,
            table,
            hosts,
        })
    }
}

impl Cluster {
    /// A machine whose node comes later: [`Host::replace`] starts it, with an empty disk.
    pub fn late(&self, name: &str) -> Host {
        Host {
            machine: self.simulation.machine(name),
            running: Arc::default(),
            table: self.table.clone(),
            size: self.hosts.first().map_or(Size::SMALL, |host| host.size),
        }
    }
}

/// Waits until every row of `copies` has so many active replicas and no other.
pub async fn whole(env: &Env, placement: &Placement, replication: Replication) -> bool {
    for _ in 0..600 {
        if let Ok(rows) = placement.rows(replication).await
            && !rows.is_empty()
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
