//! Changes of a file's data: writes and commits. Reads stand in [`crate::read`].

use crate::{change::ChangeRequest, cloud_durability::Waiter, read::IO_BYTES_MAX, volume::Inner};
use bytes::{Bytes, BytesMut};
use firn_vfs::{Caller, ChangedAttributes, Durability, FileHandle, Stability, VfsError, WriteReply, rules};

impl Inner {
    pub(super) async fn write_data(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let number = self.number(file)?;
        let data = contiguous(data);
        if data.len() > IO_BYTES_MAX as usize {
            return Err(VfsError::InvalidArgument);
        }
        let length = data.len() as u64;
        let quota = self.config.quota_bytes;
        let request = ChangeRequest {
            data: (length > 0).then_some(data),
            stable: stability != Stability::Unstable,
            ..ChangeRequest::metadata()
        };
        let file = self
            .change_inode(caller, number, request, |state, _| {
                if length == 0 {
                    let seen = state.see(number)?;
                    rules::may_write(seen.subject(), &caller.credentials)?;
                    return Ok(None);
                }
                state.plan_write(caller, number, offset, length, quota).map(Some)
            })
            .await?;
        let stability = if stability == Stability::Unstable {
            stability
        } else {
            Stability::FileSync
        };
        Ok(WriteReply { stability, file })
    }

    pub(super) async fn commit_data(
        &self,
        caller: &Caller,
        file: FileHandle,
    ) -> Result<ChangedAttributes, VfsError> {
        let number = self.number(file)?;
        let (attributes, applied, changed) = self
            .ask(|state| {
                let seen = state.see(number)?;
                rules::may_write(seen.subject(), &caller.credentials)?;
                Ok((seen.attributes, state.applied, state.last_change(number)))
            })
            .await?;
        if !firn_env::planted!("volume.commit_without_sync") {
            self.durable(applied).await?;
        }
        if caller.durability == Durability::Cloud {
            // Only the file's own changes: what others write all the time must not keep it waiting.
            self.in_cloud(changed, Waiter::Asks).await?;
        }
        Ok(ChangedAttributes {
            before: Some(attributes.clone()),
            after: attributes,
        })
    }

    pub(super) async fn settle(&self, caller: &Caller) -> Result<(), VfsError> {
        let applied = self.lock().applied;
        self.durable(applied).await?;
        match caller.durability {
            Durability::Memory | Durability::Journal => Ok(()),
            Durability::Cloud => self.in_cloud(applied, Waiter::Asks).await,
        }
    }
}

/// One contiguous buffer for the data of a write. Small writes are copied, so that they do not keep a whole network buffer
/// alive in memory that is accounted by their own length.
fn contiguous(mut parts: Vec<Bytes>) -> Bytes {
    const COPY_BELOW: usize = 64 << 10;
    if parts.len() == 1 && parts[0].len() >= COPY_BELOW {
        return parts.swap_remove(0);
    }
    let total = parts.iter().map(Bytes::len).sum();
    let mut buffer = BytesMut::with_capacity(total);
    for part in &parts {
        buffer.extend_from_slice(part);
    }
    buffer.freeze()
}
