//! Puts and reads on a store without a cluster.

use super::{content, tiny};
use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_protocol::*;
use firn_env::Env;

/// A store that was formatted just now, as small as can be.
pub async fn formatted(env: &Env) -> Store {
    Store::format(env, tiny()).await.expect("it is formatted");
    Store::open(env, StoreOptions::default()).await.expect("it opens")
}

pub const DISK: DiskId = DiskId([3; 16]);

pub fn place(index: u32) -> TractPlace {
    TractPlace {
        tract: TractId { disk: DISK, index },
        replication: Replication::ALL[1],
        row: RowIndex(index),
        since: RowVersion(1),
    }
}

pub fn put(index: u32, block: u16, generation: Generation) -> Put {
    let data = content(place(index).tract, block, generation);
    Put {
        block,
        generation,
        content: Content::Data {
            checksum: block_checksum(place(index).tract, block, &data),
            data,
        },
    }
}

pub fn trim(block: u16, generation: Generation) -> Put {
    Put {
        block,
        generation,
        content: Content::Trim,
    }
}

pub fn generation(sequence: u64) -> Generation {
    Generation::new(Fence(1), sequence)
}

pub async fn read(store: &Store, index: u32, block: u16) -> (BlockVersion, Bytes) {
    let range = BlockRange::new(block, 1).expect("within the tract");
    let found = store.read(place(index), range).await.expect("no damage");
    (found.versions[0], found.data)
}
