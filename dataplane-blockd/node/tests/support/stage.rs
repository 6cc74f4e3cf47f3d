//! A cluster with one disk, attached and of a few tracts.

use super::{Client, TestCluster, content};
use firn_blockd_protocol::*;

/// Of the disk.
pub const TRACTS: u32 = 6;

/// A cluster whose disk is attached; what happens next is the test's.
pub struct Stage {
    pub cluster: TestCluster,
    pub client: Client,
}

pub fn stage(seed: u64, nodes: usize, copies: u8) -> Stage {
    let cluster = TestCluster::new(seed, nodes);
    let mut client = cluster.client("client");
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
