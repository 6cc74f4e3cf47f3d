//! The volume as a directory of this machine, beside NFS: what the two see of each other, and what becomes of a mount when the
//! edge is stopped, killed, or cannot mount. The kernel is the real one.

use crate::{
    locks::LockClient,
    machine::{Cloud, Machine, TIMEOUT, status},
};
use firn_nfs::nlm::LockStatus;
use rustix::fs::FlockOperation;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// An edge with a mount; its directory. `None` only where the kernel has no FUSE; that is said.
fn edge(cloud: &Cloud) -> Option<(Machine, PathBuf)> {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: this machine has no /dev/fuse, nothing about mounts was tested");
        return None;
    }
    let machine = Machine::new(cloud, "edge", "main");
    let path = cloud.path().join("mnt");
    fs::create_dir(&path).expect("a directory");
    let section = format!("[[mount]]\npath = \"{}\"", path.display());
    machine.configure(cloud, "edge", "main", &section);
    machine.format();
    Some((machine, path))
}

/// What a test that fails leaves.
pub struct Unmounted(pub PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn is_mounted(path: &std::path::Path) -> bool {
    let table = fs::read_to_string("/proc/mounts").expect("the table of mounts");
    table.contains(&format!("firn:main {} fuse.firn", path.display()))
}

#[tokio::test]
async fn nfs_clients_and_processes_here_see_each_others_work_at_once() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    edge.start(&[]);
    assert!(is_mounted(&path));
    let client = edge.client().await;
    fs::write(path.join("local"), b"from here").expect("written");
    assert_eq!(client.read("local").await.as_deref(), Some(&b"from here"[..]));
    client.write("remote", b"from there").await;
    let mut open = fs::File::options()
        .read(true)
        .append(true)
        .open(path.join("remote"))
        .expect("open");
    let mut text = String::new();
    open.read_to_string(&mut text).expect("read");
    assert_eq!(text, "from there");
    // What the kernel has in its caches by now.
    for round in 0..20_u8 {
        let content = vec![b'a' + round; 10 + usize::from(round) * 700];
        client.write_at("remote", 0, &content).await;
        assert_eq!(
            fs::metadata(path.join("remote")).expect("there").len(),
            content.len() as u64
        );
        let mut read = vec![0; content.len()];
        open.read_exact_at(&mut read, 0).expect("read");
        assert!(read == content, "round {round}");
        let mine = vec![b'A' + round; content.len()];
        open.write_all(&mine).expect("appended");
        let both = [content, mine].concat();
        assert!(
            client.read("remote").await.as_deref() == Some(&both[..]),
            "round {round}"
        );
        fs::File::options()
            .write(true)
            .truncate(true)
            .open(path.join("remote"))
            .expect("cut");
    }
    open.write_all(b"still here").expect("written");
    client.remove("remote").await;
    assert!(!path.join("remote").exists());
    assert_eq!(open.metadata().expect("open").nlink(), 0);
    let mut read = [0; 10];
    open.read_exact_at(&mut read, 0).expect("though NFS removed it");
    assert_eq!(&read, b"still here");
    let seen = status(&edge);
    let mount = &seen["mounts"][0];
    assert_eq!(
        (mount["is_mounted"].as_bool(), mount["open_files"].as_u64()),
        (Some(true), Some(1)),
        "{seen}"
    );
    assert!(
        mount["invalidations"].as_u64() > Some(19) && mount["rescans"] == 0,
        "{mount}"
    );
    let text = edge.succeed(&["status"]);
    assert!(
        text.contains(&format!("Mount           {}: 1 open files", path.display())),
        "{text}"
    );
    drop(open);
    edge.stop();
    assert!(
        !is_mounted(&path) && edge.log().matches("ERROR").count() == 0,
        "{}",
        edge.log()
    );
    edge.start(&[]);
    assert_eq!(fs::read(path.join("local")).expect("read"), b"from here");
    edge.stop();
}

