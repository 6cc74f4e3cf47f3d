//! Snapshots: names for whole states of the volume.
//!
//! A snapshot costs no copy: it keeps the root of a commit, and what later changes replace stays where it is. Creating one asks
//! the checkpointer for a commit; at the instant of its freeze the snapshot's record goes into the journal, so the record's
//! place says exactly what the snapshot holds, and the same commit makes tree and snapshot durable (level 2) together.
//!
//! ```text
//! create ─→ waiting for the next freeze ─→ journaled + frozen (one instant) ─→ built ─→ committed ─→ answered
//!                                           └ a crash after it: the replay packs the tree at the same place
//! ```
//!
//! A protected snapshot is deleted by nobody before its date: the engine refuses, and the date stands in the checkpoint's
//! plain section, where the cleaner finds it. A date can be moved later, never earlier.

mod clone;
mod directory;
mod keeper;
mod restore;
mod retention;
mod space;
mod view;

pub use clone::{CloneError, CloneReport};
pub use directory::{SNAPSHOTS_DIRECTORY, SnapshotAccess};
pub use restore::{RestoreError, RestoreReport};
pub use retention::{AUTOMATIC, PolicyError, RetentionPolicy, Rungs};
pub use space::SnapshotSpace;
pub(crate) use view::SnapshotViews;

use crate::{
    journal::{Reservation, ReserveClass},
    record::{Operation, Record},
    state::{NAME_BYTES_MAX, SNAPSHOTS_MAX, Snapshot, State},
    volume::{Before, ChangeRequest, Inner, Planned, ServingState, Volume},
};
use bytes::Bytes;
use firn_vfs::{Caller, Credentials, Name, VfsError};
use std::sync::PoisonError;
use tokio::sync::oneshot;

/// Creations that may wait for one freeze.
const WAITING_MAX: usize = 64;

/// Bytes of a journal record of a snapshot, at most: a name and some numbers.
const RECORD_BYTES: u64 = 1024;

/// A snapshot as administrators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number; never given twice in a volume.
    pub id: u64,
    /// Its name: 1 to 255 bytes, as a file's.
    pub name: Bytes,
    /// When it was taken, milliseconds since 1970 by the edge's clock.
    pub created_ms: i64,
    /// It cannot be deleted before this; 0: not protected.
    pub protected_until_ms: i64,
    /// Inodes in it.
    pub files: u64,
    /// Bytes of data in it, as `df` counts them.
    pub used_bytes: u64,
    /// The version whose tree it keeps; `None` while its commit is under way.
    pub version: Option<u64>,
}

impl From<&Snapshot> for SnapshotInfo {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            id: snapshot.id,
            name: snapshot.name.clone(),
            created_ms: snapshot.created_ms,
            protected_until_ms: snapshot.protected_until_ms,
            files: snapshot.files,
            used_bytes: snapshot.used_bytes,
            version: snapshot.retained.map(|retained| retained.version.0),
        }
    }
}

/// Why something was not done with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It would be no directory's name.
    #[error(
        "a snapshot's name has 1 to 255 bytes, without `/` and zero bytes, and is not `.` or `..`; nothing was changed"
    )]
    BadName,
    /// The name is in use.
    #[error("a snapshot named {name} exists already; nothing was changed")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no snapshot named {name}; nothing was changed")]
    NoSuchSnapshot {
        /// The name.
        name: String,
    },
    /// It may not be deleted yet.
    #[error(
        "snapshot {name} is protected for another {hours} hours (until {until_ms} ms since 1970) and cannot be deleted before, by nobody; nothing was changed"
    )]
    Protected {
        /// The name.
        name: String,
        /// Until when, milliseconds since 1970.
        until_ms: i64,
        /// From now, rounded up.
        hours: i64,
    },
    /// A protection can only become longer.
    #[error(
        "snapshot {name} is protected until {until_ms} ms since 1970, which cannot be shortened; nothing was changed"
    )]
    CannotShorten {
        /// The name.
        name: String,
        /// Until when, milliseconds since 1970.
        until_ms: i64,
    },
    /// The volume has as many as it can have.
    #[error(
        "the volume has {SNAPSHOTS_MAX} snapshots, and can have no more; delete some first. Nothing was changed"
    )]
    TooMany,
    /// It is being cloned.
    #[error("snapshot {name} is being cloned; delete it when that is done. Nothing was changed")]
    InUse {
        /// The name.
        name: String,
    },
    /// Its tree is not committed yet.
    #[error("snapshot {name} is being made; try again when its commit is done")]
    NotYet {
        /// The name.
        name: String,
    },
    /// The volume cannot do it now, or any more.
    #[error("{0}")]
    Volume(#[from] VfsError),
    /// The edge stopped serving while it was made.
    #[error(
        "the edge stopped before the commit: whether the snapshot exists shows at its next start; everything acknowledged is in the journal"
    )]
    Unknown,
}

