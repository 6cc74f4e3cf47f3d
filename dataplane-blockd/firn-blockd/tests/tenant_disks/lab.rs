//! A service over TLS and three disk nodes in this process, and people whose machines run `firn` and `firn-blockd`.

use firn_api::{App, FileMailer, Fleet, Limits, Listening, MasterSecret, NoCloud, POLICY, Parts, RegoPolicy};
use firn_blockd::{NodeSection, Operator, Size, coordinate, start_node};
use firn_blockd_node::Node;
use firn_blockd_placement::Placement;
use firn_blockd_protocol::{Replication, RowIndex};
use firn_env::Env;
use firn_identity::pem;
use firn_table::{RedbTable, Table};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

/// Far longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(300);
const NODES: usize = 3;
const TRUST_DOMAIN: &str = "firn.test";

/// `firn`: built beside the program under test.
fn firn() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_firn-blockd")).with_file_name("firn");
    assert!(
        path.is_file(),
        "{} is not there: cargo build -p firn-cli",
        path.display()
    );
    path
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The service, with threads of its own: what serves connections that are open ends with them, as with a process.
struct Api {
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

pub struct Lab {
    runtime: Runtime,
    directory: TempDir,
    env: Env,
    placement: Placement,
    table: Arc<dyn Table>,
    address: SocketAddr,
    capability_seconds: u64,
    api: Option<Api>,
    nodes: Vec<Node>,
}

impl Lab {
    /// A service whose capabilities hold for so many seconds.
    pub fn new(capability_seconds: u64) -> Self {
        let runtime = Runtime::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("api")).unwrap();
        let env = firn_env::real(&directory.path().join("api")).unwrap();
        let open = |name: &str| {
            let (env, path) = (env.clone(), directory.path().join(name));
            async move { Arc::new(RedbTable::open(&env, &path).await.unwrap()) as Arc<dyn Table> }
        };
        let (table, rows) = runtime.block_on(async { (open("api.redb").await, open("cluster.redb").await) });
        let placement = Placement::new(env.clone(), rows, "main").unwrap();
        let authority = master().authority(TRUST_DOMAIN).unwrap();
        let text = pem("CERTIFICATE", authority.certificate()).to_string();
        fs::write(directory.path().join("authority.pem"), text).unwrap();
        let nodes = runtime.block_on(nodes(&env, directory.path(), &placement));
        // Free now, and nobody else's until it is taken, as far as one can know.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lab = Self {
            runtime,
            address: free.local_addr().unwrap(),
            directory,
            env,
            placement,
            table,
            capability_seconds,
            api: None,
            nodes,
        };
        drop(free);
        lab.start_api();
        lab
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub fn start_api(&mut self) {
        let app = App::new(Parts {
            env: self.env.clone(),
            table: self.table.clone(),
            master: master(),
            policy: Arc::new(RegoPolicy::compile(POLICY).unwrap()),
            mailer: Arc::new(FileMailer::new(&self.env)),
            placement: Arc::new(Fleet::new(self.placement.clone())),
            pool: None,
            fleet_tenant: None,
            cloud: Arc::new(NoCloud),
            issuer: "https://firn.test".into(),
            machine_server: None,
            trust_domain: TRUST_DOMAIN.into(),
            token_generation: 0,
            disk_capability_seconds: self.capability_seconds,
            spread_ledger: false,
            limits: Limits::default(),
        })
        .unwrap();
        let (stop, stopped) = oneshot::channel();
        let (ready, told) = oneshot::channel();
        let listening = Listening::new(self.address, Some(vec!["localhost".into()]), "1");
        let runtime = Runtime::new().unwrap();
        let serving = runtime.spawn(async move {
            let stop = async move {
                let _ = stopped.await;
            };
            let ready = |_| ready.send(()).expect("it is waited for");
            firn_api::serve(&app, &listening, ready, stop).await.unwrap();
        });
        runtime.block_on(told).expect("it listens");
        self.api = Some(Api {
            runtime,
            stop,
            serving,
        });
    }

    /// Ends the service: nobody listens afterwards, and nobody is connected.
    pub fn stop_api(&mut self) {
        let Api {
            runtime,
            stop,
            serving,
        } = self.api.take().expect("it runs");
        stop.send(()).unwrap();
        runtime.block_on(serving).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(10));
    }

    /// What the newest letter says after `Code: `.
    fn code(&self) -> Option<String> {
        let letters = fs::read_dir(self.directory.path().join("api/mail")).ok()?;
        let mut letters: Vec<PathBuf> = letters.map(|entry| entry.unwrap().path()).collect();
        letters.sort();
        let text = fs::read_to_string(letters.last()?).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("Code: "))
            .map(str::to_owned)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.api.is_some() {
            self.stop_api();
        }
        for node in self.nodes.drain(..) {
            self.runtime.block_on(node.stop());
        }
    }
}

fn master() -> MasterSecret {
    MasterSecret::new(&[42; 32])
}

