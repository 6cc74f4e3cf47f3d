//! A small cluster under the simulator, and a client that writes through to all replicas.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod stage;
pub mod store;

pub use stage::{Stage, TRACTS, fill, filled, stage};

use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use firn_identity::{
    Capability, CapabilityIssuer, CapabilityVerifier, MAX_CAPABILITY_SECONDS, Rights, UnixTime,
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

/// A machine with a node on it that is started again whenever it was down.
pub struct Host {
    pub machine: Machine,
    pub running: Arc<Mutex<Option<Node>>>,
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
        tenant: firn_identity::TenantId(tenant),
        disk: firn_identity::DiskId(disk),
        rights,
        fence,
        not_before: UnixTime::from_wall(env.wall()).minus(60),
        expires,
        holder: None,
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
pub async fn start(env: Env, table: MemoryTable, name: String) -> Node {
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
        let simulation = Simulation::new(seed);
        let table = MemoryTable::new();
        let hosts: Vec<Host> = (0..nodes)
            .map(|number| Host {
                machine: simulation.machine(&format!("node{number}")),
                running: Arc::default(),
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
    let starting = env.clone();
    drop(env.spawn("start node", async move {
        let node = start(starting, table, name).await;
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

/// A client that knows nothing but to write to all replicas and to try again.
pub struct Client {
    pub env: Env,
    pub placement: Placement,
    connections: Mutex<BTreeMap<NodeId, Arc<Connection>>>,
    pub rows: Mutex<BTreeMap<RowIndex, Row>>,
    pub disk: DiskId,
    pub fence: Fence,
    pub replication: Replication,
}

/// Why the client gave up.
#[derive(Debug, PartialEq, Eq)]
pub enum GaveUp {
    Fenced,
    Late,
}

impl Client {
    pub fn new(env: Env, table: &MemoryTable) -> Self {
        Self {
            placement: placement(&env, table),
            env,
            connections: Mutex::default(),
            rows: Mutex::default(),
            disk: DiskId::default(),
            fence: Fence(0),
            replication: Replication::ALL[1],
        }
    }

    pub async fn create(&mut self, copies: u8, tracts: u64) {
        self.replication = Replication::new(copies).expect("one to three");
        assert!(
            whole(&self.env, &self.placement, copies).await,
            "the rows are built"
        );
        let new = NewDisk {
            tenant: TENANT,
            name: "disk".into(),
            size_bytes: tracts * TRACT_BYTES,
            tracts: None,
            replication: self.replication,
            settings: String::new(),
        };
        for _ in 0..100 {
            match self.placement.create_disk(new.clone()).await {
                Ok(record) => {
                    self.disk = record.disk;
                    return;
                }
                Err(_) => self.env.sleep(Duration::from_millis(200)).await,
            }
        }
        panic!("the disk cannot be created");
    }

    /// Attaches the disk, by force, fences every node and reconciles what replicas disagree on.
    pub async fn attach(&mut self, disk: DiskId) {
        let attachment = self
            .placement
            .attach_disk(disk, "test", true)
            .await
            .expect("the table answers");
        self.disk = disk;
        self.fence = attachment.fence;
        self.replication = attachment.disk.replication().expect("one to three");
        self.rows.lock().expect("no panic").clear();
        for index in 0..ROWS {
            self.refresh(RowIndex(index)).await;
        }
        let rows: Vec<Row> = self.rows.lock().expect("no panic").values().cloned().collect();
        for row in rows {
            for replica in &row.replicas {
                for _ in 0..200 {
                    let set = Request::SetFence {
                        disk,
                        fence: self.fence,
                    };
                    if self.call(replica.node, &replica.address, set).await.is_ok() {
                        break;
                    }
                    self.env.sleep(Duration::from_millis(200)).await;
                }
            }
        }
        if !attachment.clean {
            self.reconcile().await;
        }
    }

    /// Reads every marked block from all active replicas and writes the newest to all under a new generation.
    async fn reconcile(&self) {
        let mut marked: BTreeMap<u32, Vec<bool>> = BTreeMap::new();
        let rows: Vec<Row> = self.rows.lock().expect("no panic").values().cloned().collect();
        for row in &rows {
            for replica in row.active() {
                let mut after = None;
                loop {
                    let marks = Request::Marks {
                        disk: self.disk,
                        fence: self.fence,
                        after,
                        limit: 64,
                    };
                    match self.call(replica.node, &replica.address, marks).await {
                        Ok(Reply::Marks(marks)) => {
                            for mark in marks.tracts {
                                let all = marked.entry(mark.index).or_insert_with(|| vec![false; 2048]);
                                all.iter_mut().zip(mark.blocks).for_each(|(all, one)| *all |= one);
                            }
                            after = marks.next;
                            if after.is_none() {
                                break;
                            }
                        }
                        Ok(_) => panic!("marks are answered with marks"),
                        Err(_) => self.env.sleep(Duration::from_millis(200)).await,
                    }
                }
            }
        }
        let mut sequence = 1;
        for (index, blocks) in marked {
            for block in (0..TRACT_BLOCKS).filter(|block| blocks[usize::from(*block)]) {
                let newest = self.newest(index, block).await;
                let generation = Generation::new(self.fence, sequence);
                sequence += 1;
                let data = newest.1;
                self.write(index, block, generation, data)
                    .await
                    .expect("it can be written");
            }
        }
    }

    /// The highest generation of a block on any active replica, with its content.
    pub async fn newest(&self, index: u32, block: u16) -> (Generation, Option<Bytes>) {
        let mut newest = (Generation::ZERO, None);
        for found in self.every_copy(index, block).await {
            if found.0 > newest.0 {
                newest = found;
            }
        }
        newest
    }

    /// The block on every active replica of its row.
    pub async fn every_copy(&self, index: u32, block: u16) -> Vec<(Generation, Option<Bytes>)> {
        'again: for _ in 0..400 {
            let row = self.row(index).await;
            let mut copies = Vec::new();
            for replica in row.active() {
                let fetch = Request::Fetch {
                    tract: self.tract(index),
                    row: row.version,
                    fence: self.fence,
                    range: BlockRange::new(block, 1).expect("within the tract"),
                };
                match self.call(replica.node, &replica.address, fetch).await {
                    Ok(Reply::Fetched(found)) => {
                        assert_eq!(found.first_damaged(self.tract(index)), None, "no damage passes");
                        let (_, version, data) = found.contents().next().expect("one block");
                        copies.push((version.generation, data));
                    }
                    Ok(_) => panic!("fetch is answered with blocks"),
                    Err(error) => {
                        self.handle(replica, row.index, error).await.expect("not fenced");
                        continue 'again;
                    }
                }
            }
            return copies;
        }
        panic!("the replicas of tract {index} do not answer");
    }

    pub fn tract(&self, index: u32) -> TractId {
        TractId {
            disk: self.disk,
            index,
        }
    }

    /// Writes a block durably to all replicas; `None` trims it.
    pub async fn write(
        &self,
        index: u32,
        block: u16,
        generation: Generation,
        data: Option<Bytes>,
    ) -> Result<(), GaveUp> {
        let tract = self.tract(index);
        let range = BlockRange::new(block, 1).expect("within the tract");
        for _ in 0..400 {
            let row = self.row(index).await;
            let request = match &data {
                Some(data) => durable_write(tract, row.version, generation, range, data.clone()),
                None => Request::Trim {
                    tract,
                    row: row.version,
                    generation,
                    settled: Generation::ZERO,
                    durable: true,
                    range,
                },
            };
            let calls = row
                .replicas
                .iter()
                .map(|replica| self.call(replica.node, &replica.address, request.clone()));
            let answers = futures::future::join_all(calls).await;
            let mut done = !answers.is_empty();
            for (replica, answer) in row.replicas.iter().zip(answers) {
                if let Err(error) = answer {
                    done = false;
                    self.handle(replica, row.index, error).await?;
                }
            }
            if done {
                return Ok(());
            }
        }
        Err(GaveUp::Late)
    }

    /// Reads a block from one active replica, chosen by chance; `None`: it reads as zeros.
    pub async fn read(&self, index: u32, block: u16) -> Result<Option<Bytes>, GaveUp> {
        let tract = self.tract(index);
        for _ in 0..400 {
            let row = self.row(index).await;
            let active: Vec<&Replica> = row.active().collect();
            if active.is_empty() {
                self.refresh(row.index).await;
                continue;
            }
            let replica = active[self.env.random_below(active.len() as u64) as usize];
            let read = Request::Read {
                tract,
                row: row.version,
                fence: self.fence,
                range: BlockRange::new(block, 1).expect("within the tract"),
            };
            match self.call(replica.node, &replica.address, read).await {
                Ok(Reply::Read(found)) => {
                    let bytes = found.verified(tract).expect("no damage passes");
                    return Ok(found.checksums[0].map(|_| bytes));
                }
                Ok(_) => panic!("read is answered with blocks"),
                Err(error) => self.handle(replica, row.index, error).await?,
            }
        }
        Err(GaveUp::Late)
    }

    async fn handle(&self, replica: &Replica, row: RowIndex, error: CallError) -> Result<(), GaveUp> {
        match error {
            CallError::Refused(Refusal::WrongRow { newest }) => {
                let mut rows = self.rows.lock().expect("no panic");
                let known = rows.entry(row).or_insert_with(|| newest.clone());
                if known.version < newest.version {
                    *known = newest;
                    return Ok(());
                }
            }
            CallError::Refused(Refusal::NotFenced) => {
                let set = Request::SetFence {
                    disk: self.disk,
                    fence: self.fence,
                };
                let answer = self.call(replica.node, &replica.address, set).await;
                if let Err(CallError::Refused(Refusal::Fenced { .. })) = answer {
                    return Err(GaveUp::Fenced);
                }
                return Ok(());
            }
            CallError::Refused(Refusal::Fenced { .. }) => return Err(GaveUp::Fenced),
            _ => {}
        }
        self.env.sleep(Duration::from_millis(200)).await;
        self.refresh(row).await;
        Ok(())
    }

    pub async fn row(&self, index: u32) -> Row {
        let row = row_index(self.disk, index, ROWS);
        if !self.rows.lock().expect("no panic").contains_key(&row) {
            self.refresh(row).await;
        }
        self.rows.lock().expect("no panic")[&row].clone()
    }

    pub async fn refresh(&self, index: RowIndex) {
        let row = self
            .placement
            .row(self.replication, index)
            .await
            .expect("the table answers");
        self.rows.lock().expect("no panic").insert(index, row);
    }

    pub async fn call(&self, node: NodeId, address: &str, request: Request) -> Result<Reply, CallError> {
        let open = self.connections.lock().expect("no panic").get(&node).cloned();
        let connection = match open {
            Some(open) if open.is_open() => open,
            _ => {
                let options = ConnectionOptions {
                    expect: Some(node),
                    call_limit: Duration::from_secs(3),
                    open_limit: Duration::from_secs(1),
                    ..ConnectionOptions::default()
                };
                let opened = Arc::new(Connection::open(&self.env, address, options).await?);
                let scope = Scope::Disk {
                    disk: self.disk,
                    fence: self.fence,
                    write: true,
                    attach: true,
                };
                let capability = capability(&self.env, scope);
                opened.call(Request::Authenticate { capability }).await?;
                self.connections
                    .lock()
                    .expect("no panic")
                    .insert(node, opened.clone());
                opened
            }
        };
        connection.call(request).await
    }
}

/// What must hold, and must not with the bug planted.
pub type Scenario = fn(Option<&str>) -> Result<(), String>;

/// Runs each scenario without its bug and with it.
///
/// # Panics
/// If one fails without its bug, or a bug goes unnoticed.
pub fn each_is_noticed(scenarios: &[(&str, Scenario)]) {
    let mut unnoticed = Vec::new();
    for (bug, scenario) in scenarios {
        assert_eq!(scenario(None), Ok(()), "the scenario of {bug} without the bug");
        match scenario(Some(bug)) {
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
        settled: Generation::ZERO,
        durable: true,
        range,
        blocks: WriteBlocks::new(tract, range, data).expect("one block"),
    }
}
