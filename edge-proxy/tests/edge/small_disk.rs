//! A state directory on a small disk: the cache gives way to the journal, and a full disk is said and waited out.

use crate::{
    machine::{Cloud, Files, Machine, status},
    noise::noise,
};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;

/// A store is read back a minute after each put.
const READ_BACK_WITHIN: Duration = Duration::from_secs(300);

/// The cache gives way at once, and commits follow each other by less than this on any machine; it is less than what a pin is kept for.
const UNSTALLED_WITHIN: Duration = Duration::from_secs(30);

/// A tmpfs of its own, as long as this lives; mounting one needs root.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    pub fn mount(at: &Path, mib: usize) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let size = format!("size={mib}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "firn-test"])
            .arg(at)
            .status()
            .expect("mount is there");
        assert!(
            mounted.success(),
            "mounting a tmpfs at {} needs root",
            at.display()
        );
        Self(at.to_owned())
    }

    /// Fills what is free with a file that is not the edge's.
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("somebody-elses");
        let mut file = std::fs::File::create(&path).expect("a file");
        while file.write_all(&[1; 64 << 10]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a failed test may still have a process in it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A machine with its state on a disk of `mib` and these limits.
fn on_small_disk(cloud: &Cloud, mib: usize, limits: &str) -> (Machine, SmallDisk) {
    let machine = Machine::new(cloud, "a", "main");
    let text = std::fs::read_to_string(&machine.config).expect("the configuration");
    let text = text.replace("journal = \"32 MiB\"", limits);
    std::fs::write(&machine.config, text).expect("the configuration");
    let disk = SmallDisk::mount(&machine.state, mib);
    machine.format();
    (machine, disk)
}

/// Writes `count` files of a MiB, each as often as the edge asks for it.
async fn write_many(files: &Files, prefix: &str, count: u64) {
    for number in 0..count {
        let data = noise(number, MIB);
        let name = format!("{prefix}{number}");
        let mut attempts = 0;
        while !files.try_write(&name, &data).await {
            attempts += 1;
            assert!(attempts < 3, "{name} was refused for half a minute");
        }
    }
}

/// What `status` says once the journal has its next file: it may lack some KiB at the moment of a look, until the cache has given way or a
/// commit has given a file back.
async fn unstalled(edge: &Machine) -> serde_json::Value {
    let began = Instant::now();
    loop {
        let seen = status(edge);
        if seen["journal"]["stalled"].is_null() {
            return seen;
        }
        assert!(began.elapsed() < UNSTALLED_WITHIN, "{seen}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_gives_way_to_the_journal() {
    let cloud = Cloud::new();
    // Files of 16 MiB, of which the journal has two most of the time; commits of 4 MiB, after each of which the cache takes what
    // is free.
    let limits = "journal = \"128 MiB\"\ncheckpoint_bytes = \"4 MiB\"";
    let (mut edge, _disk) = on_small_disk(&cloud, 64, limits);
    edge.start(&[]);
    let files = edge.client().await;
    write_many(&files, "first", 96).await;
    unstalled(&edge).await;
    // What was read back from the store is not needed here any more, and is what gives way.
    let began = Instant::now();
    while status(&edge)["commits"]["unconfirmed_segments"] != 0 {
        assert!(began.elapsed() < READ_BACK_WITHIN, "{}", status(&edge));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    write_many(&files, "more", 64).await;
    let seen = unstalled(&edge).await;
    assert!(seen["cache"]["disk_given_up_bytes"].as_u64() > Some(0), "{seen}");
    let text = edge.succeed(&["status"]);
    assert!(text.contains("to leave room for the journal"), "{text}");

    // Whoever removes the cache by hand gets its space, too, though its files were open.
    for entry in std::fs::read_dir(edge.state.join("cache")).expect("a cache") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    write_many(&files, "second", 48).await;
    assert_eq!(files.read("first0").await, Some(noise(0, MIB)));
    edge.stop();
    // A start on a disk that the cache filled makes room as well.
    edge.start(&[]);
    assert_eq!(edge.client().await.read("second47").await, Some(noise(47, MIB)));
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_once_a_minute_and_waited_out() {
    let cloud = Cloud::new();
    let (mut edge, disk) = on_small_disk(&cloud, 32, "journal = \"32 MiB\"");
    edge.start(&[]);
    let files = edge.client().await;
    write_many(&files, "first", 1).await;
    // Nothing is taken over by the cloud, so nothing of the journal is given back.
    cloud.take_store_away();
    let theirs = disk.fill();
    // What the journal has takes some more; then writers are asked to come again.
    let mut refused = false;
    for number in 0..40 {
        refused = !files
            .try_write(&format!("more{number}"), &noise(number, MIB))
            .await;
        if refused {
            break;
        }
    }
    assert!(refused, "a full disk takes everything: {}", status(&edge));
    let seen = status(&edge);
    let why = seen["journal"]["stalled"].as_str().unwrap_or_default();
    assert!(why.contains("no space for the journal file"), "{seen}");
    std::thread::sleep(Duration::from_secs(5));
    let log = edge.log();
    let complaints = log
        .lines()
        .filter(|line| line.contains("no space for the journal file"))
        .count();
    assert!((1..=2).contains(&complaints), "{complaints} lines: {log}");

    std::fs::remove_file(&theirs).expect("removed");
    write_many(&files, "last", 8).await;
    cloud.bring_store_back();
    // Until then what the cloud has taken over is given back, or the next file finds room.
    for _ in 0..60 {
        if status(&edge)["journal"]["stalled"].is_null() {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(status(&edge)["journal"]["stalled"].is_null(), "{}", status(&edge));
    edge.stop();
}
