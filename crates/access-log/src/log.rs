//! [`AccessLog`]: the log of a process, as recorders and administrators see it.

use crate::{
    event::{Event, Share},
    layer::Recorder,
    names::Names,
    queue::Queue,
    summary::Summaries,
    syslog::{SharedSyslogStatus, SyslogStatus},
    writer,
};
use async_trait::async_trait;
use firn_env::{Disk, Env, Task, WallTime};
use firn_vfs::FileHandle;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// What the writer is woken for before its second is over.
const WAKE_AT: usize = 1024;
/// How long the end waits for the last lines to be written.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How long a volume that is closed waits for its last lines.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// Where the log is, and how long.
#[derive(Clone)]
pub struct AccessLogOptions {
    /// The directory of its files.
    pub disk: Arc<dyn Disk>,
    /// A file is closed at this length.
    pub file_bytes_max: u64,
    /// Files in all, with the one that is written; at least one.
    pub files_max: u32,
    /// A socket that takes a copy of each line, as `/dev/log`.
    pub syslog: Option<PathBuf>,
    /// Of this program, for the line of a start.
    pub version: String,
}

/// The engine's knowledge of paths, for files that no client has looked up since the start.
#[async_trait]
pub trait Paths: Send + Sync {
    /// The path of a file from the root of the volume; `None` if it cannot be found.
    async fn path_of(&self, file: FileHandle) -> Option<String>;
}

/// Names of users. Asked by the writer alone, for each line; expected to remember.
pub trait UserNames: Send + Sync {
    /// The name of a user, if there is one.
    fn name_of(&self, uid: u32) -> Option<String>;
}

/// What `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogStatus {
    /// Lines written since the start.
    pub lines: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Events that were not written since the start, because the log could not be written or was too slow.
    pub lost: u64,
    /// Events that wait to be written.
    pub waiting: u64,
    /// Reads, writes and listings that are being summed up.
    pub summaries: u64,
    /// Why it cannot be written now.
    pub failing: Option<String>,
    /// The copy that goes to syslog, if one does.
    pub syslog: Option<SyslogStatus>,
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub struct AccessLog {
    pub(crate) shared: Arc<Shared>,
}

/// What recorders and the writer share.
pub(crate) struct Shared {
    pub(crate) env: Env,
    queue: Mutex<Queue>,
    summaries: Mutex<Summaries>,
    names: Mutex<Names>,
    /// By volume, while it is open.
    paths: Mutex<HashMap<String, Arc<dyn Paths>>>,
    /// Something is in the queue, or much.
    pub(crate) some: Notify,
    pub(crate) much: Notify,
    pub(crate) lines: AtomicU64,
    pub(crate) bytes: AtomicU64,
    lost: AtomicU64,
    pub(crate) failing: Mutex<Option<String>>,
    pub(crate) syslog: SharedSyslogStatus,
    pub(crate) ending: watch::Sender<bool>,
    /// How often everything was to be written at once, and how often it was.
    pub(crate) flushes_asked: watch::Sender<u64>,
    pub(crate) flushes_done: watch::Sender<u64>,
    shares: AtomicU32,
    task: Mutex<Option<Task<()>>>,
}

impl AccessLog {
    /// Begins to write. A disk that is full, or fails, is tried again until it is not.
    pub fn start(env: &Env, options: AccessLogOptions, users: Arc<dyn UserNames>) -> Self {
        let shared = Arc::new(Shared {
            env: env.clone(),
            queue: Mutex::default(),
            summaries: Mutex::default(),
            names: Mutex::new(Names::new()),
            paths: Mutex::default(),
            some: Notify::new(),
            much: Notify::new(),
            lines: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            failing: Mutex::new(None),
            syslog: Mutex::new(options.syslog.is_some().then(SyslogStatus::default)),
            ending: watch::Sender::new(false),
            flushes_asked: watch::Sender::new(0),
            flushes_done: watch::Sender::new(0),
            shares: AtomicU32::new(0),
            task: Mutex::new(None),
        });
        let task = env.spawn("access log", writer::write(shared.clone(), options, users));
        *shared.task.lock().expect("no panic under this lock") = Some(task);
        Self { shared }
    }

