//! Locks and share modes in the matrix: who holds, who meets it, and what becomes of it when the holder is killed.

use super::{
    super::{ALICE, Shared, agent::Agent},
    NONE,
    clients::{By, Clients, Held},
};
use crate::{locks::LockClient, machine::TIMEOUT};
use firn_nfs::nlm::LockStatus;
use rustix::fs::FlockOperation;
use serde_json::json;
use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
    time::{Duration, Instant},
};

/// What an open over SMB lets others do at the same time: nothing; and read, rename and remove.
pub const DENY_ALL: u32 = 0;
pub const DENY_WRITING: u32 = 5;

/// A lock on the beginning of a file.
enum Lock {
    Nfs(LockClient),
    Smb(Agent),
    Fuse(fs::File),
}

impl Lock {
    async fn new(edge: &Shared, all: &Clients, by: By, name: &str) -> Self {
        match by {
            By::Nfs => {
                let client = LockClient::new(&edge.edge, &all.nfs, "holder", name).await;
                assert_eq!(client.lock_unmonitored().await, Some(LockStatus::Granted));
                Self::Nfs(client)
            }
            By::Smb => {
                let mut holder = Agent::raw(edge, ALICE);
                let handle = holder.call(json!(["open", name])).expect("open");
                holder.call(json!(["lock", handle, 0, 1, 100])).expect("locked");
                Self::Smb(holder)
            }
            By::Fuse => {
                let file = open(all, name);
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
                Self::Fuse(file)
            }
        }
    }

    async fn end(self) {
        match self {
            Self::Nfs(client) => assert_eq!(client.unlock().await, Some(LockStatus::Granted)),
            Self::Smb(mut holder) => {
                holder.call(json!(["unlock", 0, 0, 1, 100])).expect("unlocked");
            }
            Self::Fuse(file) => {
                rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlocked");
            }
        }
    }
}

pub async fn locked(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    all.put(By::Fuse, name, b"first").await.expect("written");
    let lock = Lock::new(edge, all, writer, name).await;
    let found = tries(edge, all, reader, name).await;
    lock.end().await;
    let after = tries(edge, all, reader, name).await;
    assert_eq!(
        after, "is not refused",
        "the lock outlives its end: {writer}, {reader}"
    );
    found
}

/// Whether it keeps others from reading and writing, who ask for no lock.
pub async fn read_and_written(
    edge: &Shared,
    all: &mut Clients,
    writer: By,
    reader: By,
    name: &str,
) -> String {
    all.put(By::Fuse, name, b"first").await.expect("written");
    let lock = Lock::new(edge, all, writer, name).await;
    let held = all.open(reader, name).await.expect("open");
    let read = all.read(&held).await.map(|data| assert_eq!(data, b"first"));
    let written = all.write(&held, b"F", 0).await;
    all.close(held);
    lock.end().await;
    let is_written = all.get(By::Nfs, name).await.expect("there") == b"First";
    match (read, written) {
        (Ok(()), Ok(())) if is_written => "does not meet it".into(),
        (Err(read), Err(written)) if !is_written => match (&*refused(&read), &*refused(&written)) {
            ("is refused", "is refused") => "is refused both".into(),
            other => format!("WRONG: {other:?}"),
        },
        other => format!("WRONG: {other:?}, written: {is_written}"),
    }
}

pub async fn left_locked(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    all.put(By::Fuse, name, b"first").await.expect("written");
    match writer {
        By::Nfs => {
            // It is not heard of again; nobody but its machine, or an administrator, ends it.
            let client = LockClient::new(&edge.edge, &all.nfs, "dead", name).await;
            assert_eq!(client.lock().await, Some(LockStatus::Granted));
            let found = tries(edge, all, reader, name).await;
            assert_eq!(found, "is refused");
            let root = format!("/{name}");
            edge.edge.succeed(&["locks", &root, "--break", "--yes"]);
            let after = tries(edge, all, reader, name).await;
            assert_eq!(after, "is not refused", "after firn-edge locks --break");
            "is refused until `firn-edge locks --break`".into()
        }
        By::Fuse => {
            let mut holder = holding_process(all, name);
            assert_eq!(tries(edge, all, reader, name).await, "is refused");
            let group = rustix::process::Pid::from_child(&holder);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
            holder.wait().expect("an end");
            free_soon(edge, all, reader, name).await
        }
        By::Smb => {
            let Lock::Smb(holder) = Lock::new(edge, all, By::Smb, name).await else {
                unreachable!("it is SMB's");
            };
            assert_eq!(tries(edge, all, reader, name).await, "is refused");
            holder.kill();
            free_soon(edge, all, reader, name).await
        }
    }
}

