//! Coherence of a mount: changes that come by another way, and others' locks, as processes see them.

use crate::world::{name, root, world, world_with};
use firn_session::ByteRange;
use firn_vfs::{CreateMode, SetAttributes, Vfs};
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[test]
fn an_open_file_stays_readable_when_its_name_is_gone_and_then_it_is_gone() {
    let Some(world) = world() else { return };
    for by_nfs in [false, true] {
        fs::write(world.path("file"), b"content").expect("written");
        let handle = world.find("file");
        let mut open = fs::File::options()
            .read(true)
            .write(true)
            .open(world.path("file"))
            .expect("open");
        if by_nfs {
            world
                .runtime
                .block_on(world.other.remove(root(), world.root(), &name("file")))
                .expect("removed");
        } else {
            fs::remove_file(world.path("file")).expect("removed");
        }
        assert!(fs::metadata(world.path("file")).is_err());
        open.write_all(b"new and longer").expect("written");
        open.sync_all().expect("synced");
        open.seek(SeekFrom::Start(0)).expect("sought");
        let mut text = String::new();
        open.read_to_string(&mut text).expect("read");
        assert_eq!(text, "new and longer");
        assert_eq!(open.metadata().expect("there").nlink(), 0);
        drop(open);
        // The kernel closes for us after close(2) has returned.
        let began = Instant::now();
        while world.runtime.block_on(world.model.attributes(handle)).is_ok() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "the file is never freed"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_name_that_was_missing_is_there_at_once_whoever_makes_it() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    let directory = world.find("d");
    for round in 0..50 {
        let text = format!("file {round}");
        let path = world.path(&format!("d/{text}"));
        let before = world.requests();
        for _ in 0..20 {
            assert!(fs::metadata(&path).is_err());
        }
        // Nobody is asked each time; more than once only if a second went by.
        assert!(world.requests() - before < 20, "{}", world.requests() - before);
        if round % 2 == 0 {
            let mode = CreateMode::Guarded(SetAttributes::default());
            let text = name(&text);
            let made = world.other.create(root(), directory, &text, mode);
            world.runtime.block_on(made).expect("made");
        } else {
            fs::write(&path, b"").expect("made");
        }
        fs::metadata(&path).expect("it is there");
    }
}

#[test]
fn what_another_protocol_changes_is_seen_at_once() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/file"), b"first").expect("written");
    let (directory, file) = (world.find("d"), world.find("d/file"));
    let open = fs::File::open(world.path("d/file")).expect("open");
    let read = |file: &fs::File| {
        let mut data = [0; 100];
        let length = file.read_at(&mut data, 0).expect("read");
        data[..length].to_vec()
    };
    let contents: [&'static [u8]; 3] = [b"other", b"another, longer", b"x, and as long!"];
    for content in contents {
        // In the caches of the kernel by now: content, length, name.
        let _ = (read(&open), fs::metadata(world.path("d/file")).expect("there"));
        world.write(file, content);
        assert_eq!(
            fs::metadata(world.path("d/file")).expect("there").len(),
            content.len() as u64
        );
        assert_eq!(read(&open), content, "through a descriptor that was open");
        assert_eq!(fs::read(world.path("d/file")).expect("read"), content);
    }
    let (from, to) = (name("file"), name("renamed"));
    let renamed = world.other.rename(root(), directory, &from, directory, &to);
    world.runtime.block_on(renamed).expect("renamed");
    assert!(fs::metadata(world.path("d/file")).is_err(), "the old name");
    assert_eq!(
        fs::metadata(world.path("d/renamed")).expect("there").ino(),
        file.inode
    );
    let mode = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    world
        .runtime
        .block_on(world.other.set_attributes(root(), file, mode, None))
        .expect("changed");
    assert_eq!(
        fs::metadata(world.path("d/renamed")).expect("there").mode() & 0o777,
        0o600
    );
    let new = name("new");
    let guarded = CreateMode::Guarded(SetAttributes::default());
    let created = world.other.create(root(), directory, &new, guarded);
    world.runtime.block_on(created).expect("created");
    assert_eq!(fs::read_dir(world.path("d")).expect("listed").count(), 2);
    world
        .runtime
        .block_on(world.other.remove(root(), directory, &to))
        .expect("removed");
    assert!(fs::metadata(world.path("d/renamed")).is_err());
    assert!(open.metadata().is_ok_and(|status| status.nlink() == 0));
    let invalidations = world.mount.as_ref().expect("mounted").status().invalidations;
    assert!(
        invalidations.delivered > 0 && invalidations.late == 0,
        "{invalidations:?}"
    );
}

/// A kernel that believes a file longer than it is fills what it cannot read with zeros. It asks for the length before each read only if told to;
/// what it learns from a short read is not enough, since of two that meet the end the later one counts.
#[test]
fn a_file_that_another_protocol_cut_is_never_read_beyond_its_end() {
    let Some(world) = world() else { return };
    for round in 0..100_u8 {
        let path = world.path(&format!("file-{round}"));
        fs::write(&path, [round; 200_000]).expect("written");
        let open = fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("open");
        let mut data = vec![0; 65_536];
        open.read_exact_at(&mut data, 0).expect("read");
        let cut = SetAttributes {
            size_bytes: Some(634),
            ..SetAttributes::default()
        };
        let file = world.find(&format!("file-{round}"));
        let cutting = world.other.set_attributes(root(), file, cut, None);
        world.runtime.block_on(cutting).expect("cut");
        // Without a look at its attributes in between.
        open.write_all_at(&[9; 1_604], 62_919).expect("written");
        let length = open.read_at(&mut data, 0).expect("read");
        assert_eq!(length, 64_523, "round {round}");
        assert_eq!(open.metadata().expect("there").len(), 64_523);
    }
}

#[test]
fn what_is_appended_here_goes_behind_what_another_protocol_appended() {
    let Some(world) = world() else { return };
    fs::write(world.path("log"), b"one\n").expect("written");
    let mut open = fs::File::options()
        .append(true)
        .open(world.path("log"))
        .expect("open");
    open.write_all(b"two\n").expect("appended");
    world.write(world.find("log"), b"one\ntwo\nthree\n");
    open.write_all(b"four\n").expect("appended");
    assert_eq!(
        fs::read(world.path("log")).expect("read"),
        b"one\ntwo\nthree\nfour\n"
    );
}

#[test]
fn locks_of_processes_here_and_of_nfs_clients_exclude_each_other() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"").expect("written");
    let request = world.nlm(world.find("file"), true);
    let open = || {
        fs::File::options()
            .read(true)
            .write(true)
            .open(world.path("file"))
            .expect("open")
    };
    let file = open();
    world.locks.lock(&request).expect("free");
    let denied = Some(rustix::io::Errno::AGAIN);
    assert_eq!(
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).err(),
        denied
    );
    assert_eq!(
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).err(),
        denied
    );
    world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    // fcntl: until a descriptor of the process on the file is closed.
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("free");
    assert!(world.locks.lock(&request).is_err());
    drop(open());
    world.locks.lock(&request).expect("free since the close");
    world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    // flock: until the open file is closed.
    let other = open();
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared).expect("free");
    assert!(world.locks.lock(&request).is_err());
    world
        .locks
        .lock(&world.nlm(request.file, false))
        .expect("both shared");
    world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    drop(other);
    let began = Instant::now();
    while world.locks.lock(&request).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the lock outlives its file"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // One that waits gets it when the client unlocks.
    let waiting = std::thread::spawn({
        let file = open();
        move || rustix::fs::flock(&file, FlockOperation::LockExclusive)
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    waiting.join().expect("it ends").expect("the lock");
}

/// As smbd locks: by the open file, not by the process (F_OFD_SETLK). The first argument is what it opens, the others what it does then.
const OPEN_FILE_LOCK: &str = r"
import fcntl, os, struct, sys
def lock(fd, kind): fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', kind, 0, 10, 5, 0))
fd = os.open(sys.argv[1], os.O_RDWR)
for word in sys.argv[2:]:
    if word == 'lock': lock(fd, fcntl.F_WRLCK)
    elif word == 'unlock': lock(fd, fcntl.F_UNLCK)
    elif word == 'open-another': other = os.open(sys.argv[1], os.O_RDWR)
    elif word == 'close-another': os.close(other)
    elif word == 'close': os.close(fd)
    elif word == 'wait': print('waits', flush=True); sys.stdin.readline()
";

#[test]
fn a_lock_of_an_open_file_ends_with_it_however_it_ends() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"").expect("written");
    let request = world.nlm(world.find("file"), true);
    let run = |words: &[&str]| {
        Command::new("python3")
            .args(["-c", OPEN_FILE_LOCK])
            .arg(world.path("file"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3")
    };
    let waits = |child: &mut std::process::Child| {
        let mut said = [0; 6];
        let output = child.stdout.as_mut().expect("piped");
        output.read_exact(&mut said).expect("it waits");
    };
    let is_free_soon = || {
        let began = Instant::now();
        while world.locks.lock(&request).is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "the lock outlives its file"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    };
    // The process is killed; it closes the file; it unlocks; it had another open of the file, whose end means nothing.
    let mut holder = run(&["lock", "wait"]);
    waits(&mut holder);
    assert!(world.locks.lock(&request).is_err(), "locked");
    holder.kill().expect("killed");
    holder.wait().expect("an end");
    is_free_soon();
    for end in ["close", "unlock"] {
        let mut holder = run(&["open-another", "lock", "close-another", "wait", end, "wait"]);
        waits(&mut holder);
        assert!(world.locks.lock(&request).is_err(), "locked");
        writeln!(holder.stdin.as_mut().expect("piped")).expect("it goes on");
        waits(&mut holder);
        is_free_soon();
        holder.kill().expect("killed");
        holder.wait().expect("an end");
    }
    assert_eq!(world.locks.counts().locks, 0);
}

/// What a process locks again through another descriptor stays, whenever the kernel tells of the end of the first.
#[test]
fn the_end_of_one_open_takes_no_lock_that_was_made_by_another() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"").expect("written");
    let request = world.nlm(world.find("file"), true);
    let open = || {
        let options = fs::File::options()
            .read(true)
            .write(true)
            .open(world.path("file"));
        options.expect("open")
    };
    for _ in 0..200 {
        let (first, second) = (open(), open());
        rustix::fs::fcntl_lock(&first, FlockOperation::NonBlockingLockExclusive).expect("free");
        drop(first);
        rustix::fs::fcntl_lock(&second, FlockOperation::NonBlockingLockExclusive).expect("free");
        std::thread::sleep(Duration::from_millis(2));
        assert!(world.locks.lock(&request).is_err(), "the second has it");
        drop(second);
        world.locks.lock(&request).expect("free since the close");
        world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
    }
}

