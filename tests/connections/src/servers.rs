//! Real servers, each started for one check and ended with it.

use crate::{Protocol, Target};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use firn_rig::{EXPORT, Edge, program};
use std::{
    ffi::OsString,
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

/// Until a server serves.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// The health page of the control plane: an honest client's request.
const HEALTH: &str = "/healthz";

/// What can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `firn-edge`, for NFS.
    Edge,
    /// `firn-api` by itself.
    Api,
    /// `firn-api` behind Envoy and Open Policy Agent.
    Gateway,
    /// A disk node of `firn-blockd`, with a disk on it that works.
    Node,
}

impl Kind {
    /// What a reader knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge (NFS)",
            Self::Api => "control plane (HTTPS)",
            Self::Gateway => "gateway: Envoy, OPA, control plane (HTTPS)",
            Self::Node => "disk node (TLS)",
        }
    }

    /// The most that its processes may have resident, in bytes.
    pub fn resident_bytes_max(self) -> u64 {
        match self {
            // What an edge promises (docs/bounds.md), and a node and a disk in one process.
            Self::Edge | Self::Node => 512 << 20,
            Self::Api => 512 << 20,
            // Envoy keeps all of the crowd that its limits let in.
            Self::Gateway => 1 << 30,
        }
    }
}

/// A server that runs until this is dropped or stopped.
pub struct Server {
    /// How it is spoken to.
    pub target: Target,
    edge: Option<Edge>,
    processes: Vec<Child>,
    directory: TempDir,
}

/// The processes and files of a server that is being started.
struct Starting {
    processes: Vec<Child>,
    directory: TempDir,
}

