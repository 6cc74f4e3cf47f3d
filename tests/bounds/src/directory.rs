//! A million files in one directory: creating the last is about as fast as creating the first, and listing loads no more
//! than it shows.
//!
//! The client is in this process and speaks NFS over TCP, with many calls in flight; store and journal are on this
//! machine's disk. Speed is compared with itself: the rate of the last files to that of the first, in one run. The machine
//! may be busy with other things in either, so the medians of the first and last tenth are shown beside them.

use crate::{process, report::Report, world::World};
use anyhow::{Context, Result, ensure};
use firn_env::{Env, RealDisk};
use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, Squash,
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::types::{CreateHow, NewAttributes},
};
use firn_store::{DirectoryStore, Metered};
use firn_volume::{Volume, VolumeConfig};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Files of which a rate is taken.
const CHUNK: u64 = 10_000;
/// Calls in flight.
const QUEUE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(120);
/// The rate of the last ten thousand is at least this times that of the first.
const RATE_MIN: f64 = 0.7;
/// Inodes that listing names only may load: those of the directories above.
const LISTING_INODES_MAX: u64 = 16;
/// What beginning to list may fetch: two segments, whatever the directory's size.
const BEGINNING_BYTES_MAX: u64 = 8 << 20;

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    let files = if small { 60_000 } else { 1_000_000 };
    let place = directory.join("directory");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    for part in ["state", "store"] {
        fs::create_dir_all(place.join(part))?;
    }
    let env = firn_env::real(&place.join("state"))?;
    let bucket = env.with_disk(Arc::new(RealDisk::open(&place.join("store"))?));
    let store = Metered::new(Arc::new(DirectoryStore::open(&bucket, "").await?));
    let meter = store.meter();
    let world = World::new(&env, Arc::new(store), meter, VolumeConfig::default());
    world.format(&env).await?;

    let volume = world.open(&env).await?;
    let service = serve(&env, &volume).await?;
    let (client, root) = connect(&env, &service).await?;
    let made = client
        .make_directory(&root, "all", NewAttributes::default())
        .await?;
    let all = made.ok().and_then(|made| made.file).context("a directory")?;
    let mut rates = Vec::new();
    for chunk in 0..files / CHUNK {
        let started = Instant::now();
        let (client, all) = (&client, &all);
        stream::iter(chunk * CHUNK..(chunk + 1) * CHUNK)
            .map(Ok)
            .try_for_each_concurrent(QUEUE, |number| async move {
                let how = CreateHow::Guarded(NewAttributes::default());
                let made = client.create(all, name(number), how).await?;
                made.map(drop)
                    .map_err(|failed| anyhow::anyhow!("CREATE {number}: {failed:?}"))
            })
            .await?;
        rates.push(CHUNK as f64 / started.elapsed().as_secs_f64());
        if chunk % 10 == 9 {
            println!(
                "bounds: {} files, {:.0} a second; {:.0} MiB resident",
                (chunk + 1) * CHUNK,
                rates.last().copied().unwrap_or_default(),
                mebibytes(process::memory(std::process::id())?.resident)
            );
        }
    }
    let created = process::memory(std::process::id())?;
    volume.sync().await?;
    let uploaded = world.asked().store.bytes_up;
    drop(client);
    service.shutdown().await;
    volume.drain().await?;
    drop(volume);

    // Cold: another process's first look, with nothing cached.
    fs::remove_dir_all(place.join("state/cache")).context("wiping the cache")?;
    let volume = world.open(&env).await?;
    let service = serve(&env, &volume).await?;
    let (client, root) = connect(&env, &service).await?;
    let all = client
        .lookup(&root, "all")
        .await?
        .map_err(|_| anyhow::anyhow!("no directory"))?
        .file;
    let before = world.asked().store.bytes_down;
    let mut seen = vec![false; files as usize];
    let (mut cookie, mut verifier, mut pages, mut beginning) = (0, [0; 8], 0, 0);
    let started = Instant::now();
    loop {
        let page = client.read_directory(&all, cookie, verifier, 64 << 10).await?;
        let page = page.map_err(|failed| anyhow::anyhow!("READDIR: {failed:?}"))?;
        pages += 1;
        if pages == 1 {
            beginning = world.asked().store.bytes_down - before;
        }
        for entry in &page.entries {
            if let Some(number) = number(&entry.name.0) {
                let slot = seen.get_mut(number as usize).context("a name that nobody made")?;
                ensure!(!std::mem::replace(slot, true), "file {number} is listed twice");
            }
        }
        match page.entries.last() {
            Some(last) if !page.end => (cookie, verifier) = (last.cookie, page.verifier),
            _ => break,
        }
    }
    let listing = started.elapsed();
    let listed = seen.iter().filter(|seen| **seen).count() as u64;
    let loaded = volume.status().loaded_inodes;
    service.shutdown().await;
    volume.stop().await?;

    let mut report = Report::new(
        "directory",
        "A directory holds a million files: the last are created at 0.7 times the rate of the first or better, and listing \
         it does not load it whole.",
        format!(
            "{files} files created by one NFS client in the same process, {QUEUE} calls in flight, store and journal on a local \
             disk; then listed with READDIR from a start with an empty cache."
        ),
    );
    let first = rates.first().copied().unwrap_or_default();
    let last = rates.last().copied().unwrap_or_default();
    let tenth = rates.len().div_ceil(10);
    let (early, late) = (median(&rates[..tenth]), median(&rates[rates.len() - tenth..]));
    report.told("rate of the first 10,000", format!("{first:.0} files/s"));
    report.told("rate of the last 10,000", format!("{last:.0} files/s"));
    // A small directory proves nothing about rates, and a test may not depend on speed.
    let bound = if small { "" } else { "at least 0.7" };
    report.bounded(
        "last to first",
        format!("{:.2}", last / first),
        bound,
        small || last >= RATE_MIN * first,
    );
    report.told(
        "medians of the last and first tenth",
        format!("{late:.0} and {early:.0} files/s: {:.2}", late / early),
    );
    report.told(
        "uploaded, a file",
        format!("{:.0} bytes", uploaded as f64 / files as f64),
    );
    report.told(
        "peak of resident memory while creating (client included)",
        format!("{:.1} MiB", mebibytes(created.peak)),
    );
    report.bounded(
        "files listed, each once",
        format!("{listed} in {:.1} s, {pages} replies", listing.as_secs_f64()),
        &format!("{files}"),
        listed == files,
    );
    report.bounded(
        "fetched before the first reply",
        format!("{:.2} MiB", mebibytes(beginning)),
        "at most 8 MiB",
        beginning <= BEGINNING_BYTES_MAX,
    );
    report.bounded(
        "inodes in memory after listing",
        format!("{loaded}"),
        "at most 16",
        loaded <= LISTING_INODES_MAX,
    );
    Ok(report)
}

fn name(number: u64) -> String {
    format!("file-{number:07}")
}

fn number(name: &[u8]) -> Option<u64> {
    std::str::from_utf8(name)
        .ok()?
        .strip_prefix("file-")?
        .parse()
        .ok()
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

async fn serve(env: &Env, volume: &Volume) -> Result<NfsService> {
    let rule = ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    };
    let export = Export::new("/export", Arc::new(volume.clone()), vec![rule])?;
    let exports = Arc::new(Exports::new(HandleKey::new(&[7; 32]), [export])?);
    let config = ServiceConfig {
        address: "127.0.0.1:0".into(),
        port_mapping: PortMapping::None,
        ..ServiceConfig::default()
    };
    Ok(NfsService::start(env, config, exports, Vec::new()).await?)
}

async fn connect(env: &Env, service: &NfsService) -> Result<(NfsClient, WireHandle)> {
    let credential = Credential::sys("bounds", 0, 0, Vec::new());
    let client = NfsClient::connect(env, service.address(), credential, PATIENCE).await?;
    let mounted = client.mount("/export").await?;
    let mounted = mounted.map_err(|status| anyhow::anyhow!("MOUNT: {status:?}"))?;
    Ok((client, mounted.handle))
}
