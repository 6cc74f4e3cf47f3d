//! A volume that many write at the same moment, each member what it holds by a lease (docs/leases.md, decision 0224).
//!
//! ```text
//! change ─▶ plan ─▶ needs ─▶ pinned by this call? ──yes──▶ append + apply ─▶ durable ─▶ are leases valid still? ─▶ answer
//!             ▲                  │ no                          │
//!             └── acquire, without the state's lock            ▼ unpublished: the ground of each inode is noted
//!                                                         publish: adopt the newest root, leaf check, build on it, commit
//! ```
//!
//! [`firn_leases::Member`] says when; here stands what it asks of a file system ([`firn_leases::Content`]), over the modules that an owner uses too:
//!
//! | module | |
//! |---|---|
//! | `start` | presence, the root, the journal onto it |
//! | `judging` | after a break: what of the journal goes on, and the salvage of all of it |
//! | `needs`, `hold` | which leases a change needs, and how a call gets them |
//! | `adoption` | a newer root takes the place of the one in memory; what is changed here stays |
//! | `publication` | freeze, leaf check, build on the adopted root; what was built is committed |
//! | `backlog` | how much may be unpublished |
//! | `run` | the task that publishes and tends |
//! | `joining`, `departure` | the number of this machine's member; it goes away when it stops or nobody asks anything |
//! | `freshness`, `layer` | how old what clients read may be |
//! | `locking` | locks of files: decided here, or in another office |
//!
//! A planned change that comes to nothing (a name that is taken, a file that is gone) is answered only if it was planned on a root that was read since the call
//! arrived, or under leases: what is in memory of others' inodes may be old.
//!
//! **Order of locks.** The lease table is asked under no lock of the state, and asks the state itself ([`firn_leases::Content::is_published`]): lease table before state.
//!
//! Not here yet: the merge of cleaners' proposals, snapshots and everything else that an owner does for the whole volume.

mod adoption;
mod backlog;
mod departure;
mod figures;
mod freshness;
mod hold;
mod joining;
mod judging;
mod layer;
mod locking;
mod needs;
mod publication;
mod run;
mod start;

pub use figures::ByInodeStatus;
pub(crate) use hold::{Held, Unheld};
pub use layer::ByInodeVfs;
pub use locking::ByInodeLocks;
pub use start::{MemberStartError, MemberStartReport};

use crate::{
    checkpoint::CheckpointPayload,
    serving::ServingState,
    usage::UsageMap,
    volume::{Inner, Volume},
};
use async_trait::async_trait;
use departure::LastCall;
use figures::LeaseWaits;
use firn_anchor::{ARENA_BITS, LeaseRange, MemberNumber, VolumeTuple};
use firn_format::{Checkpoint, Pointer, Uid, Version};
use firn_leases::{Build, Built, Content, Member, MemberError};
use firn_vfs::VfsError;
use freshness::RootReads;
use locking::Locking;
use publication::{BuiltRoot, Frozen};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// What a volume that is shared by inode has besides that of an owner.
pub(crate) struct ByInode {
    number: MemberNumber,
    /// Set once it started.
    member: OnceLock<Arc<Member>>,
    /// Whoever adopts, builds or installs has this, one at a time.
    publishing: tokio::sync::Mutex<Publishing>,
    /// Of the root in memory, as `publishing` has it.
    adopted_version: AtomicU64,
    root_reads: RootReads,
    lease_waits: LeaseWaits,
    /// Changes that waited for the uplink.
    uplink_waits: AtomicU64,
    last_call: LastCall,
    /// Of a volume that was opened with a table of locks.
    locking: OnceLock<Locking>,
}

/// The root in memory, and what is to be put on it.
struct Publishing {
    adopted: AdoptedRoot,
    /// Taken for a root, and not known to be in one. Until it is, nothing else is frozen.
    frozen: Option<Frozen>,
    /// What was built of it last.
    built: Option<BuiltRoot>,
    /// What of the live bytes of segments waits for a commit.
    usage: UsageMap,
    /// The journal was judged, and no root says so yet.
    owes_section: bool,
}