    /// The log's end for one export or mount. `export` is how clients name it.
    pub fn recorder(&self, volume: &str, export: Option<&str>) -> Recorder {
        Recorder::new(self, self.share(volume, export), false)
    }

    /// The same for one whose clients are not logged: it only follows what they rename, so that paths of others stay right.
    pub fn follower(&self, volume: &str) -> Recorder {
        Recorder::new(self, self.share(volume, None), true)
    }

    fn share(&self, volume: &str, export: Option<&str>) -> Arc<Share> {
        Arc::new(Share {
            number: self.shared.shares.fetch_add(1, Relaxed),
            volume: volume.into(),
            export: export.map(Into::into),
        })
    }

    /// Asks `paths` for what names alone do not tell of a volume, as long as the result lives. What was known of names before is
    /// forgotten: another edge may have owned the volume meanwhile.
    pub fn resolve_by(&self, volume: &str, paths: Arc<dyn Paths>) -> Resolving {
        *self.shared.names() = Names::new();
        self.shared.paths().insert(volume.into(), paths);
        Resolving {
            shared: self.shared.clone(),
            volume: volume.into(),
        }
    }

    /// This moment.
    pub fn status(&self) -> AccessLogStatus {
        let shared = &self.shared;
        AccessLogStatus {
            lines: shared.lines.load(Relaxed),
            bytes: shared.bytes.load(Relaxed),
            lost: shared.lost.load(Relaxed),
            waiting: shared.queue().len() as u64,
            summaries: shared.summaries().len() as u64,
            failing: shared.failing.lock().expect("no panic under this lock").clone(),
            syslog: shared.syslog.lock().expect("no panic under this lock").clone(),
        }
    }

    /// Ends all sums and writes what waits, as far as that is possible in a few seconds: to be called before the engine can no longer be
    /// asked for paths.
    pub async fn flush(&self) {
        let shared = &self.shared;
        let mut number = 0;
        shared.flushes_asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        shared.some.notify_one();
        shared.much.notify_one();
        let mut done = shared.flushes_done.subscribe();
        let written = done.wait_for(|done| *done >= number);
        if shared.env.timeout(FLUSH_WITHIN, written).await.is_err() {
            tracing::warn!("the access log is behind; some of its lines will have numbers for paths");
        }
    }

    /// Writes what is left, and that the edge ends.
    pub async fn end(&self) {
        let shared = &self.shared;
        let task = shared.task.lock().expect("no panic under this lock").take();
        shared.ending.send_replace(true);
        shared.some.notify_one();
        shared.much.notify_one();
        if let Some(task) = task
            && shared.env.timeout(END_WITHIN, task).await.is_err()
        {
            tracing::error!(
                "the access log could not be written to its end; the next start says that it was cut off"
            );
        }
    }
}

/// The time in which the engine is asked for paths; ends when dropped.
pub struct Resolving {
    shared: Arc<Shared>,
    volume: String,
}

impl Drop for Resolving {
    fn drop(&mut self) {
        self.shared.paths().remove(&self.volume);
    }
}

impl Shared {
    pub(crate) fn paths(&self) -> MutexGuard<'_, HashMap<String, Arc<dyn Paths>>> {
        self.paths.lock().expect("no panic under this lock")
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic under this lock")
    }

    pub(crate) fn summaries(&self) -> MutexGuard<'_, Summaries> {
        self.summaries.lock().expect("no panic under this lock")
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("no panic under this lock")
    }

    /// Takes an event for the log; never waits.
    pub(crate) fn push(&self, event: Event) {
        let (taken, waiting) = {
            let mut queue = self.queue();
            (queue.push(event), queue.len())
        };
        if !taken {
            self.lost.fetch_add(1, Relaxed);
        }
        // What the writer waits for when there is nothing; then it lets a second's events come together.
        self.some.notify_one();
        if waiting >= WAKE_AT {
            self.much.notify_one();
        }
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.env.wall()
    }
}