impl Server {
    /// Starts one; an edge with so many `connections` at most.
    ///
    /// # Errors
    /// If a program is not there, or does not serve in time.
    pub async fn start(kind: Kind, connections: usize) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("firn").tempdir()?;
        let mut starting = Starting {
            processes: Vec::new(),
            directory,
        };
        let mut edge = None;
        let (protocol, address, path) = match kind {
            Kind::Edge => {
                let mut started =
                    Edge::format_local(Edge::binary()?, starting.directory.path(), |settings| {
                        settings.nfs = format!("connections = {connections}");
                    })
                    .await?;
                started.start().await?;
                let address = started.address;
                edge = Some(started);
                (Protocol::Nfs, address, EXPORT.to_owned())
            }
            Kind::Api => (Protocol::Https, starting.api(&[]).await?, HEALTH.to_owned()),
            Kind::Gateway => (Protocol::Https, starting.gateway().await?, HEALTH.to_owned()),
            Kind::Node => {
                let (address, socket) = starting.node().await?;
                (Protocol::Node, address, socket.display().to_string())
            }
        };
        let of_edge = edge.as_ref().and_then(Edge::process_id);
        let processes = starting.processes.iter().filter_map(Child::id);
        let target = Target {
            protocol,
            address,
            path,
            processes: processes.chain(of_edge).collect(),
        };
        let Starting { processes, directory } = starting;
        Ok(Self {
            target,
            edge,
            processes,
            directory,
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it had ended already, or does not end well.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(edge) = &mut self.edge {
            edge.stop().await?;
        }
        for process in &mut self.processes {
            let ended = process.try_wait()?;
            ensure!(
                ended.is_none(),
                "a server has ended by itself: {ended:?}; see {}",
                self.directory.path().display()
            );
            process.kill().await?;
        }
        Ok(())
    }
}

impl Starting {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: &Path, name: &str) -> Result<Command> {
        let mut command = Command::new(program);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.path(&format!("{name}.log")))?)
            .kill_on_drop(true);
        Ok(command)
    }

    async fn run(&self, program: &Path, arguments: &[&str]) -> Result<()> {
        let output = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("starting {}", program.display()))?;
        ensure!(
            output.status.success(),
            "{} {arguments:?}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    async fn api(&mut self, more: &[&str]) -> Result<SocketAddr> {
        let binary = program("firn-api", "cargo build -p firn-api")?;
        let path = |name: &str| self.path(name).display().to_string();
        let secret = path("secret");
        self.run(&binary, &["new-secret", &secret]).await?;
        let table = format!("redb:{}", path("api.redb"));
        let mut process = self
            .command(&binary, "firn-api")?
            .args(["serve", "--listen", "127.0.0.1:0", "--name", "localhost"])
            .args(["--table", &table, "--state", &path("state"), "--secret", &secret])
            // The crowd and the clients have one address range: their rates are not what is checked.
            .args(["--stranger-rate", "1000000", "--stranger-burst", "1000000"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("piped")?).lines();
        self.processes.push(process);
        let line = tokio::time::timeout(START_TIMEOUT, lines.next_line()).await??;
        let line = line.context("firn-api ended at its start")?;
        let (_, address) = line.rsplit_once(" on ").context("it says where it listens")?;
        Ok(address.parse()?)
    }

    async fn gateway(&mut self) -> Result<SocketAddr> {
        let installed = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).with_context(|| {
                format!("{name} is not set: run this below tests/lab/cloud/with envoy opa --")
            })
        };
        let (envoy, opa) = (installed("FIRN_TEST_ENVOY")?, installed("FIRN_TEST_OPA")?);
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let api = self.api(&["--gateway", "127.0.0.1"]).await?;
        let binary = program("firn-api", "cargo build -p firn-api")?;
        let path = |name: &str| self.path(name).display().to_string();
        let (gateway, secret) = (path("gateway"), path("secret"));
        let certify = ["certify", "gateway", "--directory", &gateway, "--secret", &secret];
        self.run(&binary, &certify).await?;
        let (certificate, key) = (path("public.pem"), path("public-key.pem"));
        let request = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ];
        self.run(Path::new("openssl"), &request).await?;
        let [https, machines, admin, policy, policy_http] = free_ports()?;
        let values = [
            ("LISTEN", "127.0.0.1".to_owned()),
            ("HTTPS_PORT", https.to_string()),
            ("MACHINE_PORT", machines.to_string()),
            ("ADMIN_PORT", admin.to_string()),
            ("OPA_PORT", policy.to_string()),
            ("CERTIFICATE", certificate),
            ("KEY", key),
            ("AUTHORITY", path("gateway/authority.pem")),
            ("API_ADDRESS", "127.0.0.1".to_owned()),
            ("API_PORT", api.port().to_string()),
            ("API_NAME", "localhost".to_owned()),
            ("ISSUER", "https://localhost:7400".to_owned()),
            ("ADDRESS_RATE", "100000".to_owned()),
            ("ADDRESS_BURST", "100000".to_owned()),
        ];
        let values: Vec<String> = values.map(|(name, value)| format!("{name}={value}")).into();
        let arguments: Vec<&str> = std::iter::once(&gateway)
            .chain(&values)
            .map(String::as_str)
            .collect();
        self.run(&project.join("services/api/gateway/render"), &arguments)
            .await?;
        let rules = ["authz", "gateway"].map(|name| project.join(format!("services/api/policy/{name}.rego")));
        let process = self
            .command(&opa, "opa")?
            .args(["run", "--server", "--disable-telemetry", "--log-level", "error"])
            .args(["--addr", &format!("127.0.0.1:{policy_http}")])
            .args(["--config-file", &path("gateway/opa.yaml")])
            .args(rules.map(OsString::from))
            .spawn()?;
        let configuration = path("gateway/envoy.yaml");
        self.processes.push(process);
        listens(policy, "Open Policy Agent").await?;
        let process = self
            .command(&envoy, "envoy")?
            .args(["-c", &configuration, "--use-dynamic-base-id"])
            .args(["--concurrency", "2", "--log-level", "error"])
            .spawn()?;
        self.processes.push(process);
        listens(https, "Envoy").await?;
        Ok(SocketAddr::from(([127, 0, 0, 1], https)))
    }

    /// A cluster of one node; the address of the node, and the socket of its disks.
    async fn node(&mut self) -> Result<(SocketAddr, PathBuf)> {
        let binary = program("firn-blockd", "cargo build -p firn-blockd")?;
        let process = self
            .command(&binary, "firn-blockd")?
            .args([
                "dev",
                "--nodes",
                "1",
                "--replication",
                "1",
                "--node-size",
                "320MiB",
                "--size",
                "64MiB",
            ])
            .arg("--directory")
            .arg(self.path("cluster"))
            .spawn()?;
        self.processes.push(process);
        let (socket, log) = (self.path("cluster/nbd.sock"), self.path("firn-blockd.log"));
        let began = tokio::time::Instant::now();
        while !socket.exists() {
            ensure!(
                began.elapsed() < START_TIMEOUT,
                "the cluster does not start: {}",
                fs::read_to_string(&log)?
            );
            tokio::time::sleep(POLL).await;
        }
        let said = fs::read_to_string(&log)?;
        let line = said.lines().find(|line| line.contains("disk node serves"));
        let (_, rest) = line
            .and_then(|line| line.split_once("address="))
            .context("the node says where it serves")?;
        let address = rest.trim_start_matches('"').split(['"', ' ']).next();
        Ok((address.context("an address")?.parse()?, socket))
    }
}

/// Ports that are free now, and nobody else's until they are taken, as far as one can know.
fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut ports = [0; COUNT];
    let mut taken = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        taken.push(listener);
    }
    Ok(ports)
}

async fn listens(port: u16, what: &str) -> Result<()> {
    let began = tokio::time::Instant::now();
    while began.elapsed() < START_TIMEOUT {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("{what} does not listen")
}
