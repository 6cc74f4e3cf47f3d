//! Two offices whose programs lock files on mounts: a lock taken in one excludes the other's programs, goes over with what was written under it, and is
//! broken when its office is gone. The programs are Python's, with the kernel's `fcntl` and SQLite.

use crate::mounted::{Offices, can_mount, shared};
use firn_rig::Edge;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// What a handover may take on a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The same with two minutes until an office that is gone was taken over and its locks were broken.
const BREAKS_WITHIN: Duration = Duration::from_secs(240);

const PROGRAM: &str = r"
import errno, fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for line in sys.stdin:
    what, _, text = line.strip().partition(' ')
    try:
        if what == 'lock': fcntl.lockf(file, fcntl.LOCK_EX)
        elif what == 'try': fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif what == 'flock': fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif what == 'unlock': fcntl.lockf(file, fcntl.LOCK_UN)
        elif what == 'write':
            os.ftruncate(file, 0)
            os.pwrite(file, text.encode(), 0)
        elif what == 'read': print(os.pread(file, 4096, 0).decode(), end='')
        elif what == 'raise':
            for turn in range(int(text)):
                fcntl.lockf(file, fcntl.LOCK_EX)
                number = int(os.pread(file, 4096, 0) or b'0')
                os.pwrite(file, b'%d' % (number + 1), 0)
                fcntl.lockf(file, fcntl.LOCK_UN)
                time.sleep(0.2)
        print('', 'done', flush=True)
    except OSError as error:
        print('', errno.errorcode[error.errno], flush=True)
";

const DATABASE: &str = r"
import sqlite3, sys
path, office, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, timeout=240, isolation_level=None)
for turn in range(rounds):
    base.execute('BEGIN IMMEDIATE')
    number, = base.execute('SELECT number FROM counter').fetchone()
    base.execute('INSERT INTO entries VALUES (?, ?, ?)', (number, office, turn))
    base.execute('UPDATE counter SET number = ?', (number + 1,))
    base.execute('COMMIT')
print('done')
";

fn can_lock() -> bool {
    let has = Command::new("python3")
        .args(["-c", "import fcntl, sqlite3"])
        .stderr(Stdio::null())
        .status();
    let can = can_mount() && has.is_ok_and(|status| status.success());
    if !can {
        eprintln!(
            "SKIPPED: nothing about locks between offices was tested, for which Python and /dev/fuse are needed"
        );
    }
    can
}

