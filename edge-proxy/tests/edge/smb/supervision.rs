//! The supervision of smbd: what becomes of it, of other protocols and of data when it is killed, hangs, or cannot be started.

use super::{ALICE, Connected, processes, said, shared, smbd};
use crate::machine::{Cloud, TIMEOUT, free_port};
use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[tokio::test]
async fn an_smbd_that_is_killed_or_hangs_is_started_anew_and_nfs_goes_on() {
    let cloud = Cloud::new();
    let metrics = free_port();
    let Some(mut edge) = shared(&cloud, &format!("[metrics]\nlisten = \"127.0.0.1:{metrics}\"")) else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("file"), b"content").expect("written");
    edge.run(ALICE, "files", "put file");
    let nfs = edge.edge.client().await;
    let connected = Connected::new(&edge, &[]);
    edge.until(|smb| smb["connections"].as_u64() > Some(0));
    rustix::process::kill_process(smbd(&edge.edge), rustix::process::Signal::KILL).expect("killed");
    edge.until(|smb| smb["failures"] == 1);
    assert_eq!(nfs.read("file").await.as_deref(), Some(&b"content"[..]));
    edge.until_served();
    drop(connected);
    assert!(edge.run(ALICE, "files", "ls").contains("file"));
    // It runs, and does not answer.
    rustix::process::kill_process(smbd(&edge.edge), rustix::process::Signal::STOP).expect("stopped");
    let smb = edge.until(|smb| smb["failures"] == 2);
    assert_eq!(nfs.read("file").await.as_deref(), Some(&b"content"[..]));
    let reason = smb["reason"].as_str().unwrap_or_default();
    assert!(
        smb["state"] != "down" || reason.contains("did not answer"),
        "{smb}"
    );
    edge.until_served();
    assert!(edge.run(ALICE, "files", "ls").contains("file"));
    let figures = http(metrics, "/metrics");
    assert!(figures.contains("firn_smb_domain_down 0"), "{figures}");
    assert!(
        figures.contains("firn_smb_serving 1") && figures.contains("firn_smb_failures_total 2"),
        "{figures}"
    );
    assert!(http(metrics, "/healthz").ends_with("serving\n"));
    edge.edge.stop();
    assert!(processes(&edge.edge.state).is_empty());
}

fn http(port: u16, path: &str) -> String {
    use std::io::Read;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    text
}

