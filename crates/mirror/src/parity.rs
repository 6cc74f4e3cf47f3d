//! Parities of a family's cold segments, kept in the second store beside its copies: what neither store has can be computed from the rest.
//!
//! ```text
//! segments of the second store, older than `after` ─▶ groups of up to 32 columns, three parities   (pass, rewrite)
//! a read of a member that is missing or altered ───▶ its row from the other columns                (rows, reader)
//! a member whose deletion is due ──────────────────▶ waits until a generation without it is there  (pass)
//! a copy whose group is there ─────────────────────▶ goes, if that is wanted: then cleaners wait, too  (hold)
//! ```
//!
//! Groups are known by their names and heads ([`index`]): no state of this machine's. A helper is read from the second store and, where that
//! does not have it, from the first; the other way round where copies go (decisions 0208, 0210). Nothing here has keys; a wrong helper is told by its hash before it is used, and what
//! was computed is verified by its uid like anything that a store says.

mod checks;
mod hold;
mod index;
mod look;
mod pass;
mod reader;
mod rewrite;
mod rows;

/// By what the ages of segments are judged.
#[derive(Clone, Copy)]
pub(crate) struct Ages {
    /// See [`crate::store_clock`].
    pub now_ms: i64,
    /// How much longer the second store has what was deleted from the first.
    pub keep_deleted: Duration,
}

pub use checks::{ExpectedMember, RowCheck};
pub use hold::{Copies, Grouping, HoldStatus};
pub(crate) use hold::{all_doomed, known_hold};
pub use reader::Restoring;

use bytes::Bytes;
use firn_env::{Env, Monotonic};
use firn_format::{FamilyId, SegmentId};
use firn_parity::{Group, GroupHead};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How long a reader believes what it knows of the groups.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// Group objects with all hashes that are remembered, of some 300 KB each.
const GROUPS_REMEMBERED: usize = 8;

/// What is known of one group.
#[derive(Clone)]
struct Known {
    head: Arc<GroupHead>,
    /// Whether all parities were listed.
    is_whole: bool,
    /// Bytes of its objects.
    bytes: u64,
}

/// Groups as they were listed last.
#[derive(Default)]
struct Index {
    groups: BTreeMap<u64, Known>,
    members: BTreeMap<SegmentId, u64>,
    /// Objects of generations that were followed by others, or never ended.
    stale: Vec<ObjectKey>,
    /// The newest generation of which anything was seen, by group.
    generations: BTreeMap<u64, u64>,
    /// Groups whose newest object cannot be read.
    unreadable: u64,
    refreshed_at: Option<Monotonic>,
}

/// How the groups stand, and what was done since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParityStatus {
    /// Groups.
    pub groups: u64,
    /// Segments in them.
    pub members: u64,
    /// Bytes of these.
    pub member_bytes: u64,
    /// Bytes of the groups' objects.
    pub parity_bytes: u64,
    /// Segments that are cold and in no group yet.
    pub waiting: u64,
    /// Bytes of them.
    pub waiting_bytes: u64,
    /// Members whose deletion from the second store waits until their group has a generation without them.
    pub held: u64,
    /// Members that were in neither store when the last pass looked.
    pub absent: u64,
    /// Groups that cannot be changed: more of a row is lost than parities make up for, or the group object cannot be read.
    pub broken: u64,
    /// Objects of older generations that could not be deleted.
    pub undeleted: u64,
    /// The hold that keeps what is retired, while members may be without copies.
    pub hold: Option<HoldStatus>,
    /// Generations written.
    pub generations_written: u64,
    /// Rows computed from others for readers.
    pub rows_restored: u64,
    /// Rows that readers wanted and that could not be computed.
    pub rows_failed: u64,
    /// When the last pass ended, milliseconds since 1970.
    pub passed_at_ms: Option<i64>,
    /// In the store's words.
    pub last_error: Option<String>,
}

#[derive(Default)]
struct State {
    index: Index,
    remembered: VecDeque<Arc<Group>>,
    status: ParityStatus,
}

struct Inner {
    env: Env,
    first: Arc<dyn Store>,
    second: Arc<dyn Store>,
    family: FamilyId,
    known: Arc<Shared>,
}

/// What is known of the groups, through whichever stores they are asked for.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// One listing at a time.
    refreshing: tokio::sync::Mutex<()>,
}

/// The parity groups of one family in a second store; cheap to clone.
#[derive(Clone)]
pub struct Parity {
    inner: Arc<Inner>,
}

impl Parity {
    /// Those of `family` in `second`, over what lies there and in `first`; nothing is asked yet.
    pub fn new(env: &Env, (first, second): (Arc<dyn Store>, Arc<dyn Store>), family: FamilyId) -> Self {
        Self {
            inner: Arc::new(Inner {
                env: env.clone(),
                first,
                second,
                family,
                known: Arc::default(),
            }),
        }
    }

    /// The same groups, and what is known of them, through other ways to the same two stores: for work in the background.
    #[must_use]
    pub fn through(&self, (first, second): (Arc<dyn Store>, Arc<dyn Store>)) -> Self {
        Self {
            inner: Arc::new(Inner {
                env: self.inner.env.clone(),
                first,
                second,
                family: self.inner.family,
                known: self.inner.known.clone(),
            }),
        }
    }

    /// The second store as readers and repairs should have it: what it lost or altered of a group's members is computed.
    pub fn reader(&self) -> Arc<dyn Store> {
        Arc::new(Restoring::new(self.clone()))
    }

    /// This moment.
    pub fn status(&self) -> ParityStatus {
        let state = self.lock();
        let known = state.index.groups.values();
        ParityStatus {
            groups: state.index.groups.len() as u64,
            members: state.index.members.len() as u64,
            member_bytes: known.clone().map(|known| known.head.member_bytes()).sum(),
            parity_bytes: known.map(|known| known.bytes).sum(),
            ..state.status.clone()
        }
    }

    /// Whether a segment is a member of a group, as far as the groups were listed: then others may need it.
    pub(crate) fn holds(&self, segment: SegmentId) -> bool {
        self.lock().index.members.contains_key(&segment)
    }

    pub(crate) fn note_held(&self, held: u64) {
        self.lock().status.held = held;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner
            .known
            .state
            .lock()
            .expect("no panic under the parities' lock")
    }

    fn env(&self) -> &Env {
        &self.inner.env
    }

    /// Whose segments.
    pub fn family(&self) -> FamilyId {
        self.inner.family
    }

    fn second(&self) -> &dyn Store {
        &*self.inner.second
    }

    /// The stores that may have a member, in the order in which they are asked.
    fn sources(&self) -> [&dyn Store; 2] {
        match self.drops() {
            true => [&*self.inner.first, &*self.inner.second],
            false => [&*self.inner.second, &*self.inner.first],
        }
    }

    /// Whether members' copies go, as far as the table was asked.
    pub(crate) fn drops(&self) -> bool {
        self.lock().status.hold.is_some_and(|hold| hold.drops)
    }

    fn segment_key(&self, segment: SegmentId) -> ObjectKey {
        ObjectKey::new(&segment.key(&self.family()))
    }

    /// A range of an object, if it is there whole.
    async fn part(store: &dyn Store, key: &ObjectKey, offset: u64, bytes: u64) -> Option<Bytes> {
        match store.get_range(key, offset, bytes).await {
            Ok(found) => (found.len() as u64 == bytes).then_some(found),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => {
                tracing::debug!(%error, %key, "a helper cannot be read");
                None
            }
        }
    }
}
