//! The writer: the one task that finds paths and names, encodes, and writes.
//!
//! It wakes a second after the first event, or when a thousand wait, and is idle otherwise. While the disk refuses, the lines at hand are kept and
//! tried again every second; the queue fills meanwhile, and what finds it full is counted.

use crate::{
    encode::{line, own, time},
    event::{Event, Located},
    file::{Left, LogFile},
    log::{AccessLogOptions, Paths, Shared, UserNames},
    queue::Lost,
    syslog::Syslog,
};
use firn_env::{DiskError, Monotonic};
use firn_vfs::FileHandle;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// For how long events come together.
const TICK: Duration = Duration::from_secs(1);
/// Between two attempts to write.
const RETRY: Duration = Duration::from_secs(1);
/// Between two syncs.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// Events that are encoded and written at once.
const BATCH_MAX: usize = 512;
/// Bytes that are written at once; the lengths of files may be so much below what is wanted.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// How long the engine may look for a path: the directories above it may have to be fetched.
const PATH_WITHIN: Duration = Duration::from_secs(2);
/// Paths that the engine found, or did not, which are remembered until the next batch of events.
const FOUND_MAX: usize = 4096;

struct Writer {
    shared: Arc<Shared>,
    users: Arc<dyn UserNames>,
    file: LogFile,
    syslog: Option<Syslog>,
    version: String,
    synced: Monotonic,
}

/// See the module.
pub(crate) async fn write(shared: Arc<Shared>, options: AccessLogOptions, users: Arc<dyn UserNames>) {
    let mut writer = Writer {
        file: LogFile::new(options.disk, options.file_bytes_max, options.files_max),
        synced: shared.env.now(),
        syslog: options.syslog.map(Syslog::new),
        version: options.version,
        shared,
        users,
    };
    let left = loop {
        match writer.file.open().await {
            Ok(left) => break left,
            Err(error) => writer.failed(&error).await,
        }
    };
    let mut begun = writer.start_line(left);
    writer.append(&mut begun, 1).await;
    loop {
        writer.wait().await;
        let is_ending = writer.is_ending();
        let flush = writer.flush_asked();
        let due = writer
            .shared
            .summaries()
            .end(writer.shared.env.now(), is_ending || flush.is_some());
        for event in due {
            writer.shared.push(event);
        }
        writer.follow_moves().await;
        writer.write_queue().await;
        if let Some(flush) = flush {
            writer.shared.flushes_done.send_replace(flush);
        }
        writer.sync(is_ending).await;
        if is_ending && writer.shared.queue().is_empty() {
            let mut end = own(writer.shared.wall(), "end", json!({}));
            writer.append(&mut end, 1).await;
            writer.sync(true).await;
            return;
        }
    }
}

impl Writer {
    fn is_ending(&self) -> bool {
        *self.shared.ending.borrow()
    }

    /// The newest flush that was asked for and is not done.
    fn flush_asked(&self) -> Option<u64> {
        let asked = *self.shared.flushes_asked.borrow();
        (asked > *self.shared.flushes_done.borrow()).then_some(asked)
    }

    fn start_line(&self, left: Left) -> Vec<u8> {
        let more = json!({"version": self.version, "previous": left.text()});
        own(self.shared.wall(), "start", more)
    }

    /// Until there is something to do.
    async fn wait(&self) {
        let shared = &self.shared;
        if self.is_ending() || self.flush_asked().is_some() {
            return;
        }
        let has_something = !shared.queue().is_empty() || shared.summaries().len() > 0;
        if !has_something {
            // Also what was written is to be synced before this rests.
            let idle = shared.env.timeout(SYNC_EVERY, shared.some.notified()).await;
            if idle.is_err() {
                return;
            }
        }
        let _ = shared.env.timeout(TICK, shared.much.notified()).await;
    }

    /// Somebody rotates the log by other means.
    async fn follow_moves(&mut self) {
        if let Ok(true) = self.file.is_moved_away().await {
            tracing::warn!("the access log was moved or emptied by somebody else; another is begun");
            let mut begun = self.start_line(Left::MovedAway);
            self.append(&mut begun, 1).await;
        }
    }