#[test]
fn no_smbd_outlives_a_killed_edge_and_the_next_start_serves() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    for round in 0..3 {
        edge.start();
        let _connected = Connected::new(&edge, &[]);
        edge.until(|smb| smb["connections"].as_u64() > Some(0));
        fs::write(cloud.path().join("file"), format!("{round}")).expect("written");
        edge.run(ALICE, "files", &format!("put file {round}; ls"));
        edge.edge.kill();
        let began = Instant::now();
        while !processes(&edge.edge.state).is_empty() {
            assert!(
                began.elapsed() < TIMEOUT,
                "they live: {:?}",
                processes(&edge.edge.state)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    edge.start();
    let listed = edge.run(ALICE, "files", "ls");
    for round in 0..3 {
        assert!(listed.contains(&format!("  {round}  ")), "{listed}");
    }
    edge.edge.stop();
    assert!(processes(&edge.edge.state).is_empty());
}

#[tokio::test]
async fn what_keeps_smb_from_being_served_is_said_and_nfs_is_served() {
    let cloud = Cloud::new();
    let metrics = free_port();
    let Some(mut edge) = shared(&cloud, &format!("[metrics]\nlisten = \"127.0.0.1:{metrics}\"")) else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    let listens = format!("port = {}\n", edge.port);
    edge.edge
        .edit(&listens, &format!("{listens}program = \"/nonexistent/smbd\"\n"));
    let checked = said(&edge.edge.command(&["check-config"]));
    assert!(
        checked.contains("fine") && checked.contains("/nonexistent/smbd is not there: install Samba"),
        "{checked}"
    );
    let down = |part: &'static str| {
        move |smb: &serde_json::Value| {
            smb["state"] == "down" && smb["reason"].as_str().is_some_and(|reason| reason.contains(part))
        }
    };
    edge.edge.start(&[]);
    edge.until(down("is not there: install Samba"));
    let nfs = edge.edge.client().await;
    nfs.write("file", b"content").await;
    let health = http(metrics, "/healthz");
    assert!(
        health.contains("200 OK") && health.contains("degraded: SMB is down"),
        "{health}"
    );
    assert!(http(metrics, "/metrics").contains("firn_smb_down 1"));
    edge.edge.stop();
    edge.edge.edit("program = \"/nonexistent/smbd\"\n", "");
    // The distribution's own, most likely.
    let other = std::net::TcpListener::bind(("127.0.0.1", edge.port)).expect("free");
    edge.edge.start(&[]);
    edge.until(down("is taken by another process"));
    assert!(
        edge.edge
            .succeed(&["status"])
            .contains("is taken by another process")
    );
    drop(other);
    edge.until_served();
    edge.edge.stop();
    // Passwords that Samba cannot read.
    let passdb = edge.edge.state.join("smb/private/passdb.tdb");
    let whole = fs::read(&passdb).expect("passwords");
    let mut damaged = whole.clone();
    let mut noise = 1_u32;
    for byte in &mut damaged[500..] {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (noise >> 24) as u8;
    }
    fs::write(&passdb, &damaged).expect("written");
    edge.edge.start(&[]);
    edge.until(down("is damaged"));
    assert_eq!(
        edge.edge.client().await.read("file").await.as_deref(),
        Some(&b"content"[..])
    );
    fs::write(&passdb, &whole).expect("written");
    edge.until_served();
    assert!(edge.run(ALICE, "files", "ls").contains("file"));
    edge.edge.stop();
    // Or that are gone.
    fs::remove_file(&passdb).expect("removed");
    edge.edge.start(&[]);
    edge.until(|smb| {
        smb["state"] == "serving"
            && smb["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains("1 of 1 users have no password"))
    });
    edge.with_password(&["smb", "user", "passwd", "alice"], "first secret");
    edge.run(ALICE, "files", "ls");
    edge.edge.stop();
}

/// An smbd that is not the edge's, as the distribution starts its own.
struct Foreign(std::process::Child);

impl Foreign {
    fn start(directory: &std::path::Path, port: u16) -> Self {
        let place = directory.join("foreign");
        fs::create_dir(&place).expect("a directory");
        let at = place.display();
        let text = format!(
            "[global]\ndisable netbios = yes\nsmb ports = {port}\ninterfaces = 127.0.0.1\nbind interfaces only = yes\nlogging = file\n\
             log file = {at}/log\nprivate dir = {at}\nlock directory = {at}\nstate directory = {at}\ncache directory = {at}\n\
             pid directory = {at}\nncalrpc dir = {at}/ncalrpc\n[theirs]\npath = {at}\n"
        );
        let configuration = place.join("smb.conf");
        fs::write(&configuration, text).expect("written");
        let child = Command::new("/usr/sbin/smbd")
            .args(["--foreground", "--no-process-group", "--configfile"])
            .arg(&configuration)
            .stdin(Stdio::null())
            // It ends its whole group with itself.
            .process_group(0)
            .spawn()
            .expect("smbd runs");
        let foreign = Self(child);
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < TIMEOUT, "it never listens");
            std::thread::sleep(Duration::from_millis(50));
        }
        foreign
    }

    fn end(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a signal");
        self.0.wait().expect("an end");
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn beside_the_distributions_own_smbd_the_edge_says_so_and_serves_once_that_is_gone() {
    let cloud = Cloud::new();
    let mount = cloud.path().join("mnt");
    fs::create_dir(&mount).expect("a directory");
    let section = format!("[[mount]]\npath = \"{}\"", mount.display());
    let Some(mut edge) = shared(&cloud, &section) else {
        return;
    };
    let _unmounted = crate::mounts::Unmounted(mount.clone());
    edge.add_user(ALICE, &["--uid", "1001"]);
    let foreign = Foreign::start(cloud.path(), edge.port);
    let words = [
        format!(
            "port {} is taken by another process, smbd (process {})",
            edge.port,
            foreign.0.id()
        ),
        "systemctl disable --now smbd nmbd, or set another smb.port".into(),
    ];
    let says_why = |text: &str| words.iter().all(|part| text.contains(part));
    edge.edge.start(&[]);
    let why = edge.until(|smb| smb["state"] == "down" && smb["reason"].is_string());
    assert!(says_why(why["reason"].as_str().expect("text")), "{why}");
    assert_eq!(why["failures"], 0, "it was never started: {why}");
    let text = edge.edge.succeed(&["status"]);
    assert!(says_why(&text), "{text}");
    let log = edge.edge.log();
    assert!(
        says_why(&log) && log.contains("SMB is not served; everything else is"),
        "{log}"
    );
    // What looks after a machine does not take the other's for the edge's.
    let checked = said(&edge.edge.command(&["check"]));
    let line = checked.lines().find(|line| line.contains("smb.port"));
    assert!(
        line.is_some_and(|line| line.contains("cannot work") && line.contains("smbd (process")),
        "{checked}"
    );
    // Others are served, by what the two would share.
    let nfs = edge.edge.client().await;
    nfs.write("file", b"by NFS").await;
    assert_eq!(fs::read(mount.join("file")).expect("read"), b"by NFS");
    fs::write(mount.join("file"), b"on the mount").expect("written");
    assert_eq!(nfs.read("file").await.as_deref(), Some(&b"on the mount"[..]));
    // It is told once, however often it is tried.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(
        edge.edge.log().matches("SMB is not served").count(),
        1,
        "{}",
        edge.edge.log()
    );
    foreign.end();
    edge.until_served();
    assert!(edge.run(ALICE, "files", "ls").contains("file"));
    let checked = said(&edge.edge.command(&["check"]));
    let line = checked.lines().find(|line| line.contains("smb.port"));
    assert!(
        line.is_some_and(|line| line.contains("the running edge has it")),
        "{checked}"
    );
    edge.edge.stop();
}

#[test]
fn users_log_in_though_the_accounts_of_the_machine_are_replaced_meanwhile() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    // A machine whose /etc is a copy, where replacing a file is nobody's trouble.
    let etc = cloud.path().join("etc");
    let copied = Command::new("cp").arg("-a").arg("/etc").arg(&etc).status();
    assert!(copied.expect("cp runs").success());
    let run = edge.edge.prepared(&["run"]);
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$1\" /etc && shift && exec \"$@\"",
            "sh",
        ])
        .arg(&etc)
        .arg(run.get_program())
        .args(run.get_args())
        .stdin(Stdio::null());
    edge.edge.start_by(command);
    edge.until_served();
    edge.run(ALICE, "files", "ls");
    // As useradd and groupadd do.
    for name in ["passwd", "group", "nsswitch.conf"] {
        let (old, new) = (etc.join(name), etc.join(format!("{name}+")));
        fs::copy(&old, &new).expect("copied");
        fs::rename(&new, &old).expect("replaced");
    }
    edge.run(ALICE, "files", "mkdir directory; ls");
    edge.add_user(super::BOB, &["--uid", "1002"]);
    edge.run(super::BOB, "files", "ls");
    edge.edge.stop();
    assert!(processes(&edge.edge.state).is_empty());
}

