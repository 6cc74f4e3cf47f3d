//! A client of nodes that is not the production one.

use super::{Named, ROWS, TENANT, capability, durable_write, placement, whole};
use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_identity::PeerKind;
use firn_table::MemoryTable;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A client that knows nothing but to write to all replicas and to try again.
pub struct Client {
    pub env: Env,
    pub placement: Placement,
    connections: Mutex<BTreeMap<NodeId, Arc<Connection>>>,
    pub rows: Mutex<BTreeMap<RowIndex, Row>>,
    pub disk: DiskId,
    pub fence: Fence,
    pub replication: Replication,
    /// Who it is, and what its nodes are called, where there are certificates.
    pub named: Option<(Named, CalledBy)>,
}

/// What a node is called in its certificate.
pub type CalledBy = fn(NodeId) -> PeerKind;

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
            disk: DiskId([0; 16]),
            fence: Fence(0),
            replication: Replication::ALL[1],
            named: None,
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

    /// Reads every block that any active replica has and writes the newest to all replicas under a new generation.
    async fn reconcile(&self) {
        let mut tracts: BTreeSet<u32> = BTreeSet::new();
        let rows: Vec<Row> = self.rows.lock().expect("no panic").values().cloned().collect();
        for row in &rows {
            for replica in row.active() {
                let mut after = None;
                loop {
                    let list = Request::List {
                        disk: Some(self.disk),
                        row: None,
                        after,
                        limit: 64,
                    };
                    match self.call(replica.node, &replica.address, list).await {
                        Ok(Reply::List { tracts: held, more }) => {
                            after = held.last().copied();
                            tracts.extend(held.iter().map(|tract| tract.index));
                            if !more {
                                break;
                            }
                        }
                        Ok(_) => panic!("a list is answered with tracts"),
                        Err(_) => self.env.sleep(Duration::from_millis(200)).await,
                    }
                }
            }
        }
        let mut sequence = 1;
        for index in tracts {
            for block in self.written(index).await {
                let (_, data) = self.newest(index, block).await;
                let generation = Generation::new(self.fence, sequence);
                sequence += 1;
                self.write(index, block, generation, data)
                    .await
                    .expect("it can be written");
            }
        }
    }

    /// The blocks of a tract that any active replica has anything of.
    async fn written(&self, index: u32) -> BTreeSet<u16> {
        let mut written = BTreeSet::new();
        for first in (0..TRACT_BLOCKS).step_by(limits::MAX_REQUEST_BLOCKS) {
            let count = limits::MAX_REQUEST_BLOCKS as u16;
            let range = BlockRange::new(first, count).expect("within the tract");
            for found in self.every_copy_of(index, range).await {
                let blocks = found
                    .contents()
                    .filter(|(_, version, _)| version.state != BlockState::Absent);
                written.extend(blocks.map(|(block, ..)| block));
            }
        }
        written
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
        let range = BlockRange::new(block, 1).expect("within the tract");
        let copies = self.every_copy_of(index, range).await;
        copies
            .iter()
            .map(|found| {
                let (_, version, data) = found.contents().next().expect("one block");
                (version.generation, data)
            })
            .collect()
    }

    /// Blocks on every active replica of their row.
    async fn every_copy_of(&self, index: u32, range: BlockRange) -> Vec<VersionedBlocks> {
        'again: for _ in 0..400 {
            let row = self.row(index).await;
            let mut copies = Vec::new();
            for replica in row.active() {
                let fetch = Request::Fetch {
                    tract: self.tract(index),
                    row: row.version,
                    fence: self.fence,
                    range,
                };
                match self.call(replica.node, &replica.address, fetch).await {
                    Ok(Reply::Fetched(found)) => {
                        assert_eq!(found.first_damaged(self.tract(index)), None, "no damage passes");
                        copies.push(found);
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
            let fetch = Request::Fetch {
                tract,
                row: row.version,
                fence: self.fence,
                range: BlockRange::new(block, 1).expect("within the tract"),
            };
            match self.call(replica.node, &replica.address, fetch).await {
                Ok(Reply::Fetched(found)) => {
                    assert_eq!(found.first_damaged(tract), None, "no damage passes");
                    let (_, _, data) = found.contents().next().expect("one block");
                    return Ok(data);
                }
                Ok(_) => panic!("fetch is answered with blocks"),
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
                let scope = Scope::Disk {
                    disk: self.disk,
                    fence: self.fence,
                    write: true,
                    attach: true,
                };
                let (opened, capability) = match &self.named {
                    None => {
                        let opened = Connection::open(&self.env, address, options).await?;
                        (opened, capability(&self.env, scope))
                    }
                    Some((named, of_node)) => {
                        let opened = named.connect(&self.env, of_node(node), address, options).await?;
                        (opened, named.capability(&self.env, TENANT, scope))
                    }
                };
                let opened = Arc::new(opened);
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
