//! Files on a mount, as processes use them.

use crate::world::{root, shell, world};
use firn_fuse::{Mount, MountOptions};
use firn_session::{Changes, LockProtocol, Origin};
use firn_vfs::Vfs;
use rustix::fs::{Mode, OFlags, XattrFlags};
use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::{
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
        process::CommandExt,
    },
    process::Command,
    time::{Duration, Instant},
};

#[test]
fn files_directories_links_and_nodes_are_made_renamed_and_removed() {
    let Some(world) = world() else { return };
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/file"), b"content").expect("written");
    fs::hard_link(world.path("d/file"), world.path("link")).expect("linked");
    symlink("d/file", world.path("symlink")).expect("linked");
    assert_eq!(fs::read(world.path("symlink")).expect("read"), b"content");
    assert_eq!(fs::metadata(world.path("link")).expect("there").nlink(), 2);
    fs::rename(world.path("d/file"), world.path("d/renamed")).expect("renamed");
    assert!(fs::metadata(world.path("d/file")).is_err());
    fs::remove_file(world.path("link")).expect("removed");
    assert_eq!(fs::metadata(world.path("d/renamed")).expect("there").nlink(), 1);
    assert!(fs::remove_dir(world.path("d")).is_err(), "not empty");
    shell(&format!("mkfifo {}", world.path("fifo").display()));
    let kind = fs::metadata(world.path("fifo")).expect("there").mode() & 0o170_000;
    assert_eq!(kind, 0o010_000);
    fs::set_permissions(world.path("d/renamed"), fs::Permissions::from_mode(0o640)).expect("changed");
    assert_eq!(
        fs::metadata(world.path("d/renamed")).expect("there").mode() & 0o7777,
        0o640
    );
    let file = fs::File::options()
        .write(true)
        .open(world.path("d/renamed"))
        .expect("open");
    file.set_len(3).expect("cut");
    assert_eq!(fs::read(world.path("d/renamed")).expect("read"), b"con");
    file.set_len(1 << 30).expect("a hole");
    assert_eq!(
        fs::metadata(world.path("d/renamed")).expect("there").len(),
        1 << 30
    );
    assert!(fs::metadata(world.path(&"n".repeat(256))).is_err());
}

#[test]
fn a_listing_of_thousands_has_each_name_once_with_its_kind() {
    let Some(world) = world() else { return };
    for number in 0..3000 {
        fs::write(world.path(&format!("a file with a longer name {number}")), b"").expect("written");
    }
    for _ in 0..2 {
        let names: std::collections::BTreeSet<_> = fs::read_dir(world.path(""))
            .expect("listed")
            .map(|entry| entry.expect("an entry"))
            .inspect(|entry| assert!(entry.file_type().expect("a kind").is_file()))
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(names.len(), 3000);
    }
    assert_eq!(
        shell(&format!("ls -l {} | wc -l", world.path("").display())).trim(),
        "3001"
    );
    let status = world.mount.as_ref().expect("mounted").status();
    assert!(status.is_mounted && status.nodes > 3000, "{status:?}");
}

