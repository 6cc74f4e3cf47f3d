//! A cluster of real processes, and the programs that use its disks.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_firn-blockd");
pub const TENANT: &str = "ten_000102030405060708090a0b0c0d0e0f";
/// Far longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(400);

/// A process that is killed when its test ends.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a firn-blockd that serves, and waits for the line that says where.
    pub fn serve(arguments: &[&str], log: &Path) -> (Self, String) {
        Self::serve_by(BINARY, arguments, log)
    }

    /// The same by a program that becomes it.
    pub fn serve_by(program: &str, arguments: &[&str], log: &Path) -> (Self, String) {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(credentials())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let process = Self(child);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some((_, address)) = line.split_once(" at ").filter(|_| line.contains("serve")) {
                        return (process, address.to_owned());
                    }
                }
                Err(_) => panic!("{arguments:?}: {}", fs::read_to_string(log).unwrap()),
            }
        }
    }

    /// As `kill -9`.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Any will do for DynamoDB Local.
pub fn credentials() -> [(&'static str, &'static str); 3] {
    [
        ("AWS_ACCESS_KEY_ID", "firntest"),
        ("AWS_SECRET_ACCESS_KEY", "firntest"),
        ("AWS_REGION", "eu-central-1"),
    ]
}

pub fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .envs(credentials())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

pub fn done(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = text(&output);
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

pub struct Lab {
    directory: TempDir,
    table: String,
    node_size: &'static str,
}

impl Lab {
    pub fn new() -> Self {
        let server = std::env::var("FIRN_TEST_DYNAMODB")
            .expect("FIRN_TEST_DYNAMODB names DynamoDB Local, as `make test` starts it");
        let directory = tempfile::tempdir().unwrap();
        let unique = format!("{}-{:?}", std::process::id(), thread::current().id());
        let unique: String = unique
            .chars()
            .filter(|one| one.is_ascii_alphanumeric() || *one == '-')
            .collect();
        let lab = Self {
            table: format!("dynamodb://firn-blockd-{unique}?endpoint={server}&create=true"),
            directory,
            node_size: "320MiB",
        };
        done(BINARY, &["secret", &lab.path("secret")]);
        fs::create_dir(lab.path("snapshots")).unwrap();
        lab
    }

    /// With nodes of this size instead of 320 MiB.
    pub fn of_nodes(node_size: &'static str) -> Self {
        Self {
            node_size,
            ..Self::new()
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A configuration of this cluster for one process.
    pub fn config(&self, name: &str, secret: &str, tenant: &str, capability_seconds: u64) -> String {
        let path = self.path(&format!("{name}.toml"));
        let text = format!(
            r#"
            [cluster]
            table = "{table}"
            secret = "{secret}"
            [node]
            directory = "{directory}"
            size = "{node_size}"
            listen = "127.0.0.1:0"
            domain = "{name}"
            dead_after_seconds = 3
            [client]
            tenant = "{tenant}"
            state_directory = "{state}"
            capability_seconds = {capability_seconds}
            snapshots = "file://{snapshots}"
            "#,
            table = self.table,
            node_size = self.node_size,
            secret = self.path(secret),
            directory = self.path(&format!("{name}.disk")),
            state = self.path(&format!("{name}.run")),
            snapshots = self.path("snapshots"),
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// A cluster of three nodes with a client's configuration.
    pub fn cluster(&self, capability_seconds: u64) -> (String, Vec<(Process, String)>) {
        let config = |name: &str| self.config(name, "secret", TENANT, capability_seconds);
        let client = config("client");
        done(BINARY, &["--config", &client, "init", "--rows", "24"]);
        let nodes = (0..3)
            .map(|number| {
                let name = format!("node{number}");
                config(&name);
                self.node(&name)
            })
            .collect();
        (client, nodes)
    }

    /// Starts the node of a configuration that was written.
    pub fn node(&self, name: &str) -> (Process, String) {
        let log = PathBuf::from(self.path(&format!("{name}.log")));
        Process::serve(&["--config", &self.path(&format!("{name}.toml")), "node"], &log)
    }

    pub fn attach(&self, config: &str, socket: &str, more: &[&str]) -> (Process, String) {
        self.attach_disk(config, "disk", socket, more)
    }

    pub fn attach_disk(&self, config: &str, disk: &str, socket: &str, more: &[&str]) -> (Process, String) {
        let (key, nbd) = (self.path("disk.key"), format!("unix:{}", self.path(socket)));
        let arguments = ["--config", config, "attach", disk, "--key", &key, "--nbd", &nbd];
        let log = PathBuf::from(self.path(&format!("{socket}.log")));
        let (process, _) = Process::serve(&[&arguments[..], more].concat(), &log);
        (
            process,
            format!("nbd+unix:///{disk}?socket={}", self.path(socket)),
        )
    }

    pub fn status(&self, config: &str) -> serde_json::Value {
        let output = run(BINARY, &["--config", config, "status", "--output", "json"]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Bytes that no shift or swap of blocks leaves equal.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8)
        .flat_map(|word| (word ^ 0x5a5a_0000_1234).to_le_bytes())
        .collect()
}

pub fn qemu_io(uri: &str, commands: &[&str]) -> Output {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    run("qemu-io", &[&["-f", "raw"], &commands[..], &[uri]].concat())
}

pub fn reads(uri: &str, command: &str) {
    let output = qemu_io(uri, &[command]);
    let text = text(&output);
    assert!(
        output.status.success() && !text.contains("failed"),
        "{command}: {text}"
    );
}
