//! Attaching a disk: one client writes at a time.
//!
//! An attach raises the disk's fence here first. Then the client tells every node of the disk's rows ([`set
//! fence`](firn_blockd_protocol::Request::SetFence)) before it reads anything: from the moment one replica of each row
//! knows, nothing the loser sends can be acknowledged, and what it had under way is either in the replicas' dirty-region log or gone.
//! An attach after an unclean end reads the dirty-region log of all replicas and writes what it finds to all of them before it reads.

use crate::{
    Attach, DiskRecord, Placement, PlacementError,
    record::{self, ATTEMPTS, Outcome, unchanged},
};
use firn_blockd_protocol::{DiskId, Fence};
use firn_table::Write;

/// What a client needs to know of its attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its fence: higher than any before.
    pub fence: Fence,
    /// The attach before ended cleanly: replicas agree.
    pub clean: bool,
    /// The disk, as attached.
    pub disk: DiskRecord,
    /// As [`DiskLook::capped`](crate::DiskLook::capped).
    pub capped: bool,
}

impl Placement {
    /// Attaches a disk. With `force`, also if somebody has it: they can do nothing more once the nodes know.
    ///
    /// # Errors
    /// [`PlacementError::Attached`], and others.
    pub async fn attach_disk(
        &self,
        disk: DiskId,
        holder: &str,
        force: bool,
    ) -> Result<Attachment, PlacementError> {
        self.attach_disk_as(disk, holder, None, force).await
    }

    /// The same by a machine that a service let in with a key of this hash; the record says so as long as it has the disk.
    ///
    /// # Errors
    /// As [`Placement::attach_disk`].
    pub async fn attach_disk_as(
        &self,
        disk: DiskId,
        holder: &str,
        key: Option<&str>,
        force: bool,
    ) -> Result<Attachment, PlacementError> {
        // Tells this call's own write from others' after a lost reply.
        let mark = format!("{holder}#{:016x}", self.env.random_u64());
        let mut was_clean = true;
        self.change_disk(disk, |old| {
            let old = old.ready()?;
            if let Some(attach) = &old.attached {
                if attach.holder == mark {
                    return Ok(Step::Answer(Attachment {
                        fence: old.fence(),
                        clean: was_clean,
                        disk: old,
                        capped: false,
                    }));
                }
                if !force {
                    return Err(PlacementError::Attached {
                        disk,
                        holder: attach.holder.clone(),
                    });
                }
            }
            was_clean = old.clean;
            let record = DiskRecord {
                fence: raised(&old)?,
                attached: Some(Attach {
                    holder: mark.clone(),
                    since_unix_ms: self.env.wall().as_millis(),
                    key: key.map(str::to_owned),
                    asked_to_end: false,
                }),
                clean: false,
                ..old
            };
            let attachment = Attachment {
                fence: record.fence(),
                clean: was_clean,
                disk: record.clone(),
                capped: false,
            };
            Ok(Step::Put(Box::new(record), attachment))
        })
        .await
    }

    /// Replaces the client's own settings of a disk; only who has it attached may.
    ///
    /// # Errors
    /// [`PlacementError::Fenced`] if somebody else has it meanwhile: nothing was changed.
    pub async fn change_settings(
        &self,
        disk: DiskId,
        fence: Fence,
        settings: &str,
    ) -> Result<DiskRecord, PlacementError> {
        self.change_disk(disk, |old| {
            let old = old.ready()?;
            if old.fence() != fence || old.attached.is_none() {
                return Err(PlacementError::Fenced { current: old.fence() });
            }
            if old.settings == settings {
                return Ok(Step::Answer(old));
            }
            let record = DiskRecord {
                settings: settings.to_owned(),
                ..old
            };
            Ok(Step::Put(Box::new(record.clone()), record))
        })
        .await
    }

    /// Asks whoever has a disk to give it back: its machine sees it in the record. Nobody has it: nothing is done.
    ///
    /// # Errors
    /// [`PlacementError::NoDisk`], and others.
    pub async fn ask_to_detach(&self, disk: DiskId) -> Result<DiskRecord, PlacementError> {
        self.change_disk(disk, |old| {
            let old = old.ready()?;
            match old.attached.clone() {
                Some(attach) if !attach.asked_to_end => {
                    let asked = Attach {
                        asked_to_end: true,
                        ..attach
                    };
                    let record = DiskRecord {
                        attached: Some(asked),
                        ..old
                    };
                    Ok(Step::Put(Box::new(record.clone()), record))
                }
                Some(_) | None => Ok(Step::Answer(old)),
            }
        })
        .await
    }

    /// Ends the attach of whoever has a disk, without asking: the fence rises, as if somebody else had attached it and given it back.
    /// What the loser wrote and did not flush may be lost; the next attach reconciles.
    ///
    /// # Errors
    /// [`PlacementError::NoDisk`], and others.
    pub async fn end_attach(&self, disk: DiskId) -> Result<DiskRecord, PlacementError> {
        self.change_disk(disk, |old| {
            let old = old.ready()?;
            if old.attached.is_none() {
                return Ok(Step::Answer(old));
            }
            let record = DiskRecord {
                fence: raised(&old)?,
                attached: None,
                clean: false,
                ..old
            };
            Ok(Step::Put(Box::new(record.clone()), record))
        })
        .await
    }

    /// Ends an attach. `clean`: everything is durable on all replicas and they were told that it is settled.
    ///
    /// # Errors
    /// [`PlacementError::Fenced`] if somebody else has it meanwhile: nothing was changed.
    pub async fn detach_disk(&self, disk: DiskId, fence: Fence, clean: bool) -> Result<(), PlacementError> {
        self.change_disk(disk, |old| {
            if old.fence() != fence {
                return Err(PlacementError::Fenced { current: old.fence() });
            }
            if old.attached.is_none() {
                return Ok(Step::Answer(()));
            }
            let record = DiskRecord {
                attached: None,
                clean,
                ..old
            };
            Ok(Step::Put(Box::new(record), ()))
        })
        .await
    }

    /// Changes a disk's record, as often as it takes while others change it too. `step` sees the record as it stands at each
    /// turn; of what it puts only the last counts.
    async fn change_disk<T>(
        &self,
        disk: DiskId,
        mut step: impl FnMut(DiskRecord) -> Result<Step<T>, PlacementError>,
    ) -> Result<T, PlacementError> {
        for attempt in 0..ATTEMPTS {
            let old = self.stored_disk(disk).await?;
            let (record, answer) = match step(old.value)? {
                Step::Answer(answer) => return Ok(answer),
                Step::Put(record, answer) => (record, answer),
            };
            let put = Write::Put {
                key: self.disk_key(disk),
                value: record::encode(&*record),
                condition: unchanged(Some(old.version)),
            };
            match self.transact(vec![put]).await? {
                Outcome::Done => return Ok(answer),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the disk" })
    }
}

/// The fence after a disk's.
fn raised(old: &DiskRecord) -> Result<u32, PlacementError> {
    old.fence.checked_add(1).ok_or_else(|| PlacementError::Damaged {
        key: old.disk.hex().to_string(),
        reason: "its fence cannot be raised any more".into(),
    })
}

/// What becomes of a record.
enum Step<T> {
    /// It stays as it is.
    Answer(T),
    /// This takes its place; the answer when it stands.
    Put(Box<DiskRecord>, T),
}
