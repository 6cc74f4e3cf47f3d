//! An idle volume asks nothing of store and table.

use crate::{
    report::Report,
    simulated::{self, SimulatedEdge},
};
use anyhow::Result;
use firn_rig::{Client, EXPORT, Edge};
use std::{path::Path, time::Duration};

/// After the last put, until everything was read back: a minute, and one request for each segment.
const READ_BACK: Duration = Duration::from_secs(75);

/// Measures in real time; the rest of the process's life counts too, so it ends where it began.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    // More than the longest wait of a checkpoint in any case.
    let idle = Duration::from_secs(if small { 45 } else { 600 });
    let place = directory.join("idle");
    let mut edge = Edge::format_local(Edge::binary()?, &place, |_| {}).await?;
    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    let root = client.root.clone();
    for number in 0..100 {
        let name = format!("file-{number}");
        client
            .write_file(&root, name.as_bytes(), 0o644, &[7; 10_000])
            .await?;
    }
    edge.sync().await?;
    tokio::time::sleep(READ_BACK).await;
    let before = edge.counters().await?;
    println!("bounds: idle for {} s", idle.as_secs());
    tokio::time::sleep(idle).await;
    let asked = edge.counters().await?.since(before);
    // It still serves. A server may close a connection that was silent for so long; clients then make another.
    let mut again = Client::mount(edge.address, EXPORT).await?;
    again.list(&root).await?;
    edge.stop().await?;

    let mut report = Report::new(
        "idle",
        "An idle volume makes no request, neither to the store nor to the table.",
        format!(
            "An edge with a mounted client that has written 100 files and then does nothing for {} s, once what it uploaded was read back; \
             and the same engine for an hour of simulated time.",
            idle.as_secs()
        ),
    );
    let mut none =
        |what: &str, requests: u64| report.bounded(what, format!("{requests}"), "0", requests == 0);
    none("requests to the store, real time", asked.store_requests);
    none("requests to the table, real time", asked.table_requests);
    let (store, table) = tokio::task::spawn_blocking(simulated_hour).await??;
    none("requests to the store, simulated hour", store);
    none("requests to the table, simulated hour", table);
    Ok(report)
}

fn simulated_hour() -> Result<(u64, u64)> {
    let edge = SimulatedEdge::new(1, firn_volume::VolumeConfig::default());
    let env = edge.env();
    let world = edge.world.clone();
    edge.run(async move {
        world.format(&env).await?;
        let volume = world.open(&env).await?;
        let file = simulated::file(&volume, "file").await?;
        simulated::write(&volume, file, 0, &[7; 10_000]).await?;
        volume.sync().await?;
        env.sleep(READ_BACK).await;
        let before = world.asked();
        env.sleep(Duration::from_secs(3600)).await;
        let after = world.asked();
        Ok((
            after.store.since(&before.store).requests(),
            after.table.requests() - before.table.requests(),
        ))
    })
}
