//! NFS, SMB and a mount on the same files: for each thing that one does, what each of the others finds; and random work of all three against a
//! model.

mod acls;
mod clients;
mod histories;
mod locking;

use super::{ALICE, BOB, Shared, agent::Agent, raw_client::has_raw_client, shared};
use crate::{
    locks::LockClient,
    machine::{Cloud, TIMEOUT},
    mounts::Unmounted,
};
use clients::{ALL, By, Clients};
use firn_nfs::{nlm::LockStatus, v3::types::NewAttributes};
use locking::{DENY_ALL, DENY_WRITING};
use rustix::fs::FlockOperation;
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// The port of SMB: the only one that Samba's library connects to.
const PORT: u16 = 445;
/// As whom all come.
const UID: u32 = 1001;

/// What a test keeps to its end.
struct Kept {
    _unmounted: Unmounted,
    /// The port is one test's at a time, whatever process that is in.
    _port: fs::File,
}

/// An edge with all three, and its clients. `None` where this machine cannot have them; that is said.
async fn served(cloud: &Cloud) -> Option<(Shared, Clients, Kept)> {
    let mut edge = shared(cloud, "")?;
    let imports = Command::new("/usr/bin/python3")
        .args(["-c", "import samba.samba3"])
        .stderr(Stdio::null())
        .status();
    let programs = ["/usr/bin/smbcacls", "/usr/bin/setfacl"];
    let has_programs = programs.iter().all(|program| Path::new(program).exists());
    let has_library = imports.is_ok_and(|status| status.success()) && has_programs && has_raw_client();
    let lock = fs::File::create(std::env::temp_dir().join("firn-test-port-445")).expect("a lock");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("locked");
    // The smbd of the test before may be about to end.
    let is_free = || std::net::TcpListener::bind(("127.0.0.1", PORT)).is_ok();
    let began = Instant::now();
    while !is_free() && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_free = is_free();
    if !has_library || !is_free {
        assert!(
            std::env::var_os("FIRN_TEST_SMB").is_none(),
            "python3-samba, smbcacls, setfacl, and port {PORT} of 127.0.0.1, are needed"
        );
        eprintln!(
            "SKIPPED: nothing across protocols was tested, for which python3-samba, smbcacls, setfacl and port {PORT} are needed"
        );
        return None;
    }
    edge.edge.edit(
        &format!("port = {}\nserver_name", edge.port),
        &format!("port = {PORT}\nserver_name"),
    );
    edge.port = PORT;
    let mount = cloud.path().join("mnt");
    fs::create_dir(&mount).expect("a directory");
    // Others than its owner reach the mount.
    fs::set_permissions(cloud.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
    edge.edge.edit(
        "[log]",
        &format!("[[mount]]\npath = \"{}\"\n[log]", mount.display()),
    );
    edge.add_user(
        ALICE,
        &["--uid", &UID.to_string(), "--group", &format!("staff:{UID}")],
    );
    edge.add_user(
        BOB,
        &["--uid", &acls::BOBS_UID.to_string(), "--group", "team:3000"],
    );
    edge.start();
    let kept = Kept {
        _unmounted: Unmounted(mount.clone()),
        _port: lock,
    };
    // Whoever comes may remove what others made.
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o777)).expect("the root's mode");
    let clients = connected(&edge, mount).await;
    Some((edge, clients, kept))
}

/// The clients of an edge that was started.
async fn connected(edge: &Shared, mount: PathBuf) -> Clients {
    let (nfs, smb) = (edge.edge.client_as(UID).await, Agent::new(edge, ALICE));
    let clients = Clients::new(nfs, smb, mount, UID).await;
    // The grace period is a second.
    clients_may_lock(edge, &clients).await;
    clients
}

async fn clients_may_lock(edge: &Shared, clients: &Clients) {
    fs::write(clients.path("grace"), b"").expect("written");
    let client = LockClient::new(&edge.edge, &clients.nfs, "grace", "grace").await;
    let began = Instant::now();
    while client.lock_unmonitored().await != Some(LockStatus::Granted) {
        assert!(began.elapsed() < TIMEOUT, "never granted");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.unlock().await, Some(LockStatus::Granted));
    fs::remove_file(clients.path("grace")).expect("removed");
}

/// What one does.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Write,
    WriteInto,
    Rename,
    Remove,
    Lock,
    LockAndRead,
    LockThenDie,
    OpenAlone,
    DenyWriting,
    OpenAloneThenDie,
    Case,
    Colon,
    Mode,
    Grant,
    Revoke,
    Narrow,
    Attribute,
}

