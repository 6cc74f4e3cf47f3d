//! Upload tracking: segments that the store acknowledged and nobody has seen there since, and segments that turned out to be lost.
//!
//! | | known by | until |
//! |---|---|---|
//! | unlisted | [`Uploads::note`] | a listing shows it with its length (`sync`), or it was read back |
//! | unread | [`Uploads::note`] | its end was read back, or it is lost |
//! | altered | a read-back | the right bytes are read |
//! | lost | neither the store nor this machine has it | it is there again |

use super::read_back::{READ_BACK_DELAY, Tail};
use firn_env::Monotonic;
use firn_format::{FamilyId, SegmentId};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::{Notify, futures::Notified};

/// Segments remembered, of some 150 bytes each; beyond it the oldest are taken to be there. A store that cannot be asked for
/// so long has other troubles.
const UPLOADED_MAX: usize = 100_000;

/// Segments named in an error.
const NAMED_MAX: usize = 8;

/// What was uploaded and not confirmed, and what turned out not to be there.
#[derive(Default)]
pub struct Uploads {
    state: Mutex<State>,
    /// Something is to be read back.
    noted: Notify,
    /// Held by who reads back, one at a time.
    pub(super) reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// With the length. Of several writers: a clone is packed by one of its own.
    unlisted: BTreeMap<SegmentId, u64>,
    unread: BTreeMap<SegmentId, Unread>,
    lost: BTreeMap<SegmentId, u64>,
    put_again: u64,
}

/// A segment whose end will be read back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    pub bytes: u64,
    pub tail: Tail,
    /// When.
    pub due: Monotonic,
    /// Looks at it that found nothing out, or found that it is not right.
    pub looks: u32,
    pub altered: bool,
}

/// Segments that the store acknowledged and has not, or not as they were put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSegments {
    /// Their keys, the first few.
    pub keys: Vec<String>,
    /// How many there are.
    pub count: u64,
}

/// How the read-back of uploads stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBackStatus {
    /// Segments that the store acknowledged and whose end was not read back yet.
    pub unconfirmed: u64,
    /// Bytes of them that are pinned on the local disk.
    pub pinned_bytes: u64,
    /// Segments that the store had dropped and that were put again, since the start.
    pub put_again: u64,
    /// Segments that are in the store with other bytes than were put; they are read from the local disk.
    pub altered: u64,
    /// Keys of the first of them.
    pub altered_keys: Vec<String>,
}

