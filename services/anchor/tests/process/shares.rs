//! Two offices, the users of one on its mount and those of the other on SMB, by the distribution's Samba: what either saves the other finds.
//!
//! Left out, and said, where this machine has no FUSE, no Samba, or the tests do not run as root; with FIRN_TEST_SMB they fail there.

use crate::{
    edge,
    mounted::{Unmounted, can_mount},
    offices,
    place::Place,
    volume,
};
use firn_rig::Edge;
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(120);
const PASSWORD: &str = "first secret";

fn can_share() -> bool {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    let has = |program: &&str| Path::new(program).exists();
    let can = can_mount() && is_root && ["/usr/sbin/smbd", "/usr/bin/smbclient"].iter().all(has);
    assert!(
        can || std::env::var_os("FIRN_TEST_SMB").is_none(),
        "smbd, smbclient, /dev/fuse and root are needed"
    );
    if !can {
        eprintln!(
            "SKIPPED: nothing about SMB in two offices was tested, for which Samba, /dev/fuse and root are needed"
        );
    }
    can
}

/// An office's share, as smbclient reaches it.
struct Share<'a> {
    port: u16,
    /// Where it puts what it gets.
    here: &'a Path,
}

impl Share<'_> {
    fn tried(&self, commands: &str) -> (bool, String) {
        let output = Command::new("smbclient")
            .env("HOME", self.here)
            .current_dir(self.here)
            .args(["--configfile=/dev/null", "--port", &self.port.to_string()])
            .args([
                "--user",
                &format!("alice%{PASSWORD}"),
                "--max-protocol=SMB3",
                "--timeout=120",
            ])
            .args(["//127.0.0.1/files", "-c", commands])
            .output()
            .unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn run(&self, commands: &str) -> String {
        let (is_done, text) = self.tried(commands);
        assert!(is_done && !text.contains("NT_STATUS"), "{commands}: {text}");
        text
    }

    fn got(&self, name: &str) -> String {
        self.run(&format!("get \"{name}\" got"));
        fs::read_to_string(self.here.join("got")).unwrap()
    }

    fn put(&self, text: &str, name: &str) {
        fs::write(self.here.join("put"), text).unwrap();
        self.run(&format!("put put \"{name}\""));
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn add_user(edge: &Edge) {
    let mut child = Command::new(Edge::binary().unwrap())
        .arg("--config")
        .arg(&edge.config)
        .args([
            "smb",
            "user",
            "add",
            "alice",
            "--uid",
            "1001",
            "--group",
            "staff:3000",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{PASSWORD}").unwrap();
    assert!(child.wait().unwrap().success());
    let began = Instant::now();
    loop {
        let smb = edge.status().await.unwrap()["smb"].clone();
        if smb["state"] == "serving" {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{smb}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn for_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Anchor, edges, the port of the share, and what a test that fails leaves.
type Opened = (Place, [Edge; 2], u16, [Unmounted; 2]);

/// Office one has a mount, office two SMB. What office two may, and how the two say so, is the caller's.
async fn open(here: &Path, role: &str, lines: [&str; 2]) -> Opened {
    let grants = [(&edge(1), volume(1), "edge"), (&edge(2), volume(1), role)];
    let at = here.join("at-one");
    fs::create_dir(&at).unwrap();
    let unmounted = [at.clone(), here.join("two/state/smb/mnt")].map(Unmounted);
    let port = free_port();
    let mounted = format!("[[mount]]\npath = \"{}\"\n", at.display());
    let shares = format!(
        "[export.smb]\nshare = \"files\"\n[smb]\nlisten = \"127.0.0.1\"\nport = {port}\nserver_name = \"TWO\"\n"
    );
    let of_edges = [(lines[0], mounted), (lines[1], shares)];
    let (place, _, edges) = offices::open_with(here, &grants, of_edges).await;
    for_all(&at);
    edges[0].sync().await.unwrap();
    add_user(&edges[1]).await;
    (place, edges, port, unmounted)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_smb_in_one_office_and_processes_in_the_other_save_by_turns() {
    if !can_share() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let lines = "shared = true\nfreshness = \"0 s\"";
    let (_place, [mut one, mut two], port, _unmounted) = open(here, "edge", [lines, lines]).await;
    let (at, share) = (here.join("at-one"), Share { port, here });
    for turn in 0..4 {
        let text = format!("turn {turn}");
        share.put(&text, "From Two.txt");
        // Office one asks for the volume, and has what the client of SMB had been answered.
        fs::write(at.join(format!("asks-{turn}")), "").unwrap();
        assert_eq!(fs::read_to_string(at.join("From Two.txt")).unwrap(), text);
        fs::write(at.join("From One.txt"), &text).unwrap();
        let folder = format!("Folder {turn}");
        fs::create_dir(at.join(&folder)).unwrap();
        for_all(&at.join(&folder));
        fs::write(at.join(&folder).join("Inside"), &text).unwrap();
        one.sync().await.unwrap();
        assert_eq!(share.got("From One.txt"), text);
        let listed = share.run("ls");
        assert!(
            listed.contains(&folder) && listed.contains("From Two.txt"),
            "{listed}"
        );
        // Names of the other office in another case, which smbd asks of the mount's index.
        let began = Instant::now();
        let other_case = format!("FOLDER {turn}/INSIDE");
        while !share.tried(&format!("get \"{other_case}\" got")).0 {
            assert!(began.elapsed() < TIMEOUT, "{other_case}: {}", share.run("ls"));
        }
        assert_eq!(fs::read_to_string(here.join("got")).unwrap(), text);
        share.run(&format!(
            "rename \"{folder}/Inside\" \"{folder}/Moved\"; rm asks-{turn}"
        ));
        fs::write(at.join("asks"), "").unwrap();
        assert!(at.join(&folder).join("Moved").exists() && !at.join(&folder).join("Inside").exists());
        assert!(!at.join(format!("asks-{turn}")).exists());
        fs::remove_dir_all(at.join(&folder)).unwrap();
        one.sync().await.unwrap();
        let listed = share.run("ls");
        assert!(!listed.contains(&folder), "{listed}");
    }
    let of_two = two.status().await.unwrap();
    assert!(of_two["shared"]["taken"].as_u64() >= Some(4), "{of_two}");
    two.stop().await.unwrap();
    one.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_smb_read_what_the_other_office_owns_and_change_nothing() {
    if !can_share() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let follow = "follow = true\nfreshness = \"0 s\"";
    let (_place, [mut one, mut two], port, _unmounted) = open(here, "observer", ["", follow]).await;
    let (at, share) = (here.join("at-one"), Share { port, here });
    for turn in 0..3 {
        let text = format!("turn {turn}");
        fs::write(at.join("report"), &text).unwrap();
        fs::write(at.join(format!("only-{turn}")), &text).unwrap();
        one.sync().await.unwrap();
        assert_eq!(share.got("report"), text);
        assert!(share.run("ls").contains(&format!("only-{turn}")));
        fs::remove_file(at.join(format!("only-{turn}"))).unwrap();
        one.sync().await.unwrap();
        assert!(!share.run("ls").contains(&format!("only-{turn}")));
    }
    for refused in ["put got mine", "rm report", "mkdir mine", "rename report mine"] {
        let (_, text) = share.tried(refused);
        assert!(
            text.contains("NT_STATUS_ACCESS_DENIED") || text.contains("NT_STATUS_MEDIA_WRITE_PROTECTED"),
            "{refused}: {text}"
        );
    }
    two.stop().await.unwrap();
    one.stop().await.unwrap();
}