#[tokio::test]
async fn locks_of_nfs_clients_and_of_processes_here_exclude_each_other() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    edge.start(&[]);
    let files = edge.client().await;
    files.write("file", b"").await;
    let client = LockClient::new(&edge, &files, "client", "file").await;
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path.join("file"))
        .expect("open");
    // The grace period is a second.
    let began = Instant::now();
    while client.lock_unmonitored().await != Some(LockStatus::Granted) {
        assert!(began.elapsed() < TIMEOUT, "never granted");
        std::thread::sleep(Duration::from_millis(100));
    }
    let denied = Some(rustix::io::Errno::AGAIN);
    assert_eq!(
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).err(),
        denied
    );
    assert_eq!(
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).err(),
        denied
    );
    let mut waiting = Command::new("flock")
        .arg(path.join("file"))
        .arg("true")
        .spawn()
        .expect("flock(1)");
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().expect("its state").is_none(), "it waits");
    assert_eq!(client.unlock().await, Some(LockStatus::Granted));
    assert!(waiting.wait().expect("it ends").success());
    // The kernel tells of a close after close(2) has returned.
    let began = Instant::now();
    while rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(began.elapsed() < TIMEOUT, "the lock outlives its file");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.lock_unmonitored().await, Some(LockStatus::Denied));
    drop(file);
    assert_eq!(client.lock_unmonitored().await, Some(LockStatus::Granted));
    edge.stop();
}

/// Writes files, each synced, and says so, until it cannot.
const WRITER: &str = r#"
n=0
while printf '%s' "$n" > "$1/$n.new" && sync "$1/$n.new" && mv "$1/$n.new" "$1/$n"; do echo "$n"; n=$((n+1)); done 2>/dev/null
"#;

#[test]
fn a_killed_edge_leaves_no_hanging_mount_and_the_next_start_mounts_anew_with_all_that_was_synced() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    for round in 0..5 {
        edge.start(&[]);
        let directory = path.join(format!("round {round}"));
        fs::create_dir(&directory).expect("made");
        let mut open = fs::File::create(directory.join("open")).expect("open");
        open.write_all(b"x").expect("written");
        let mut writer = Command::new("sh")
            .args(["-c", WRITER, "writer"])
            .arg(&directory)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        std::thread::sleep(Duration::from_millis(700));
        edge.kill();
        // Nobody hangs: the writer fails, and so does every access.
        let mut said = String::new();
        writer
            .stdout
            .take()
            .expect("piped")
            .read_to_string(&mut said)
            .expect("read");
        writer.wait().expect("it ends");
        let error = fs::metadata(&directory).expect_err("cut off");
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::NOTCONN.raw_os_error())
        );
        assert!(open.write_all(b"y").is_err());
        edge.start(&[]);
        let noted: Vec<&str> = said.lines().collect();
        assert!(!noted.is_empty(), "the writer wrote nothing");
        for number in noted {
            let content = fs::read_to_string(directory.join(number)).expect("a name that was acknowledged");
            assert_eq!(content, number);
        }
        assert!(
            open.write_all(b"y").is_err(),
            "a descriptor of before stays cut off"
        );
        edge.stop();
        assert!(!is_mounted(&path));
    }
    assert_eq!(
        edge.log()
            .matches("a mount that a killed process left is taken away")
            .count(),
        5
    );
}

#[test]
fn what_cannot_be_mounted_is_said_and_nothing_is_served() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    fs::remove_dir(&path).expect("removed");
    let said = edge.fail(2, &["run"]);
    assert!(
        said.contains("[[mount]]: cannot mount on") && said.contains("must be a directory that exists"),
        "{said}"
    );
    fs::create_dir(&path).expect("a directory");
    edge.start(&[]);
    // Of another edge.
    let elsewhere = Cloud::new();
    let mut other = Machine::new(&elsewhere, "other", "second");
    other.configure(
        &elsewhere,
        "other",
        "second",
        &format!("[[mount]]\npath = \"{}\"", path.display()),
    );
    other.format();
    let said = other.fail(1, &["run"]);
    assert!(said.contains("by another process that is alive"), "{said}");
    fs::write(path.join("file"), b"x").expect("the first is not disturbed");
    edge.stop();
    other.start(&[]);
    assert!(!path.join("file").exists(), "another volume");
    other.stop();
}

#[test]
fn without_the_cloud_the_mount_serves_what_the_machine_has_and_when_it_is_back_it_is_mounted_anew() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    edge.start(&[]);
    let mut file = fs::File::create(path.join("file")).expect("created");
    file.write_all(b"before").expect("written");
    // Level 1: what a kill leaves.
    file.sync_all().expect("synced");
    edge.kill();
    cloud.take_store_away();
    cloud.take_table_away();
    edge.start(&[]);
    assert!(status(&edge)["detached"].is_object());
    assert_eq!(fs::read(path.join("file")).expect("read"), b"before");
    fs::write(path.join("file"), b"meanwhile").expect("written");
    cloud.bring_table_back();
    cloud.bring_store_back();
    edge.wait_until_attached();
    // Between the two there is no mount for a moment.
    let began = Instant::now();
    while !is_mounted(&path) {
        assert!(began.elapsed() < TIMEOUT, "it is not mounted anew");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read(path.join("file")).expect("read"), b"meanwhile");
    edge.stop();
    assert!(!is_mounted(&path));
}

