//! The departure of a member that stops, or of which nothing is asked: with everything published it goes away, so that nobody has to wait until its heart has stood
//! still for a minute, and so that an office in which nobody works costs nothing.
//!
//! | | |
//! |---|---|
//! | stop | no call is begun any more; then it goes |
//! | five minutes without a call | it goes, and asks nothing any more; the first call that finds its leases lapsed has it come back |

use super::locking::Locking;
use crate::{
    error::VolumeError,
    serving::ServingState,
    volume::{Inner, Volume},
};
use firn_env::Monotonic;
use firn_leases::{Member, MemberError};
use firn_vfs::VfsError;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Without a call for so long a member goes away. As an owner by turns.
const AWAY_AFTER: Duration = Duration::from_secs(300);

/// Between two tries to go: changes that were under way end meanwhile.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// When something was asked of the volume last.
#[derive(Default)]
pub(super) struct LastCall(AtomicU64);

impl LastCall {
    /// A call came.
    pub fn note(&self, now: Monotonic) {
        self.0.fetch_max(now.0, Ordering::Relaxed);
    }

    /// When the last one came.
    pub fn at(&self) -> Monotonic {
        Monotonic(self.0.load(Ordering::Relaxed))
    }
}

impl Inner {
    /// Goes away if nothing was asked for long. `left_at` is the last call before the last departure: it goes once for each pause.
    pub(super) async fn leave_if_idle(&self, left_at: &mut Option<Monotonic>) -> Result<(), MemberError> {
        let asked_at = self.by_inode().last_call.at();
        let is_long_ago = self.env.now().since(asked_at) >= AWAY_AFTER && *left_at != Some(asked_at);
        // An office whose clients have locks stays, so that they fall only if it is gone.
        let locking = self.by_inode().locking.get();
        let is_idle = is_long_ago && locking.is_none_or(Locking::is_idle);
        if is_idle
            && !firn_env::planted!("volume.idle_member_stays")
            && self.by_inode().member().leave().await?
        {
            tracing::debug!("nobody asks anything: this office goes away");
            *left_at = Some(asked_at);
        }
        Ok(())
    }

    /// After a refusal by the member: `true` if that was because it had gone away, and it is back.
    pub(super) async fn is_back(&self, refusal: &MemberError) -> Result<bool, VfsError> {
        match refusal {
            MemberError::Lapsed | MemberError::Away => {}
            MemberError::Anchor(_) | MemberError::Content(_) | MemberError::LeafChanged { .. } => {
                return Ok(false);
            }
        }
        // One that goes since it stops stays away.
        self.serving.check()?;
        let member = self.by_inode().member();
        if !member.is_away().await {
            return Ok(false);
        }
        let back = member.come_back().await;
        back.map_err(|error| self.refused_by_member(&error))?;
        Ok(true)
    }
}

impl Volume {
    /// Stops a member: no call is begun any more, what is unpublished is, and the member goes away. `false`: that took longer than `within`, or failed. Then everything
    /// acknowledged is in the journal (level 1), the member's leases stay its own, and others who want one wait a minute.
    ///
    /// # Errors
    /// If the journal cannot be synced.
    pub async fn leave_by_inode(&self, within: Duration) -> Result<bool, VolumeError> {
        let inner = &self.inner;
        let Some(member) = self.member_by_inode() else {
            self.stop().await?;
            return Ok(false);
        };
        inner.set_serving_state(ServingState::Stopping);
        let is_careless = firn_env::planted!("volume.stops_without_leaving");
        let gone = match is_careless {
            true => false,
            false => matches!(inner.env.timeout(within, self.go(&member)).await, Ok(true)),
        };
        self.stop().await?;
        Ok(gone)
    }

    async fn go(&self, member: &Member) -> bool {
        loop {
            match self.inner.end_locking().await {
                Ok(true) => break,
                Ok(false) => return false,
                Err(error) => tracing::debug!(%error, "locks of clients here are not recorded yet"),
            }
            if self.inner.serving.now() != ServingState::Stopping {
                return false;
            }
            self.inner.env.sleep(TRY_AGAIN).await;
        }
        loop {
            match member.leave().await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "the office has not left yet"),
            }
            if self.inner.serving.now() != ServingState::Stopping {
                return false;
            }
            self.inner.env.sleep(TRY_AGAIN).await;
        }
    }
}