impl fmt::Display for LostSegments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the store acknowledged {} segments and does not have them as they were put: {}. What this machine does not have of them, \
             either, cannot be read. Bring them back from the bucket's versions; `firn-edge verify` names the files, snapshots from before have them as they were",
            self.count,
            self.keys.join(", ")
        )
    }
}

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// The store acknowledged a segment of so many bytes at this time.
    pub(super) fn note(&self, id: SegmentId, bytes: u64, tail: Tail, now: Monotonic) {
        let mut state = self.lock();
        state.unlisted.insert(id, bytes);
        drop(state);
        self.note_unread(id, bytes, tail, now);
    }

    /// It is to be read back, counted from now.
    pub(super) fn note_unread(&self, id: SegmentId, bytes: u64, tail: Tail, now: Monotonic) {
        let unread = Unread {
            bytes,
            tail,
            due: now.after(READ_BACK_DELAY),
            looks: 0,
            altered: false,
        };
        let mut state = self.lock();
        state.unread.insert(id, unread);
        while state.unlisted.len() > UPLOADED_MAX {
            state.unlisted.pop_first();
        }
        while state.unread.len() > UPLOADED_MAX {
            state.unread.pop_first();
        }
        drop(state);
        self.noted.notify_waiters();
    }

    /// Whether it waits to be read back.
    pub(super) fn is_unread(&self, id: SegmentId) -> bool {
        self.lock().unread.contains_key(&id)
    }

    /// The next time that something new is to be read back.
    pub(super) fn noted(&self) -> Notified<'_> {
        self.noted.notified()
    }

    /// When the next read-back is due.
    pub(super) fn next_due(&self) -> Option<Monotonic> {
        self.lock().unread.values().map(|unread| unread.due).min()
    }

    /// What is due, at most so many, the longest due first.
    pub(super) fn due(&self, now: Monotonic, most: usize) -> Vec<(SegmentId, Unread)> {
        let state = self.lock();
        let due = state.unread.iter().filter(|(_, unread)| unread.due <= now);
        let mut due: Vec<_> = due.map(|(id, unread)| (*id, *unread)).collect();
        due.sort_by_key(|(id, unread)| (unread.due, *id));
        due.truncate(most);
        due
    }

    /// The store has it, byte for byte, or nobody needs it there.
    pub(super) fn seen(&self, id: SegmentId) {
        let mut state = self.lock();
        state.unlisted.remove(&id);
        state.unread.remove(&id);
        state.lost.remove(&id);
    }

    /// It is looked at again at `due`.
    pub(super) fn look_again(&self, id: SegmentId, due: Monotonic, altered: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(unread) = state.unread.get_mut(&id) {
            unread.due = due;
            unread.looks = unread.looks.saturating_add(1);
            unread.altered = altered;
            if altered {
                state.lost.remove(&id);
            }
        }
    }

    /// The store had dropped it, and took it once more.
    pub(super) fn was_put_again(&self, id: SegmentId, now: Monotonic) {
        self.look_again(id, now.after(READ_BACK_DELAY), false);
        self.lock().put_again += 1;
    }

    /// Neither the store has it nor this machine.
    pub(super) fn lose(&self, id: SegmentId, bytes: u64) {
        let mut state = self.lock();
        state.unlisted.remove(&id);
        state.unread.remove(&id);
        state.lost.insert(id, bytes);
    }

    /// All that no listing has shown: what was lost may have been brought back.
    pub(super) fn doubtful(&self) -> BTreeMap<SegmentId, u64> {
        let state = self.lock();
        let all = state.unlisted.iter().chain(&state.lost);
        all.map(|(id, bytes)| (*id, *bytes)).collect()
    }

    /// These were asked for, and of them `lost` are not there.
    pub(super) fn settle(&self, asked: &BTreeMap<SegmentId, u64>, mut lost: BTreeMap<SegmentId, u64>) {
        let mut state = self.lock();
        for id in asked.keys() {
            state.unlisted.remove(id);
            state.lost.remove(id);
        }
        // Of those this machine has the right bytes of.
        lost.retain(|id, _| state.unread.get(id).is_none_or(|unread| !unread.altered));
        state.lost.append(&mut lost);
    }

    /// What is known to be lost.
    pub(crate) fn lost(&self, family: &FamilyId) -> Option<LostSegments> {
        named(self.lock().lost.keys(), family)
    }

    /// What is known not to be in the store as it was put: lost or altered.
    pub(super) fn not_there(&self, family: &FamilyId) -> Option<LostSegments> {
        let state = self.lock();
        named(state.lost.keys().chain(state.altered()), family)
    }

    /// Those that are in the store with other bytes than were put.
    pub(crate) fn altered(&self) -> Vec<SegmentId> {
        self.lock().altered().copied().collect()
    }

    /// Nobody needs it under its name any more.
    pub(crate) fn was_retired(&self, id: SegmentId) {
        self.seen(id);
    }

    /// How the read-back stands; `pinned_bytes` is for the caller to say.
    pub(crate) fn read_back(&self, family: &FamilyId) -> ReadBackStatus {
        let state = self.lock();
        ReadBackStatus {
            unconfirmed: state.unread.len() as u64,
            pinned_bytes: 0,
            put_again: state.put_again,
            altered: state.altered().count() as u64,
            altered_keys: state.altered().take(NAMED_MAX).map(|id| id.key(family)).collect(),
        }
    }
}

impl State {
    fn altered(&self) -> impl Iterator<Item = &SegmentId> {
        self.unread
            .iter()
            .filter(|(_, unread)| unread.altered)
            .map(|(id, _)| id)
    }
}

fn named<'a>(ids: impl Iterator<Item = &'a SegmentId>, family: &FamilyId) -> Option<LostSegments> {
    let (mut keys, mut count) = (Vec::new(), 0);
    for id in ids {
        count += 1;
        if keys.len() < NAMED_MAX {
            keys.push(id.key(family));
        }
    }
    (count > 0).then_some(LostSegments { keys, count })
}
