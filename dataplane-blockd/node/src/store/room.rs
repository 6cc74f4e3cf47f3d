//! A store on a full file system: read-only until there is room again.
//!
//! All that a store writes often is preallocated, but a new state file is not, and a file system that copies on write allocates at
//! every write. So a step of a commit or checkpoint that finds no room is repeated until it does, and meanwhile:
//!
//! | request            | answer                                                                              |
//! |--------------------|-------------------------------------------------------------------------------------|
//! | a read             | as always                                                                           |
//! | a write, a fence   | refused: the node does not serve them now                                           |
//! | waits for a commit | goes on waiting: nothing is acknowledged that is not durable, nothing is taken back |
//!
//! Only [`DiskError::Full`] is waited for, which says that nothing was written or that it may be written again. Any other error,
//! and any failed sync, ends the process ([`Env::spawn_essential`](firn_env::Env::spawn_essential)): what is on the disk is not known any more, and only a
//! start, which reads it, can tell.

use super::Shared;
use firn_env::{DiskError, Monotonic, Watched};
use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};
use tracing::{info, warn};

/// Between two tries of a step for which there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Between two lines about it in the log.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// With so much room a write that found none is expected to find some: a few writes of the largest size.
const ROOM_BYTES: u64 = 16 << 20;

/// What a store knows about the room on its file system.
pub(super) struct Room {
    /// Steps of commits and checkpoints that wait for room.
    waiting: AtomicUsize,
    /// A put found no room for its data, and there was none since.
    refused: AtomicBool,
    read_only: Watched<bool>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            read_only: Watched::new(false),
        }
    }

    /// Whether puts are refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only.get()
    }

    /// Returns when puts are refused.
    pub(super) async fn read_only(&self) {
        self.read_only.wait_for(|read_only| *read_only).await;
    }

    /// A put found room for its data, or none.
    pub(super) fn note_put(&self, outcome: &Result<(), DiskError>) {
        match outcome {
            Ok(()) => self.refused.store(false, SeqCst),
            Err(DiskError::Full { .. }) => self.refused.store(true, SeqCst),
            Err(_) => {}
        }
    }
}

impl Shared {
    /// Whether the file system had no room when it was last asked for some.
    pub(super) async fn is_full(&self) -> bool {
        if self.room.refused.load(SeqCst)
            && self
                .env
                .disk()
                .free_bytes()
                .await
                .is_ok_and(|free| free >= ROOM_BYTES)
        {
            self.room.refused.store(false, SeqCst);
        }
        self.room.is_read_only() || self.room.refused.load(SeqCst)
    }

    /// For a step that may find no room.
    pub(super) fn step(&self, what: &'static str) -> Step<'_> {
        Step {
            shared: self,
            what,
            since: None,
            warned: None,
        }
    }
}

/// A step of a commit or checkpoint that is repeated until there is room for it.
pub(super) struct Step<'a> {
    shared: &'a Shared,
    what: &'static str,
    since: Option<Monotonic>,
    warned: Option<Monotonic>,
}

impl Step<'_> {
    /// The step failed: returns when it is to be tried again. The store is read-only from now until the step is dropped.
    ///
    /// # Panics
    /// If it failed for anything but room.
    pub(super) async fn failed(&mut self, error: DiskError) {
        let (what, env) = (self.what, &self.shared.env);
        if !matches!(error, DiskError::Full { .. }) {
            panic!("{what}: {error}; what the disk has is not known any more, only a restart can tell");
        }
        let now = env.now();
        if self.since.is_none() {
            self.since = Some(now);
            self.shared.room.waiting.fetch_add(1, SeqCst);
        }
        self.shared.room.read_only.set(true);
        if self.warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY) {
            self.warned = Some(now);
            warn!(%error, step = what, "this node is read-only: make room on its file system, then it goes on by itself");
        }
        env.sleep(RETRY_AFTER).await;
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.since.is_some() && self.shared.room.waiting.fetch_sub(1, SeqCst) == 1 {
            self.shared.room.read_only.set(false);
            info!("there is room again: this node takes writes");
        }
    }
}
