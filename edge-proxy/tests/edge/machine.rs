//! A machine for a test: a configuration, state directory, and the edge as a process. Several machines may share a cloud.

use bytes::Bytes;
use firn_env::Env;
use firn_nfs::{
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::{
        Status,
        types::{CreateHow, NewAttributes, StableHow},
    },
};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What any command may take on a loaded machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// A store and a table that machines share.
pub struct Cloud {
    pub directory: tempfile::TempDir,
}

impl Cloud {
    pub fn new() -> Self {
        // Short, since the path of a socket may have 107 bytes only.
        let directory = tempfile::Builder::new().prefix("firn").tempdir_in("/tmp");
        let directory = directory.expect("a temporary directory");
        std::fs::create_dir(directory.path().join("store")).expect("a directory");
        Self { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    fn away(&self) -> PathBuf {
        self.path().join("away")
    }

    /// No request to the store succeeds from here on: something that is no directory stands in its place.
    pub fn take_store_away(&self) {
        std::fs::rename(self.store(), self.away()).expect("renamed");
        std::fs::write(self.store(), "no directory").expect("written");
    }

    /// The store answers again, with what it had.
    pub fn bring_store_back(&self) {
        std::fs::remove_file(self.store()).expect("removed");
        std::fs::rename(self.away(), self.store()).expect("renamed");
    }

    fn table(&self) -> PathBuf {
        self.path().join("table.redb")
    }

    fn table_away(&self) -> PathBuf {
        self.path().join("table.away")
    }

    /// The table cannot be opened from here on.
    pub fn take_table_away(&self) {
        std::fs::rename(self.table(), self.table_away()).expect("renamed");
        std::fs::create_dir(self.table()).expect("a directory in its place");
    }

    /// It can be opened again, with what it had.
    pub fn bring_table_back(&self) {
        std::fs::remove_dir(self.table()).expect("removed");
        std::fs::rename(self.table_away(), self.table()).expect("renamed");
    }

    /// The segments of all logs, in the order in which they were written.
    pub fn segments(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut directories = vec![self.store()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.to_string_lossy().contains("/log/") {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

/// See the module.
pub struct Machine {
    pub config: PathBuf,
    pub state: PathBuf,
    pub port: u16,
    pub child: Option<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that is free now.
pub fn free_port() -> u16 {
    firn_rig::free_port().expect("a free port")
}

/// What `status` says, for programs.
pub fn status(machine: &Machine) -> serde_json::Value {
    serde_json::from_str(&machine.succeed(&["status", "--output", "json"])).expect("JSON")
}

impl Machine {
    pub fn new(cloud: &Cloud, name: &str, volume: &str) -> Self {
        let root = cloud.path().join(name);
        std::fs::create_dir_all(&root).expect("a directory");
        let machine = Self {
            config: root.join("firn-edge.toml"),
            state: root.join("state"),
            port: free_port(),
            child: None,
        };
        machine.configure(cloud, name, volume, "");
        machine
    }

    /// Logs what this filter lets through, from the next start on.
    pub fn log_at(&self, filter: &str) {
        let text = std::fs::read_to_string(&self.config).expect("a configuration");
        let changed = text.replace("level = \"warn\"", &format!("level = {filter:?}"));
        assert_ne!(text, changed, "the configuration has another level");
        std::fs::write(&self.config, changed).expect("written");
    }

    /// Writes the configuration; `more` is added at its end.
    pub fn configure(&self, cloud: &Cloud, name: &str, volume: &str, more: &str) {
        let (cloud, state, port) = (cloud.path().display(), self.state.display(), self.port);
        let text = format!(
            r#"
[volume]
name = "{volume}"
edge_name = "{name}"
store = "file://{cloud}/store"
table = "redb:{cloud}/table.redb"
state_directory = "{state}"
[limits]
journal = "32 MiB"
checkpoint_busy = "1 h"
checkpoint_trickle = "1 h"
[nfs]
listen = "127.0.0.1"
nfs_port = {port}
portmap = false
grace_seconds = 1
[[export]]
path = "/export"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
[log]
level = "warn"
{more}
"#
        );
        std::fs::write(&self.config, text).expect("the configuration");
    }

    /// Runs a command to its end. One that has none, as a start that was to be refused and was not, is killed.
    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = self.prepared(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("firn-edge runs");
        let pid = rustix::process::Pid::from_child(&child);
        let (ended, waiting) = mpsc::channel::<()>();
        let guard = std::thread::spawn(move || {
            if waiting.recv_timeout(COMMAND_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let output = child.wait_with_output().expect("its end");
        drop(ended);
        guard.join().expect("no panic");
        output
    }

    /// A command of this machine, to be started by the test.
    pub fn prepared(&self, arguments: &[&str]) -> Command {
        // Another build may be tried by the same tests.
        let other = std::env::var_os("FIRN_EDGE");
        let mut command = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_firn-edge").into()));
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail with this exit code, and returns everything it said.
    pub fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }

    pub fn format(&self) {
        self.format_with(&[]);
    }

    /// The same with more arguments.
    pub fn format_with(&self, more: &[&str]) {
        let phrase = self.config.with_file_name("phrase");
        let arguments = ["format", "--phrase-file", phrase.to_str().expect("a path")];
        self.succeed(&[&arguments, more].concat());
    }

    /// Starts `run` and waits until it serves.
    pub fn start(&mut self, more: &[&str]) {
        let arguments: Vec<_> = ["run"].iter().chain(more).copied().collect();
        let command = self.prepared(&arguments);
        self.start_by(command);
    }

    /// The same by another command.
    pub fn start_by(&mut self, mut command: Command) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a log");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("firn-edge starts");
        let output = child.stdout.take().expect("piped");
        self.child = Some(child);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let line = receiver
            .recv_timeout(TIMEOUT)
            .unwrap_or_else(|_| panic!("the edge does not say that it serves: {}", self.log()));
        assert!(line.starts_with("serving on"), "{line}");
    }

    fn log_path(&self) -> PathBuf {
        self.config.with_file_name("edge.log")
    }

    /// What all starts logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes everything that is cached. The edge must not run.
    pub fn wipe_cache(&self) {
        assert!(self.child.is_none(), "the cache of a running edge is not touched");
        for copies in ["cache", "unconfirmed"] {
            std::fs::remove_dir_all(self.state.join(copies)).expect("copies of segments");
        }
    }

    /// Replaces a part of the configuration.
    pub fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).expect("the configuration");
        assert!(text.contains(from), "{text}");
        std::fs::write(&self.config, text.replace(from, to)).expect("the configuration");
    }

    /// Waits until what `status` says satisfies `condition`, for half a minute.
    pub fn wait_for_status(&self, condition: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        for _ in 0..300 {
            let seen = status(self);
            if condition(&seen) {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("it did not come: {}", status(self));
    }

    /// The same of an edge that may not answer in between, since it is opened anew.
    pub fn wait_through(&self, condition: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let began = Instant::now();
        while began.elapsed() < TIMEOUT {
            let output = self.command(&["status", "--output", "json"]);
            if output.status.success() {
                let seen = serde_json::from_slice(&output.stdout).expect("JSON");
                if condition(&seen) {
                    return seen;
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("it did not come: {}", self.log());
    }

    /// Waits until it serves with the cloud.
    pub fn wait_until_attached(&self) {
        self.wait_through(|seen| seen["detached"].is_null());
    }

    /// Waits until all starts together have logged this so often.
    pub fn wait_for_log(&self, part: &str, times: usize) {
        let began = Instant::now();
        while self.log().matches(part).count() < times {
            assert!(began.elapsed() < TIMEOUT, "{part}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, and a clean end.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a signal");
        assert!(child.wait().expect("an end").success());
    }

    pub async fn client(&self) -> Files {
        self.client_of("/export").await
    }

    /// A client of this export.
    pub async fn client_of(&self, path: &str) -> Files {
        self.client_with(path, 0, Vec::new()).await
    }

    /// A client that says it is this user.
    pub async fn client_as(&self, uid: u32) -> Files {
        self.client_with("/export", uid, Vec::new()).await
    }

    /// A client that says it is this user, in these groups beside its own.
    pub async fn client_in(&self, uid: u32, groups: Vec<u32>) -> Files {
        self.client_with("/export", uid, groups).await
    }

    /// A client of this export that says it is this user.
    pub async fn client_as_of(&self, path: &str, uid: u32) -> Files {
        self.client_with(path, uid, Vec::new()).await
    }

    async fn client_with(&self, path: &str, uid: u32, groups: Vec<u32>) -> Files {
        let env = firn_env::real(&self.state).expect("an environment");
        let address = format!("127.0.0.1:{}", self.port);
        let credential = Credential::sys("client", uid, uid, groups);
        Files::mount(&env, &address, credential, path).await
    }
}

/// Whole files in the root directory, by name.
pub struct Files {
    client: NfsClient,
    root: WireHandle,
}

impl Files {
    async fn mount(env: &Env, address: &str, credential: Credential, path: &str) -> Self {
        let client = NfsClient::connect(env, address, credential, TIMEOUT)
            .await
            .expect("a connection");
        let mounted = client.mount(path).await.expect("an answer").expect("a mount");
        Self {
            client,
            root: mounted.handle,
        }
    }

    /// The same connection's calls on a directory whose handle was kept from before.
    pub fn with_root(self, root: WireHandle) -> Self {
        Self { root, ..self }
    }

    /// The client, for calls of other kinds.
    pub fn client(&self) -> &NfsClient {
        &self.client
    }

    /// The root directory.
    pub fn root(&self) -> &WireHandle {
        &self.root
    }

    /// The handle that a mount of `path` gives.
    pub async fn mounted(&self, path: &str) -> Option<WireHandle> {
        let mounted = self.client.mount(path).await.expect("an answer");
        mounted.ok().map(|mounted| mounted.handle)
    }

    /// Writes a file through to the journal.
    pub async fn write(&self, name: &str, data: &[u8]) {
        let how = CreateHow::Unchecked(NewAttributes::default());
        let made = self.client.create(&self.root, name, how).await;
        let file = made
            .expect("an answer")
            .expect("a file")
            .file
            .expect("its handle");
        let data = Bytes::copy_from_slice(data);
        let written = self.client.write(&file, 0, data, StableHow::FileSync).await;
        written.expect("an answer").expect("a write");
    }

    /// Writes a file through to the journal; `false` if the edge says that it is to be tried again later.
    pub async fn try_write(&self, name: &str, data: &[u8]) -> bool {
        let how = CreateHow::Unchecked(NewAttributes::default());
        let made = self
            .client
            .create(&self.root, name, how)
            .await
            .expect("an answer");
        let file = match made {
            Ok(made) => made.file.expect("its handle"),
            Err(failed) if failed.status == Status::Jukebox => return false,
            Err(other) => panic!("{name}: {other:?}"),
        };
        let data = Bytes::copy_from_slice(data);
        let written = self.client.write(&file, 0, data, StableHow::FileSync).await;
        match written.expect("an answer") {
            Ok(_) => true,
            Err(failed) if failed.status == Status::Jukebox => false,
            Err(other) => panic!("{name}: {other:?}"),
        }
    }

    /// Writes into a file that is there, through to the journal.
    pub async fn write_at(&self, name: &str, offset: u64, data: &[u8]) {
        let found = self.client.lookup(&self.root, name).await.expect("an answer");
        let file = found.expect("the file").file;
        let data = Bytes::copy_from_slice(data);
        let written = self.client.write(&file, offset, data, StableHow::FileSync).await;
        written.expect("an answer").expect("a write");
    }

    /// How a read of the whole file ends, if not well.
    pub async fn read_fails(&self, name: &str) -> Option<Status> {
        let found = self.client.lookup(&self.root, name).await.expect("an answer");
        let file = match found {
            Ok(found) => found.file,
            Err(failed) => return Some(failed.status),
        };
        let read = self.client.read(&file, 0, 1 << 20).await.expect("an answer");
        read.err().map(|failed| failed.status)
    }

    /// Removes a file.
    pub async fn remove(&self, name: &str) {
        let removed = self.client.remove(&self.root, name).await;
        removed.expect("an answer").expect("removed");
    }

    /// The content of a file; `None` if it is not there.
    pub async fn read(&self, name: &str) -> Option<Vec<u8>> {
        let found = self
            .client
            .lookup(&self.root, name)
            .await
            .expect("an answer")
            .ok()?;
        let read = self.client.read(&found.file, 0, 1 << 20).await;
        Some(read.expect("an answer").expect("the data").data.to_vec())
    }
}