async fn nodes(env: &Env, directory: &Path, placement: &Placement) -> Vec<Node> {
    let authority = master().authority(TRUST_DOMAIN).unwrap();
    let operator = Arc::new(Operator::with(env, authority, master().capabilities()));
    placement.initialise([16; 3]).await.unwrap();
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let name = format!("node-{number}");
        let section = NodeSection {
            directory: directory.join(&name),
            size: Size(320 << 20),
            listen: "127.0.0.1:0".into(),
            advertise: None,
            domain: name,
            model: None,
            rotates: false,
            dead_after_seconds: 60,
            connections: 1024,
            memory: Size(256 << 20),
            metrics: None,
        };
        fs::create_dir(&section.directory).unwrap();
        let env = firn_env::real(&section.directory).unwrap();
        let node = start_node(&env, placement, &section, |id| operator.node(id))
            .await
            .unwrap();
        if number == 0 {
            coordinate(&env, placement, &section, Duration::from_secs(3));
        }
        nodes.push(node);
    }
    let most = Replication::new(3).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while placement.row(most, RowIndex(0)).await.unwrap().active().count() < NODES {
        assert!(Instant::now() < deadline, "the nodes do not register");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    nodes
}

/// Somebody with a machine of their own.
pub struct Person {
    pub directory: PathBuf,
}

pub struct Told(pub Output);

impl Told {
    pub fn code(&self) -> i32 {
        self.0.status.code().expect("it ended by itself")
    }

    pub fn text(&self) -> String {
        format!(
            "{}{}",
            String::from_utf8_lossy(&self.0.stdout),
            String::from_utf8_lossy(&self.0.stderr)
        )
    }

    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code(), 0, "{}", self.text());
        self
    }

    /// It ended with this code, and said this.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &str) {
        let text = self.text();
        assert_eq!(self.code(), code, "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// A `firn disk attach` at work.
pub struct Attached {
    child: Child,
    lines: mpsc::Receiver<String>,
    log: PathBuf,
    pub uri: String,
}

impl Person {
    /// A new customer.
    pub fn sign_up(lab: &Lab, name: &str) -> Self {
        let person = Self::at(lab, name);
        let (server, authority) = (
            format!("https://localhost:{}", lab.address.port()),
            lab.path("authority.pem"),
        );
        let (email, phrase) = (format!("{name}@one.example"), person.path("phrase"));
        let before = lab.code();
        let mut child = person
            .command(&["signup", "--server", &server, "--authority", &authority])
            .args(["--email", &email, "--name", "One", "--phrase-file", &phrase])
            .spawn()
            .unwrap();
        eventually("a letter", || lab.code().is_some() && lab.code() != before);
        let code = lab.code().unwrap();
        writeln!(child.stdin.take().unwrap(), "{code}").unwrap();
        Told(child.wait_with_output().unwrap()).good();
        person
    }

    fn at(lab: &Lab, name: &str) -> Self {
        let directory = lab.directory.path().join(name);
        fs::create_dir(&directory).unwrap();
        Self { directory }
    }

    /// Another machine of the same customer.
    pub fn elsewhere(&self, lab: &Lab, name: &str) -> Self {
        let other = Self::at(lab, name);
        fs::copy(self.path("profile.json"), other.path("profile.json")).unwrap();
        other
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(firn());
        command
            .args(["--profile", &self.path("profile.json")])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a command and lets it run.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    pub fn firn(&self, arguments: &[&str]) -> Told {
        let mut child = self.command(arguments).spawn().unwrap();
        drop(child.stdin.take());
        Told(child.wait_with_output().unwrap())
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let told = self.firn(&[&["--output", "json"], arguments].concat()).good();
        serde_json::from_slice(&told.0.stdout).unwrap()
    }

    /// Attaches a disk and waits until it is served.
    pub fn attach(&self, disk: &str, more: &[&str]) -> Attached {
        let id = self.json(&["disk", "show", disk])["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let log = self.directory.join("attach.log");
        let mut child = self
            .command(&["disk", "attach", disk])
            .args(more)
            .stderr(fs::File::create(&log).unwrap())
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
        let mut attached = Attached {
            child,
            lines,
            log,
            uri: format!(
                "nbd+unix:///{id}?socket={}",
                self.path(&format!("disks/{id}.sock"))
            ),
        };
        attached.wait_for_line("is served at");
        attached
    }

    /// Where the machine has the key of a disk.
    pub fn key_of(&self, disk: &str) -> PathBuf {
        let id = self.json(&["disk", "show", disk])["id"]
            .as_str()
            .unwrap()
            .to_owned();
        self.directory.join(format!("disks/{id}.key"))
    }
}

impl Attached {
    pub fn wait_for_line(&mut self, words: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(words) => return,
                Ok(_) => {}
                Err(error) => panic!("{words}: {error}: {}", self.log()),
            }
        }
    }

    /// What it wrote into its log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// As Ctrl-C.
    pub fn interrupt(&self) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-INT", &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// With what code and which last words it ends.
    pub fn ended(mut self) -> (i32, String) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let said: Vec<String> = self.lines.iter().collect();
                return (
                    status.code().expect("it ended by itself"),
                    format!("{}\n{}", said.join("\n"), self.log()),
                );
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets QEMU's NBD client do something with a disk; what it says, and whether it was done.
pub fn qemu_io(uri: &str, command: &str) -> (bool, String) {
    let output = Command::new("qemu-io")
        .args(["-f", "raw", "-c", command, uri])
        .output()
        .expect("qemu-io is installed");
    let text = Told(output.clone()).text();
    (output.status.success() && !text.contains("failed"), text)
}

#[track_caller]
pub fn done(uri: &str, command: &str) {
    let (is_done, text) = qemu_io(uri, command);
    assert!(is_done, "{command}: {text}");
}