#[test]
fn large_parallel_mapped_and_direct_io_reads_what_was_written() {
    let Some(world) = world() else { return };
    let data: Vec<u8> = (0..5_000_003_u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let path = world.path("large");
    fs::write(&path, &data).expect("written");
    assert_eq!(fs::read(&path).expect("read"), data);
    std::thread::scope(|scope| {
        for part in 0..8_usize {
            let (path, data) = (&path, &data);
            scope.spawn(move || {
                let file = fs::File::options()
                    .read(true)
                    .write(true)
                    .open(path)
                    .expect("open");
                let at = part * 600_000;
                file.write_all_at(&data[at..at + 600_000], at as u64)
                    .expect("written");
                let mut read = vec![0; 600_000];
                file.read_exact_at(&mut read, at as u64).expect("read");
                assert!(read == data[at..at + 600_000]);
            });
        }
    });
    let direct = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).expect("open");
    let mut buffer = [0_u8; 3 * 4096];
    let aligned = buffer.as_ptr().align_offset(4096);
    let read = rustix::io::pread(&direct, &mut buffer[aligned..aligned + 4096], 8192).expect("read");
    assert_eq!(
        (read, &buffer[aligned..aligned + 4096]),
        (4096, &data[8192..12288])
    );
    buffer[aligned..aligned + 4096].fill(7);
    rustix::io::pwrite(&direct, &buffer[aligned..aligned + 4096], 8192).expect("written");
    let mut back = [0; 4096];
    fs::File::open(&path)
        .expect("open")
        .read_exact_at(&mut back, 8192)
        .expect("read");
    assert_eq!(back, [7; 4096], "through the page cache");
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b');m=mmap.mmap(f.fileno(),0)\n\
        assert m[8192]==7;m[0:5]=b'mmap!';m.flush();m.close()";
    let mapped = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .status()
        .expect("python3");
    assert!(mapped.success());
    let file = world.find("large");
    let read = world
        .runtime
        .block_on(world.model.read(root(), file, 0, 5))
        .expect("read");
    assert_eq!(
        read.data.concat(),
        b"mmap!",
        "and what msync wrote is in the file system"
    );
}

