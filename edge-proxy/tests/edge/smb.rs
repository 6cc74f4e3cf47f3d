//! SMB as its clients meet it: the distribution's smbd under the edge, the distribution's smbclient, beside NFS.
//!
//! Left out, and said, where this machine has no FUSE, no Samba, or the tests do not run as root; `scripts/test smb` fails there.

mod access_log;
mod across;
mod agent;
mod bad_input;
mod cases;
mod durability;
mod explanations;
mod floods;
mod locks;
mod protocols;
mod raw_client;
mod supervision;

use crate::{
    locks::LockClient,
    machine::{Cloud, Machine, TIMEOUT, free_port, status},
};
use firn_nfs::nlm::LockStatus;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    time::{Duration, Instant},
};

const ALICE: &str = "alice%first secret";
const BOB: &str = "bob%second secret";

/// An edge that shares its volume, and its port.
struct Shared {
    edge: Machine,
    port: u16,
    directory: PathBuf,
}

/// Without its own export, which follows in `more`.
fn shared(cloud: &Cloud, more: &str) -> Option<Shared> {
    for needed in ["/dev/fuse", "/usr/sbin/smbd", "/usr/bin/smbclient"] {
        if !Path::new(needed).exists() || !rustix::process::geteuid().is_root() {
            assert!(
                std::env::var_os("FIRN_TEST_SMB").is_none(),
                "{needed} and root are needed"
            );
            eprintln!("SKIPPED: nothing about SMB was tested, for which {needed} and root are needed");
            return None;
        }
    }
    let edge = Machine::new(cloud, "edge", "main");
    let port = free_port();
    let text = format!(
        r#"
[smb]
listen = "127.0.0.1"
port = {port}
server_name = "EDGE"
{more}
"#
    );
    edge.configure(cloud, "edge", "main", &text);
    edge.edit("[log]", "[export.smb]\nshare = \"files\"\n[log]");
    let phrase = edge.config.with_file_name("phrase");
    edge.succeed(&[
        "format",
        "--root-mode",
        "1777",
        "--phrase-file",
        phrase.to_str().expect("a path"),
    ]);
    Some(Shared {
        edge,
        port,
        directory: cloud.path().to_owned(),
    })
}

impl Shared {
    fn add_user(&self, who: &str, more: &[&str]) -> String {
        let (name, password) = who.split_once('%').expect("name%password");
        let arguments = [&["smb", "user", "add", name], more].concat();
        self.with_password(&arguments, password)
    }

