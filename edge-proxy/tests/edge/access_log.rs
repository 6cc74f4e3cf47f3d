//! The access log as its reader finds it: what NFS clients and processes of this machine did, through rotation and a full disk.

use crate::{
    machine::{Cloud, Files, Machine, TIMEOUT, status},
    mounts::Unmounted,
    small_disk::SmallDisk,
};
use firn_nfs::v3::Status;
use serde_json::Value;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// A user who is not root, and owns nothing at first.
const USER: u32 = 4321;

/// An edge whose export is logged.
fn logged(cloud: &Cloud, more: &str) -> Machine {
    let edge = Machine::new(cloud, "edge", "main");
    edge.configure(cloud, "edge", "main", more);
    edge.edit("squash = \"none\"", "squash = \"none\"\naccess_log = true");
    edge.format();
    edge
}

/// The lines of a file; a reader may find the last one half written.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Events with their paths and results, of those that clients caused.
fn told(lines: &[Value], protocol: &str) -> Vec<String> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or("-").to_owned();
    lines
        .iter()
        .filter(|line| line["protocol"] == protocol)
        .map(|line| ["event", "path", "result"].map(|key| text(line, key)).join(" "))
        .collect()
}

fn log_of(edge: &Machine) -> PathBuf {
    edge.state.join("access-log/access.log")
}

