//! A machine on which somebody runs Firn: its directory, `firn-dev` as a process, `firn` as a customer types it.

use firn_anchor::{Anchor, AnchorRole, CleaningAccount, VolumeTuple};
use firn_rig::Client;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Far longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A program of this repository, built beside `firn-dev`.
pub fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_firn-dev")).with_file_name(name);
    assert!(
        path.is_file(),
        "{} is not there: cargo build -p firn-cli -p firn-edge -p firn-dev -p firn-blockd -p firn-cleaner-standalone",
        path.display()
    );
    path
}

/// Runs a command to its end; what it printed, if it ended well.
#[track_caller]
pub fn good(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // One that does not read is gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let (said, complained) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{command:?}: {said}\n{complained}");
    said
}

/// A whole Firn in a directory, running or not.
pub struct Machine {
    pub root: PathBuf,
    pub api: SocketAddr,
    pub nfs: SocketAddr,
    /// Seconds between two runs of the cleaner, from the next start on.
    pub clean_every: u32,
    process: Option<Child>,
}

impl Machine {
    pub fn new(root: &Path) -> Self {
        let free = || SocketAddr::from(([127, 0, 0, 1], firn_rig::free_port().unwrap()));
        let (api, nfs) = (free(), free());
        Self {
            root: root.to_owned(),
            api,
            nfs,
            clean_every: 1,
            process: None,
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    pub fn server(&self) -> [String; 4] {
        [
            "--server".into(),
            format!("https://localhost:{}", self.api.port()),
            "--authority".into(),
            self.path("authority.pem"),
        ]
    }

    /// Starts `firn-dev` through `firn dev` and waits for its report.
    pub fn start(&mut self) {
        let mut child = Command::new(program("firn"))
            .args([
                "dev",
                "--empty",
                "--clean-every",
                &self.clean_every.to_string(),
                "--directory",
            ])
            .arg(&self.root)
            .args(["--api", &self.api.to_string(), "--nfs", &self.nfs.to_string()])
            .args(["--record", &self.path("received")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        self.process = Some(child);
        let ready = output
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("Stop it with: firn dev --stop"));
        assert!(ready, "it ended at its start");
    }

    /// SIGKILL: no last word.
    pub fn kill(&mut self) {
        let mut child = self.process.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// As a customer stops it.
    pub fn stop(&mut self) {
        let mut child = self.process.take().expect("it runs");
        let directory = self.root.display().to_string();
        // Waited for at once: a child that ended and was not waited for still has its number.
        let waiter = std::thread::spawn(move || child.wait().unwrap());
        good(
            Command::new(program("firn")).args(["dev", "--stop", "--directory", &directory]),
            "",
        );
        assert!(waiter.join().unwrap().success());
    }

    fn firn(&self, output: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("firn"));
        command
            .args([
                "--output",
                output,
                "--profile",
                &self.path("customer/profile.json"),
            ])
            .args(arguments);
        command
    }

    /// What a customer types, and what it shows a person.
    #[track_caller]
    pub fn shows(&self, arguments: &[&str]) -> String {
        good(&mut self.firn("table", arguments), "")
    }

    /// What a customer types, and what it answers.
    #[track_caller]
    pub fn tell(&self, arguments: &[&str], input: &str) -> Value {
        let said = good(&mut self.firn("json", arguments), input);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"))
    }

    /// A command that must be refused with this exit code.
    #[track_caller]
    pub fn refused(&self, code: i32, arguments: &[&str]) {
        let output = self
            .firn("json", arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complained}");
    }

    /// Makes a volume, sealed for whoever has the phrase of [`Machine::sign_up`].
    #[track_caller]
    pub fn make_volume(&self, name: &str) -> Value {
        let phrase = self.path("customer/phrase");
        let create = ["volume", "create", name, "--region", "local", "--phrase-file"];
        self.tell(&[&create[..], &[&*phrase]].concat(), "")
    }

    /// Signs up with the code from the letter.
    pub fn sign_up(&self) -> Value {
        fs::create_dir(self.root.join("customer")).unwrap();
        let phrase = self.path("customer/phrase");
        let server = self.server();
        let mut arguments = vec!["signup"];
        arguments.extend(server.iter().map(String::as_str));
        arguments.extend([
            "--email",
            "ada@one.example",
            "--name",
            "Büro Nord",
            "--phrase-file",
            &phrase,
        ]);
        let mut child = self
            .firn("json", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let code = wait_for("a letter", || {
            let letter = fs::read_dir(self.root.join("api/mail")).ok()?.next()?.ok()?;
            let text = fs::read_to_string(letter.path()).ok()?;
            text.lines()
                .find_map(|line| line.strip_prefix("Code: "))
                .map(str::to_owned)
        });
        let mut input = child.stdin.take().unwrap();
        input.write_all(format!("{code}\n").as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// An administrator's command to the edge.
    #[track_caller]
    pub fn edge(&self, arguments: &[&str]) -> String {
        let config = self.path("firn-edge.toml");
        good(
            Command::new(program("firn-edge"))
                .args(["--config", &config])
                .args(arguments),
            "",
        )
    }

    /// Mounts the share with a client that is not ours, as soon as it is served.
    pub async fn mount(&self) -> Client {
        mount(self.nfs, firn_rig::EXPORT).await
    }

    /// How much of a meter the ledger has by now, as `observed` or as `advisory`; of one resource or of all.
    pub fn metered(&self, meter: &str, standing: &str, resource: Option<&str>) -> u64 {
        let usage = self.tell(&["usage"], "");
        let hours = usage.as_array().unwrap().iter();
        let entries = hours.flat_map(|hour| hour["entries"].as_array().unwrap());
        entries
            .filter(|entry| entry["meter"] == meter && entry["standing"] == standing)
            .filter(|entry| resource.is_none_or(|resource| entry["resource"] == resource))
            .map(|entry| entry["quantity"].as_str().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Where the service keeps the roots of the tenant's first volume, in its table. Asks the service.
    pub fn roots_partition(&self) -> String {
        let tenant = self.tell(&["whoami"], "")["tenant"].clone();
        let volume = self.tell(&["volume", "list"], "")[0]["id"].clone();
        let id = |id: &Value| id.as_str().unwrap().to_owned();
        firn_api::roots_partition(id(&tenant).parse().unwrap(), id(&volume).parse().unwrap())
    }

    /// The tuples that are kept there. The table lets one process in at a time.
    async fn anchor(&self, kept: &str) -> Anchor {
        let env = firn_env::real(&self.root).unwrap();
        let table = firn_table::RedbTable::open(&env, &self.root.join("api.redb"))
            .await
            .unwrap();
        // The family is the edge's matter; here it stands for the one partition.
        let family = firn_format::FamilyId([0; 16]);
        Anchor::within(Arc::new(table), env, family, kept, AnchorRole::Observer)
    }

    /// The one volume whose roots are kept there. Nothing may run.
    pub async fn kept_volume(&self, kept: &str) -> VolumeTuple {
        let mut volumes = self.anchor(kept).await.volumes().await.unwrap();
        assert_eq!(volumes.len(), 1);
        volumes.remove(0).tuple
    }

    /// What cleaners noted there for the bill. Nothing may run.
    pub async fn kept_account(&self, kept: &str) -> CleaningAccount {
        let (account, _) = self.anchor(kept).await.cleaning_account().await.unwrap();
        account
    }

    /// Attaches a disk as a customer does, and waits until NBD clients find it.
    pub fn attach(&self, name: &str) -> AttachedDisk {
        // `firn` becomes it.
        program("firn-blockd");
        let id = self.tell(&["disk", "show", name], "")["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let child = self
            .firn("table", &["disk", "attach", name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let socket = self.path(&format!("customer/disks/{id}.sock"));
        let mut attached = AttachedDisk {
            name: name.to_owned(),
            nbd: format!("nbd+unix:///{id}?socket={socket}"),
            id,
            process: child,
        };
        wait_for("the disk is served", || {
            let ended = attached.process.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}");
            attached.size_bytes()
        });
        attached
    }

    /// Has a disk given back, whole.
    pub fn detach(&self, mut attached: AttachedDisk) {
        self.tell(&["disk", "detach", &attached.name], "");
        assert!(attached.process.wait().unwrap().success());
    }
}

/// A `firn disk attach` at work.
pub struct AttachedDisk {
    name: String,
    pub id: String,
    /// Where NBD clients find it.
    pub nbd: String,
    process: Child,
}

impl AttachedDisk {
    /// How large a client that connects now finds it; nothing if it cannot.
    pub fn size_bytes(&self) -> Option<u64> {
        let told = Command::new("nbdinfo")
            .args(["--size", &self.nbd])
            .output()
            .expect("nbdinfo is installed");
        String::from_utf8_lossy(&told.stdout).trim().parse().ok()
    }
}

impl Drop for AttachedDisk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub async fn mount(address: SocketAddr, export: &str) -> Client {
    let began = Instant::now();
    loop {
        match Client::mount(address, export).await {
            Ok(client) => return client,
            Err(error) => assert!(
                began.elapsed() < TIMEOUT,
                "nothing is served at {address}: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "{what}: not in {} s",
            TIMEOUT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
