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
pub const EXPORT: &str = "/export";

/// From start to the first reply; recovery of a full journal is the longest part.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Counters of a running edge since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Requests to the store, of all classes.
    pub store_requests: u64,
    /// Requests to the table.
    pub table_requests: u64,
    /// Sent to the store.
    pub bytes_up: u64,
    /// Received from the store.
    pub bytes_down: u64,
    /// What both cost.
    pub nanodollars: u64,
}

impl Counters {
    /// What was added after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            store_requests: self.store_requests.saturating_sub(earlier.store_requests),
            table_requests: self.table_requests.saturating_sub(earlier.table_requests),
            bytes_up: self.bytes_up.saturating_sub(earlier.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(earlier.bytes_down),
            nanodollars: self.nanodollars.saturating_sub(earlier.nanodollars),
        }
    }

    /// Both together.
    #[must_use]
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

/// What is to be said of an edge; the rest is as by default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The volume's name.
    pub volume: String,
    /// The edge's name.
    pub name: String,
    /// The store's URL.
    pub store: String,
    /// The table's URL.
    pub table: String,
    /// Where the store's credentials come from: `environment` or `service`.
    pub credentials: String,
    /// Lines of the section `[limits]`.
    pub limits: String,
    /// More lines of the section `[nfs]`.
    pub nfs: String,
    /// Credentials of store and table, as variables of the environment.
    pub environment: Vec<(String, String)>,
}

impl Settings {
    /// An edge that needs no cloud: store and table are below `directory`.
    pub fn local(directory: &Path) -> Self {
        let shown = directory.display();
        Self {
            volume: "main".into(),
            name: "edge".into(),
            store: format!("file://{shown}/store"),
            table: format!("redb:{shown}/table.redb"),
            credentials: "environment".into(),
            limits: String::new(),
            nfs: String::new(),
            environment: Vec::new(),
        }
    }
}

/// An edge on this machine, running or not.
pub struct Edge {
    binary: PathBuf,
    settings: Settings,
    /// Its configuration file.
    pub config: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Where it serves NFS and MOUNT.
    pub address: SocketAddr,
    child: Option<Child>,
    /// By which prices its money is counted; known after the first [`Edge::counters`].
    pub prices: String,
}

impl Edge {
    /// The edge's program: what `FIRN_EDGE` names, or what was built beside the program that asks.
    pub fn binary() -> Result<PathBuf> {
        Self::built("firn-edge", "cargo build -p firn-edge")
    }

    /// The same program with `run --fault`, which what ships does not have.
    pub fn binary_with_faults() -> Result<PathBuf> {
        Self::built("firn-edge-testing", "scripts/build-release")
    }

    fn built(name: &str, how: &str) -> Result<PathBuf> {
        match std::env::var_os("FIRN_EDGE").filter(|_| name == "firn-edge") {
            Some(binary) => Ok(binary.into()),
            None => program(name, how),
        }
    }

