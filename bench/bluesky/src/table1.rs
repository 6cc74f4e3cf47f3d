//! Table 1: unpack, check and build a kernel tree through a mount.
//!
//! | column | what it is |
//! |---|---|
//! | local | unpack, check: this machine's own disk and memory, in real time; build: its computing alone |
//! | warm | the edge has everything on its disk |
//! | cold, a policy | an edge with an empty disk, which fetches by that policy |
//!
//! The client starts each step with empty caches, as after an unmount. Everything read is compared with what was written.

use crate::{
    cells::Cells,
    compile::Build,
    mount::Mount,
    office::{Cost, Edge, Image, Line, Office},
    tree::{Item, Tree},
};
use anyhow::{Context, Result, ensure};
use firn_nfs::{WireHandle, v3::types::FileType};
use firn_store::Usage;
use firn_volume::{FetchPolicy, FormatOptions, VolumeConfig};
use futures::{FutureExt, future::BoxFuture};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

/// Round trips to the paper's two S3 regions.
pub const LATENCIES_MS: [u64; 2] = [12, 30];

/// The columns of cold caches.
pub const POLICIES: [(&str, FetchPolicy); 3] = [
    ("exact", FetchPolicy::Exact),
    ("full", FetchPolicy::FullSegment),
    ("adaptive", FetchPolicy::Adaptive),
];

/// One cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub cost: Cost,
    /// Objects the edge had to ask the store for.
    pub misses: u64,
    pub files: u64,
    pub bytes: u64,
}

/// What unpacking left: needed by all later steps.
struct Unpacked {
    image: Image,
    checksums: Arc<BTreeMap<String, blake3::Hash>>,
}

/// The whole table's inputs.
pub struct Table1 {
    pub tree: Arc<Tree>,
    pub build: Arc<Build>,
}

fn config(policy: FetchPolicy) -> VolumeConfig {
    VolumeConfig {
        fetch: policy,
        ..VolumeConfig::default()
    }
}

impl Table1 {
    /// Measures what was not measured yet.
    pub fn measure(&self, cells: &Cells, scratch: &Path) -> Result<()> {
        cells.measured("table1-local-check", || {
            let (unpack, check) = self.local(scratch)?;
            cells.put("table1-local-unpack", &unpack)?;
            Ok(check)
        })?;
        cells.measured("table1-local-build", || self.computing())?;
        let mut unpacked = None;
        let mut image = || -> Result<Arc<Unpacked>> {
            if unpacked.is_none() {
                let (step, image) = self.unpack(12)?;
                cells.put("table1-unpack-12", &step)?;
                unpacked = Some(Arc::new(image));
            }
            unpacked.clone().context("just made")
        };
        if cells.get::<Step>("table1-unpack-12").is_none() {
            image()?;
        }
        for (name, kind) in [("check", Kind::Check), ("build", Kind::Build)] {
            for latency_ms in LATENCIES_MS {
                for (column, policy) in POLICIES {
                    cells.measured(&format!("table1-{name}-{column}-{latency_ms}"), || {
                        self.step(&*image()?, kind, policy, latency_ms, false)
                    })?;
                }
            }
            cells.measured(&format!("table1-{name}-warm"), || {
                self.step(&*image()?, kind, FetchPolicy::FullSegment, 12, true)
            })?;
        }
        cells.measured("table1-unpack-30", || Ok(self.unpack(30)?.0))?;
        Ok(())
    }

    fn unpack(&self, latency_ms: u64) -> Result<(Step, Unpacked)> {
        let office = Office::new(FormatOptions::default())?;
        let edge = office.edge(config(FetchPolicy::Adaptive), Line::of_latency(latency_ms))?;
        let mount = mount(&office, &edge)?;
        let tree = self.tree.clone();
        let (checksums, cost) = office.measure(&edge, async move { unpack(&mount, &tree).await })?;
        let step = self.finished(&edge, cost);
        office.close(edge)?;
        let unpacked = Unpacked {
            image: office.image(),
            checksums: Arc::new(checksums),
        };
        Ok((step, unpacked))
    }

    fn finished(&self, edge: &Edge, cost: Cost) -> Step {
        Step {
            cost,
            misses: edge.volume.status().objects.misses,
            files: self.tree.files,
            bytes: self.tree.bytes,
        }
    }

    fn step(
        &self,
        unpacked: &Unpacked,
        kind: Kind,
        policy: FetchPolicy,
        latency_ms: u64,
        warm: bool,
    ) -> Result<Step> {
        let office = Office::of_image(&unpacked.image)?;
        // Cold is the edge's start as well: it reads the root.
        let mut started = office.start();
        let edge = office.edge(config(policy), Line::of_latency(latency_ms))?;
        let mut usage = Usage::default();
        if warm {
            let (mount, checksums) = (mount(&office, &edge)?, unpacked.checksums.clone());
            office.run(async move { check(&mount, checksums).await })?;
        }
        if matches!(kind, Kind::Build) {
            let (mount, build) = (mount(&office, &edge)?, self.build.clone());
            office.run(async move { build.prepare(&mount, "build").await })?;
        }
        if warm || matches!(kind, Kind::Build) {
            (started, usage) = (office.start(), edge.stack.meter.usage());
        }
        let mount = mount(&office, &edge)?;
        match kind {
            Kind::Check => {
                let checksums = unpacked.checksums.clone();
                office.run(async move { check(&mount, checksums).await })?;
            }
            Kind::Build => {
                let (build, env) = (self.build.clone(), edge.env.clone());
                office.run(async move { build.run(&env, Some(Arc::new(mount)), "build").await })?;
            }
        }
        let cost = office.cost(&started, &edge, &usage);
        let step = self.finished(&edge, cost);
        office.close(edge)?;
        Ok(step)
    }