#[tokio::test]
async fn an_nfs_clients_work_is_logged_with_user_address_and_path() {
    let cloud = Cloud::new();
    let mut edge = logged(&cloud, "");
    edge.start(&[]);
    let root = edge.client().await;
    root.write("plan", b"secret").await;
    assert_eq!(root.read("plan").await.as_deref(), Some(&b"secret"[..]));
    let other = edge.client_as(USER).await;
    assert_eq!(other.read_fails("plan").await, Some(Status::AccessDenied));
    root.remove("plan").await;
    let text = edge.succeed(&["status"]);
    assert!(text.contains("Access log"), "{text}");
    edge.stop();

    let seen = lines(&log_of(&edge));
    let events = told(&seen, "nfs");
    for wanted in [
        "mount /export ok",
        "create /plan ok",
        "write /plan ok",
        "read /plan ok",
        "read /plan EACCES",
        "remove /plan ok",
    ] {
        assert!(events.iter().any(|event| event == wanted), "{wanted}: {events:?}");
    }
    let denied = seen
        .iter()
        .find(|line| line["result"] == "EACCES")
        .expect("a denial");
    assert_eq!(
        (
            &denied["uid"],
            &denied["client"],
            &denied["export"],
            &denied["volume"]
        ),
        (
            &USER.into(),
            &"127.0.0.1".into(),
            &"/export".into(),
            &"main".into()
        )
    );
    let written = seen
        .iter()
        .find(|line| line["event"] == "write")
        .expect("a write");
    assert_eq!((&written["bytes"], &written["user"]), (&6.into(), &"root".into()));
    assert_eq!(seen.first().expect("lines")["previous"], "none");
    assert_eq!(seen.last().expect("lines")["event"], "end");
    let mode = fs::metadata(edge.state.join("access-log"))
        .expect("there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o700, "nobody else's business");

    edge.start(&[]);
    edge.kill();
    edge.start(&[]);
    edge.stop();
    let seen = lines(&log_of(&edge));
    let starts: Vec<_> = seen
        .iter()
        .filter(|line| line["event"] == "start")
        .map(|line| line["previous"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(starts, ["none", "ended", "cut off"]);
}

#[tokio::test]
async fn a_file_that_was_not_looked_up_since_the_start_has_its_path_too() {
    let cloud = Cloud::new();
    let mut edge = logged(&cloud, "");
    edge.start(&[]);
    let client = edge.client().await;
    client.write("deep", b"x").await;
    let handle = client.client().lookup(client.root(), "deep").await;
    let handle = handle.expect("an answer").expect("there").file;
    edge.stop();
    edge.start(&[]);
    let client = edge.client().await;
    let read = client.client().read(&handle, 0, 10).await;
    read.expect("an answer").expect("read");
    edge.stop();
    let events = told(&lines(&log_of(&edge)), "nfs");
    assert!(events.iter().any(|event| event == "read /deep ok"), "{events:?}");
}

#[tokio::test]
async fn what_processes_do_on_a_mount_is_logged_with_their_users_and_nothing_of_an_export_that_is_not() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: this machine has no /dev/fuse, nothing about mounts was tested");
        return;
    }
    let cloud = Cloud::new();
    fs::set_permissions(cloud.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    let mount = cloud.path().join("mnt");
    fs::create_dir(&mount).expect("a directory");
    let _unmounted = Unmounted(mount.clone());
    let section = format!("[[mount]]\npath = \"{}\"\naccess_log = true", mount.display());
    let mut edge = logged(&cloud, &section);
    edge.edit("squash = \"none\"\naccess_log = true", "squash = \"none\"");
    edge.start(&[]);
    fs::create_dir(mount.join("team")).expect("made");
    fs::set_permissions(mount.join("team"), fs::Permissions::from_mode(0o777)).expect("set");
    let script = "echo text > a && cat a > /dev/null && mv a b && ln b c && rm c && chmod 600 b";
    let done = Command::new("sh")
        .args(["-c", script])
        .current_dir(mount.join("team"))
        .uid(USER)
        .gid(USER)
        .status()
        .expect("a shell");
    assert!(done.success());
    let client = edge.client().await;
    client.write("unseen", b"x").await;
    edge.stop();

    let seen = lines(&log_of(&edge));
    assert_eq!(told(&seen, "nfs"), [] as [&str; 0]);
    let events = told(&seen, "local");
    for wanted in [
        "mkdir /team ok",
        "setattr /team ok",
        "create /team/a ok",
        "write /team/a ok",
        "open /team/a ok",
        "rename /team/a ok",
        "link /team/b ok",
        "remove /team/c ok",
        "setattr /team/b ok",
    ] {
        assert!(events.iter().any(|event| event == wanted), "{wanted}: {events:?}");
    }
    let created = seen
        .iter()
        .find(|line| line["event"] == "create")
        .expect("a creation");
    assert_eq!(
        (&created["uid"], &created["client"], &created["export"]),
        (&USER.into(), &Value::Null, &mount.display().to_string().into())
    );
    let made = seen
        .iter()
        .find(|line| line["event"] == "mkdir")
        .expect("a directory");
    assert_eq!((&made["uid"], &made["user"]), (&0.into(), &"root".into()));
}

async fn fail_to_remove(client: &Files, times: u32) {
    for _ in 0..times {
        let removed = client.client().remove(client.root(), "nothing").await;
        removed.expect("an answer").expect_err("nothing there");
    }
}

#[tokio::test]
async fn the_logs_files_are_bounded_and_the_newest_lines_are_kept() {
    let cloud = Cloud::new();
    let mut edge = logged(&cloud, "[access_log]\nfile = \"1 MiB\"\nfiles = 2");
    edge.start(&[]);
    let client = edge.client().await;
    // Some 230 bytes each.
    fail_to_remove(&client, 12_000).await;
    client.write("last", b"x").await;
    edge.stop();
    let directory = edge.state.join("access-log");
    let mut names: Vec<_> = fs::read_dir(&directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["access.log", "access.log.1"]);
    for name in &names {
        let path = directory.join(name);
        assert!(fs::metadata(&path).expect("there").len() <= 1 << 20, "{name}");
        assert!(!lines(&path).is_empty());
    }
    let events = told(&lines(&directory.join("access.log")), "nfs");
    assert!(
        events.iter().any(|event| event == "create /last ok"),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_full_disk_of_the_log_is_told_and_waited_out_while_clients_work() {
    let cloud = Cloud::new();
    let directory = cloud.path().join("log");
    let disk = SmallDisk::mount(&directory, 2);
    let section = format!("[access_log]\ndirectory = \"{}\"", directory.display());
    let mut edge = logged(&cloud, &section);
    edge.start(&[]);
    let client = edge.client().await;
    client.write("before", b"x").await;
    let began = Instant::now();
    while !told(&lines(&directory.join("access.log")), "nfs").contains(&"create /before ok".into()) {
        assert!(began.elapsed() < TIMEOUT, "it is never written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let others = disk.fill();
    // More than the rest of the file's last page takes.
    fail_to_remove(&client, 100).await;
    client.write("meanwhile", b"x").await;
    let seen = edge.wait_for_status(|seen| seen["access_log"]["failing"].is_string());
    assert!(
        seen["access_log"]["failing"]
            .as_str()
            .expect("text")
            .contains("full"),
        "{seen}"
    );
    let text = edge.succeed(&["status"]);
    assert!(text.contains("CANNOT BE WRITTEN"), "{text}");
    assert_eq!(client.read("meanwhile").await.as_deref(), Some(&b"x"[..]));
    edge.wait_for_log("the access log cannot be written", 1);
    fs::remove_file(others).expect("removed");
    edge.wait_for_status(|seen| seen["access_log"]["failing"].is_null());
    assert_eq!(status(&edge)["access_log"]["lost"], 0);
    edge.stop();
    let events = told(&lines(&directory.join("access.log")), "nfs");
    let failed = events
        .iter()
        .filter(|event| *event == "remove /nothing ENOENT")
        .count();
    assert_eq!(failed, 100);
    assert!(events.contains(&"create /meanwhile ok".into()), "{events:?}");
}

#[tokio::test]
async fn each_line_goes_to_syslog_as_well_and_what_it_does_not_take_is_counted() {
    let cloud = Cloud::new();
    let socket = cloud.path().join("syslog");
    let more = format!("[access_log]\nsyslog = \"{}\"", socket.display());
    let mut edge = logged(&cloud, &more);
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).expect("bound");
    listener.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    edge.start(&[]);
    let client = edge.client().await;
    client.write("plan", b"secret").await;
    let mut buffer = vec![0; 64 << 10];
    let line = loop {
        let length = listener.recv(&mut buffer).expect("a datagram in time");
        let text = String::from_utf8(buffer[..length].to_vec()).expect("text");
        assert!(text.starts_with("<86>firn-edge["), "{text}");
        let (_, json) = text.split_once("]: ").expect("a tag");
        let line: Value = serde_json::from_str(json).expect("JSON");
        if line["event"] == "create" {
            break line;
        }
    };
    assert_eq!(
        (&line["path"], &line["protocol"]),
        (&"/plan".into(), &"nfs".into()),
        "{line}"
    );
    // Nobody listens any more: clients are served, the file has it all, and the loss is seen.
    drop(listener);
    fs::remove_file(&socket).expect("removed");
    let began = Instant::now();
    let mut number = 0;
    loop {
        client.write(&format!("file {number}"), b"x").await;
        number += 1;
        let part = status(&edge)["access_log"]["syslog"].take();
        if part["lost"].as_u64() > Some(0) {
            assert!(
                part["failing"].as_str().is_some_and(|why| why.contains("syslog")),
                "{part}"
            );
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{part}");
    }
    assert!(edge.succeed(&["status"]).contains("not taken: "));
    edge.stop();
    let written = lines(&log_of(&edge));
    let created = written.iter().filter(|line| line["event"] == "create").count();
    assert_eq!(created, number + 1, "{written:?}");
}
