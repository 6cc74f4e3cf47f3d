//! The end of a volume's service, and what makes all of it level 2 before: sync, stop, drain.

use crate::{
    checkpoint::{self, ConfirmError},
    error::VolumeError,
    kept_checkpoint,
    salvage::remove_journal,
    serving::ServingState,
    volume::{Inner, Volume},
};
use firn_store::StoreError;
use firn_vfs::VfsError;
use std::time::Duration;

/// How long a stop lets a checkpoint end that is under way or was asked for: what it has needs no cloud at the next start, a snapshot
/// that is only in the journal does. No longer, since the cloud may be away.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Between two times that a store is asked which does not answer.
const CONFIRM_RETRY: Duration = Duration::from_secs(2);

impl Volume {
    /// Waits until everything changed before this call is committed and the store was seen to have it (level 2), however long
    /// the cloud takes.
    ///
    /// # Errors
    /// If the volume is fenced, detached or has failed, or the store lost what it had acknowledged.
    pub async fn sync(&self) -> Result<(), VfsError> {
        if self.inner.by_inode.is_none() {
            self.inner.checkpointer.attached()?;
        }
        self.committed().await?;
        let lost = |error: VolumeError| VfsError::Io(error.to_string());
        self.confirmed().await.map_err(lost)
    }

    /// Waits until the store was seen to have everything that it acknowledged.
    async fn confirmed(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        loop {
            match checkpoint::confirm(&inner.checkpointer.packer).await {
                Ok(()) => return Ok(()),
                Err(ConfirmError::Lost(lost)) => return Err(VolumeError::LevelTwoLost(lost)),
                Err(ConfirmError::Unasked(StoreError::Unavailable { .. })) => {
                    inner.check_not_ended()?;
                    inner.env.sleep(CONFIRM_RETRY).await;
                }
                Err(ConfirmError::Unasked(error)) => {
                    // An edge may lack the right to list; what was acknowledged then counts as there.
                    tracing::warn!(%error, "the store does not say whether it has what it acknowledged");
                    return Ok(());
                }
            }
        }
    }

    /// Waits until everything changed before this call is under a committed root.
    pub(crate) async fn committed(&self) -> Result<(), VfsError> {
        let target = self.inner.lock().applied;
        self.inner.reached(target).await
    }

    /// Stops serving with the journal synced (level 1): the next start on this disk replays it and keeps the write verifier.
    ///
    /// # Errors
    /// If the journal cannot be synced.
    pub async fn stop(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        if inner.follower.is_some() {
            // Nothing was changed here, and each root was remembered as it was adopted.
            inner.set_serving_state(ServingState::Failed("the edge has stopped".into()));
            return Ok(());
        }
        inner.set_serving_state(ServingState::Stopping);
        let settled = inner.env.timeout(STOP_WITHIN, inner.checkpointer.settled());
        let _ = settled.await;
        inner.close_journal().await?;
        // One that is still under way is simply not finished.
        inner.checkpointer.end();
        let _checkpointer = match inner.checkpointer.own() {
            Some(checkpointer) => Some(checkpointer.lock().await),
            None => None,
        };
        let mut local = inner.checkpointer.local.lock().await;
        local.clean_verifier = Some(inner.verifier);
        local.save(&**inner.env.disk()).await?;
        inner.set_serving_state(ServingState::Failed("the edge has stopped".into()));
        Ok(())
    }

    /// Commits everything (level 2) and gives the ownership up, so that any other edge can open the volume.
    ///
    /// # Errors
    /// If the volume is fenced, detached or has failed, or the anchor refuses.
    pub async fn drain(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        let checkpointer = inner.checkpointer.owned()?;
        inner.set_serving_state(ServingState::Stopping);
        if !firn_env::planted!("volume.drain_without_commit") {
            self.committed()
                .await
                .map_err(|error| VolumeError::Stopped(error.to_string()))?;
        }
        self.confirmed().await?;
        let mut checkpointer = checkpointer.lock().await;
        inner.close_journal().await?;
        // Once the volume is given up, nothing may go on in its journal; what it has is committed.
        kept_checkpoint::forget(&**inner.env.disk()).await?;
        inner.env.fault_point("drain.before_release").await;
        inner.anchor.drain(&mut checkpointer.ownership).await?;
        inner.env.fault_point("drain.after_release").await;
        let tenure = checkpointer.ownership.tenure();
        let mut local = inner.checkpointer.local.lock().await;
        local.tenure = None;
        local.save(&**inner.env.disk()).await?;
        remove_journal(&**inner.env.disk(), tenure).await?;
        inner.set_serving_state(ServingState::Failed("the volume was drained".into()));
        Ok(())
    }
}

impl Inner {
    /// Refuses once the volume does not serve any more for good.
    fn check_not_ended(&self) -> Result<(), VolumeError> {
        match self.serving.now() {
            ServingState::Serving | ServingState::Stopping => Ok(()),
            ServingState::Fenced => Err(VolumeError::Stopped("another edge took the volume over".into())),
            ServingState::Broken(reason) | ServingState::Failed(reason) => Err(VolumeError::Stopped(reason)),
        }
    }

    pub(crate) async fn close_journal(&self) -> Result<(), VolumeError> {
        self.journal.close().await;
        match self.journal.failed() {
            None => Ok(()),
            Some(reason) => Err(VolumeError::Stopped(reason)),
        }
    }
}