#[test]
fn a_process_that_waits_for_a_lock_can_be_killed() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"").expect("written");
    let request = world.nlm(world.find("file"), true);
    world.locks.lock(&request).expect("free");
    let mut child = Command::new("flock")
        .arg(world.path("file"))
        .arg("true")
        .stdin(Stdio::null())
        .spawn()
        .expect("flock(1)");
    let began = Instant::now();
    while world.locks.counts().waiters == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "it never waits");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("a signal");
    let killed = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        assert!(killed.elapsed() < Duration::from_secs(10), "it cannot be killed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(world.locks.counts().waiters, 0, "and has left the queue");
    world.locks.unlock(request.file, &request.owner, ByteRange::ALL);
}

#[test]
fn after_a_change_that_no_protocol_made_nothing_is_believed_any_more() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/file"), b"old").expect("written");
    let (directory, file) = (world.find("d"), world.find("d/file"));
    assert_eq!(fs::read(world.path("d/file")).expect("read"), b"old");
    let open = fs::File::open(world.path("d/file")).expect("open");
    // Beside everything that announces.
    let data = vec![bytes::Bytes::from_static(b"new")];
    let written = world
        .model
        .write(root(), file, 0, data, firn_vfs::Stability::FileSync);
    world.runtime.block_on(written).expect("written");
    let (from, to) = (name("file"), name("moved"));
    let renamed = world.model.rename(root(), directory, &from, directory, &to);
    world.runtime.block_on(renamed).expect("renamed");
    assert!(world.path("d/file").exists(), "cached");
    world.runtime.block_on(world.changes.announce_unknown());
    let mut read = [0; 3];
    open.read_exact_at(&mut read, 0).expect("read");
    assert_eq!(&read, b"new");
    assert_eq!(fs::read(world.path("d/moved")).expect("read"), b"new");
    // Older kernels keep names for the five seconds that the replies allowed.
    let began = Instant::now();
    while world.path("d/file").exists() {
        assert!(
            began.elapsed() < Duration::from_secs(7),
            "the old name is believed for ever"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("names were dropped after {:?}", began.elapsed());
}

#[test]
fn a_change_meets_dirty_mapped_pages_and_readers_and_nobody_waits_for_the_other_for_ever() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), vec![b'.'; 64 << 10]).expect("written");
    let file = world.find("file");
    // Maps the file, changes it without a sync, and goes on changing it.
    let script = "import mmap,sys,time\n\
        f=open(sys.argv[1],'r+b');m=mmap.mmap(f.fileno(),0)\n\
        print('mapped',flush=True)\n\
        end=time.time()+2\n\
        while time.time()<end: m[40000:40005]=b'mmap!'; m[9]=33";
    let mut mapper = Command::new("python3")
        .args(["-c", script])
        .arg(world.path("file"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = [0; 7];
    mapper
        .stdout
        .take()
        .expect("piped")
        .read_exact(&mut said)
        .expect("it maps");
    std::thread::scope(|scope| {
        let path = world.path("file");
        let reader = scope.spawn(move || {
            let until = Instant::now() + Duration::from_secs(2);
            while Instant::now() < until {
                fs::read(&path).expect("read");
            }
        });
        let began = Instant::now();
        let mut changes = 0;
        while !reader.is_finished() {
            world.write(file, b"nfs");
            changes += 1;
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{changes} changes in {:?}",
            began.elapsed()
        );
        assert!(changes > 10, "{changes}");
    });
    assert!(mapper.wait().expect("it ends").success());
    let invalidations = world.mount.as_ref().expect("mounted").status().invalidations;
    assert_eq!(invalidations.late, 0, "{invalidations:?}");
    let read = fs::read(world.path("file")).expect("read");
    assert_eq!((&read[..3], &read[40_000..40_005]), (&b"nfs"[..], &b"mmap!"[..]));
}

/// smbd's question, by a system call.
fn written(directory: &std::path::Path, name: &str) -> Result<String, Errno> {
    let open = fs::File::open(directory).expect("open");
    let mut value = [0_u8; 256];
    let question = format!("glusterfs.get_real_filename:{name}");
    let length = rustix::fs::fgetxattr(&open, question, &mut value)?;
    let (zero, text) = value[..length].split_last().expect("a zero at least");
    assert_eq!(*zero, 0, "as C has its strings");
    Ok(String::from_utf8(text.to_vec()).expect("text"))
}

#[test]
fn a_name_is_found_in_whatever_case_by_one_listing_whoever_made_it() {
    let Some(world) = world_with(true) else { return };
    fs::create_dir(world.path("d")).expect("made");
    let directory = world.find("d");
    for number in 0..500 {
        fs::write(world.path(&format!("d/File {number}")), b"").expect("written");
    }
    let at = world.path("d");
    assert_eq!(written(&at, "fILE 77"), Ok("File 77".into()));
    assert_eq!(written(&at, "nothing"), Err(Errno::NOENT));
    fs::write(world.path("d/Ärger"), b"").expect("written");
    fs::hard_link(world.path("d/Ärger"), world.path("d/Link")).expect("linked");
    fs::create_dir(world.path("d/Dir")).expect("made");
    std::os::unix::fs::symlink("x", world.path("d/Sym")).expect("made");
    for (asked, is) in [
        ("äRGER", "Ärger"),
        ("link", "Link"),
        ("DIR", "Dir"),
        ("sym", "Sym"),
    ] {
        assert_eq!(written(&at, asked), Ok(is.into()));
    }
    fs::rename(world.path("d/Ärger"), world.path("d/ärGER")).expect("renamed");
    assert_eq!(written(&at, "ärger"), Ok("ärGER".into()));
    fs::remove_file(world.path("d/ärGER")).expect("removed");
    assert_eq!(written(&at, "ärger"), Err(Errno::NOENT));
    // By NFS.
    let guarded = || CreateMode::Guarded(SetAttributes::default());
    for text in ["Remote", "rEMOTE"] {
        let name = name(text);
        let created = world.other.create(root(), directory, &name, guarded());
        world.runtime.block_on(created).expect("created");
    }
    assert_eq!(
        written(&at, "remote"),
        Ok("Remote".into()),
        "the first of the two"
    );
    world
        .runtime
        .block_on(world.other.remove(root(), directory, &name("Remote")))
        .expect("removed");
    assert_eq!(written(&at, "remote"), Ok("rEMOTE".into()));
    let (from, to) = (name("rEMOTE"), name("Moved"));
    let renamed = world.other.rename(root(), directory, &from, directory, &to);
    world.runtime.block_on(renamed).expect("renamed");
    assert_eq!(
        (written(&at, "remote"), written(&at, "MOVED")),
        (Err(Errno::NOENT), Ok("Moved".into()))
    );
    // The longest that the kernel lets through.
    let long = "L".repeat(227);
    fs::write(world.path(&format!("d/{long}")), b"").expect("written");
    assert_eq!(written(&at, &"l".repeat(227)), Ok(long));
    assert_eq!(written(&at, &"l".repeat(228)), Err(Errno::RANGE));
    let status = world.mount.as_ref().expect("mounted").status();
    let index = status.case_index.expect("an index");
    assert_eq!((index.listings, status.listings), (1, 0), "{index:?}");
    // A change beside all protocols.
    let beside = name("Beside");
    let created = world.model.create(root(), directory, &beside, guarded());
    world.runtime.block_on(created).expect("created");
    assert_eq!(written(&at, "beside"), Err(Errno::NOENT), "nobody said so");
    world.runtime.block_on(world.changes.announce_unknown());
    assert_eq!(written(&at, "beside"), Ok("Beside".into()));
}

#[test]
fn a_name_too_long_to_be_asked_for_is_looked_for_by_a_listing() {
    let Some(world) = world_with(true) else { return };
    fs::create_dir(world.path("d")).expect("made");
    let long = world.path(&format!("d/{}", "L".repeat(228)));
    // As smbd's module opens a directory, and as everybody else does.
    let asking = || rustix::fs::open(world.path("d"), OFlags::RDONLY, Mode::empty()).map(drop);
    let listing = || fs::read_dir(world.path("d")).map(Iterator::count);
    assert_eq!((asking(), listing().ok()), (Ok(()), Some(0)));
    assert!(fs::metadata(&long).is_err());
    assert_eq!(listing().ok(), Some(0), "whoever lists it may");
    assert_eq!(asking(), Err(Errno::OPNOTSUPP));
    assert_eq!(asking(), Ok(()), "once");
    assert!(fs::metadata(world.path("d/short")).is_err());
    assert_eq!(asking(), Ok(()));
}

#[test]
fn a_mount_of_no_smbd_answers_no_question_about_names() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/File"), b"").expect("written");
    assert_eq!(written(&world.path("d"), "FILE"), Err(Errno::OPNOTSUPP));
}