/// A snapshot somebody waits for.
pub(crate) struct Waiting {
    name: Bytes,
    protected_until_ms: i64,
    reservation: Reservation,
    answer: oneshot::Sender<Result<SnapshotInfo, SnapshotError>>,
}

/// One that is frozen, with who waits for its commit.
pub(crate) struct Frozen {
    id: u64,
    answer: oneshot::Sender<Result<SnapshotInfo, SnapshotError>>,
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

pub(crate) fn administrator() -> Caller {
    Caller {
        credentials: Credentials::root(),
        request: None,
    }
}

impl Volume {
    /// Keeps the present state under a name; returns when it is committed (level 2). Requests beyond what is dirty: one segment
    /// and one commit, whatever the size of the volume.
    ///
    /// `protected_until_ms` is a time in milliseconds since 1970 before which nobody can delete it; 0 for none.
    ///
    /// # Errors
    /// If the name cannot be used, there are too many, or the volume stops serving.
    pub async fn snapshot_create(
        &self,
        name: impl Into<Bytes>,
        protected_until_ms: i64,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let inner = &self.inner;
        let name: Bytes = name.into();
        check_name(&name)?;
        inner.check_serving()?;
        inner.checkpointer()?;
        check_new(&inner.lock(), &name)?;
        let reservation = inner.reserve(RECORD_BYTES, ReserveClass::Ordinary).await?;
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = inner.waiting_snapshots();
            if waiting.len() >= WAITING_MAX {
                return Err(SnapshotError::Volume(VfsError::TryAgain {
                    reason: "many snapshots are being made",
                }));
            }
            waiting.push(Waiting {
                name,
                protected_until_ms,
                reservation,
                answer,
            });
        }
        inner.want_checkpoint();
        let mut serving_state = inner.serving_state.subscribe();
        let ended = async {
            // The sender lives as long as the volume.
            let _ = serving_state
                .wait_for(|serving_state| {
                    matches!(serving_state, ServingState::Fenced | ServingState::Failed(_))
                })
                .await;
        };
        futures::pin_mut!(ended);
        match futures::future::select(answered, ended).await {
            futures::future::Either::Left((answer, _)) => answer.unwrap_or(Err(SnapshotError::Unknown)),
            futures::future::Either::Right(((), _)) => Err(SnapshotError::Unknown),
        }
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.inner
            .lock()
            .snapshots()
            .iter()
            .map(SnapshotInfo::from)
            .collect()
    }

    /// Stops keeping a snapshot; durable (level 1) when it returns. The cleaner frees what only it held.
    ///
    /// # Errors
    /// If there is none of that name, or it is protected.
    pub async fn snapshot_delete(&self, name: &[u8]) -> Result<(), SnapshotError> {
        let now_ms = self.inner.env.wall().as_millis();
        let careless = firn_env::planted!("volume.delete_protected_snapshot");
        self.change_snapshot(name, |snapshot| {
            if snapshot.protected_until_ms > now_ms && !careless {
                return Err(SnapshotError::Protected {
                    name: shown(&snapshot.name),
                    until_ms: snapshot.protected_until_ms,
                    hours: (snapshot.protected_until_ms - now_ms + 3_599_999) / 3_600_000,
                });
            }
            if self.inner.pinned_snapshots().contains(&snapshot.id) {
                return Err(SnapshotError::InUse {
                    name: shown(&snapshot.name),
                });
            }
            Ok(Operation::DeleteSnapshot { id: snapshot.id })
        })
        .await
    }

    /// Protects a snapshot from being deleted before a time (milliseconds since 1970); durable (level 1) when it returns.
    ///
    /// # Errors
    /// If there is none of that name, or it is protected for longer already.
    pub async fn snapshot_protect(&self, name: &[u8], until_ms: i64) -> Result<(), SnapshotError> {
        let now_ms = self.inner.env.wall().as_millis();
        self.change_snapshot(name, |snapshot| {
            let present = snapshot.protected_until_ms;
            if until_ms < present && present > now_ms {
                return Err(SnapshotError::CannotShorten {
                    name: shown(&snapshot.name),
                    until_ms: present,
                });
            }
            let id = snapshot.id;
            Ok(Operation::ProtectSnapshot { id, until_ms })
        })
        .await
    }

