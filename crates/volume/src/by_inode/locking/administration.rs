//! Locks of all offices for administrators, and what clients here are told that they lost.

use super::{CALL_LIMIT, Locking, Term};
use crate::{member::LostLocks, volume::Volume};
use firn_anchor::{MemberLocksChange, OwnerId};
use firn_leases::MemberError;

impl Volume {
    /// Locks that clients here lost to other offices, to tell them; `None` of a volume that was not opened with a table of locks.
    pub fn lost_locks(&self) -> Option<LostLocks> {
        let locking = self.inner.by_inode.as_ref()?.locking.get()?;
        Some(locking.lost.clone())
    }

    /// Reads what other offices have of locks at the moment. Of a volume without it does nothing.
    ///
    /// # Errors
    /// If that is not known.
    pub async fn refresh_locks(&self) -> Result<(), MemberError> {
        let Some(locking) = self.locking_here() else {
            return Ok(());
        };
        let refreshed = async {
            let mut step = locking.step.lock().await;
            match step.term {
                Term::Decides { .. } => self.inner.look_as_decider(&mut step).await,
                Term::Beside => {
                    let record = self.inner.record().await?;
                    locking.place(&mut step, locking.others(&record));
                    Ok(())
                }
                Term::Has { .. } | Term::Closed { .. } => Ok(()),
            }
        };
        self.within(refreshed).await
    }

    /// Takes away what clients of another office hold of a file; that office hears of it. This one gets the lease of locks for it.
    ///
    /// # Errors
    /// If another office keeps that; nothing was changed.
    pub async fn break_locks(&self, office: [u8; 16], inode: u64) -> Result<(), MemberError> {
        let Some(locking) = self.locking_here() else {
            return Ok(());
        };
        let broken = async {
            let mut step = locking.step.lock().await;
            let step = &mut *step;
            if let Term::Beside = step.term
                && !step.is_over
                && !locking.locks.in_grace()
            {
                self.inner.decide(step).await?;
            }
            let Term::Decides { .. } = step.term else {
                return Err(MemberError::Content(
                    "another office decides about locks, or this one has just started; nothing was broken. Try again in a minute".into(),
                ));
            };
            let record = self.inner.record().await?;
            let Some(entry) = record.locks_of(OwnerId(office)) else {
                return Ok(());
            };
            let change = MemberLocksChange::Break {
                edge: entry.member,
                beats: entry.beats,
                inode: Some(inode),
            };
            let record = self.inner.by_inode().member().change_locks(&change).await?;
            self.inner.take_in(step, &record).await
        };
        self.within(broken).await
    }

    fn locking_here(&self) -> Option<&Locking> {
        self.inner.by_inode.as_ref()?.locking.get()
    }

    /// What an administrator waits for.
    async fn within(&self, work: impl Future<Output = Result<(), MemberError>>) -> Result<(), MemberError> {
        let done = self.inner.env.timeout(3 * CALL_LIMIT, work).await;
        done.unwrap_or_else(|elapsed| Err(MemberError::Content(elapsed.to_string())))
    }
}