    async fn write_queue(&mut self) {
        let mut found = HashMap::new();
        loop {
            let (events, lost) = self.shared.queue().take(BATCH_MAX);
            if events.is_empty() && lost.is_none() {
                return;
            }
            let mut lines = Vec::new();
            let mut count = 0;
            for event in events {
                lines.extend(self.encoded(&event, &mut found).await);
                count += 1;
                if lines.len() >= WRITE_BYTES_MAX {
                    self.append(&mut lines, count).await;
                    count = 0;
                }
            }
            if let Some(lost) = lost {
                lines.extend(self.lost_line(lost));
                count += 1;
            }
            self.append(&mut lines, count).await;
        }
    }

    fn lost_line(&self, lost: Lost) -> Vec<u8> {
        own(
            self.shared.wall(),
            "lost",
            json!({
                "count": lost.count,
                "from": time(lost.first),
                "until": time(lost.last),
                "reason": "the log could not be written, or not as fast as clients worked",
            }),
        )
    }

    async fn encoded(&self, event: &Event, found: &mut HashMap<FileHandle, Option<String>>) -> Vec<u8> {
        let asked = self.shared.paths().get(&event.share.volume).cloned();
        let path = match &event.path {
            Some(located) => Some(self.path(located, asked.as_ref(), found).await),
            None => None,
        };
        let to = match &event.to {
            Some(located) => Some(self.path(located, asked.as_ref(), found).await),
            None => None,
        };
        let user = event.who.uid.and_then(|uid| self.users.name_of(uid));
        line(event, user.as_deref(), path.as_deref(), to.as_deref())
    }

    /// From the root, or from an inode that has no name.
    async fn path(
        &self,
        located: &Located,
        asked: Option<&Arc<dyn Paths>>,
        found: &mut HashMap<FileHandle, Option<String>>,
    ) -> String {
        let Some(above) = located.above else {
            return if located.below.is_empty() {
                "/".into()
            } else {
                located.below.clone()
            };
        };
        if !found.contains_key(&above) && found.len() < FOUND_MAX {
            let path = match asked {
                Some(asked) => self.shared.env.timeout(PATH_WITHIN, asked.path_of(above)).await,
                None => Ok(None),
            };
            found.insert(above, path.ok().flatten());
        }
        match found.get(&above).and_then(Option::as_deref) {
            Some("/") => located.below.clone(),
            Some(path) => format!("{path}{}", located.below),
            None => format!("#{}{}", above.inode, located.below),
        }
    }

    /// Writes lines, however long the disk refuses them; empties `lines`.
    async fn append(&mut self, lines: &mut Vec<u8>, count: u64) {
        if lines.is_empty() {
            return;
        }
        // First, and once: a disk that is full is not syslog's.
        if let Some(syslog) = &mut self.syslog {
            syslog.copy(&self.shared.env, &self.shared.syslog, lines).await;
        }
        while let Err(error) = self.file.append(lines).await {
            self.failed(&error).await;
        }
        let failing = self
            .shared
            .failing
            .lock()
            .expect("no panic under this lock")
            .take();
        if failing.is_some() {
            tracing::info!("the access log is written again");
        }
        self.shared.lines.fetch_add(count, Relaxed);
        self.shared.bytes.fetch_add(lines.len() as u64, Relaxed);
        lines.clear();
    }

    async fn sync(&mut self, now: bool) {
        if !now && self.shared.env.now().since(self.synced) < SYNC_EVERY {
            return;
        }
        if let Err(error) = self.file.sync().await {
            tracing::error!(%error, "the access log could not be synced");
        }
        self.synced = self.shared.env.now();
    }

    /// Tells of a failure once, and waits.
    async fn failed(&self, error: &DiskError) {
        let reason = error.to_string();
        let known = self
            .shared
            .failing
            .lock()
            .expect("no panic under this lock")
            .replace(reason.clone());
        if known.as_ref() != Some(&reason) {
            tracing::error!(
                reason,
                "the access log cannot be written; clients are served, what they do is kept in memory and then lost and counted"
            );
        }
        self.shared.env.sleep(RETRY).await;
    }
}
