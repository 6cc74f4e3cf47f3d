//! The age of what a member's clients read: what it holds is the newest by the lease, and of all else the root that was read last is no older than the freshness.
//!
//! ```text
//! read ─▶ all that it shows is held, usable, and leases are valid? ──yes──▶ answered
//!              │ no
//!         was a root read, for any read, within the freshness before this one came? ──yes──▶ answered
//!              │ no
//!         one read of the root for all that wait, adopted ─▶ answered; what takes too long is told to try again
//! ```
//!
//! Nobody asks anything while no client does. A root is read beside what is being uploaded, so that no read waits for the end of an upload.

use crate::volume::Inner;
use firn_env::{Monotonic, Wait};
use firn_vfs::VfsError;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const WAITED: VfsError = VfsError::TryAgain {
    reason: "the newest root is not read yet, and reads wait for it",
};

/// Reads of the root on behalf of clients.
#[derive(Default)]
pub(super) struct RootReads {
    /// Who has it reads the root for all that wait.
    reading: tokio::sync::Mutex<()>,
    /// When the newest one began whose root was adopted.
    began: Mutex<Option<Monotonic>>,
    count: AtomicU64,
}

impl RootReads {
    /// Of a root that was read by a call that began at this moment.
    pub fn read_at(&self, began: Monotonic) {
        *self.began.lock().expect("no panic under this lock") = Some(began);
    }

    /// When the newest read began.
    pub fn began(&self) -> Option<Monotonic> {
        *self.began.lock().expect("no panic under this lock")
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn is_fresh(&self, arrived: Monotonic, freshness: Duration) -> bool {
        self.began()
            .is_some_and(|began| began >= arrived || (arrived.since(began) < freshness))
    }
}

impl Inner {
    /// Whether what the member shows of an inode is the newest there is: it holds it, and would be asked before anybody else changes it.
    pub(super) fn is_newest(&self, inode: u64) -> bool {
        let member = self.by_inode().member();
        member.is_valid() && member.is_usable(inode)
    }

    /// Has what is read from now on be as new as `freshness` says.
    ///
    /// # Errors
    /// `TryAgain` if the root cannot be read in time, or leases lapsed.
    pub(super) async fn fresh(&self, freshness: Duration) -> Result<(), VfsError> {
        let arrived = self.env.now();
        let reads = &self.by_inode().root_reads;
        let member = self.by_inode().member();
        let is_done = || member.is_valid() && reads.is_fresh(arrived, freshness);
        if is_done() || firn_env::planted!("volume.reads_without_a_root_read") {
            return Ok(());
        }
        let _waiting = self.env.waits_for(Wait::Cloud);
        let looking = async {
            let _reading = reads.reading.lock().await;
            if is_done() {
                return Ok(());
            }
            let began = self.env.now();
            let mut caught_up = member.catch_up().await;
            if let Err(refusal) = &caught_up
                && self.is_back(refusal).await?
            {
                caught_up = member.catch_up().await;
            }
            caught_up.map_err(|error| self.refused_by_member(&error))?;
            reads.count.fetch_add(1, Ordering::Relaxed);
            reads.read_at(began);
            Ok(())
        };
        let looked = self.env.timeout(self.config.wait_limit, looking).await;
        looked.unwrap_or(Err(WAITED))
    }

    /// After an object was missing: whether a newer root than that of `version` is at hand now.
    pub(super) async fn is_newer_at_hand(&self, version: u64) -> Result<bool, VfsError> {
        if self.by_inode().adopted_version() != version {
            return Ok(true);
        }
        self.fresh(Duration::ZERO).await?;
        Ok(self.by_inode().adopted_version() != version)
    }
}