/// With the words that the page has.
const DEEDS: [(Deed, &str); 17] = [
    (
        Deed::Write,
        "writes a file, and writes it anew longer: the next read",
    ),
    (
        Deed::WriteInto,
        "writes into a file that the other has open: the other's read",
    ),
    (
        Deed::Rename,
        "renames a file that the other has open: the other reads and writes",
    ),
    (
        Deed::Remove,
        "removes a file that the other has open: the other reads",
    ),
    (
        Deed::Lock,
        "holds a lock on a file: the other locks it; of SMB, writes",
    ),
    (
        Deed::LockAndRead,
        "holds a lock on a file: the other reads there, and writes",
    ),
    (Deed::LockThenDie, "held a lock and was killed: the other's turn"),
    (
        Deed::OpenAlone,
        "has a file open for itself alone: the other opens it and writes",
    ),
    (
        Deed::DenyWriting,
        "has a file open and denies writing: the other opens it and writes",
    ),
    (
        Deed::OpenAloneThenDie,
        "had a file open for itself alone and was killed: the other's turn",
    ),
    (Deed::Case, "makes `CaseName`: the other opens `casename`"),
    (Deed::Colon, "makes `a:b?`: the other lists"),
    (Deed::Mode, "sets the mode 640: the other sees"),
    (
        Deed::Grant,
        "lets bob read by an ACL (NFSACL, `smbcacls`, `setfacl`): the other sees",
    ),
    (
        Deed::Revoke,
        "takes from the ACL what `smbcacls` gave bob, full control: there bob",
    ),
    (
        Deed::Narrow,
        "sets the mode 600 where `smbcacls` gave bob full control: there bob",
    ),
    (
        Deed::Attribute,
        "sets an extended attribute (SMB: a stream): the other reads it",
    ),
];

/// Where a protocol has no such thing.
const NONE: &str = "–";

fn ended(result: Result<Vec<u8>, String>, expected: &[u8], well: &str) -> String {
    match result {
        Ok(data) if data == expected => well.into(),
        Ok(data) => format!("WRONG: {} bytes of others", data.len()),
        Err(why) if why == "Stale" => "NFS3ERR_STALE".into(),
        Err(why) => why,
    }
}

impl Deed {
    /// What `reader` finds after `writer`'s deed; `name` is nobody else's.
    async fn done(self, edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
        match self {
            Self::Write => {
                all.put(writer, name, b"first").await.expect("written");
                all.get(reader, name).await.expect("read");
                let longer = vec![b'x'; 40_000];
                all.put(writer, name, &longer).await.expect("written");
                ended(all.get(reader, name).await, &longer, "has it")
            }
            Self::WriteInto => {
                all.put(writer, name, b"first").await.expect("written");
                let held = all.open(reader, name).await.expect("open");
                all.read(&held).await.expect("read");
                let theirs = all.open(writer, name).await.expect("open");
                all.write(&theirs, b"FI", 0).await.expect("written");
                let seen = ended(all.read(&held).await, b"FIrst", "has it");
                all.close(theirs);
                all.close(held);
                seen
            }
            Self::Rename => {
                all.put(writer, name, b"first").await.expect("written");
                let held = all.open(reader, name).await.expect("open");
                let new = format!("{name}.new");
                if let Err(why) = all.rename(writer, name, &new).await {
                    all.close(held);
                    return format!("the rename is refused: {why}");
                }
                let read = all.read(&held).await;
                let wrote = all.write(&held, b"F", 0).await;
                let after = all.get(writer, &new).await;
                all.close(held);
                match (wrote, after) {
                    (Ok(()), Ok(data)) if data == b"First" => ended(read, b"first", "goes on"),
                    other => format!("WRONG: {other:?}"),
                }
            }
            Self::Remove => {
                all.put(writer, name, b"first").await.expect("written");
                let held = all.open(reader, name).await.expect("open");
                all.remove(writer, name).await.expect("removed");
                let read = ended(all.read(&held).await, b"first", "goes on");
                all.close(held);
                read
            }
            Self::Lock => locking::locked(edge, all, writer, reader, name).await,
            Self::LockAndRead => locking::read_and_written(edge, all, writer, reader, name).await,
            Self::LockThenDie => locking::left_locked(edge, all, writer, reader, name).await,
            Self::OpenAlone => locking::denied(all, writer, reader, name, DENY_ALL).await,
            Self::DenyWriting => locking::denied(all, writer, reader, name, DENY_WRITING).await,
            Self::OpenAloneThenDie => locking::left_alone(edge, all, writer, reader, name).await,
            Self::Case => {
                let (made, wanted) = (format!("CaseName{name}"), format!("casename{name}"));
                all.put(writer, &made, b"first").await.expect("written");
                match all.get(reader, &wanted).await {
                    Ok(_) => "finds it".into(),
                    Err(_) => "does not find it".into(),
                }
            }
            Self::Colon => colon(all, writer, reader, name).await,
            Self::Grant => acls::granted(edge, all, writer, reader, name).await,
            Self::Revoke => acls::revoked(edge, all, writer, reader, name).await,
            Self::Narrow => acls::narrowed(edge, all, writer, reader, name).await,
            Self::Mode => self.mode(all, writer, reader, name).await,
            Self::Attribute => self.attribute(all, writer, reader, name).await,
        }
    }