    /// The build with a file system that takes no time.
    fn computing(&self) -> Result<Step> {
        let office = Office::new(FormatOptions::default())?;
        let edge = office.edge(config(FetchPolicy::Adaptive), Line::of_latency(0))?;
        let (build, env) = (self.build.clone(), edge.env.clone());
        let ((), mut cost) = office.measure(&edge, async move { build.run(&env, None, "build").await })?;
        cost.computed_s = 0.0;
        Ok(self.finished(&edge, cost))
    }

    /// Unpack and check on this machine's disk, without any server.
    fn local(&self, scratch: &Path) -> Result<(Step, Step)> {
        let top = scratch.join("local-tree");
        let _ = std::fs::remove_dir_all(&top);
        std::fs::create_dir_all(&top)?;
        // The archive's bytes come from memory.
        for (path, item) in &self.tree.items {
            if matches!(item, Item::File { .. }) {
                self.tree.content(path)?;
            }
        }
        let timed = |work: &dyn Fn() -> Result<()>| -> Result<Step> {
            let started = Instant::now();
            work()?;
            Ok(Step {
                cost: Cost {
                    waited_s: started.elapsed().as_secs_f64(),
                    ..Cost::default()
                },
                misses: 0,
                files: self.tree.files,
                bytes: self.tree.bytes,
            })
        };
        let unpack = timed(&|| {
            for (path, item) in &self.tree.items {
                let path_there = top.join(path);
                match item {
                    Item::Directory => std::fs::create_dir(path_there)?,
                    Item::Symlink { target } => std::os::unix::fs::symlink(target, path_there)?,
                    Item::File { .. } => std::fs::write(path_there, self.tree.content(path)?)?,
                }
            }
            rustix::fs::syncfs(std::fs::File::open(&top)?)?;
            Ok(())
        })?;
        let check = timed(&|| {
            for (path, item) in &self.tree.items {
                if matches!(item, Item::File { .. }) {
                    blake3::hash(&std::fs::read(top.join(path))?);
                }
            }
            Ok(())
        })?;
        std::fs::remove_dir_all(&top)?;
        Ok((unpack, check))
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Check,
    Build,
}

/// A client that was never there before mounts the volume.
pub fn mount(office: &Office, edge: &Edge) -> Result<Mount> {
    let env = office.machine("client").env();
    let address = edge.address();
    office.run(async move { Mount::new(&env, &address).await })
}

/// tar x: one thing after the other.
async fn unpack(mount: &Mount, tree: &Tree) -> Result<BTreeMap<String, blake3::Hash>> {
    let top = mount.make_directory(mount.root(), "linux").await?;
    let mut directories: BTreeMap<&str, WireHandle> = BTreeMap::from([("", top)]);
    let mut checksums = BTreeMap::new();
    for (path, item) in &tree.items {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = directories.get(parent).context("directories come first")?;
        match item {
            Item::Directory => {
                let made = mount.make_directory(directory, name).await?;
                directories.insert(path, made);
            }
            Item::Symlink { target } => mount.make_symlink(directory, name, target).await?,
            Item::File { .. } => {
                let content = tree.content(path)?;
                checksums.insert(format!("linux/{path}"), blake3::hash(&content));
                mount.unpack_file(directory, name, content).await?;
            }
        }
    }
    Ok(checksums)
}

/// find | md5sum: each directory is listed, then its files are read one after the other, then the directories in it.
async fn check(mount: &Mount, checksums: Arc<BTreeMap<String, blake3::Hash>>) -> Result<()> {
    let checked = check_directory(mount, mount.root(), "", &checksums).await?;
    let expected = checksums.len() as u64;
    ensure!(checked == expected, "{checked} files of {expected} were found");
    Ok(())
}

fn check_directory<'a>(
    mount: &'a Mount,
    directory: &'a WireHandle,
    path: &'a str,
    checksums: &'a BTreeMap<String, blake3::Hash>,
) -> BoxFuture<'a, Result<u64>> {
    async move {
        let mut checked = 0;
        let listed = mount.list(directory).await?;
        let path_of = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}/{name}"),
        };
        for entry in &listed {
            let path = path_of(&entry.name);
            // A build's output is not part of the tree.
            if entry.attributes.kind == FileType::Regular
                && let Some(expected) = checksums.get(&path)
            {
                ensure!(
                    mount.checksum(entry).await? == *expected,
                    "{path} is not what was written"
                );
                checked += 1;
            }
        }
        for entry in &listed {
            if entry.attributes.kind == FileType::Directory {
                checked += check_directory(mount, &entry.handle, &path_of(&entry.name), checksums).await?;
            }
        }
        Ok(checked)
    }
    .boxed()
}
