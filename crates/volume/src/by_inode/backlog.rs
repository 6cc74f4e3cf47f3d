//! The bound on what is unpublished: what can be uploaded within `recall_within`, so that others wait no longer than that for a lease.
//!
//! ```text
//! unpublished = what is frozen and being uploaded + what was changed since
//! bound       = the smaller of uplink x recall_within, and what fits on the local disk beside what is pinned
//! a change begins ─▶ unpublished below the bound? ──yes──▶ it goes on; from half of that on: publish
//!                          ▲          │ no: publish
//!                          └── commit ◀┘            no room within the wait limit: the client is told to try again
//! ```
//!
//! Who gives a lease publishes everything first (decision 0232), so that the whole of it bounds the wait. A change waits before it has pinned anything: who waits here keeps no lease from others. What frees
//! something never waits. Data that is written over counts twice until it is published, and metadata by a flat size; both make the bound a little stricter.
//!
//! **Beside what is pinned** ([decision 0233]): what is uploaded stays pinned for a minute, until the store was read back, and an upload for which there is no room waits for that. Over a fast uplink a small disk cache is full of pins before the minute is
//! over. So ordinary uploads pin half of the cache, those behind which somebody waits all of it, and what is unpublished and what was pinned before it take three quarters together: the upload that
//! somebody waits for never waits for read-backs itself, with a quarter for what is not counted (upper nodes of trees, tries that were lost).
//!
//! [decision 0233]: ../../../../docs/decisions/0233-what-others-wait-for-does-not-wait-for-read-backs.md

use super::ByInode;
use crate::{objects::PinShare, volume::Inner};
use firn_env::Wait;
use firn_vfs::VfsError;
use std::{sync::atomic::Ordering, time::Duration};

/// Of a line that is slower than 17 KB/s: less than a client writes at once would be no room at all.
const LEAST_BYTES: u64 = 1 << 20;

/// How often who waits looks at what was measured.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const FULL: VfsError = VfsError::TryAgain {
    reason: "more is unpublished than can be uploaded within recall_within",
};

/// What is left of the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Much,
    Little,
    None,
}

impl ByInode {
    /// Changes that waited for the uplink.
    pub(super) fn uplink_waits(&self) -> u64 {
        self.uplink_waits.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// What may be unpublished.
    pub(super) fn unpublished_limit_bytes(&self) -> u64 {
        let bytes_per_second = self.checkpointer.packer.progress.uplink.bytes_per_second();
        let within_ms = self.config.recall_within.as_millis();
        let bytes = u128::from(bytes_per_second) * within_ms / 1000;
        let by_line = u64::try_from(bytes).unwrap_or(u64::MAX).max(LEAST_BYTES);
        by_line.min(self.room_beside_pins_bytes())
    }

    /// What fits beside the pins of earlier publications.
    fn room_beside_pins_bytes(&self) -> u64 {
        let packer = &self.checkpointer.packer;
        let max_bytes = packer.objects.pins_max_bytes(PinShare::Whole) / 4 * 3;
        let earlier = packer.objects.pinned_bytes();
        let earlier = earlier.saturating_sub(packer.progress.urgency.pinned_bytes());
        match firn_env::planted!("volume.unpublished_beyond_the_pins") {
            true => u64::MAX,
            false => max_bytes.saturating_sub(earlier),
        }
    }

    /// How full the room is: nothing in the way, half of it taken, no room.
    fn room_on_uplink(&self) -> Room {
        let (unpublished, limit) = (self.lock().unpublished_bytes(), self.unpublished_limit_bytes());
        if unpublished < limit / 2 || firn_env::planted!("volume.unpublished_without_bound") {
            Room::Much
        } else if unpublished < limit {
            Room::Little
        } else {
            Room::None
        }
    }

    /// Holds a change back while more is unpublished than the uplink takes in time.
    ///
    /// # Errors
    /// `TryAgain` if that lasts for the wait limit; nothing was changed.
    pub(crate) async fn wait_for_uplink(&self) -> Result<(), VfsError> {
        let Some(by_inode) = &self.by_inode else {
            return Ok(());
        };
        match self.room_on_uplink() {
            Room::Much => return Ok(()),
            Room::Little => {
                // Early enough that as a rule nobody has to wait: what compresses well is gone sooner than the line would say.
                self.checkpointer.want();
                return Ok(());
            }
            Room::None => {}
        }
        by_inode.uplink_waits.fetch_add(1, Ordering::Relaxed);
        by_inode.last_call.note(self.env.now());
        let deadline = self.env.now().after(self.config.wait_limit);
        loop {
            let committed = self.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            self.check_serving()?;
            if self.room_on_uplink() != Room::None {
                return Ok(());
            }
            self.checkpointer.want();
            let _waiting = self.env.waits_for(Wait::Room);
            let left = deadline.since(self.env.now());
            if left.is_zero() {
                return Err(FULL);
            }
            // The line may turn out to take more before anything is committed.
            let _ = self.env.timeout(left.min(LOOK_AGAIN), committed).await;
        }
    }
}
