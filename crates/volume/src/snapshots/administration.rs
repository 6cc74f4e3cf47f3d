//! Snapshot administration: create, list, delete, protect.

use super::{
    info::{SnapshotError, SnapshotInfo, shown},
    registry::{Waiting, check_new},
};
use crate::{
    change::{Before, ChangeRequest, Planned},
    journal::ReserveClass,
    record::Operation,
    state::{NAME_BYTES_MAX, Snapshot, Stop},
    volume::Volume,
};
use bytes::Bytes;
use firn_vfs::{Caller, Credentials, Name, VfsError};
use std::sync::PoisonError;
use tokio::sync::oneshot;

/// Bytes of a journal record of a snapshot, at most: a name and some numbers.
const RECORD_BYTES: u64 = 1024;

pub(crate) fn administrator() -> Caller {
    Caller::new(Credentials::root())
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
        inner.checkpointer.attached()?;
        check_new(&inner.lock(), &name)?;
        let reservation = inner.reserve(RECORD_BYTES, ReserveClass::Ordinary).await?;
        let (answer, answered) = oneshot::channel();
        inner.snapshots.wait(Waiting {
            name,
            protected_until_ms,
            reservation,
            answer,
        })?;
        inner.checkpointer.want();
        let ended = inner.serving.ended();
        futures::pin_mut!(ended);
        match futures::future::select(answered, ended).await {
            futures::future::Either::Left((answer, _)) => answer.unwrap_or(Err(SnapshotError::Unknown)),
            futures::future::Either::Right(_) => Err(SnapshotError::Unknown),
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
            if self.inner.snapshots.is_pinned(snapshot.id) {
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
        self.inner.checkpointer.attached()?;
        let refused = std::sync::Mutex::new(None);
        let refuse = |error: SnapshotError| {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Stop::Refused(VfsError::NotFound)
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
