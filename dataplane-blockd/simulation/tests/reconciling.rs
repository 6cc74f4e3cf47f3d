//! An attach after a crash, on nodes of which one lost bits: many blocks are compared at once, damaged ones each by itself.

use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::{Body, Copy, FlushPolicy, Replicas, Unit};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_simulation::setting::{BLOCK_BYTES, Client, Setting};

const SETTING: Setting = Setting {
    nodes: 3,
    model: None,
    node_tracts: 16,
    copies: 2,
    mode: Mode::WriteBack,
    flush: FlushPolicy::Durable,
    segment_tracts: 3,
    blocks: 600,
};
/// The rest was never written.
const WRITTEN: u64 = 500;
/// One in a hundred is in something that was written.
const ROTTEN_BITS: usize = 3000;

fn content(block: u64) -> Bytes {
    block.to_le_bytes().repeat(BLOCK_BYTES as usize / 8).into()
}

/// Returns how many copies turned out to be damaged.
async fn attached_after_a_crash(client: Client) -> Result<usize, String> {
    let disk = client.attached.disk.clone();
    for block in 0..WRITTEN {
        disk.write(block * BLOCK_BYTES, content(block), Durability::Acknowledged)
            .await
            .map_err(|error| error.to_string())?;
    }
    disk.flush().await.map_err(|error| error.to_string())?;
    client.hosts[0].machine.disk().rot("data/", ROTTEN_BITS);

    // Which are not in the order of their places.
    let units: Vec<Unit> = (0..SETTING.blocks).rev().map(Unit::Block).collect();
    let replicas = client.attached.replicas.clone();
    let together = replicas
        .load_all_many(&units)
        .await
        .map_err(|error| error.to_string())?;
    let mut damaged = 0;
    for (unit, copies) in units.iter().zip(&together) {
        assert_eq!(replicas.load_all(*unit).await.as_ref(), Ok(copies), "{unit:?}");
        damaged += copies.iter().filter(|copy| **copy == Copy::Damaged).count();
    }
    let first = together.last().expect("there are some");
    assert!(
        first
            .iter()
            .any(|copy| matches!(copy, Copy::Holds(stored) if stored.body == Body::Data(content(0))))
    );

    drop((client.attached, disk, replicas));
    client.machine.crash();
    let env = client.machine.restart();
    let again = SETTING.attach(&env, &client.table, client.disk).await?;
    assert_eq!(again.reconciled_regions, 1);
    for block in 0..SETTING.blocks {
        let read = again.disk.read(block * BLOCK_BYTES, BLOCK_BYTES as u32).await;
        let whole = match &read.map_err(|error| error.to_string())?[..] {
            [Piece::Data(data)] => block < WRITTEN && *data == content(block),
            [Piece::Zeroes(_)] => block >= WRITTEN,
            _ => false,
        };
        assert!(whole, "block {block} is not what was written");
    }
    Ok(damaged)
}

#[test]
fn many_blocks_are_compared_at_once_and_damaged_ones_come_from_the_other_replica() {
    let damaged = SETTING.run(1, attached_after_a_crash).expect("it attaches");
    assert!(damaged > 0, "bits were lost where nothing is");
}
