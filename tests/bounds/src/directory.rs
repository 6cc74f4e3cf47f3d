//! A million files in one directory: creating the last is about as fast as creating the first, and listing loads no more
//! than it shows.
//!
//! The client is in this process and speaks NFS over TCP, with many calls in flight; store and journal are on this
//! machine's disk. Speed is compared with itself, in one run. Ten thousand files take a third of a second, in which the disk
//! may be busy with something else, and the very first are made before the first checkpoint has begun; so the last hundred
//! thousand are created in turns with the first files of directories that are empty, ten thousand each, and the time of all is
//! compared: every second ten thousand or so have a checkpoint running beside them, which a median would hide or exaggerate.
//! The very first and the very last ten thousand are told too.

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
/// How many of the last chunks are interleaved with the first chunk of an empty directory.
const ROUNDS: u64 = 10;
/// Calls in flight.
const QUEUE: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(120);
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
    let all = make_directory(&client, &root, "all").await?;
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    let chunks = files / CHUNK;
    let rounds = ROUNDS.min(chunks / 2);
    for chunk in 0..chunks {
        let paired = chunk >= chunks - rounds;
        // Each comes first in every second round, so that neither always meets what the other left to be written.
        if paired && chunk % 2 == 0 {
            firsts.push(create_in_empty(&client, &root, chunk).await?);
        }
        rates.push(create(&client, &all, chunk * CHUNK).await?);
        if paired && chunk % 2 == 1 {
            firsts.push(create_in_empty(&client, &root, chunk).await?);
        }
        if chunk % 10 == 9 {
            println!(
                "bounds: {} files, {:.0} a second; {:.0} MiB resident",
                (chunk + 1) * CHUNK,
                rate_of_all(&rates[rates.len() - 10..]),
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
    for copies in ["state/cache", "state/unconfirmed"] {
        fs::remove_dir_all(place.join(copies)).context("wiping the cache")?;
    }
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
        "A directory holds a million files: the last are created at 0.7 times the rate of the first of an empty one or \
         better, and listing it does not load it whole.",
        format!(
            "{files} files created by one NFS client in the same process, {QUEUE} calls in flight, store and journal on a local \
             disk, the last in turns with the first of empty directories; then listed with READDIR from a start with an empty cache."
        ),
    );
    let lasts = &rates[rates.len() - rounds as usize..];
    let (last, first) = (rate_of_all(lasts), rate_of_all(&firsts));
    report.told(
        "rate in an empty directory",
        format!("{first:.0} files/s, {rounds} rounds ({})", range(&firsts)),
    );
    report.told(
        "rate in the full one",
        format!("{last:.0} files/s, {rounds} rounds ({})", range(lasts)),
    );
    // A small directory proves nothing about rates, and a test may not depend on speed.
    let bound = if small { "" } else { "at least 0.7" };
    report.bounded(
        "full to empty",
        format!("{:.2}", last / first),
        bound,
        small || last >= RATE_MIN * first,
    );
    let (very_first, very_last) = (rates[0], rates[rates.len() - 1]);
    report.told(
        "the very first and very last 10,000, once each",
        format!(
            "{very_first:.0} and {very_last:.0} files/s: {:.2}",
            very_last / very_first
        ),
    );
    report.told(
        "uploaded, a file",
        format!("{:.0} bytes", uploaded as f64 / (files + rounds * CHUNK) as f64),
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

async fn make_directory(client: &NfsClient, parent: &WireHandle, name: &str) -> Result<WireHandle> {
    let made = client
        .make_directory(parent, name, NewAttributes::default())
        .await?;
    made.ok()
        .and_then(|made| made.file)
        .with_context(|| format!("making {name}"))
}

async fn create_in_empty(client: &NfsClient, root: &WireHandle, round: u64) -> Result<f64> {
    let empty = make_directory(client, root, &format!("empty-{round}")).await?;
    create(client, &empty, 0).await
}

/// Creates a chunk of files from `first` on; files a second.
async fn create(client: &NfsClient, directory: &WireHandle, first: u64) -> Result<f64> {
    let started = Instant::now();
    stream::iter(first..first + CHUNK)
        .map(Ok)
        .try_for_each_concurrent(QUEUE, |number| async move {
            let how = CreateHow::Guarded(NewAttributes::default());
            let made = client.create(directory, name(number), how).await?;
            made.map(drop)
                .map_err(|failed| anyhow::anyhow!("CREATE {number}: {failed:?}"))
        })
        .await?;
    Ok(CHUNK as f64 / started.elapsed().as_secs_f64())
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

/// Of as many files each, the rate of them all.
fn rate_of_all(rates: &[f64]) -> f64 {
    rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

fn range(rates: &[f64]) -> String {
    let (low, high) = rates.iter().fold((f64::MAX, 0_f64), |(low, high), rate| {
        (low.min(*rate), high.max(*rate))
    });
    format!("{low:.0} to {high:.0}")
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
    let client = NfsClient::connect(env, service.address(), credential, TIMEOUT).await?;
    let mounted = client.mount("/export").await?;
    let mounted = mounted.map_err(|status| anyhow::anyhow!("MOUNT: {status:?}"))?;
    Ok((client, mounted.handle))
}
