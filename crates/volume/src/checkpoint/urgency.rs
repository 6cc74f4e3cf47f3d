//! Urgency of a publication: whether another office waits for a lease behind it, and how much of it is pinned on the local disk by now.
//!
//! Pins are let go of a minute after each upload. Ordinary uploads wait for that once half of the disk cache is pinned; one behind which somebody waits takes the other
//! half ([`PinShare`]), and what may be unpublished is bounded by what fits there (`by_inode/backlog.rs`).

use crate::objects::PinShare;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Default)]
pub struct Urgency {
    is_recalled: AtomicBool,
    pinned_bytes: AtomicU64,
}

impl Urgency {
    /// Whether somebody waits for a lease whose holder has to publish first; told again and again, as it changes.
    pub fn set_recalled(&self, is_recalled: bool) {
        self.is_recalled.store(is_recalled, Ordering::Relaxed);
    }

    /// How much of the disk cache uploads may pin now.
    pub(crate) fn share(&self) -> PinShare {
        match self.is_recalled.load(Ordering::Relaxed)
            && !firn_env::planted!("volume.recalls_wait_for_read_backs")
        {
            true => PinShare::Whole,
            false => PinShare::Half,
        }
    }

    /// A publication begins, or has ended.
    pub fn begin(&self) {
        self.pinned_bytes.store(0, Ordering::Relaxed);
    }

    /// A segment of it is pinned.
    pub fn pinned(&self, bytes: u64) {
        self.pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What of all pins the publication under way has taken: what is unpublished counts as well until it is committed.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }
}
