//! Upload tracking: segments that the store acknowledged and nobody has seen there since, and segments that turned out to be lost.

use firn_format::{FamilyId, SegmentId};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard},
};

/// Segments remembered, of some 40 bytes each; beyond it the oldest are taken to be there. A store that cannot be listed for
/// so long has other troubles.
const UPLOADED_MAX: usize = 100_000;

/// Segments named in an error.
const NAMED_MAX: usize = 8;

/// What was uploaded and not confirmed, and what turned out not to be there.
#[derive(Default)]
pub struct Uploads {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the length. Of several writers: a clone is packed by one of its own.
    unconfirmed: BTreeMap<SegmentId, u64>,
    lost: BTreeMap<SegmentId, u64>,
}

/// Segments that the store acknowledged and has not, nor has this machine's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSegments {
    /// Their keys, the first few.
    pub keys: Vec<String>,
    /// How many there are.
    pub count: u64,
}

impl fmt::Display for LostSegments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the store acknowledged {} segments and does not have them: {}. What is in them cannot be read. Bring them back from \
             the bucket's versions; `firn-edge verify` names the files, snapshots from before have them as they were",
            self.count,
            self.keys.join(", ")
        )
    }
}

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// The store acknowledged a segment of so many bytes.
    pub(super) fn note(&self, id: SegmentId, bytes: u64) {
        let mut state = self.lock();
        state.unconfirmed.insert(id, bytes);
        while state.unconfirmed.len() > UPLOADED_MAX {
            state.unconfirmed.pop_first();
        }
    }

    /// All that is not known to be there: what was lost may have been brought back.
    pub(super) fn doubtful(&self) -> BTreeMap<SegmentId, u64> {
        let state = self.lock();
        let all = state.unconfirmed.iter().chain(&state.lost);
        all.map(|(id, bytes)| (*id, *bytes)).collect()
    }

    /// These were asked for, and of them `lost` are not there.
    pub(super) fn settle(&self, asked: &BTreeMap<SegmentId, u64>, mut lost: BTreeMap<SegmentId, u64>) {
        let mut state = self.lock();
        for id in asked.keys() {
            state.unconfirmed.remove(id);
            state.lost.remove(id);
        }
        state.lost.append(&mut lost);
    }

    /// How many are not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.lock().unconfirmed.len()
    }

    /// What is known to be lost.
    pub(crate) fn lost(&self, family: &FamilyId) -> Option<LostSegments> {
        let state = self.lock();
        let keys = state.lost.keys().take(NAMED_MAX);
        let keys = keys.map(|id| id.key(family));
        (!state.lost.is_empty()).then(|| LostSegments {
            keys: keys.collect(),
            count: state.lost.len() as u64,
        })
    }
}