    /// Journals a change of one snapshot.
    async fn change_snapshot(
        &self,
        name: &[u8],
        plan: impl Fn(&Snapshot) -> Result<Operation, SnapshotError> + Send + Sync,
    ) -> Result<(), SnapshotError> {
        self.inner.checkpointer()?;
        let refused = std::sync::Mutex::new(None);
        let refuse = |error: SnapshotError| {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            crate::state::Stop::Refused(VfsError::NotFound)
        };
        let observed = std::sync::Mutex::new(None);
        let done = self
            .inner
            .change(&administrator(), ChangeRequest::removal(), |state, _| {
                let snapshot = state
                    .snapshot_named(name)
                    .ok_or_else(|| refuse(SnapshotError::NoSuchSnapshot { name: shown(name) }))?;
                let operation = plan(snapshot).map_err(refuse)?;
                *observed.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot.id);
                let (id, env) = (snapshot.id, self.inner.env.clone());
                let deleted = matches!(operation, Operation::DeleteSnapshot { .. });
                Ok(Planned::Change {
                    operation,
                    before: Before::default(),
                    answer: Box::new(move |_, _| {
                        if deleted {
                            env.observe("volume.snapshot_deleted", id);
                        }
                    }),
                })
            })
            .await;
        match (done, refused.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(refused)) => Err(refused),
            (Err(error), None) => Err(error.into()),
        }
    }
}

fn check_name(name: &Bytes) -> Result<(), SnapshotError> {
    if name.len() > NAME_BYTES_MAX || Name::new(name.clone()).is_err() {
        return Err(SnapshotError::BadName);
    }
    Ok(())
}

fn check_new(state: &State, name: &[u8]) -> Result<(), SnapshotError> {
    if state.snapshot_named(name).is_some() {
        return Err(SnapshotError::Exists { name: shown(name) });
    }
    if state.snapshots().len() >= SNAPSHOTS_MAX {
        return Err(SnapshotError::TooMany);
    }
    Ok(())
}

impl Inner {
    fn waiting_snapshots(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting_snapshots
            .lock()
            .expect("no panic under the lock of waiting snapshots")
    }

    pub(super) fn pinned_snapshots(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.pinned_snapshots
            .lock()
            .expect("no panic under the lock of pinned snapshots")
    }

    /// Whether somebody waits for a snapshot, so that a checkpoint is wanted even if nothing is dirty.
    pub fn wants_snapshot(&self) -> bool {
        !self.waiting_snapshots().is_empty()
    }

    /// Journals the snapshots that are waited for; the caller freezes the state under the same lock.
    pub(crate) fn begin_snapshots(&self, state: &mut State) -> Vec<Frozen> {
        let waiting = std::mem::take(&mut *self.waiting_snapshots());
        let mut frozen = Vec::with_capacity(waiting.len());
        for one in waiting {
            // A volume that stops may have closed its journal already: a record appended now would be lost with the promise
            // that everything before the stop is kept.
            let begun = self.check_serving().map_err(SnapshotError::from);
            if let Err(error) = begun.and_then(|()| check_new(state, &one.name)) {
                // Nobody may be waiting any more.
                let _ = one.answer.send(Err(error));
                continue;
            }
            let id = self.new_snapshot_id(state);
            let record = Record {
                request: None,
                now: self.now(),
                operation: Operation::CreateSnapshot {
                    id,
                    name: one.name,
                    created_ms: self.env.wall().as_millis(),
                    protected_until_ms: one.protected_until_ms,
                },
            };
            self.journal_and_apply(state, &record, one.reservation, &None);
            self.env.observe("volume.snapshot_created", id);
            frozen.push(Frozen {
                id,
                answer: one.answer,
            });
        }
        frozen
    }

    fn new_snapshot_id(&self, state: &State) -> u64 {
        loop {
            let id = u64::from_le_bytes(self.env.random_bytes());
            if id != 0 && state.snapshots().iter().all(|snapshot| snapshot.id != id) {
                return id;
            }
        }
    }

    /// Tells those who wait that their snapshots are committed.
    pub(crate) fn end_snapshots(&self, frozen: Vec<Frozen>) {
        for one in frozen {
            let state = self.lock();
            let found = state.snapshots().iter().find(|snapshot| snapshot.id == one.id);
            // It may have been deleted since it was frozen.
            let info = found.map(SnapshotInfo::from).ok_or(SnapshotError::Unknown);
            drop(state);
            let _ = one.answer.send(info);
        }
    }
}
