//! A cluster with one disk, attached and of a few tracts.

use super::{Client, TestCluster, content};
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_table::MemoryTable;
use std::future::Future;

/// Of the disk.
pub const TRACTS: u32 = 6;

/// A cluster whose disk is attached; what happens next is the test's.
pub struct Stage {
    pub cluster: TestCluster,
    pub client: Client,
}

pub fn stage(seed: u64, nodes: usize, copies: u8) -> Stage {
    let cluster = TestCluster::new(seed, nodes);
    let client = cluster.client("client");
    staged(cluster, client, copies)
}

/// The same on a cluster and with a client that are there.
pub fn staged(cluster: TestCluster, mut client: Client, copies: u8) -> Stage {
    let client = cluster
        .simulation
        .run(async move {
            client.create(copies, u64::from(TRACTS)).await;
            client.attach(client.disk).await;
            client
        })
        .expect("the stage is set");
    Stage { cluster, client }
}

pub async fn fill(client: &Client, sequence: u64) {
    for index in 0..TRACTS {
        let generation = Generation::new(client.fence, sequence);
        let data = content(client.tract(index), 1, generation);
        client
            .write(index, 1, generation, Some(data))
            .await
            .expect("it is written");
    }
}

/// All replicas hold the content of `sequence` in block 1 of every tract.
pub async fn filled(client: &Client, sequence: u64) -> Result<(), String> {
    let generation = Generation::new(client.fence, sequence);
    for index in 0..TRACTS {
        for (found, data) in client.every_copy(index, 1).await {
            if found != generation || data != Some(content(client.tract(index), 1, generation)) {
                return Err(format!(
                    "a replica of tract {index} has {found} instead of {generation}"
                ));
            }
        }
    }
    Ok(())
}

/// A machine that belongs to nobody, beside three nodes that hold two copies of a filled disk.
pub struct Stranger {
    pub env: Env,
    /// Who has the disk.
    pub client: Client,
    /// Of the disk's first tract.
    pub row: Row,
    pub table: MemoryTable,
}

/// Runs what a stranger does.
pub fn as_a_stranger<F>(seed: u64, test: impl FnOnce(Stranger) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let Stage { cluster, client } = stage(seed, 3, 2);
    let env = cluster.simulation.machine("stranger").env();
    let table = cluster.table.clone();
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let row = client.row(0).await;
            let stranger = Stranger {
                env,
                client,
                row,
                table,
            };
            test(stranger).await;
        })
        .expect("the run ends");
}

/// Asks which tracts of a disk a node has; of all, if none is named, which nobody may.
pub fn list(disk: Option<DiskId>) -> Request {
    Request::List {
        disk,
        row: None,
        after: None,
        limit: 100,
    }
}