    /// A command that reads a password.
    fn with_password(&self, arguments: &[&str], password: &str) -> String {
        let mut child = self
            .edge
            .prepared(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("firn-edge runs");
        writeln!(child.stdin.take().expect("piped"), "{password}").expect("written");
        let output = child.wait_with_output().expect("an end");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn start(&mut self) {
        self.edge.start(&[]);
        self.until_served();
    }

    fn until_served(&self) -> serde_json::Value {
        self.until(|smb| smb["state"] == "serving")
    }

    /// Waits for a state of SMB.
    fn until(&self, condition: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let began = Instant::now();
        loop {
            let smb = status(&self.edge)["smb"].take();
            if condition(&smb) {
                return smb;
            }
            assert!(began.elapsed() < 4 * TIMEOUT, "{smb}: {}", self.edge.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn client(&self, who: &str, share: &str, more: &[&str]) -> Command {
        let mut command = Command::new("smbclient");
        command
            .env("HOME", &self.directory)
            .current_dir(&self.directory)
            .args([
                "--configfile=/dev/null",
                "--port",
                &self.port.to_string(),
                "--user",
                who,
                "--max-protocol=SMB3",
            ])
            .args(more)
            .arg(format!("//127.0.0.1/{share}"))
            .stdin(Stdio::null());
        command
    }

    /// Commands of smbclient, at once.
    fn try_run(&self, who: &str, share: &str, commands: &str) -> Output {
        let mut client = self.client(who, share, &[]);
        client
            .args(["--command", commands])
            .output()
            .expect("smbclient runs")
    }

    /// Commands that must succeed; smbclient's exit status is that of the last.
    fn run(&self, who: &str, share: &str, commands: &str) -> String {
        let output = self.try_run(who, share, commands);
        let said = said(&output);
        assert!(
            output.status.success() && !said.contains("NT_STATUS_"),
            "{commands}: {said}"
        );
        said
    }

    /// Commands that must fail with this status.
    fn refused(&self, who: &str, share: &str, commands: &str, with: &str) {
        let output = self.try_run(who, share, commands);
        let said = said(&output);
        assert!(
            !output.status.success() && said.contains(with),
            "{commands}: {said}"
        );
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// All processes that have this in their command line, by number.
fn processes(of: &Path) -> Vec<u32> {
    let of = of.to_str().expect("a path");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("processes") {
        let name = entry.expect("an entry").file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if line.contains("smbd") && line.contains(of) {
            found.push(id);
        }
    }
    found
}

/// The smbd that accepts connections: the first child of the shell that is the first process in its namespace.
fn smbd(edge: &Machine) -> rustix::process::Pid {
    let own = processes(&edge.state);
    let is_smbd = |id: &&u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.starts_with(b"/usr/sbin/smbd\0")
    };
    let first = own.iter().filter(is_smbd).min().expect("an smbd");
    rustix::process::Pid::from_raw(i32::try_from(*first).expect("a number")).expect("not 0")
}

/// What `smbstatus` lists, as an administrator asks it.
fn connected(edge: &Shared) -> String {
    let runs = status(&edge.edge)["smb"]["process"].as_u64().expect("a process");
    let first = fs::read_to_string(format!("/proc/{runs}/task/{runs}/children")).expect("its child");
    let configuration = edge.edge.state.join("smb/smb.conf");
    let mut smbstatus = Command::new("nsenter");
    smbstatus
        .args(["-t", first.trim(), "-p", "-m", "smbstatus", "--processes", "-s"])
        .arg(configuration);
    said(&smbstatus.output().expect("smbstatus runs"))
}

/// smbclient that stays connected.
struct Connected {
    child: Child,
    input: Option<ChildStdin>,
}

impl Connected {
    fn new(edge: &Shared, options: &[&str]) -> Self {
        let mut child = edge
            .client(ALICE, "files", options)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("smbclient runs");
        let input = child.stdin.take();
        Self { child, input }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn clients_of_smb_and_nfs_see_each_others_files() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    assert!(edge.edge.succeed(&["smb", "user", "list"]).contains("no users"));
    edge.start();
    edge.until(|smb| {
        smb["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("nobody can log in"))
    });
    // smbd sees a user that is added while it runs.
    edge.add_user(ALICE, &["--uid", "1001", "--group", "staff:3000"]);
    let nfs = edge.edge.client().await;
    let here = cloud.path();
    fs::write(here.join("local"), b"from a client of SMB").expect("written");
    edge.run(
        ALICE,
        "files",
        "put local; mkdir directory; put local directory/second",
    );
    assert_eq!(
        nfs.read("local").await.as_deref(),
        Some(&b"from a client of SMB"[..])
    );
    // Root's file over NFS would be nobody else's to read.
    edge.run(ALICE, "files", "put local remote");
    nfs.write_at("remote", 0, b"from a client of NFS").await;
    edge.run(ALICE, "files", "get remote");
    assert_eq!(
        fs::read(here.join("remote")).expect("got"),
        b"from a client of NFS"
    );
    for round in 0..5_u8 {
        let content = vec![b'a' + round; 1 + usize::from(round) * 9000];
        nfs.write_at("remote", 0, &content).await;
        edge.run(ALICE, "files", "get remote");
        assert!(
            fs::read(here.join("remote")).expect("got").starts_with(&content),
            "round {round}"
        );
    }
    let listed = edge.run(
        ALICE,
        "files",
        "rename local moved; del directory/second; rmdir directory; ls",
    );
    assert!(
        listed.contains("moved") && !listed.contains("directory"),
        "{listed}"
    );
    assert!(nfs.read("local").await.is_none());
    assert_eq!(
        nfs.read("moved").await.as_deref(),
        Some(&b"from a client of SMB"[..])
    );
    // Larger than a request, than a block, than what is kept in memory.
    let large: Vec<u8> = (0..40_000_000_u32)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(here.join("large"), &large).expect("written");
    edge.run(ALICE, "files", "put large");
    edge.run(ALICE, "files", "get large back");
    assert!(fs::read(here.join("back")).expect("got") == large);
    let seen = status(&edge.edge);
    assert_eq!(seen["smb"]["users"], 0, "as of its start: {}", seen["smb"]);
    assert!(
        seen["smb"]["mount"]["requests"].as_u64() > Some(100),
        "{}",
        seen["smb"]
    );
    let text = edge.edge.succeed(&["status"]);
    assert!(text.contains("SMB             serving"), "{text}");
    edge.edge.stop();
    assert!(processes(&edge.edge.state).is_empty());
    edge.start();
    assert!(edge.run(ALICE, "files", "ls").contains("moved"));
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}

#[test]
fn who_may_not_is_refused() {
    let cloud = Cloud::new();
    let exports = r#"
[[export]]
path = "/team"
clients = ["127.0.0.0/8"]
[export.smb]
share = "team$"
users = ["@staff"]
[[export]]
path = "/reading"
clients = []
read_only_clients = ["127.0.0.0/8"]
[export.smb]
share = "reading"
[[export]]
path = "/elsewhere"
clients = ["192.0.2.0/24"]
[export.smb]
share = "elsewhere"
[[export]]
path = "/everybody"
clients = ["127.0.0.0/8"]
squash = "all"
anonymous_uid = 4321
anonymous_gid = 4322
[export.smb]
share = "everybody"
"#;
    let Some(mut edge) = shared(&cloud, exports) else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001", "--group", "staff:3000"]);
    edge.add_user(BOB, &["--uid", "1002", "--gid", "1000"]);
    edge.start();
    fs::write(cloud.path().join("local"), b"content").expect("written");
    edge.run(ALICE, "files", "put local");
    edge.refused("alice%wrong", "files", "ls", "NT_STATUS_LOGON_FAILURE");
    edge.refused("root%", "files", "ls", "NT_STATUS_");
    edge.refused("%", "files", "ls", "NT_STATUS_");
    edge.run(ALICE, "team$", "ls");
    edge.refused(BOB, "team$", "ls", "NT_STATUS_ACCESS_DENIED");
    edge.run(BOB, "reading", "get local got");
    edge.refused(BOB, "reading", "put local", "NT_STATUS_ACCESS_DENIED");
    edge.refused(BOB, "elsewhere", "ls", "NT_STATUS_ACCESS_DENIED");
    // Files of one do not open for another, and modes hold as they do over NFS.
    edge.refused(BOB, "files", "put local", "NT_STATUS_ACCESS_DENIED");
    edge.run(BOB, "everybody", "put local theirs");
    // By dialects that cannot encrypt.
    for dialect in ["NT1", "SMB2", "SMB2_10"] {
        let oldest = format!("--option=client min protocol={dialect}");
        let newest = format!("--max-protocol={dialect}");
        let mut client = edge.client(ALICE, "files", &[&oldest, &newest]);
        let output = client.args(["--command", "ls"]).output().expect("smbclient runs");
        assert!(!output.status.success(), "{dialect}: {}", said(&output));
    }
    // And by the oldest that can.
    let mut client = edge.client(ALICE, "files", &["--max-protocol=SMB3_00"]);
    let output = client.args(["--command", "ls"]).output().expect("smbclient runs");
    assert!(output.status.success(), "{}", said(&output));
    // One that could and does not want to has no choice.
    let unwilling = Connected::new(&edge, &["--client-protection=sign"]);
    edge.until(|smb| smb["connections"].as_u64() > Some(0));
    let began = Instant::now();
    loop {
        let listed = connected(&edge);
        if let Some(line) = listed.lines().find(|line| line.contains("alice")) {
            assert!(line.contains("SMB3_11") && line.contains("AES-"), "{listed}");
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{listed}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(unwilling);
    let mut browse = edge.client(ALICE, "", &[]);
    let output = browse
        .args(["--list", "127.0.0.1"])
        .output()
        .expect("smbclient runs");
    let shares = said(&output);
    assert!(
        shares.contains("reading") && !shares.contains("team$"),
        "{shares}"
    );
    // A user who is gone, and one with another password.
    assert!(edge.edge.succeed(&["smb", "user", "list"]).contains("staff:3000"));
    edge.edge.succeed(&["smb", "user", "remove", "bob"]);
    edge.refused(BOB, "files", "ls", "NT_STATUS_LOGON_FAILURE");
    edge.with_password(&["smb", "user", "passwd", "alice"], "third secret");
    edge.refused(ALICE, "files", "ls", "NT_STATUS_LOGON_FAILURE");
    edge.run("alice%third secret", "files", "ls");
    let said = edge.edge.fail(2, &["smb", "user", "remove", "bob"]);
    assert!(said.contains("there is no user bob"), "{said}");
    edge.edge.stop();
    let log = fs::read_to_string(edge.edge.state.join("smb/log/log.smbd")).expect("a log");
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn snapshots_are_previous_versions() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let here = cloud.path();
    fs::write(here.join("report"), b"first").expect("written");
    edge.run(ALICE, "files", "mkdir directory; put report directory/report");
    edge.edge.succeed(&["snapshot", "create", "before the change"]);
    fs::write(here.join("report"), b"second").expect("written");
    edge.run(ALICE, "files", "put report directory/report");
    let info = edge.run(ALICE, "files", "allinfo directory/report");
    let version = info.lines().find_map(|line| line.trim().strip_prefix("@GMT-"));
    let version = version.unwrap_or_else(|| panic!("no version: {info}"));
    edge.run(
        ALICE,
        "files",
        &format!("get @GMT-{version}/directory/report old; get directory/report new"),
    );
    assert_eq!(fs::read(here.join("old")).expect("got"), b"first");
    assert_eq!(fs::read(here.join("new")).expect("got"), b"second");
    edge.refused(
        ALICE,
        "files",
        &format!("put report @GMT-{version}/directory/report"),
        "NT_STATUS_",
    );
    edge.edge.stop();
}

#[tokio::test]
async fn a_file_that_an_nfs_client_has_locked_is_not_written_over_smb() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let here = cloud.path();
    fs::write(here.join("file"), b"content").expect("written");
    edge.run(ALICE, "files", "put file");
    let nfs = edge.edge.client().await;
    let locker = LockClient::new(&edge.edge, &nfs, "client", "file").await;
    let began = Instant::now();
    while locker.lock_unmonitored().await != Some(LockStatus::Granted) {
        assert!(began.elapsed() < TIMEOUT, "never granted");
        std::thread::sleep(Duration::from_millis(100));
    }
    edge.refused(ALICE, "files", "get file got", "NT_STATUS_FILE_LOCK_CONFLICT");
    fs::write(here.join("other"), b"others").expect("written");
    edge.refused(ALICE, "files", "put other file", "NT_STATUS_FILE_LOCK_CONFLICT");
    assert_eq!(locker.unlock().await, Some(LockStatus::Granted));
    edge.run(ALICE, "files", "put other file; get file got");
    assert_eq!(fs::read(here.join("got")).expect("got"), b"others");
    edge.edge.stop();
}

#[test]
fn a_configuration_that_would_not_be_served_is_refused() {
    let cloud = Cloud::new();
    let Some(edge) = shared(&cloud, "") else {
        return;
    };
    let text = fs::read_to_string(&edge.edge.config).expect("a configuration");
    edge.edge.succeed(&["check-config"]);
    for (from, to, said) in [
        ("[export.smb]\nshare = \"files\"", "", "it shares nothing"),
        (
            "share = \"files\"",
            "share = \"ipc$\"",
            "cannot be a share's name",
        ),
        ("share = \"files\"", "share = \"a/b\"", "cannot be a share's name"),
        (
            "share = \"files\"",
            "share = \"files\"\nusers = [\"Alice\"]",
            "cannot be a name",
        ),
        (
            "clients = [\"127.0.0.0/8\"]",
            "clients = [\"127.0.0.0/8\"]\nread_only_clients = [\"10.0.0.0/8\"]",
            "a share is for either",
        ),
        (
            "server_name = \"EDGE\"",
            "server_name = \"A NAME\"",
            "smb.server_name",
        ),
        (
            "server_name = \"EDGE\"",
            "minimum_protocol = \"smb2\"",
            "SMB2 cannot encrypt",
        ),
        ("server_name = \"EDGE\"", "connections = 0", "smb.connections"),
        (
            "server_name = \"EDGE\"",
            "exclusive = true\n[[mount]]\npath = \"/srv/x\"",
            "smb.exclusive",
        ),
        ("[smb]", "[smb]\nguests = true", "guests"),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&edge.edge.config, text.replace(from, to)).expect("written");
        let message = edge.edge.fail(2, &["check-config"]);
        assert!(message.contains(said), "{to}: {message}");
    }
    for of_others in ["follow = true", "shared = true"] {
        let text = text.replacen("[volume]", &format!("[volume]\n{of_others}"), 1);
        fs::write(&edge.edge.config, &text).expect("written");
        edge.edge.succeed(&["check-config"]);
        let cached = text.replace("server_name = \"EDGE\"", "exclusive = true");
        fs::write(&edge.edge.config, cached).expect("written");
        let message = edge.edge.fail(2, &["check-config"]);
        assert!(
            message.contains("other edges change the volume"),
            "{of_others}: {message}"
        );
    }
}