/// A root that was adopted.
struct AdoptedRoot {
    version: Version,
    uid: Uid,
    checkpoint: Checkpoint,
    payload: CheckpointPayload,
    /// Commits up to this one, oldest first.
    history: VecDeque<(Version, Uid)>,
    /// Where each unlinked but open inode is, everybody's.
    orphan_pointers: BTreeMap<u64, Pointer>,
}

impl ByInode {
    fn new(number: MemberNumber, adopted: AdoptedRoot, usage: UsageMap, owes_section: bool) -> Self {
        Self {
            number,
            member: OnceLock::new(),
            adopted_version: AtomicU64::new(adopted.version.0),
            root_reads: RootReads::default(),
            lease_waits: LeaseWaits::default(),
            uplink_waits: AtomicU64::new(0),
            last_call: LastCall::default(),
            locking: OnceLock::new(),
            publishing: tokio::sync::Mutex::new(Publishing {
                adopted,
                frozen: None,
                built: None,
                usage,
                owes_section,
            }),
        }
    }

    /// The version of the root in memory.
    fn adopted_version(&self) -> u64 {
        self.adopted_version.load(Ordering::Acquire)
    }

    /// The member, which is there before anything is served.
    fn member(&self) -> &Arc<Member> {
        self.member
            .get()
            .expect("a volume serves once its member started")
    }
}

/// A volume as its member sees it. Weak: the volume has the member.
struct Shared(Weak<Inner>);

impl Shared {
    fn inner(&self) -> Result<Arc<Inner>, MemberError> {
        let inner = self.0.upgrade();
        inner.ok_or_else(|| MemberError::Content("the volume was closed".into()))
    }
}

#[async_trait]
impl Content for Shared {
    async fn adopt(&self, volume: &VolumeTuple) -> Result<(), MemberError> {
        let inner = self.inner()?;
        adoption::adopt(&inner, volume).await
    }

    async fn build(&self, volume: &VolumeTuple) -> Result<Build, MemberError> {
        let inner = self.inner()?;
        publication::build(&inner, volume).await
    }

    fn is_published(&self, arena: u64, range: LeaseRange) -> bool {
        let first = (arena << ARENA_BITS) + u64::from(range.first());
        let numbers = first..first + u64::from(range.numbers());
        // What is closed has published nothing.
        self.inner().is_ok_and(|inner| inner.lock().is_published(numbers))
    }

    fn is_awaited(&self) -> bool {
        self.inner().is_ok_and(|inner| inner.checkpointer.is_wanted())
    }

    async fn committed(&self, built: &Built) {
        if let Ok(inner) = self.inner() {
            publication::committed(&inner, built).await;
        }
    }
}

impl Inner {
    /// What only a member by inode has.
    fn by_inode(&self) -> &ByInode {
        self.by_inode.as_ref().expect("asked by a member only")
    }

    /// The member is over: nothing is served any more until the volume is opened again.
    fn end_member(&self, error: &MemberError) {
        tracing::error!(%error, "this office serves no more until the volume is opened again");
        let why = format!("{error}; everything acknowledged is in this office's journal");
        self.set_serving_state(ServingState::Broken(why));
    }
}

impl Volume {
    /// The member of a volume that is shared by inode; `None` of any other.
    pub fn member_by_inode(&self) -> Option<Arc<Member>> {
        self.inner
            .by_inode
            .as_ref()
            .map(|by_inode| by_inode.member().clone())
    }

    /// Reads the newest root and adopts it: what is read after that sees all that was committed before. In a volume that is not shared by inode it does
    /// nothing.
    ///
    /// # Errors
    /// `TryAgain` if it cannot be read.
    pub async fn catch_up(&self) -> Result<(), VfsError> {
        match &self.inner.by_inode {
            None => Ok(()),
            Some(by_inode) => {
                let caught_up = by_inode.member().catch_up().await;
                caught_up.map_err(|error| self.inner.refused_by_member(&error))
            }
        }
    }
}