/// A program that has a file open, and does what it is told.
struct Program {
    child: Child,
    says: Option<ChildStdin>,
    hears: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn open(file: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = child.stdin.take();
        let hears = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, says, hears }
    }

    fn begin(&mut self, what: &str) {
        let says = self.says.as_mut().unwrap();
        writeln!(says, "{what}").unwrap();
    }

    fn answer(&mut self) -> String {
        self.hears.next().unwrap().unwrap()
    }

    fn does(&mut self, what: &str) -> String {
        self.begin(what);
        self.answer()
    }

    fn end(mut self) {
        drop(self.says.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two offices, and a program in each that has the same new file open.
async fn with_file_open(here: &Path, name: &str) -> (Offices, [Program; 2]) {
    let offices = Offices::shared(here, "0 s").await;
    fs::write(offices.at[0].join(name), "").unwrap();
    // Only that the other office sees the file matters here: a sync that is refused on a busy machine is told and tried again.
    let began = Instant::now();
    while let Err(refused) = offices.one.sync().await {
        println!("{refused:#}");
        assert!(began.elapsed() < TIMEOUT, "{refused:#}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let programs = [0, 1].map(|office| Program::open(&offices.at[office].join(name)));
    (offices, programs)
}

async fn listed(edge: &Edge) -> Value {
    let text = edge.command("locks", &["--output", "json"]).await.unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["locks"].clone()
}

async fn until_waiting(edge: &Edge) {
    let began = Instant::now();
    while edge.status().await.unwrap()["nfs"]["locks"]["waiting"] != 1 {
        assert!(began.elapsed() < TIMEOUT, "nobody waits");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_one_office_excludes_the_other_and_goes_over_with_what_was_written_under_it() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let (offices, [mut of_one, mut of_two]) = with_file_open(here.path(), "plan").await;
    assert_eq!(of_one.does("lock"), " done");
    assert_eq!(of_two.does("try"), " EAGAIN");
    assert_eq!(of_two.does("flock"), " EAGAIN", "of the whole file");
    // Office two has the volume by now, and knows whose lock it is; office one knows its own.
    for (edge, protocol, client) in [
        (&offices.two, "office", "one".to_owned()),
        (&offices.one, "local", offices.at[0].display().to_string()),
    ] {
        let locks = listed(edge).await;
        let lock = &locks[0];
        assert_eq!(
            (&lock["path"], &lock["protocol"], &lock["client"], &lock["kind"]),
            (&"/plan".into(), &protocol.into(), &client.into(), &"write".into()),
            "{locks}"
        );
    }
    let began = Instant::now();
    of_two.begin("lock");
    until_waiting(&offices.two).await;
    // Its own office waits for the volume to write; the lock stays where it is meanwhile.
    assert_eq!(of_one.does("write agreed in office one"), " done");
    assert_eq!(of_one.does("unlock"), " done");
    assert_eq!(of_two.answer(), " done");
    println!("the lock went over {:?} after it was asked for", began.elapsed());
    assert_eq!(of_two.does("read"), "agreed in office one done");
    assert_eq!(of_one.does("try"), " EAGAIN");
    // Unlocked without the volume: nobody else need write for that.
    assert_eq!(of_two.does("unlock"), " done");
    let began = Instant::now();
    while of_one.does("try") != " done" {
        assert!(began.elapsed() < TIMEOUT, "an unlock is heard within a second");
    }
    let lost = |status: &Value| status["locks_lost"].as_u64();
    assert_eq!(lost(&shared(&offices.one).await), Some(0));
    assert_eq!(lost(&shared(&offices.two).await), Some(0));
    of_one.end();
    of_two.end();
    assert_eq!(listed(&offices.one).await.as_array().unwrap().len(), 0);
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_two_offices_raise_under_a_lock_loses_nothing() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let (offices, mut programs) = with_file_open(here.path(), "counter").await;
    let began = Instant::now();
    for program in &mut programs {
        program.begin("raise 8");
    }
    for program in &mut programs {
        assert_eq!(program.answer(), " done");
    }
    let (of_one, of_two) = (shared(&offices.one).await, shared(&offices.two).await);
    let handovers = of_one["given"].as_u64().unwrap() + of_two["given"].as_u64().unwrap();
    println!("16 rounds took {:?}, {handovers} handovers", began.elapsed());
    assert!(handovers > 2, "both were at it: {of_one} {of_two}");
    for mut program in programs {
        assert_eq!(program.does("lock"), " done");
        assert_eq!(program.does("read"), "16 done");
        program.end();
    }
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_takes_transactions_of_both_offices() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let offices = Offices::shared(here.path(), "0 s").await;
    let python = |script: &str, arguments: &[&str]| {
        let mut command = Command::new("python3");
        command
            .args(["-c", script])
            .args(arguments)
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let paths = [0, 1].map(|office| offices.at[office].join("base").display().to_string());
    let make = "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1])\nbase.execute('CREATE TABLE counter (number)')\n\
                base.execute('INSERT INTO counter VALUES (0)')\nbase.execute('CREATE TABLE entries (number UNIQUE, office, turn)')\nbase.commit()\n";
    assert!(python(make, &[&paths[0]]).wait().unwrap().success());
    let began = Instant::now();
    let working =
        [("one", &paths[0]), ("two", &paths[1])].map(|(name, path)| python(DATABASE, &[path, name, "8"]));
    for child in working {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
    }
    println!("16 transactions took {:?}", began.elapsed());
    let judge = "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1], timeout=240)\nprint(base.execute('PRAGMA integrity_check').fetchone()[0], \
                 base.execute('SELECT number FROM counter').fetchone()[0], base.execute('SELECT count(*), count(DISTINCT office) FROM entries').fetchone())";
    for path in &paths {
        let output = python(judge, &[path]).wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok 16 (16, 2)\n");
    }
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_an_office_that_is_killed_are_broken_for_who_waits_after_a_minute() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::shared(here.path(), "0 s").await;
    for name in ["recorded", "unrecorded"] {
        fs::write(offices.at[0].join(name), "").unwrap();
    }
    offices.one.sync().await.unwrap();
    let open = |office: usize, name: &str| Program::open(&offices.at[office].join(name));
    let (mut first, mut second) = (open(0, "recorded"), open(0, "unrecorded"));
    let (mut next, mut last) = (open(1, "recorded"), open(1, "unrecorded"));
    assert_eq!(first.does("lock"), " done");
    assert_eq!(next.does("try"), " EAGAIN");
    // Office one has the volume again when it is killed, and this one no record knows.
    assert_eq!(second.does("lock"), " done");
    offices.one.kill().await.unwrap();
    let began = Instant::now();
    next.begin("lock");
    last.begin("lock");
    assert_eq!(next.answer(), " done");
    assert_eq!(last.answer(), " done");
    let waited = began.elapsed();
    println!("granted {waited:?} after the kill");
    assert!(
        waited > Duration::from_secs(50) && waited < BREAKS_WITHIN,
        "{waited:?}"
    );
    assert_eq!(next.does("write goes on"), " done");
    drop((first, second));
    next.end();
    last.end();
    offices.two.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_that_was_cut_off_hears_what_it_lost() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let (offices, [mut of_one, mut of_two]) = with_file_open(here.path(), "plan").await;
    assert_eq!(of_one.does("lock"), " done");
    assert_eq!(of_two.does("try"), " EAGAIN");
    offices.cut_one_off(true);
    let began = Instant::now();
    assert_eq!(of_two.does("lock"), " done");
    let waited = began.elapsed();
    println!("broken {waited:?} after it was asked for");
    assert!(
        waited > Duration::from_secs(50) && waited < BREAKS_WITHIN,
        "{waited:?}"
    );
    assert_eq!(shared(&offices.two).await["lock_breaks"].as_u64(), Some(1));
    offices.cut_one_off(false);
    let began = Instant::now();
    while shared(&offices.one).await["locks_lost"].as_u64() != Some(1) {
        assert!(began.elapsed() < TIMEOUT, "{}", shared(&offices.one).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let shown = offices.one.command("status", &[]).await.unwrap();
    assert!(shown.contains("locks of clients here were broken"), "{shown}");
    assert_eq!(
        of_one.does("unlock"),
        " done",
        "what it no longer has it may give back"
    );
    assert_eq!(of_one.does("try"), " EAGAIN");
    of_one.end();
    of_two.end();
    offices.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_breaks_locks_of_the_other_office() {
    if !can_lock() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let (offices, [mut of_one, mut of_two]) = with_file_open(here.path(), "plan").await;
    assert_eq!(of_one.does("lock"), " done");
    assert_eq!(of_two.does("try"), " EAGAIN");
    let arguments = ["/plan", "--break", "--client", "one"];
    let shown = offices.two.command("locks", &arguments).await.unwrap();
    assert!(shown.contains("nothing was changed"), "{shown}");
    assert_eq!(of_two.does("try"), " EAGAIN");
    of_two.begin("lock");
    until_waiting(&offices.two).await;
    let arguments = ["/plan", "--break", "--client", "one", "--yes"];
    let said = offices.two.command("locks", &arguments).await.unwrap();
    assert!(said.contains("broken: the locks of one in /plan"), "{said}");
    assert_eq!(of_two.answer(), " done");
    let began = Instant::now();
    while shared(&offices.one).await["locks_lost"].as_u64() != Some(1) {
        assert!(began.elapsed() < TIMEOUT, "{}", shared(&offices.one).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    of_one.end();
    of_two.end();
    offices.stop().await;
}
