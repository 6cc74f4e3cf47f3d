//! The same in real time: an edge as a process on a real S3 server, a foreign NFS client, and `firn-cleaner` as a process every
//! half minute. It takes as long as it says: a quarter of an hour.

use super::{
    ALIGNED_BYTES, After, BUSY_FREE_PER_MILLE, CLEAN_EVERY, EAGER_FREE_PER_MILLE, FILE_BYTES, FILES,
    Figure11, GRACE, LAST_RUNS, WRITE_BYTES, WRITE_EVERY,
};
use crate::fileset::Noise;
use anyhow::{Context, Result, ensure};
use firn_env::sim::Seeded;
use firn_rig::{Client, EXPORT, Edge, FileHandle, servers::Server};
use firn_store::Usage;
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::process::Command;

/// What a run of the program says.
#[derive(Deserialize)]
struct Said {
    report: Ran,
}

#[derive(Deserialize)]
struct Ran {
    written_bytes: u64,
    moved_data_bytes: u64,
    damaged: Vec<serde_json::Value>,
    usage: Usage,
}

/// Measures, below `place`, on the servers that `tests/lab/cloud/with versitygw dynamodb` started.
pub fn measure(place: &Path) -> Result<Figure11> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(place))
}

struct Office {
    server: Server,
    edge: Edge,
    cleaner: PathBuf,
    family: String,
    place: PathBuf,
    /// Writers that were there before the cleaner came: the edge's.
    edges: BTreeSet<String>,
}

async fn run(place: &Path) -> Result<Figure11> {
    // What a try that failed left.
    if place.exists() {
        std::fs::remove_dir_all(place)?;
    }
    std::fs::create_dir_all(place)?;
    let server = Server::versitygw().await?;
    let mut edge = Edge::configure(Edge::binary()?, &place.join("edge"), server.settings(place))?;
    let family = edge.format().await?;
    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    let root = client.root.clone();
    let noise = Noise::new(5);
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = format!("file-{number}");
        let data: Vec<u8> = (0..FILE_BYTES / WRITE_BYTES)
            .flat_map(|part| noise.bytes(1_000_000 + number as u64 * 1000 + part, WRITE_BYTES as usize))
            .collect();
        client.write_file(&root, name.as_bytes(), 0o644, &data).await?;
        files.push(client.lookup(&root, name.as_bytes()).await?);
    }
    edge.sync().await?;
    let mut office = Office {
        cleaner: std::env::current_exe()?.with_file_name("firn-cleaner"),
        server,
        edge,
        family,
        place: place.to_owned(),
        edges: BTreeSet::new(),
    };
    office.edges = office.writers().await?;
    let writes = FILES as u64 * FILE_BYTES / WRITE_BYTES;
    let before = office.usage().await?;
    let writing = tokio::spawn(write(client, files, noise, writes));
    let mut figure = Figure11::of_writes(writes)?;
    let busy_runs = (WRITE_EVERY * u32::try_from(writes)?).as_secs() / CLEAN_EVERY.as_secs() + 1;
    let started = Instant::now();
    for pass in 0..busy_runs + LAST_RUNS as u64 {
        let at = CLEAN_EVERY * u32::try_from(pass + 1)?;
        tokio::time::sleep(at.saturating_sub(started.elapsed())).await;
        let free_per_mille = if pass < busy_runs {
            BUSY_FREE_PER_MILLE
        } else {
            EAGER_FREE_PER_MILLE
        };
        let ran = office.clean(free_per_mille).await?;
        ensure!(ran.damaged.is_empty(), "damaged: {:?}", ran.damaged);
        figure.written_bytes += ran.written_bytes;
        figure.moved_data_bytes += ran.moved_data_bytes;
        figure.cleaner_requests += ran.usage.requests();
        let (edge_bytes, cleaner_bytes) = office.log_bytes().await?;
        figure.passes.push(After {
            at_s: started.elapsed().as_secs_f64(),
            edge_bytes,
            cleaner_bytes,
            written_bytes: figure.written_bytes,
        });
        let all = (edge_bytes + cleaner_bytes) as f64 / f64::from(1 << 20);
        eprintln!(
            "bluesky:   {:.0} s, {all:.1} MiB stored",
            started.elapsed().as_secs_f64()
        );
    }
    drop(writing.await??);
    let status = office.edge.status().await?;
    figure.merged = status["merging"]["proposals"].as_u64().unwrap_or(0);
    figure.edge = office.usage().await?.since(&before);
    // Everything is there, from where it lies now. By another mount: an edge ends connections that are idle for six minutes.
    let mut client = Client::mount(office.edge.address, EXPORT).await?;
    let root = client.root.clone();
    let mut read = Vec::new();
    for number in 0..FILES {
        let file = client.lookup(&root, format!("file-{number}").as_bytes()).await?;
        read.push(client.checksum(&file).await?);
    }
    drop(client);
    office.edge.stop().await?;
    office.edge.wipe_cache()?;
    office.edge.start().await?;
    let mut client = Client::mount(office.edge.address, EXPORT).await?;
    let root = client.root.clone();
    for (number, expected) in read.iter().enumerate() {
        let file = client.lookup(&root, format!("file-{number}").as_bytes()).await?;
        ensure!(
            client.checksum(&file).await? == *expected,
            "file {number} is another without the cache"
        );
    }
    drop(client);
    let said = office.edge.command("verify", &[]).await?;
    ensure!(said.starts_with("whole"), "{said}");
    office.edge.stop().await?;
    Ok(figure)
}

