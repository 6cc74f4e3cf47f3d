//! Benchmark of one node on real time: `cargo run --release -p firn-blockd-node --example node_speed -- DIRECTORY`.
//!
//! One node, one replica, one connection over loopback, no sealing. Writes are acknowledged once they are durable.

use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_identity::{Capability, CapabilityIssuer, CapabilityVerifier, Rights, UnixTime};
use firn_table::MemoryTable;
use futures::StreamExt;
use std::{path::PathBuf, sync::Arc, time::Duration};

const TENANT: TenantId = TenantId([1; 16]);
const KEY: [u8; 32] = [7; 32];
const TRACTS: u32 = 24;

struct Speed {
    env: Env,
    connection: Connection,
    disk: DiskId,
    fence: Fence,
    row: RowVersion,
}

impl Speed {
    fn tract(&self, index: u32) -> TractId {
        TractId {
            disk: self.disk,
            index,
        }
    }

    fn write(&self, index: u32, first: u16, data: Bytes, sequence: u64) -> Request {
        let tract = self.tract(index);
        let count = u16::try_from(data.len() / BLOCK_BYTES).expect("at most a mebibyte");
        let range = BlockRange::new(first, count).expect("within the tract");
        Request::Write {
            tract,
            row: self.row,
            generation: Generation::new(self.fence, sequence),
            range,
            blocks: WriteBlocks::new(tract, range, data).expect("whole blocks"),
        }
    }

    async fn run(
        &self,
        name: &str,
        depth: usize,
        count: u64,
        bytes: usize,
        request: impl Fn(u64) -> Request,
    ) {
        let began = self.env.now();
        futures::stream::iter(0..count)
            .map(|at| self.connection.call(request(at)))
            .buffer_unordered(depth)
            .for_each(|answer| async move {
                answer.expect("it is done");
            })
            .await;
        let taken = self.env.now().since(began).as_secs_f64();
        println!(
            "{name:<44} {:>9.0} /s {:>9.1} MB/s",
            count as f64 / taken,
            count as f64 * bytes as f64 / taken / 1e6
        );
    }
}

#[tokio::main]
async fn main() {
    let directory = PathBuf::from(std::env::args().nth(1).expect("a directory"));
    std::fs::create_dir_all(&directory).expect("it can be made");
    let env = firn_env::real(&directory).expect("it can be opened");
    let table = MemoryTable::new();
    let placement = Placement::new(env.clone(), table.connect(&env), "speed").expect("a good name");
    placement.initialise([8; 3]).await.expect("it is set up");
    let geometry = Geometry {
        groups: 1,
        home_frames: 32,
        scratch_frames: 16,
        journal_bytes: 32 << 20,
    };
    Store::format(&env, geometry).await.expect("it is formatted");
    let store = Store::open(&env, StoreOptions::default())
        .await
        .expect("it opens");
    let issuer = CapabilityIssuer::from_seed(KEY);
    let verifier = CapabilityVerifier::new([issuer.public()]);
    let coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
    drop(env.spawn("coordinator", coordinator.run(Duration::from_millis(100))));
    let node = Node::start(
        &env,
        store,
        placement.clone(),
        Security {
            transport: Transport::plain(),
            authenticator: Arc::new(CapabilityAuthenticator::new(verifier)),
            // It is alone: there is nobody to copy from.
            capability: Arc::new(|| None),
        },
        NodeOptions {
            listen: "127.0.0.1:0".into(),
            heartbeat: Duration::from_millis(100),
            ..NodeOptions::default()
        },
    )
    .await
    .expect("it starts");
    let new = NewDisk {
        tenant: TENANT,
        name: "speed".into(),
        size_bytes: u64::from(TRACTS) * TRACT_BYTES,
        tracts: None,
        replication: Replication::ALL[0],
        settings: String::new(),
    };
    let disk = loop {
        match placement.create_disk(new.clone()).await {
            Ok(record) => break record.disk,
            Err(_) => env.sleep(Duration::from_millis(100)).await,
        }
    };
    let attachment = placement
        .attach_disk(disk, "speed", false)
        .await
        .expect("nobody has it");
    let row = placement
        .row(Replication::ALL[0], RowIndex(0))
        .await
        .expect("it is built")
        .version;
    let connection = Connection::open(&env, node.address(), ConnectionOptions::default())
        .await
        .expect("the node listens");
    let now = UnixTime::from_wall(env.wall());
    let capability = Bytes::copy_from_slice(&issuer.issue(&Capability {
        tenant: TENANT,
        disk,
        rights: Rights::ALL,
        fence: attachment.fence.0.into(),
        not_before: now,
        expires: now.plus(3600),
        holder: None,
    }));
    connection
        .call(Request::Authenticate { capability })
        .await
        .expect("it is valid");
    let fence = attachment.fence;
    connection
        .call(Request::SetFence { disk, fence })
        .await
        .expect("it is set");
    let speed = Speed {
        env: env.clone(),
        connection,
        disk,
        fence,
        row,
    };
    let mebibyte = Bytes::from(vec![0x5a; 1 << 20]);
    let block = mebibyte.slice(..BLOCK_BYTES);
    let scattered = |at: u64| {
        let place = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (
            (place % u64::from(TRACTS)) as u32,
            (place >> 32) as u16 % TRACT_BLOCKS,
        )
    };
    let in_order = |at: u64| ((at / 8) as u32 % TRACTS, (at % 8) as u16 * 256);
    for round in 0..2 {
        let base = round * 1_000_000 + 1;
        speed
            .run("sequential writes of 1 MiB, depth 8", 8, 192, 1 << 20, |at| {
                let (index, first) = in_order(at);
                speed.write(index, first, mebibyte.clone(), base + at)
            })
            .await;
        speed
            .run("sequential reads of 1 MiB, depth 8", 8, 192, 1 << 20, |at| {
                let (index, first) = in_order(at);
                Request::Fetch {
                    tract: speed.tract(index),
                    row,
                    fence,
                    range: BlockRange::new(first, 256).expect("within the tract"),
                }
            })
            .await;
        speed
            .run(
                "random writes of 4 KiB, depth 32",
                32,
                10_000,
                BLOCK_BYTES,
                |at| {
                    let (index, first) = scattered(at);
                    speed.write(index, first, block.clone(), base + 100_000 + at)
                },
            )
            .await;
        speed
            .run("random reads of 4 KiB, depth 32", 32, 20_000, BLOCK_BYTES, |at| {
                let (index, first) = scattered(at);
                Request::Fetch {
                    tract: speed.tract(index),
                    row,
                    fence,
                    range: BlockRange::new(first, 1).expect("within the tract"),
                }
            })
            .await;
    }
    node.stop().await;
}