    /// Writes the configuration of an edge that has its state below `directory`; nothing else is made yet.
    pub fn configure(binary: PathBuf, directory: &Path, settings: Settings) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let port = crate::free_port()?;
        let edge = Self {
            binary,
            settings,
            config: directory.join("firn-edge.toml"),
            state: directory.join("state"),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            child: None,
            prices: String::new(),
        };
        edge.write_configuration()?;
        Ok(edge)
    }

    /// Changes what holds from the next start on.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        change(&mut self.settings);
        self.write_configuration()
    }

    fn write_configuration(&self) -> Result<()> {
        let Settings {
            volume,
            name,
            store,
            table,
            credentials,
            limits,
            nfs,
            environment: _,
        } = &self.settings;
        let (state, port) = (self.state.display(), self.address.port());
        let text = format!(
            r#"# Made by a program of Firn's own, for one machine.
[volume]
name = "{volume}"
edge_name = "{name}"
store = "{store}"
table = "{table}"
credentials = "{credentials}"
state_directory = "{state}"

[limits]
{limits}

[nfs]
listen = "127.0.0.1"
nfs_port = {port}
portmap = false
grace_seconds = 1
{nfs}

[[export]]
path = "{EXPORT}"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
"#
        );
        Ok(fs::write(&self.config, text)?)
    }

    /// A new volume with store and table below `directory`, in place of what was there.
    pub async fn format_local(
        binary: PathBuf,
        directory: &Path,
        change: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        for old in ["state", "store"] {
            remove(&directory.join(old))?;
        }
        for old in ["table.redb", "recovery-phrase", "firn-edge.toml", "edge.log"] {
            match fs::remove_file(directory.join(old)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        fs::create_dir_all(directory.join("store"))?;
        let mut settings = Settings::local(directory);
        change(&mut settings);
        let edge = Self::configure(binary, directory, settings)?;
        edge.format().await?;
        Ok(edge)
    }

    /// Makes the volume; answers the id of its family, as hosts of the cleaner are told it.
    pub async fn format(&self) -> Result<String> {
        self.format_as(&[]).await
    }

    /// The same with more arguments.
    pub async fn format_as(&self, more: &[&str]) -> Result<String> {
        let phrase = self.config.with_file_name("recovery-phrase");
        let phrase = phrase.to_string_lossy();
        let arguments = [&["--phrase-file", &phrase], more].concat();
        let said = self.command("format", &arguments).await?;
        let family = said
            .split_once("of family ")
            .and_then(|(_, rest)| rest.split(' ').next());
        Ok(family.context("format tells the family's id")?.to_owned())
    }

    fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--config")
            .arg(&self.config)
            .arg(name)
            .args(arguments)
            .envs(
                self.settings
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command of the edge to its end and returns what it printed.
    pub async fn command(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let output = self
            .program(name, arguments)
            .stderr(Stdio::piped())
            .output()
            .await
            .with_context(|| format!("starting {}", self.binary.display()))?;
        ensure!(
            output.status.success(),
            "firn-edge {name} failed: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command that must fail with `code`, and returns everything it said.
    pub async fn refused(&self, code: i32, name: &str, arguments: &[&str]) -> Result<String> {
        let output = tokio::time::timeout(START_TIMEOUT, self.program(name, arguments).output()).await??;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            output.status.code() == Some(code),
            "firn-edge {name} ended with {}, not {code}: {said}",
            output.status
        );
        Ok(said)
    }

    /// Starts the edge and waits until it serves.
    pub async fn start(&mut self) -> Result<()> {
        self.start_with(&[]).await
    }

    /// The same with more arguments for `run`.
    pub async fn start_with(&mut self, arguments: &[&str]) -> Result<()> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.config.with_file_name("edge.log"))?;
        let mut child = self
            .program("run", arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        self.child = Some(child);
        loop {
            match tokio::time::timeout(START_TIMEOUT, lines.next_line()).await?? {
                Some(line) if line.starts_with("serving on") => return Ok(()),
                Some(_) => {}
                None => bail!("the edge ended at its start: {}", self.last_words()),
            }
        }
    }

    /// The end of its log, which goes with the directory.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.config.with_file_name("edge.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
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
        let status = tokio::time::timeout(START_TIMEOUT, child.wait()).await??;
        ensure!(status.success(), "the edge did not end well: {status}");
        Ok(())
    }

    /// Waits until everything is in the cloud.
    pub async fn sync(&self) -> Result<()> {
        self.command("sync", &[]).await.map(drop)
    }

    /// Waits until the edge ends by itself; its exit code, and its last lines.
    pub async fn ended(&mut self, limit: Duration) -> Result<(Option<i32>, String)> {
        let mut child = self.child.take().context("the edge does not run")?;
        let status = tokio::time::timeout(limit, child.wait()).await;
        let status = status.context("the edge goes on")??;
        let log = fs::read_to_string(self.config.with_file_name("edge.log"))?;
        let from = log.len().saturating_sub(4096);
        Ok((status.code(), log.get(from..).unwrap_or(&log).to_owned()))
    }

    /// The process, if it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// What `status` shows.
    pub async fn status(&self) -> Result<serde_json::Value> {
        let text = self.command("status", &["--output", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// What the edge counted since its start.
    pub async fn counters(&mut self) -> Result<Counters> {
        let status = self.status().await?;
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

    /// Removes every cached object, and what waits to be read back. The edge must not run.
    pub fn wipe_cache(&self) -> Result<()> {
        ensure!(self.child.is_none(), "the cache of a running edge is not touched");
        for copies in ["cache", "unconfirmed"] {
            let copies = self.state.join(copies);
            ensure!(copies.is_dir(), "{} is not there", copies.display());
            remove(&copies)?;
        }
        Ok(())
    }
}

/// A program of Firn's that was built with the one that asks.
///
/// # Errors
/// If it was not; `how` says how it is.
pub fn program(name: &str, how: &str) -> Result<PathBuf> {
    // A test's program is one directory further down.
    let beside = std::env::current_exe()?.with_file_name(name);
    let above = beside
        .parent()
        .and_then(Path::parent)
        .map(|above| above.join(name));
    let binary = above
        .filter(|above| !beside.is_file() && above.is_file())
        .unwrap_or(beside);
    ensure!(
        binary.is_file(),
        "{} is not there; build it with the same profile: {how}",
        binary.display()
    );
    Ok(binary)
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}
