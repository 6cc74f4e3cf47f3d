//! The departure of a member that stops: with everything published it goes away, so that nobody has to wait until its heart has stood still for a minute.

use crate::{error::VolumeError, serving::ServingState, volume::Volume};
use firn_leases::Member;
use std::time::Duration;

/// Between two tries to go: changes that were under way end meanwhile.
const TRY_AGAIN: Duration = Duration::from_millis(100);

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