#[tokio::test]
async fn a_close_after_writing_and_an_fsync_return_at_level_two_where_the_mount_says_so() {
    let cloud = Cloud::new();
    let Some((mut edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    edge.edit("[[mount]]", "[[mount]]\ndurability = \"cloud\"");
    edge.start(&[]);
    let level = || status(&edge)["uncommitted"]["level"].as_u64();
    fs::write(path.join("saved"), b"in the cloud").expect("written");
    assert_eq!(level(), Some(2), "after a close");
    fs::create_dir(path.join("names")).expect("made");
    assert_eq!(level(), Some(1), "a name is in the journal");
    assert_eq!(fs::read(path.join("saved")).expect("read"), b"in the cloud");
    assert_eq!(level(), Some(1), "a close after reading waits for nothing");
    fs::File::open(path.join("names"))
        .and_then(|directory| directory.sync_all())
        .expect("synced");
    assert_eq!(level(), Some(2), "after fsync of a directory");
    let mut open = fs::File::create(path.join("open")).expect("made");
    open.write_all(b"part").expect("written");
    // A process that is started closes its copy of what is open, so nothing is asked between the write and this.
    open.sync_all().expect("synced");
    assert_eq!(level(), Some(2), "after fsync");
    drop(open);
    edge.stop();
}

/// `firn-edge mount`, and the line by which it says that it is there.
fn in_the_foreground(edge: &Machine, path: &std::path::Path, more: &[&str]) -> Child {
    let arguments = [&["mount", path.to_str().expect("text")], more].concat();
    let mut child = edge
        .prepared(&arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("firn-edge runs");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line, format!("mounted on {}; Ctrl-C unmounts\n", path.display()));
    child
}

fn interrupt(child: &mut Child) -> Option<i32> {
    let id = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal");
    child.wait().expect("an end").code()
}

#[tokio::test]
async fn a_volume_in_the_foreground_is_unmounted_and_given_up_whole_at_an_interrupt() {
    let cloud = Cloud::new();
    let Some((edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    let mut running = in_the_foreground(&edge, &path, &[]);
    assert!(is_mounted(&path));
    fs::write(path.join("work"), b"from a workstation").expect("written");
    let text = edge.succeed(&["status"]);
    assert!(text.contains("not served: nothing is exported"), "{text}");
    assert!(
        edge.fail(1, &["run"]).contains("another firn-edge"),
        "one at a time"
    );
    assert_eq!(interrupt(&mut running), Some(0));
    assert!(!is_mounted(&path));
    // Nothing of it is here alone: another machine serves it without taking it over.
    let mut other = Machine::new(&cloud, "other", "main");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("text")]);
    other.start(&[]);
    let client = other.client().await;
    assert_eq!(
        client.read("work").await.as_deref(),
        Some(&b"from a workstation"[..])
    );
    other.succeed(&["drain"]);
    let mut drained = other.child.take().expect("it ran");
    assert!(drained.wait().expect("an end").success());
    // Kept: what was synced is in the journal, and mounted again.
    let mut running = in_the_foreground(&edge, &path, &["--keep"]);
    fs::write(path.join("more"), b"kept").expect("written");
    assert_eq!(interrupt(&mut running), Some(0));
    let mut running = in_the_foreground(&edge, &path, &["--read-only", "--keep"]);
    assert_eq!(fs::read(path.join("more")).expect("read"), b"kept");
    assert!(fs::write(path.join("more"), b"no").is_err());
    assert_eq!(interrupt(&mut running), Some(0));
}

#[test]
fn a_second_interrupt_ends_a_mount_whose_cloud_is_away_and_the_next_has_what_was_synced() {
    let cloud = Cloud::new();
    let Some((edge, path)) = edge(&cloud) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    let mut running = in_the_foreground(&edge, &path, &[]);
    let mut file = fs::File::create(path.join("work")).expect("created");
    file.write_all(b"synced").expect("written");
    file.sync_all().expect("synced");
    drop(file);
    cloud.take_store_away();
    let id = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal");
    let began = Instant::now();
    while is_mounted(&path) {
        assert!(began.elapsed() < TIMEOUT, "it is not unmounted");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        running.try_wait().expect("its state").is_none(),
        "it waits for the cloud"
    );
    assert_eq!(interrupt(&mut running), Some(1));
    cloud.bring_store_back();
    let mut running = in_the_foreground(&edge, &path, &[]);
    assert_eq!(fs::read(path.join("work")).expect("read"), b"synced");
    assert_eq!(interrupt(&mut running), Some(0));
}