#[test]
fn modes_groups_and_lists_decide_who_may() {
    let Some(world) = world() else { return };
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    fs::create_dir(world.path("d")).expect("made");
    fs::write(world.path("d/file"), b"secret").expect("written");
    let set = |path: &str, mode, gid| {
        std::os::unix::fs::chown(world.path(path), Some(0), Some(gid)).expect("changed");
        fs::set_permissions(world.path(path), fs::Permissions::from_mode(mode)).expect("changed");
    };
    let reads = |groups: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid", "1000", "--regid", "1000", groups, "cat"])
            .arg(world.path("d/file"))
            .output();
        output.expect("setpriv").status.success()
    };
    let (none, some) = ("--clear-groups", "--groups=2000");
    set("d/file", 0o640, 2000);
    assert!(!reads(none) && reads(some), "a supplementary group");
    set("d", 0o750, 2000);
    set("d/file", 0o644, 0);
    assert!(
        !reads(none) && reads(some),
        "a directory that may not be searched, though its names are cached"
    );
    set("d", 0o755, 0);
    set("d/file", 0o600, 0);
    assert!(!reads(none));
    // user::rw-, user:1000:r--, group::---, mask::r--, other::---
    let entries: [(u16, u16, u32); 5] = [
        (1, 6, u32::MAX),
        (2, 4, 1000),
        (4, 0, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let (path, acl) = (world.path("d/file"), "system.posix_acl_access");
    rustix::fs::setxattr(&path, acl, &list, XattrFlags::empty()).expect("set");
    assert!(reads(none), "a list that names the user");
    let mut back = [0; 256];
    let length = rustix::fs::getxattr(&path, acl, &mut back[..]).expect("got");
    assert_eq!(&back[..length], list);
    let (_, file) = (world.root(), world.find("d/file"));
    let (access, _) = world
        .runtime
        .block_on(world.model.get_acl(root(), file))
        .expect("a list");
    assert_eq!(access.entries.len(), 5, "and it is one to other protocols");
    rustix::fs::removexattr(&path, acl).expect("removed");
    assert!(!reads(none));
    // Who creates owns, with the umask taken off.
    set("d", 0o777, 0);
    let made = format!(
        "umask 027; setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'echo x > {0}; mkdir {0}.d; ln -s x {0}.l'",
        world.path("d/new").display()
    );
    shell(&made);
    let status = |name: &str| {
        let status = fs::symlink_metadata(world.path(name)).expect("there");
        (status.uid(), status.gid(), status.mode() & 0o7777)
    };
    assert_eq!(status("d/new"), (1000, 1000, 0o640));
    assert_eq!(status("d/new.d"), (1000, 1000, 0o750));
    assert_eq!(status("d/new.l"), (1000, 1000, 0o777));
    set("d", 0o2777, 3000);
    shell(&made.replace("d/new", "d/inherits"));
    assert_eq!(status("d/inherits"), (1000, 3000, 0o640));
    assert_eq!(status("d/inherits.d"), (1000, 3000, 0o2750));
}

/// As a user who may write the file but neither owns it nor is the superuser.
fn as_another(command: &str) {
    let done = Command::new("sh")
        .args(["-c", command])
        .uid(4711)
        .gid(4711)
        .output()
        .expect("a shell");
    assert!(done.status.success(), "{command}: {done:?}");
}

#[test]
fn who_changes_a_program_takes_from_it_what_makes_it_run_as_its_owner() {
    let Some(world) = world() else { return };
    let path = world.path("program");
    let shown = path.display();
    fs::write(&path, b"something").expect("written");
    let mode = || fs::metadata(&path).expect("there").mode() & 0o7777;
    let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
    let changes = [
        format!("printf x | dd of={shown} conv=notrunc status=none"),
        format!("truncate -s 3 {shown}"),
        format!("printf x >> {shown}"),
        format!("fallocate --zero-range --length 100 {shown}"),
    ];
    for change in &changes {
        set(0o6777);
        as_another(change);
        assert_eq!(mode(), 0o777, "{change}");
        set(0o6666);
        as_another(change);
        assert_eq!(mode(), 0o666, "{change}: nobody may execute it");
        set(0o6777);
        shell(change);
        assert_eq!(mode(), 0o6777, "{change}: by the superuser");
    }
    set(0o6777);
    shell(&format!("chown 4711 {shown}"));
    assert_eq!(mode(), 0o777, "a new owner");
}

#[test]
fn a_directory_that_is_open_is_known_without_a_name() {
    let Some(world) = world() else { return };
    for path in ["removed", "replaced", "other"] {
        fs::create_dir(world.path(path)).expect("made");
    }
    let (removed, replaced) = (
        fs::File::open(world.path("removed")),
        fs::File::open(world.path("replaced")),
    );
    let (removed, replaced) = (removed.expect("open"), replaced.expect("open"));
    let inode = removed.metadata().expect("there").ino();
    fs::remove_dir(world.path("removed")).expect("removed");
    fs::rename(world.path("other"), world.path("replaced")).expect("renamed");
    for directory in [&removed, &replaced] {
        let metadata = directory.metadata().expect("still open");
        assert!(metadata.is_dir());
        assert_eq!(metadata.nlink(), 0);
    }
    assert_eq!(removed.metadata().expect("still open").ino(), inode);
    assert!(fs::metadata(world.path("removed")).is_err());
}

#[test]
fn the_list_of_the_root_is_asked_for_once() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"something").expect("written");
    let look = format!(
        "for round in $(seq 100); do [ -e {} ] || exit 1; done",
        world.path("file").display()
    );
    as_another(&look);
    let before = world.requests();
    as_another(&look);
    // Few for what the kernel believes no longer; a question at each access would be a hundred.
    let requests = world.requests() - before;
    assert!(requests <= 20, "{requests}");
}

#[test]
fn what_is_written_as_soon_as_a_mount_is_seen_is_in_the_volume() {
    let Some(world) = world() else { return };
    let env = firn_env::real(world.directory.path()).expect("an environment");
    let changes = Changes::new(&env);
    let path = world.directory.path().join("again");
    fs::create_dir(&path).expect("made");
    for round in 0..20 {
        let file = path.join(format!("file {round}"));
        let line = format!(" {} ", path.display());
        let first = std::thread::spawn(move || {
            let began = Instant::now();
            while !fs::read_to_string("/proc/self/mountinfo")
                .expect("read")
                .contains(&line)
            {
                assert!(began.elapsed() < Duration::from_secs(60), "never mounted");
            }
            fs::write(file, b"first").expect("written");
        });
        let options = MountOptions {
            path: path.clone(),
            source: "firn:again".into(),
            read_only: false,
            allow_other: false,
            case_index: false,
            protocol: LockProtocol::Local,
            access_log: None,
            durability: firn_vfs::Durability::Journal,
            cached_for: None,
            on_failed_sync: None,
        };
        let locks = world.locks.clone();
        let mount = Mount::start(&env, options, world.model.clone(), locks, &changes, Origin(2));
        let mount = world.runtime.block_on(mount).expect("mounted");
        first.join().expect("no panic");
        world.find(&format!("file {round}"));
        world.runtime.block_on(mount.unmount());
    }
    assert_eq!(
        fs::read_dir(&path).expect("listed").count(),
        0,
        "nothing below the mount"
    );
}

