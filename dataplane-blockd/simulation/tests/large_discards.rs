//! A large range that is discarded is cheap: few requests, none of the clock, in every mode; and it is gone.

use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::FlushPolicy;
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_simulation::setting::{BLOCK_BYTES, Client, Setting};

const GIBIBYTE: u64 = 1 << 30;
const COPIES: u8 = 2;
/// Tracts of a gibibyte: the disk's segment has as many, so all of its tracts are touched.
const TRACTS: u64 = GIBIBYTE / (8 << 20);

fn setting(mode: Mode) -> Setting {
    Setting {
        nodes: 3,
        model: None,
        node_tracts: 640,
        copies: COPIES,
        mode,
        flush: match mode {
            Mode::FlushEpoch => FlushPolicy::Ordered { lag_ms_max: 60_000 },
            Mode::WriteThrough | Mode::WriteBack | Mode::Log => FlushPolicy::Durable,
        },
        segment_tracts: TRACTS as u32,
        blocks: GIBIBYTE / BLOCK_BYTES,
    }
}

/// Requests that a discard of the whole disk takes, until it is durable, with something written all over it before.
async fn requests_of_a_discard(client: Client) -> Result<u64, String> {
    let disk = &client.attached.disk;
    let words = |error: firn_blockd_nbd::DeviceError| error.to_string();
    let data = Bytes::from(vec![7; 64 << 10]);
    let places = (0..TRACTS).map(|at| at * (8 << 20) + at * (32 << 10));
    for offset in places.clone() {
        disk.write(offset, data.clone(), Durability::Acknowledged)
            .await
            .map_err(words)?;
    }
    disk.sync().await.map_err(words)?;
    let before = client.attached.replicas.usage().store_requests;
    disk.trim(0, GIBIBYTE, Durability::Durable).await.map_err(words)?;
    let after = client.attached.replicas.usage().store_requests;
    for offset in places {
        let read = disk.read(offset, data.len() as u32).await.map_err(words)?;
        if read.iter().any(|piece| matches!(piece, Piece::Data(_))) {
            return Err(format!("what was discarded at {offset} is still there"));
        }
    }
    Ok(after - before)
}

#[test]
fn a_discard_of_a_gibibyte_is_one_request_to_each_replica_of_each_tract() {
    for mode in [Mode::WriteThrough, Mode::WriteBack, Mode::FlushEpoch] {
        let requests = setting(mode).run(1, requests_of_a_discard).unwrap();
        // A page of the dirty-region log goes before it, and one may come behind it.
        let most = (TRACTS + 4) * u64::from(COPIES);
        assert!(requests <= most, "{mode}: {requests} requests, more than {most}");
    }
}

#[test]
fn a_discard_of_a_gibibyte_of_a_log_is_one_entry() {
    let requests = setting(Mode::Log).run(1, requests_of_a_discard).unwrap();
    // The entry, and what was under way of a checkpoint: up to 8 MiB in parts of 1 MiB, and its successor.
    let most = 20 * u64::from(COPIES);
    assert!(requests <= most, "{requests} requests, more than {most}");
}
