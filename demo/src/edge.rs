//! The edge as a process of its own: started, asked, killed, stopped.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// What clients mount.
pub const EXPORT: &str = "/demo";

/// From start to the first reply; recovery of a full journal is the longest part.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Counters of a running edge since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub store_requests: u64,
    pub table_requests: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub nanodollars: u64,
}

impl Counters {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            store_requests: self.store_requests.saturating_sub(earlier.store_requests),
            table_requests: self.table_requests.saturating_sub(earlier.table_requests),
            bytes_up: self.bytes_up.saturating_sub(earlier.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(earlier.bytes_down),
            nanodollars: self.nanodollars.saturating_sub(earlier.nanodollars),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            store_requests: self.store_requests + other.store_requests,
            table_requests: self.table_requests + other.table_requests,
            bytes_up: self.bytes_up + other.bytes_up,
            bytes_down: self.bytes_down + other.bytes_down,
            nanodollars: self.nanodollars + other.nanodollars,
        }
    }
}

/// A volume on this machine's disk, and the edge that serves it when it runs.
pub struct Edge {
    binary: PathBuf,
    pub config: PathBuf,
    state: PathBuf,
    pub address: SocketAddr,
    child: Option<Child>,
    pub prices: String,
}

impl Edge {
    /// Makes a new volume below `directory`, which a run before may have filled.
    pub async fn format(binary: PathBuf, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        for old in ["state", "store"] {
            remove(&directory.join(old))?;
        }
        fs::create_dir(directory.join("store"))?;
        for old in ["table.redb", "recovery-phrase", "firn-edge.toml", "edge.log"] {
            match fs::remove_file(directory.join(old)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        // Free now, and nobody else's until the edge takes it, as far as one can know.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = directory.join("firn-edge.toml");
        let shown = directory.display();
        fs::write(
            &config,
            format!(
                r#"# Made by `make demo`. One machine, no cloud: the store is a directory.
[volume]
name = "demo"
edge_name = "demo-edge"
store = "file://{shown}/store"
table = "redb:{shown}/table.redb"
state_directory = "{shown}/state"

[nfs]
listen = "127.0.0.1"
nfs_port = {port}
portmap = false
grace_seconds = 1

[[export]]
path = "{EXPORT}"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
"#
            ),
        )?;
        let edge = Self {
            binary,
            config,
            state: directory.join("state"),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            child: None,
            prices: String::new(),
        };
        let phrase = directory.join("recovery-phrase");
        edge.command("format", &["--phrase-file", &phrase.to_string_lossy()])
            .await?;
        Ok(edge)
    }

    /// Runs a command of the edge to its end and returns what it printed.
    async fn command(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.binary)
            .arg("--config")
            .arg(&self.config)
            .arg(name)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("starting {}", self.binary.display()))?;
        ensure!(
            output.status.success(),
            "firn-edge {name} failed: {}",
            output.status
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the edge and waits until it serves.
    pub async fn start(&mut self) -> Result<()> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.config.with_file_name("edge.log"))?;
        let mut child = Command::new(&self.binary)
            .arg("--config")
            .arg(&self.config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        self.child = Some(child);
        loop {
            match tokio::time::timeout(START_PATIENCE, lines.next_line()).await?? {
                Some(line) if line.starts_with("serving on") => return Ok(()),
                Some(_) => {}
                None => bail!(
                    "the edge ended at its start; see {}",
                    self.config.with_file_name("edge.log").display()
                ),
            }
        }
    }

    /// SIGKILL: no last word.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the edge does not run")?;
        child.kill().await?;
        Ok(())
    }

    /// SIGTERM, and the wait for a clean end.
    pub async fn stop(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the edge does not run")?;
        let id = child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id as i32));
        rustix::process::kill_process(id.context("the edge has ended")?, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(START_PATIENCE, child.wait()).await??;
        ensure!(status.success(), "the edge did not end well: {status}");
        Ok(())
    }

    /// Waits until everything is in the cloud.
    pub async fn sync(&self) -> Result<()> {
        self.command("sync", &[]).await.map(drop)
    }

    /// What the edge counted since its start.
    pub async fn counters(&mut self) -> Result<Counters> {
        let text = self.command("status", &["--output", "json"]).await?;
        let status: serde_json::Value = serde_json::from_str(&text)?;
        let number = |path: &str| {
            let found = status.pointer(path).and_then(serde_json::Value::as_u64);
            found.with_context(|| format!("status has no {path}"))
        };
        let text = |path: &str| {
            status
                .pointer(path)
                .and_then(serde_json::Value::as_str)
                .unwrap_or("?")
        };
        self.prices = format!("{} of {}", text("/store/price_book"), text("/store/prices_as_of"));
        Ok(Counters {
            store_requests: number("/store/requests")?,
            table_requests: number("/table/requests")?,
            bytes_up: number("/store/usage/bytes_up")?,
            bytes_down: number("/store/usage/bytes_down")?,
            nanodollars: number("/store/nanodollars")? + number("/table/nanodollars")?,
        })
    }

    /// Removes every cached object. The edge must not run.
    pub fn wipe_cache(&self) -> Result<()> {
        ensure!(self.child.is_none(), "the cache of a running edge is not touched");
        let cache = self.state.join("cache");
        ensure!(cache.is_dir(), "{} is not there", cache.display());
        remove(&cache)
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}