/// A process that has locked the file on the mount.
fn holding_process(all: &Clients, name: &str) -> Child {
    let holder = Command::new("flock")
        .arg(all.path(name))
        .args(["sleep", "1000"])
        .process_group(0)
        .spawn()
        .expect("flock(1)");
    let file = open(all, name);
    assert!(Clients::soon(|| {
        let is_held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        if !is_held {
            rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlocked");
        }
        is_held
    }));
    holder
}

/// What others find of an open over SMB that lets them do no more than this.
pub async fn denied(all: &mut Clients, writer: By, reader: By, name: &str, share: u32) -> String {
    if writer != By::Smb {
        return NONE.into();
    }
    all.put(writer, name, b"first").await.expect("written");
    let alone = all.smb.call(json!(["open", name, share])).expect("open");
    let alone = Held::Smb(alone.as_u64().expect("a handle"));
    let found = match all.open(reader, name).await {
        Ok(held) => {
            all.write(&held, b"F", 0).await.expect("whoever opens it, writes");
            all.close(held);
            // The one who was alone has what the other wrote.
            assert_eq!(all.read(&alone).await.expect("read"), b"First");
            "does not meet it".into()
        }
        Err(why) => refused(&why),
    };
    all.close(alone);
    found
}

pub async fn left_alone(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    if (writer, reader) != (By::Smb, By::Smb) {
        return NONE.into();
    }
    all.put(By::Fuse, name, b"first").await.expect("written");
    let mut other = Agent::new(edge, ALICE);
    other.call(json!(["open", name, DENY_ALL])).expect("open");
    assert_eq!(tries(edge, all, reader, name).await, "is refused");
    other.kill();
    free_soon(edge, all, reader, name).await
}

fn refused(why: &str) -> String {
    match why {
        why if why.contains("share access") || why.contains("lock") => "is refused".into(),
        other => format!("WRONG: {other}"),
    }
}

fn open(all: &Clients, name: &str) -> fs::File {
    let file = fs::File::options().read(true).write(true).open(all.path(name));
    file.expect("open")
}

/// Whether the other is let in: by a lock that is given back at once, of SMB by a write.
async fn tries(edge: &Shared, all: &mut Clients, by: By, name: &str) -> String {
    let is_refused = match by {
        By::Nfs => {
            let client = LockClient::new(&edge.edge, &all.nfs, "another", name).await;
            match client.lock_unmonitored().await {
                Some(LockStatus::Granted) => {
                    assert_eq!(client.unlock().await, Some(LockStatus::Granted));
                    false
                }
                Some(LockStatus::Denied) => true,
                other => return format!("WRONG: {other:?}"),
            }
        }
        By::Fuse => {
            let file = open(all, name);
            // Of one process locks by fcntl are one owner's.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlocked");
                    false
                }
                Err(rustix::io::Errno::AGAIN) => true,
                Err(other) => return format!("WRONG: {other}"),
            }
        }
        By::Smb => {
            let opened = all.smb.call(json!(["open", name]));
            let written = match opened {
                Ok(handle) => {
                    let held = Held::Smb(handle.as_u64().expect("a handle"));
                    let written = all.write(&held, b"F", 0).await;
                    all.close(held);
                    written
                }
                Err(why) => Err(why),
            };
            match written {
                Ok(()) => false,
                Err(why) => return refused(&why),
            }
        }
    };
    if is_refused {
        "is refused"
    } else {
        "is not refused"
    }
    .into()
}

/// The server hears of an end a moment after it.
async fn free_soon(edge: &Shared, all: &mut Clients, by: By, name: &str) -> String {
    let began = Instant::now();
    loop {
        let found = tries(edge, all, by, name).await;
        if found == "is not refused" {
            return "is free at once".into();
        }
        assert!(began.elapsed() < TIMEOUT, "{found}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
