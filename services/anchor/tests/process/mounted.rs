//! Two offices whose users work on mounts: what one saves the other's kernel shows, though it caches; and calls, open files and what was written over
//! handovers and takeovers.

use crate::{edge, offices, place::Place, volume};
use firn_rig::Edge;
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{self, BufRead as _, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// What a handover may take on a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(60);
const FRESHNESS: Duration = Duration::from_millis(300);
const READ_ONLY: i32 = 30;

/// Whether this machine can mount; it is said where it cannot.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("SKIPPED: this machine has no /dev/fuse, nothing about mounts of offices was tested");
    }
    can
}

/// What a test that fails leaves.
pub struct Unmounted(pub PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

/// The edges' programs, bucket and anchor, each edge with a mount.
pub struct Offices {
    place: Place,
    pub one: Edge,
    pub two: Edge,
    /// Where they are mounted.
    pub at: [PathBuf; 2],
    _unmounted: [Unmounted; 2],
}

impl Offices {
    async fn open(here: &Path, role: &str, lines: [&str; 2]) -> Self {
        let grants = [(&edge(1), volume(1), "edge"), (&edge(2), volume(1), role)];
        let at = ["at-one", "at-two"].map(|name| here.join(name));
        let sections = [0, 1].map(|office: usize| {
            fs::create_dir(&at[office]).unwrap();
            let path = at[office].display();
            (lines[office], format!("[[mount]]\npath = \"{path}\"\n"))
        });
        let _unmounted = at.clone().map(Unmounted);
        let (place, _, [one, two]) = offices::open_with(here, &grants, sections).await;
        Self {
            place,
            one,
            two,
            at,
            _unmounted,
        }
    }

    pub async fn shared(here: &Path, freshness: &str) -> Self {
        let lines = format!("shared = true\nfreshness = \"{freshness}\"");
        Self::open(here, "edge", [&lines, &lines]).await
    }

    /// Office one reaches the anchor no more, or again.
    pub fn cut_one_off(&self, is_cut: bool) {
        let grants = [(&edge(2), volume(1), "edge"), (&edge(1), volume(1), "edge")];
        self.place.grant(&grants[..if is_cut { 1 } else { 2 }]);
    }

    pub async fn stop(mut self) {
        self.two.stop().await.unwrap();
        self.one.stop().await.unwrap();
    }
}

pub async fn shared(edge: &Edge) -> Value {
    edge.status().await.unwrap()["shared"].clone()
}

/// Longer than anything may be believed that was read before.
fn until_stale() {
    std::thread::sleep(FRESHNESS + Duration::from_millis(50));
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn text_of(file: &File) -> String {
    let mut text = vec![0; 4096];
    let length = file.read_at(&mut text, 0).unwrap();
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("refused").raw_os_error()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_office_commits_the_mount_of_the_other_shows_within_the_freshness() {
    if !can_mount() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let follow = "follow = true\nfreshness = \"300 ms\"";
    let offices = Offices::open(here.path(), "observer", ["", follow]).await;
    let [one, two] = &offices.at;
    fs::write(two.join("refused"), "x").unwrap_err();
    fs::create_dir(one.join("plans")).unwrap();
    fs::write(one.join("plans/first"), "first").unwrap();
    fs::write(one.join("plans/grows"), "0").unwrap();
    fs::write(one.join("plans/kept times"), "before").unwrap();
    let kept = fs::metadata(one.join("plans/kept times"))
        .unwrap()
        .modified()
        .unwrap();
    offices.one.sync().await.unwrap();
    until_stale();

    let open = File::open(two.join("plans/grows")).unwrap();
    let open_kept = File::open(two.join("plans/kept times")).unwrap();
    for round in 1..5_u32 {
        // What the kernel has in its caches by now: names, one that is not there, attributes, pages.
        let new = format!("new-{round}");
        assert!(!two.join("plans").join(&new).exists());
        assert_eq!(text_of(&open), "0".repeat(round as usize));
        assert_eq!(fs::read(two.join("plans/grows")).unwrap().len(), round as usize);
        text_of(&open_kept);
        names(&two.join("plans"));

        fs::write(one.join("plans").join(&new), new.as_bytes()).unwrap();
        fs::write(one.join("plans/grows"), "0".repeat(round as usize + 1)).unwrap();
        fs::write(one.join("plans/next"), format!("round {round}")).unwrap();
        fs::rename(one.join("plans/next"), one.join("plans/first")).unwrap();
        fs::create_dir(one.join(format!("plans/folder-{round}"))).unwrap();
        if round > 1 {
            fs::remove_dir(one.join(format!("plans/folder-{}", round - 1))).unwrap();
            fs::remove_file(one.join(format!("plans/new-{}", round - 1))).unwrap();
        }
        let same_length = format!("turn {round}");
        fs::write(one.join("plans/kept times"), &same_length).unwrap();
        let touched = File::options()
            .write(true)
            .open(one.join("plans/kept times"))
            .unwrap();
        touched.set_modified(kept).unwrap();
        drop(touched);
        offices.one.sync().await.unwrap();
        until_stale();

        // First what the kernel could answer by itself: then nobody has asked for a newer root yet.
        let size = fs::metadata(two.join("plans/grows")).unwrap().len();
        assert_eq!(size, u64::from(round) + 1, "round {round}");
        // Nothing that the kernel asks for by itself says that this one has changed: it is told.
        let began = Instant::now();
        while text_of(&open_kept) != same_length {
            assert!(
                began.elapsed() < TIMEOUT,
                "round {round}: {}",
                text_of(&open_kept)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let expected = [&format!("folder-{round}"), "first", "grows", "kept times", &new];
        let mut expected = expected.map(str::to_owned);
        expected.sort();
        assert_eq!(names(&two.join("plans")), expected, "round {round}");
        assert_eq!(fs::read_to_string(two.join("plans").join(&new)).unwrap(), new);
        assert_eq!(
            fs::read_to_string(two.join("plans/first")).unwrap(),
            format!("round {round}")
        );
        assert_eq!(
            fs::metadata(two.join("plans/grows")).unwrap().len(),
            u64::from(round) + 1
        );
        // Through the descriptor that was open all along, from the kernel's pages if it may.
        assert_eq!(text_of(&open), "0".repeat(round as usize + 1), "round {round}");
        assert_eq!(
            fs::read_to_string(two.join("plans/kept times")).unwrap(),
            same_length
        );
    }
    let told = offices.two.status().await.unwrap();
    assert!(told["mounts"][0]["invalidations"].as_u64() > Some(3), "{told}");

    let refused = [
        code(fs::write(two.join("plans/mine"), "x")),
        code(fs::create_dir(two.join("mine"))),
        code(fs::remove_file(two.join("plans/first"))),
        code(fs::rename(two.join("plans/first"), two.join("mine"))),
        code(File::options().append(true).open(two.join("plans/first"))),
    ];
    assert_eq!(refused, [Some(READ_ONLY); 5]);
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_offices_save_by_turns_through_their_mounts() {
    if !can_mount() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let offices = Offices::shared(here.path(), "0 s").await;
    let at = &offices.at;
    fs::write(at[0].join("minutes"), "").unwrap();
    fs::write(at[0].join("counter"), "0").unwrap();
    offices.one.sync().await.unwrap();
    // Open in both offices over all that follows.
    let append = |at: &PathBuf| File::options().read(true).append(true).open(at.join("minutes"));
    let mut open = [append(&at[0]).unwrap(), append(&at[1]).unwrap()];
    let mut expected = String::new();
    for turn in 0..8_usize {
        let office = (turn + 1) % 2;
        let here = &at[office];
        // The first change waits for the volume; what the other office did is seen from then on, though this kernel had it in its cache.
        let line = format!("turn {turn} of office {office}\n");
        open[office].write_all(line.as_bytes()).unwrap();
        expected += &line;
        assert_eq!(text_of(&open[office]), expected, "turn {turn}");
        let counted: usize = fs::read_to_string(here.join("counter")).unwrap().parse().unwrap();
        assert_eq!(counted, turn);
        fs::write(here.join("counter.new"), (counted + 1).to_string()).unwrap();
        fs::rename(here.join("counter.new"), here.join("counter")).unwrap();
        fs::write(here.join(format!("of-{turn}")), &line).unwrap();
        if turn > 0 {
            // The other office's file, under another name, is gone in both.
            fs::rename(here.join(format!("of-{}", turn - 1)), here.join("renamed")).unwrap();
            assert_eq!(
                fs::read_to_string(here.join("renamed")).unwrap(),
                format!("turn {} of office {}\n", turn - 1, turn % 2)
            );
            fs::remove_file(here.join("renamed")).unwrap();
        }
        assert_eq!(
            names(here),
            ["counter".into(), "minutes".into(), format!("of-{turn}")]
        );
    }
    // Office one was last, and has the volume; published, the other reads it.
    offices.one.sync().await.unwrap();
    assert_eq!(names(&at[1]), ["counter", "minutes", "of-7"]);
    assert_eq!(text_of(&open[1]), expected);
    let (of_one, of_two) = (shared(&offices.one).await, shared(&offices.two).await);
    assert_eq!(
        (
            of_one["given"].as_u64(),
            of_two["given"].as_u64(),
            of_two["broken"].as_u64()
        ),
        (Some(4), Some(4), Some(0)),
        "{of_one} {of_two}"
    );
    drop(open);
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_file_that_its_own_office_removes_is_read_on_though_the_volume_was_elsewhere_since() {
    if !can_mount() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let offices = Offices::shared(here.path(), "0 s").await;
    let [one, two] = &offices.at;
    fs::write(one.join("draft"), "read on").unwrap();
    let open = File::open(one.join("draft")).unwrap();
    fs::write(two.join("meanwhile"), "in office two").unwrap();
    assert_eq!(text_of(&open), "read on", "over a handover");
    // The volume comes back with this removal.
    fs::remove_file(one.join("draft")).unwrap();
    assert_eq!(names(one), ["meanwhile"]);
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(text_of(&open), "read on", "without a name");
    drop(open);
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_other_office_keeps_nobody_from_reading_and_can_be_killed() {
    if !can_mount() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let offices = Offices::shared(here.path(), "0 s").await;
    let [one, two] = &offices.at;
    let folders: Vec<_> = (0..8).map(|number| format!("folder-{number}")).collect();
    for folder in &folders {
        fs::create_dir(one.join(folder)).unwrap();
        fs::write(one.join(folder).join("file"), "of office one").unwrap();
    }
    offices.one.sync().await.unwrap();
    // Its name is known to the kernel before somebody waits in the directory.
    assert_eq!(
        fs::read_to_string(two.join("folder-0/file")).unwrap(),
        "of office one"
    );
    // It hears nobody who waits, and is not taken over before a minute.
    offices.cut_one_off(true);
    let began = Instant::now();
    let mut waiting: Vec<_> = folders[..6]
        .iter()
        .map(|folder| {
            let path = two.join(folder).join("new");
            Command::new("touch")
                .arg(path)
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    while shared(&offices.two).await["role"] != "waiting" {
        assert!(began.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..20 {
        assert_eq!(
            fs::read_to_string(two.join("folder-7/file")).unwrap(),
            "of office one"
        );
        assert_eq!(names(&two.join("folder-6")), ["file"]);
        assert_eq!(
            fs::read_to_string(two.join("folder-0/file")).unwrap(),
            "of office one"
        );
    }
    for child in &mut waiting[..3] {
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        signal("-TERM", child.id());
        assert!(!child.wait().unwrap().success());
    }
    let killed = began.elapsed();
    assert!(
        killed < Duration::from_secs(55),
        "before any takeover: {killed:?}"
    );
    assert_eq!(names(&two.join("folder-0")), ["file"]);
    offices.cut_one_off(false);
    for child in &mut waiting[3..] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(names(&two.join("folder-0")), ["file"]);
    assert_eq!(names(&two.join("folder-5")), ["file", "new"]);
    offices.stop().await;
}

/// A process of office one that writes a file and keeps it open, unsynced, until it is told to end. A process of its own: one that holds a file of a
/// mount open makes each program that it starts wait for the edge.
struct Writer(std::process::Child);

impl Writer {
    fn begin(file: &Path, text: &str) -> Self {
        let script =
            "exec 3<>\"$0\"; printf %s \"$1\" >&3; touch -d @1000000000 \"$0\"; echo written; read end";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(file)
            .arg(text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        io::BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "written\n");
        Self(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_takeover_put_aside_is_shown_no_more_and_its_writer_is_told_by_the_next_sync() {
    if !can_mount() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let offices = Offices::shared(here.path(), "0 s").await;
    let [one, two] = &offices.at;
    fs::write(one.join("plan"), "agreed").unwrap();
    offices.one.sync().await.unwrap();
    // Acknowledged, in this kernel's pages, and never published; a sync is still to come.
    let writer = Writer::begin(&one.join("plan"), "ALONE!");
    assert_eq!(fs::read_to_string(one.join("plan")).unwrap(), "ALONE!");
    offices.cut_one_off(true);
    // Of the same length and the same time, by as many changes: nothing but the edge's word tells the two apart.
    Writer::begin(&two.join("plan"), "AGREED").end();
    offices.two.sync().await.unwrap();
    offices.cut_one_off(false);

    let began = Instant::now();
    while shared(&offices.one).await["broken"].as_u64() != Some(1) {
        assert!(began.elapsed() < TIMEOUT, "{}", shared(&offices.one).await);
        std::thread::sleep(Duration::from_millis(100));
    }
    let sync = || Command::new("sync").arg(one.join("plan")).output().unwrap();
    let told = sync();
    assert!(
        !told.status.success() && String::from_utf8_lossy(&told.stderr).contains("Input/output error"),
        "{told:?}"
    );
    assert!(sync().status.success(), "said once");
    let began = Instant::now();
    while fs::read_to_string(one.join("plan")).unwrap() != "AGREED" {
        assert!(began.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(10));
    }
    writer.end();
    offices.stop().await;
}