#[test]
fn a_write_is_one_request() {
    let Some(world) = world() else { return };
    let file = fs::File::create(world.path("file")).expect("made");
    file.write_at(&[1], 0).expect("written");
    let before = world.requests();
    for at in 0..100 {
        file.write_at(&[2], at * 5000).expect("written");
    }
    let requests = world.requests() - before;
    assert!((100..=110).contains(&requests), "{requests} for 100 writes");
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let Some(world) = world() else { return };
    fs::write(world.path("file"), b"").expect("written");
    let path = world.path("file");
    rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::CREATE).expect("set");
    let again = rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::CREATE);
    assert_eq!(again.err(), Some(rustix::io::Errno::EXIST));
    rustix::fs::setxattr(&path, "trusted.b", &[7; 60_000], XattrFlags::empty()).expect("set");
    let mut list = [0; 100];
    let length = rustix::fs::listxattr(&path, &mut list[..]).expect("listed");
    assert_eq!(&list[..length], b"trusted.b\0user.a\0");
    let mut value = [0; 70_000];
    assert_eq!(
        rustix::fs::getxattr(&path, "trusted.b", &mut value[..]).expect("got"),
        60_000
    );
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut value[..2]).err(),
        Some(rustix::io::Errno::RANGE)
    );
    rustix::fs::removexattr(&path, "user.a").expect("removed");
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut value[..]).err(),
        Some(rustix::io::Errno::NODATA)
    );
}

#[test]
fn a_mount_is_not_put_upon_a_living_one_and_ends_though_it_is_in_use() {
    let Some(mut world) = world() else { return };
    let env = firn_env::real(world.directory.path()).expect("an environment");
    let changes = Changes::new(&env);
    let options = MountOptions {
        path: world.path("").components().as_path().to_path_buf(),
        source: "firn:again".into(),
        read_only: true,
        allow_other: false,
        case_index: false,
        protocol: LockProtocol::Local,
        access_log: None,
        durability: firn_vfs::Durability::Journal,
        cached_for: None,
        on_failed_sync: None,
    };
    let again = Mount::start(
        &env,
        options.clone(),
        world.model.clone(),
        world.locks.clone(),
        &changes,
        Origin(2),
    );
    let error = world.runtime.block_on(again).err().expect("refused").to_string();
    assert!(error.contains("by another process that is alive"), "{error}");
    let mut open = fs::File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(world.path("file"))
        .expect("open");
    open.write_all(b"x").expect("written");
    let mount = world.mount.take().expect("mounted");
    world.runtime.block_on(mount.unmount());
    assert!(!world.path("file").exists());
    let (began, mut written) = (Instant::now(), 1);
    while open.write_all(b"x").is_ok() {
        written += 1;
        assert!(began.elapsed() < Duration::from_secs(10), "still written to");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Read only, and for whoever mounted it only.
    let mount = Mount::start(
        &env,
        options,
        world.model.clone(),
        world.locks.clone(),
        &changes,
        Origin(2),
    );
    let mount = world.runtime.block_on(mount).expect("mounted anew");
    // What was answered is there; of the write that was not, nobody knows.
    let read = fs::read(world.path("file")).expect("read");
    assert!(
        (written..=written + 1).contains(&read.len()),
        "{written} written, {read:?}"
    );
    assert_eq!(
        fs::write(world.path("new"), b"")
            .expect_err("read-only")
            .raw_os_error(),
        Some(30)
    );
    let stranger = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "ls"])
        .arg(world.path(""))
        .output()
        .expect("setpriv");
    assert!(!stranger.status.success(), "{stranger:?}");
    world.runtime.block_on(mount.unmount());
}