/// The client: one write every five seconds, by the clock.
async fn write(mut client: Client, files: Vec<FileHandle>, noise: Noise, writes: u64) -> Result<Client> {
    let mut random = Seeded::new(31, 1);
    let started = Instant::now();
    for number in 0..writes {
        let at = WRITE_EVERY * u32::try_from(number + 1)?;
        tokio::time::sleep(at.saturating_sub(started.elapsed())).await;
        let file = random.pick(&files).clone();
        let places = (FILE_BYTES - WRITE_BYTES) / ALIGNED_BYTES + 1;
        let offset = random.below(places) * ALIGNED_BYTES;
        let data = noise.bytes(number, WRITE_BYTES as usize);
        client.write(&file, offset, &data).await?;
    }
    Ok(client)
}

impl Office {
    async fn usage(&self) -> Result<Usage> {
        let status = self.edge.status().await?;
        Ok(serde_json::from_value(status["store"]["usage"].clone())?)
    }

    async fn clean(&self, free_per_mille: u64) -> Result<Ran> {
        let config = self.place.join("firn-cleaner.toml");
        let settings = self.server.settings(&self.place);
        let text = format!(
            "family = \"{}\"\nstore = \"{}\"\ntable = \"{}\"\n[limits]\ngrace_seconds = {}\nfree_percent = {}\n",
            self.family,
            settings.store,
            settings.table,
            GRACE.as_secs(),
            free_per_mille / 10
        );
        std::fs::write(&config, text)?;
        let mut program = Command::new(&self.cleaner);
        program
            .arg("--config")
            .arg(&config)
            .arg("run")
            .envs(self.server.environment().iter().cloned())
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), program.output())
            .await
            .context("a run of the cleaner takes two minutes")?
            .with_context(|| format!("starting {}", self.cleaner.display()))?;
        ensure!(
            output.status.success(),
            "firn-cleaner: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice::<Said>(&output.stdout)?.report)
    }

    /// Names of the writers whose segments lie in the log.
    async fn writers(&self) -> Result<BTreeSet<String>> {
        let objects = self.server.objects("/log/").await?;
        Ok(objects
            .iter()
            .filter_map(|object| writer(object.location.as_ref()))
            .collect())
    }

    /// Bytes of the segments of edges, and of cleaners.
    async fn log_bytes(&self) -> Result<(u64, u64)> {
        let mut bytes = (0, 0);
        for object in self.server.objects("/log/").await? {
            let of_edge = writer(object.location.as_ref()).is_some_and(|writer| self.edges.contains(&writer));
            let sum = if of_edge { &mut bytes.0 } else { &mut bytes.1 };
            *sum += object.size;
        }
        Ok(bytes)
    }
}

/// The writer's part of a segment's name.
fn writer(key: &str) -> Option<String> {
    let (_, behind) = key.split_once("/log/")?;
    behind.split('/').next().map(str::to_owned)
}
