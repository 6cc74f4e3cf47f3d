//! Attach times after a crash of the client, by how much of the disk is dirty.

use crate::setting::{BLOCK_BYTES, MODEL, NODE_TRACTS, Setting};
use bytes::Bytes;
use firn_blockd_client::Mode;
use firn_blockd_disk::{FlushPolicy, striped::Regions};
use firn_blockd_nbd::{BlockDevice, Durability};
use futures::{StreamExt, TryStreamExt, stream};

const REQUEST_BYTES: u64 = 1 << 20;
const AT_ONCE: usize = 32;

/// Writes a disk of so many regions from end to end, so that all of them are marked, crashes, and attaches again.
fn seconds(nodes: usize, copies: u8, regions: u64) -> Result<f64, String> {
    let blocks = regions * Regions::default().blocks;
    let setting = Setting {
        nodes,
        model: Some(MODEL),
        node_tracts: NODE_TRACTS * 2,
        copies,
        mode: Mode::WriteBack,
        flush: FlushPolicy::Durable,
        segment_tracts: 128,
        blocks,
    };
    setting.run(3, move |client| async move {
        let disk = client.attached.disk.clone();
        let data = Bytes::from(vec![0x5a; REQUEST_BYTES as usize]);
        stream::iter(0..blocks * BLOCK_BYTES / REQUEST_BYTES)
            .map(|number| disk.write(number * REQUEST_BYTES, data.clone(), Durability::Durable))
            .buffered(AT_ONCE)
            .try_collect::<()>()
            .await
            .map_err(|error| error.to_string())?;
        drop(client.attached);
        drop(disk);
        client.machine.crash();
        let env = client.machine.restart();
        let began = env.now();
        let again = setting.attach(&env, &client.table, client.disk).await?;
        if again.reconciled_regions != regions {
            return Err(format!(
                "{} of {regions} regions were marked",
                again.reconciled_regions
            ));
        }
        Ok(env.now().since(began).as_secs_f64())
    })
}

/// Prints the table.
pub(crate) fn print() -> Result<(), String> {
    println!("| nodes | copies | marked, MiB | attach after a crash, s |\n|---|---|---|---|");
    for (nodes, copies) in [(24, 2), (24, 3), (128, 2)] {
        for regions in [16, 64, 256] {
            let seconds = seconds(nodes, copies, regions)?;
            println!("| {nodes} | {copies} | {} | {seconds:.1} |", regions * 4);
        }
    }
    Ok(())
}
