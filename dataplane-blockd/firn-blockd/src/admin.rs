//! The administrator's way to a disk that is attached on this machine: a unix socket in the state directory, which only its
//! owner may open.
//!
//! One connection carries one request and one reply, each a line of JSON. Lines and waits are bounded.
//!
//! ```text
//! request = {"version": 1, "command": "status" | "detach" | {"grow": {"size_bytes": …}} | {"snapshot": {"name": …, "store": …}}}
//! reply   = {"reply": "status" | "done" | "error", …}
//! ```

use crate::{failure::Failure, served::Served};
use firn_env::{Env, Task};
use serde::{Deserialize, Serialize};
use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
};

const VERSION: u32 = 1;
/// The longest line: a status is some hundred bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long a client may take to send its request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A [`DiskStatus`].
    Status,
    /// Make everything durable, give the disk back and end.
    Detach,
    /// Make it larger, also for those who use it now.
    Grow {
        /// To this.
        size_bytes: u64,
    },
    /// Begin a snapshot; the status tells how it goes.
    Snapshot {
        /// Its name.
        name: String,
        /// The store; absent: the one that the attach knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<String>,
    },
}

/// The last snapshot that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Its name.
    pub name: String,
    /// Tracts that were looked at.
    pub done_tracts: u64,
    /// Tracts that may have changed.
    pub total_tracts: u64,
    /// Sent to the store.
    pub stored_bytes: u64,
    /// How it ended, for people; nothing while it is under way.
    pub ended: Option<SnapshotEnd>,
}

/// How a snapshot ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotEnd {
    /// It exists.
    Taken,
    /// It does not.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    command: Command,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Command::Status`].
    Status {
        /// The moment.
        status: Box<DiskStatus>,
    },
    /// Done.
    Done {
        /// For people.
        text: String,
    },
    /// It failed.
    Error {
        /// For people.
        text: String,
    },
}

/// An attached disk at a moment. Counts are since the attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub disk: String,
    /// Its size.
    pub size_bytes: u64,
    /// Copies of each tract.
    pub copies: u8,
    /// The attach.
    pub fence: u32,
    /// The mode.
    pub mode: String,
    /// When flushes are answered, with the bound of an ordered one.
    pub flush: String,
    /// Where it is served.
    pub nbd: String,
    /// Clients of the NBD server.
    pub connections: u64,
    /// Answered, or waiting to be, and not durable.
    pub dirty_bytes: u64,
    /// The most of them before writers wait.
    pub dirty_bytes_max: u64,
    /// Regions in which replicas were made equal at the attach.
    pub reconciled_regions: u64,
    /// Stores durable on all replicas.
    pub stores: u64,
    /// Loads from nodes.
    pub loads: u64,
    /// Stores and loads asked again.
    pub retries: u64,
    /// Sent to nodes.
    pub sent_bytes: u64,
    /// Received from nodes.
    pub received_bytes: u64,
    /// What has waited longest of what waits for nodes now.
    pub trouble: Option<String>,
    /// How long it has waited.
    #[serde(default)]
    pub waits_seconds: u64,
    /// Another attach has the disk: this one is about to end.
    #[serde(default)]
    pub fenced: bool,
    /// The hard cap of the tenant's budget is reached: new writes are refused.
    #[serde(default)]
    pub capped: bool,
    /// The most clients of the NBD server; more wait to be accepted.
    #[serde(default)]
    pub connections_max: u64,
    /// The last snapshot that was begun.
    pub snapshot: Option<SnapshotStatus>,
    /// The local journal, if it has one.
    #[serde(default)]
    pub journal: Option<JournalStatus>,
}

/// A disk's local journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Nodes are away, or have not got all of it yet: writes are answered from it.
    pub journaling: bool,
    /// What it has.
    pub used_bytes: u64,
    /// What it may have.
    pub bytes_max: u64,
    /// Changes that nodes were not given yet.
    pub waiting: u64,
}

/// Where the socket of a disk is.
pub fn socket(state_directory: &Path, disk: &str) -> PathBuf {
    state_directory.join(format!("disk-{disk}.sock"))
}

/// Answers on a disk's socket until the task is aborted.
pub fn serve(env: &Env, path: &Path, served: Arc<Served>) -> Result<Task<()>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!(
            "cannot make the admin socket {}: {error} (a path of more than 107 bytes cannot be a socket)",
            path.display()
        ))
    };
    // Under another name until only its owner may open it. What is there is of an attach that has ended, or is about to.
    let making = path.with_extension("new");
    for stale in [&making, &path.to_path_buf()] {
        match std::fs::remove_file(stale) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&making).map_err(failed)?;
    std::fs::set_permissions(&making, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&making, path).map_err(failed)?;
    let answering = env.clone();
    Ok(env.spawn_essential("admin socket", async move {
        loop {
            // One after the other: who administers a disk waits its turn.
            match listener.accept().await {
                Ok((stream, _)) => answer(&answering, stream, &served).await,
                Err(_) => answering.sleep(Duration::from_millis(100)).await,
            }
        }
    }))
}

async fn answer(env: &Env, stream: UnixStream, served: &Served) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut bounded = BufReader::new(read).take(LINE_BYTES_MAX);
    if !matches!(
        env.timeout(CLIENT_TIMEOUT, bounded.read_line(&mut line)).await,
        Ok(Ok(_))
    ) {
        return;
    }
    let reply = match serde_json::from_str::<Request>(&line) {
        Ok(Request {
            version: VERSION,
            command,
        }) => served.execute(command).await,
        Ok(Request { version, .. }) => Reply::Error {
            text: format!("this firn-blockd speaks version {VERSION} of the admin protocol, not {version}"),
        },
        Err(error) => Reply::Error {
            text: format!("not understood: {error}"),
        },
    };
    let mut bytes = serde_json::to_vec(&reply).expect("replies have string keys");
    bytes.push(b'\n');
    // Whoever does not wait for the answer does not want it.
    let _ = env.timeout(CLIENT_TIMEOUT, write.write_all(&bytes)).await;
    served.told();
}

/// Asks whoever has the disk attached on this machine; nothing if nobody has.
pub async fn ask(state_directory: &Path, disk: &str, command: Command) -> Result<Option<Reply>, Failure> {
    let path = socket(state_directory, disk);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(Failure::new(format!(
                    "cannot reach the disk at {}: {error}",
                    path.display()
                ))),
            };
        }
    };
    let (read, mut write) = stream.into_split();
    let request = Request {
        version: VERSION,
        command,
    };
    let mut line = serde_json::to_vec(&request).map_err(Failure::new)?;
    line.push(b'\n');
    let lost = |error: std::io::Error| {
        Failure::new(format!("the attached disk went away while it was asked: {error}"))
    };
    write.write_all(&line).await.map_err(lost)?;
    let mut text = String::new();
    let mut bounded = BufReader::new(read).take(LINE_BYTES_MAX);
    bounded.read_line(&mut text).await.map_err(lost)?;
    match serde_json::from_str(&text) {
        Ok(Reply::Error { text }) => Err(Failure::new(text)),
        Ok(reply) => Ok(Some(reply)),
        Err(error) => Err(Failure::new(format!(
            "the attached disk answers in a way this build does not know ({error}); use the same version of both"
        ))),
    }
}
