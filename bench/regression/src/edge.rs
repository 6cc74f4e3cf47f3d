//! The set `edge`: the program as its users run it, over NFS, with its store in a directory. Only its own process is counted.

use crate::{
    content,
    figures::{Figures, Row},
    process::{self, Counts},
};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use firn_env::Env;
use firn_nfs::{
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::types::{CreateHow, NewAttributes, StableHow},
};
use firn_rig::{EXPORT, Edge};
use futures::{StreamExt, TryStreamExt, stream};
use std::{path::Path, time::Duration};

/// What a Linux client sends in one call.
pub const CALL_BYTES: u32 = 1 << 20;
/// Calls of that size in flight.
pub const LARGE_QUEUE: usize = 8;
/// Small calls in flight.
const SMALL_QUEUE: usize = 16;
const LARGE_BYTES: u64 = 512 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
/// Bytes of a small call.
pub const SMALL_BYTES: u32 = 4096;
const SMALL_CALLS: u64 = 10_000;
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Measures all rows.
pub async fn measure(directory: &Path) -> Result<Figures> {
    let mut edge = Edge::format_local(Edge::binary()?, &directory.join("edge"), |_| {}).await?;
    edge.start().await?;
    let env = firn_env::real(directory)?;
    let (client, root) = connect(&env, &edge.address.to_string(), EXPORT).await?;
    let mut rows = Vec::new();
    let gib = LARGE_BYTES as f64 / GIB;

    let large = create(&client, &root, "large").await?;
    let written = Span::begin(&mut edge).await?;
    write(&client, &large, LARGE_BYTES).await?;
    edge.sync().await?;
    rows.push(("edge write-sequential", written.end(&mut edge, "GiB", gib).await?));

    let read_again = Span::begin(&mut edge).await?;
    read(&client, &large, LARGE_BYTES).await?;
    rows.push((
        "edge read-sequential",
        read_again.end(&mut edge, "GiB", gib).await?,
    ));

    let random = Span::begin(&mut edge).await?;
    small_writes(&client, &large, LARGE_BYTES).await?;
    edge.sync().await?;
    rows.push((
        "edge write-random-4k-stable",
        random.end(&mut edge, "call", SMALL_CALLS as f64).await?,
    ));

    let random = Span::begin(&mut edge).await?;
    small_reads(&client, &large, LARGE_BYTES).await?;
    rows.push((
        "edge read-random-4k",
        random.end(&mut edge, "call", SMALL_CALLS as f64).await?,
    ));

    let made = Span::begin(&mut edge).await?;
    stream::iter(0..SMALL_CALLS)
        .map(Ok)
        .try_for_each_concurrent(SMALL_QUEUE, |number| {
            let (client, root) = (&client, &root);
            async move { create(client, root, &format!("file-{number:06}")).await.map(drop) }
        })
        .await?;
    edge.sync().await?;
    rows.push((
        "edge create",
        made.end(&mut edge, "call", SMALL_CALLS as f64).await?,
    ));

    drop(client);
    edge.stop().await?;
    edge.wipe_cache()?;
    edge.start().await?;
    let (client, root) = connect(&env, &edge.address.to_string(), EXPORT).await?;
    let large = client.lookup(&root, "large").await?;
    let large = large
        .map_err(|failed| anyhow::anyhow!("LOOKUP: {failed:?}"))?
        .file;
    let cold = Span::begin(&mut edge).await?;
    read(&client, &large, LARGE_BYTES).await?;
    rows.push((
        "edge read-sequential-cold",
        cold.end(&mut edge, "GiB", gib).await?,
    ));
    drop(client);
    edge.stop().await?;
    Figures::measured(rows)
}

/// From one look at the edge's process to the next.
pub struct Span {
    before: Counts,
    requests: u64,
    bytes_up: u64,
    bytes_down: u64,
}

impl Span {
    /// The first look.
    pub async fn begin(edge: &mut Edge) -> Result<Self> {
        let counters = edge.counters().await?;
        Ok(Self {
            before: process::counts(edge.process_id().context("the edge has ended")?)?,
            requests: counters.store_requests,
            bytes_up: counters.bytes_up,
            bytes_down: counters.bytes_down,
        })
    }

    /// The second look; what happened between them.
    pub async fn end(self, edge: &mut Edge, unit: &str, units: f64) -> Result<Row> {
        let after = process::counts(edge.process_id().context("the edge has ended")?)?;
        let counters = edge.counters().await?;
        Ok(Row::between(unit, units, self.before, after)
            .with(
                "store_requests",
                (counters.store_requests - self.requests) as f64 / units,
            )
            .with(
                "store_bytes_up",
                (counters.bytes_up - self.bytes_up) as f64 / units,
            )
            .with(
                "store_bytes_down",
                (counters.bytes_down - self.bytes_down) as f64 / units,
            ))
    }
}