    async fn mode(self, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
        all.put(By::Fuse, name, b"first").await.expect("written");
        let before = all.smb.call(json!(["acl", name])).expect("an ACL");
        match writer {
            By::Nfs => {
                let handle = all.handle(name).await.expect("there");
                let attributes = NewAttributes {
                    mode: Some(0o640),
                    ..NewAttributes::default()
                };
                let set = all.nfs.client().set_attributes(&handle, attributes, None).await;
                set.expect("an answer").expect("set");
            }
            By::Fuse => {
                all.set_mode(name, 0o640).await;
            }
            By::Smb => return NONE.into(),
        }
        let mode = match reader {
            By::Nfs => {
                let handle = all.handle(name).await.expect("there");
                let attributes = all.nfs.client().get_attributes(&handle).await;
                attributes.expect("an answer").expect("attributes").mode
            }
            By::Fuse => fs::metadata(all.path(name)).expect("there").mode(),
            By::Smb => {
                let after = all.smb.call(json!(["acl", name])).expect("an ACL");
                return match after == before {
                    true => "WRONG: the ACL of before".into(),
                    false => "in the NT ACL".into(),
                };
            }
        };
        match mode & 0o7777 {
            0o640 => "it".into(),
            other => format!("WRONG: {other:o}"),
        }
    }

    async fn attribute(self, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
        all.put(By::Fuse, name, b"first").await.expect("written");
        let stream = format!("{name}:note");
        match writer {
            By::Fuse => all.set_attribute(name, "user.note", b"a note").await,
            By::Smb => all.put(By::Smb, &stream, b"a note").await.expect("a stream"),
            By::Nfs => return NONE.into(),
        }
        match (writer, reader) {
            (_, By::Nfs) => NONE.into(),
            (By::Fuse, By::Fuse) => ended(
                all.attribute(name, "user.note").ok_or("no".into()),
                b"a note",
                "as `user.note`",
            ),
            (By::Smb, By::Smb) => ended(all.get(By::Smb, &stream).await, b"a note", "as a stream"),
            (By::Smb, By::Fuse) => match all.attribute(name, "user.DosStream.note:$DATA") {
                Some(value) if value.starts_with(b"a note") => "as `user.DosStream.note:$DATA`".into(),
                other => format!("WRONG: {other:?}"),
            },
            (By::Fuse, By::Smb) => match all.get(By::Smb, &stream).await {
                Ok(_) => "WRONG: as a stream".into(),
                Err(_) => "not as a stream".into(),
            },
            (By::Nfs, _) => unreachable!("it sets none"),
        }
    }
}

/// A name that Windows has no way to write.
async fn colon(all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    let made = format!("a:b?{name}");
    if all.put(writer, &made, b"first").await.is_err() {
        return "cannot be made".into();
    }
    if writer == By::Smb {
        assert!(all.names(reader).await.contains("a"));
        all.remove(By::Fuse, "a").await.expect("removed");
        return "`a`, with a stream".into();
    }
    let names = all.names(reader).await;
    let found = if names.contains(&made) {
        ended(all.get(reader, &made).await, b"first", "as it is")
    } else {
        let mut found = "nothing";
        for other in names.iter().filter(|name| name.contains('~')) {
            if all.get(reader, other).await.is_ok_and(|data| data == b"first") {
                found = "a short name (`…~…`) that opens it";
            }
        }
        found.into()
    };
    all.remove(By::Fuse, &made).await.expect("removed");
    found
}

const BEGIN: &str = "<!-- matrix: edge-proxy/tests/edge/smb/across.rs writes it with FIRN_WRITE_MATRIX=1, and is held to it -->\n";
const END: &str = "<!-- end of the matrix -->";

#[tokio::test]
async fn what_one_protocol_does_the_others_find_as_the_page_says() {
    let cloud = Cloud::new();
    let Some((mut edge, mut all, _kept)) = served(&cloud).await else {
        return;
    };
    let mut table =
        String::from("| by | does | over NFS | over SMB | on the mount |\n|---|---|---|---|---|\n");
    for (number, (deed, words)) in DEEDS.into_iter().enumerate() {
        for writer in ALL {
            let mut cells = Vec::new();
            for reader in ALL {
                let name = format!("{number}{writer}{reader}");
                let cell = deed.done(&edge, &mut all, writer, reader, &name).await;
                assert!(!cell.contains("WRONG"), "{words}: {writer}, {reader}: {cell}");
                cells.push(cell);
            }
            if cells.iter().any(|cell| cell != NONE) {
                table.push_str(&format!("| {writer} | {words} | {} |\n", cells.join(" | ")));
            }
        }
    }
    println!("{table}");
    let page = Path::new("../docs/semantics.md");
    let text = fs::read_to_string(page).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("the page has the matrix");
    let (written, after) = rest.split_once(END).expect("it has its end");
    if std::env::var_os("FIRN_WRITE_MATRIX").is_some() {
        fs::write(page, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
    } else {
        assert_eq!(written, table, "docs/semantics.md says something else");
    }
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}
