//! The ledger of what the store gave back wrong, or not at all.
//!
//! ```text
//! wrong, and right when asked again          counted as healed
//! wrong, also when asked again               counted as damaged, and remembered until it is read whole again
//! the segment is not there                   counted as missing, and remembered likewise
//! ```
//!
//! What is remembered is bounded: the first [`KNOWN_MAX`] places, and how many more there are. The engine finds out which file
//! a place belongs to (see [`crate::paths`]), so that people are told of a file and not of an inode.

use super::ReadError;
use firn_env::WallTime;
use firn_format::{INODE_MAP, ORPHAN_MAP, Place, SegmentId};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::Notify;

/// Places remembered one by one. Whoever has more needs `verify`, not a list.
const KNOWN_MAX: usize = 64;

/// What is wrong with an object that stays wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The store has other bytes.
    Damaged,
    /// The store has no such segment.
    Missing,
}

/// An object that could not be had.
#[derive(Clone, Debug)]
pub struct KnownDamage {
    /// Which object: its place names the file it belongs to.
    pub place: Place,
    /// Where it should be.
    pub segment: SegmentId,
    /// What is wrong.
    pub kind: DamageKind,
    /// In the reader's words.
    pub detail: String,
    /// When it was found first.
    pub found_at: WallTime,
    /// The file's path, once it was looked for; `None` inside if it cannot be found.
    pub path: Option<Option<String>>,
}

impl KnownDamage {
    /// The inode that people would call damaged.
    pub fn inode(&self) -> u64 {
        match (self.place.inode, self.place.level) {
            (INODE_MAP | ORPHAN_MAP, 0) => self.place.index,
            (inode, _) => inode,
        }
    }
}

/// Readings since the start, by what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounters {
    /// Wrong bytes that were right when asked for again.
    pub healed: u64,
    /// Wrong bytes that stayed wrong.
    pub damaged: u64,
    /// Segments that were not there.
    pub missing: u64,
}

#[derive(Default)]
struct State {
    counters: DamageCounters,
    known: BTreeMap<(u64, u8, u64), KnownDamage>,
    beyond: u64,
}

/// See the module.
#[derive(Default)]
pub struct Damages {
    state: Mutex<State>,
    news: Notify,
}

fn key(place: &Place) -> (u64, u8, u64) {
    (place.inode, place.level, place.index)
}

impl Damages {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the ledger's lock")
    }

    pub(super) fn note_healed(&self) {
        self.lock().counters.healed += 1;
    }

    /// Notes how a reading of the object ended; one that was damaged and is whole now is forgotten.
    pub(super) fn note(&self, place: Place, now: WallTime, outcome: Result<(), &ReadError>) {
        let mut state = self.lock();
        let (kind, segment, error) = match outcome {
            Ok(()) => {
                state.known.remove(&key(&place));
                return;
            }
            Err(ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. }) => return,
            Err(error @ ReadError::Corrupt { location, .. }) => {
                state.counters.damaged += 1;
                (DamageKind::Damaged, location.segment, error)
            }
            Err(error @ ReadError::Missing { segment, .. }) => {
                state.counters.missing += 1;
                (DamageKind::Missing, *segment, error)
            }
        };
        if state.known.contains_key(&key(&place)) {
            return;
        }
        if state.known.len() >= KNOWN_MAX {
            state.beyond += 1;
            return;
        }
        let damage = KnownDamage {
            place,
            segment,
            kind,
            detail: error.to_string(),
            found_at: now,
            path: None,
        };
        state.known.insert(key(&place), damage);
        drop(state);
        self.news.notify_one();
    }

    /// Waits until something was found whose file is not known yet.
    pub async fn found(&self) {
        self.news.notified().await;
    }

    /// One whose file was not looked for yet.
    pub fn without_path(&self) -> Option<KnownDamage> {
        self.lock().known.values().find(|one| one.path.is_none()).cloned()
    }

    /// Says which file it is.
    pub fn name(&self, place: &Place, path: Option<String>) {
        if let Some(one) = self.lock().known.get_mut(&key(place)) {
            one.path = Some(path);
        }
    }

    /// Counted since the start.
    pub fn counters(&self) -> DamageCounters {
        self.lock().counters
    }

    /// What is damaged as far as is known, and how much more was met.
    pub fn known(&self) -> (Vec<KnownDamage>, u64) {
        let state = self.lock();
        (state.known.values().cloned().collect(), state.beyond)
    }

    /// Forgets everything of a segment that was repaired: whoever meets damage again tells it anew.
    pub(super) fn forget_segment(&self, segment: SegmentId) {
        self.lock().known.retain(|_, known| known.segment != segment);
    }

    /// Forgets everything about one file, which is gone or was replaced.
    pub fn forget(&self, place: &Place) {
        self.lock().known.remove(&key(place));
    }
}