#[test]
fn a_full_smbd_is_not_taken_for_one_that_hangs() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.edge.edit("[smb]\n", "[smb]\nconnections = 2\n");
    edge.start();
    let connected = [Connected::new(&edge, &[]), Connected::new(&edge, &[])];
    edge.until(|smb| smb["connections"].as_u64() >= Some(2));
    edge.until(|smb| {
        smb["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("all 2 connections are in use"))
    });
    let output = edge.try_run(ALICE, "files", "ls");
    assert!(!output.status.success(), "a third: {}", said(&output));
    // Longer than an smbd may be silent.
    std::thread::sleep(Duration::from_secs(45));
    let smb = edge.until(|smb| smb["state"] == "serving");
    assert_eq!(smb["failures"], 0, "{smb}");
    drop(connected);
    edge.until(|smb| smb["reason"].is_null());
    edge.run(ALICE, "files", "ls");
    edge.edge.stop();
}

#[test]
fn an_edge_without_the_cloud_serves_smb_and_goes_on_with_it() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("file"), b"before").expect("written");
    edge.run(ALICE, "files", "put file");
    edge.edge.kill();
    cloud.take_store_away();
    cloud.take_table_away();
    edge.start();
    fs::write(cloud.path().join("file"), b"meanwhile").expect("written");
    edge.run(ALICE, "files", "get file got; put file");
    assert_eq!(fs::read(cloud.path().join("got")).expect("got"), b"before");
    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.edge.wait_until_attached();
    edge.until_served();
    edge.run(ALICE, "files", "get file got");
    assert_eq!(fs::read(cloud.path().join("got")).expect("got"), b"meanwhile");
    edge.edge.stop();
    assert!(processes(&edge.edge.state).is_empty());
}