/// A client of the server at `address`, and the root of what it mounted.
pub async fn connect(env: &Env, address: &str, export: &str) -> Result<(NfsClient, WireHandle)> {
    let credential = Credential::sys("bench", 0, 0, Vec::new());
    let client = NfsClient::connect(env, address, credential, CALL_TIMEOUT).await?;
    let mounted = client.mount(export).await?;
    let mounted = mounted.map_err(|status| anyhow::anyhow!("MOUNT: {status:?}"))?;
    Ok((client, mounted.handle))
}

/// Makes a file.
pub async fn create(client: &NfsClient, directory: &WireHandle, name: &str) -> Result<WireHandle> {
    let how = CreateHow::Guarded(NewAttributes {
        mode: Some(0o644),
        ..NewAttributes::default()
    });
    let made = client.create(directory, name, how).await?;
    let made = made.map_err(|failed| anyhow::anyhow!("CREATE {name}: {failed:?}"))?;
    made.file.context("CREATE gave no handle")
}

/// Writes a file from its beginning, as a kernel does, and commits it.
pub async fn write(client: &NfsClient, file: &WireHandle, bytes: u64) -> Result<()> {
    stream::iter(0..bytes / u64::from(CALL_BYTES))
        .map(Ok)
        .try_for_each_concurrent(LARGE_QUEUE, |number| async move {
            let data = content(number, CALL_BYTES as usize);
            let offset = number * u64::from(CALL_BYTES);
            written(client, file, offset, data, StableHow::Unstable).await
        })
        .await?;
    let committed = client.commit(file, 0, 0).await?;
    committed
        .map(drop)
        .map_err(|failed| anyhow::anyhow!("COMMIT: {failed:?}"))
}

/// One write, repeated for as long as the server puts it off.
pub async fn written(
    client: &NfsClient,
    file: &WireHandle,
    offset: u64,
    data: Bytes,
    stable: StableHow,
) -> Result<()> {
    const TRIES_MAX: u32 = 100;
    for _ in 0..TRIES_MAX {
        match client.write(file, offset, data.clone(), stable).await? {
            Ok(written) => {
                ensure!(written.count as usize == data.len(), "WRITE took only a part");
                return Ok(());
            }
            Err(failed) if format!("{failed:?}").contains("Jukebox") => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(failed) => anyhow::bail!("WRITE: {failed:?}"),
        }
    }
    anyhow::bail!("WRITE: put off {TRIES_MAX} times")
}

/// Reads a file from its beginning and looks that it is what was written.
pub async fn read(client: &NfsClient, file: &WireHandle, bytes: u64) -> Result<()> {
    stream::iter(0..bytes / u64::from(CALL_BYTES))
        .map(|number| async move {
            let offset = number * u64::from(CALL_BYTES);
            let read = client.read(file, offset, CALL_BYTES).await?;
            let read = read.map_err(|failed| anyhow::anyhow!("READ: {failed:?}"))?;
            ensure!(read.count == CALL_BYTES, "READ gave only {} bytes", read.count);
            Ok(())
        })
        .buffered(LARGE_QUEUE)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}

/// A place in a file of `bytes`, on a walk that meets none twice for long.
pub fn random_offset(number: u64, bytes: u64) -> u64 {
    let blocks = bytes / u64::from(SMALL_BYTES);
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks * u64::from(SMALL_BYTES)
}

async fn small_writes(client: &NfsClient, file: &WireHandle, bytes: u64) -> Result<()> {
    let data = content(u64::MAX, SMALL_BYTES as usize);
    stream::iter(0..SMALL_CALLS)
        .map(Ok)
        .try_for_each_concurrent(SMALL_QUEUE, |number| {
            let data = data.clone();
            async move {
                let offset = random_offset(number, bytes);
                written(client, file, offset, data, StableHow::FileSync).await
            }
        })
        .await
}

async fn small_reads(client: &NfsClient, file: &WireHandle, bytes: u64) -> Result<()> {
    stream::iter(0..SMALL_CALLS)
        .map(Ok)
        .try_for_each_concurrent(SMALL_QUEUE, |number| async move {
            // Another walk than that of the writes.
            let read = client
                .read(file, random_offset(number + SMALL_CALLS, bytes), SMALL_BYTES)
                .await?;
            let read = read.map_err(|failed| anyhow::anyhow!("READ: {failed:?}"))?;
            ensure!(read.count == SMALL_BYTES, "READ gave only {} bytes", read.count);
            Ok(())
        })
        .await
}
