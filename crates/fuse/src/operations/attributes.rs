//! Attributes.

use super::{Operations, Outcome, superuser};
use crate::{
    abi::set,
    errno::Failure,
    reply::{self, Reply},
    request::{Header, SetAttr},
};
use firn_vfs::{
    Attributes, FileHandle, FileKind, SetAttributes, SetTime, Timestamp, VfsError,
    rules::{SET_GID, without_privilege},
};

impl Operations {
    pub(super) async fn get_attributes(&self, node: u64) -> Outcome {
        let attributes = match (
            self.vfs.attributes(self.handle(node)?).await,
            self.nodes.removed(node),
        ) {
            (Err(VfsError::Stale), Some(removed)) => removed,
            (attributes, _) => attributes?,
        };
        Ok(Reply::Structure(reply::attributes(&attributes, self.view)))
    }

    pub(super) async fn set_attributes(&self, header: &Header, change: &SetAttr) -> Outcome {
        let node = header.node;
        let file = self.handle(node)?;
        let mut wanted = wanted(change);
        if wanted == SetAttributes::default() {
            // So the kernel asks, before an operation that says nothing of it, that what makes the file run as its owner goes.
            self.drop_set_id(header, node).await?;
            return self.get_attributes(node).await;
        }
        // The file system does it by itself for a new owner or group, as for whoever is not the superuser.
        if change.valid & set::KILL_SET_ID != 0 && wanted.size_bytes.is_some() && wanted.mode.is_none() {
            wanted.mode = self.mode_without_set_id(header, file).await?;
        }
        let changed = self
            .changing(file, superuser(), async |caller| {
                Ok(self.vfs.set_attributes(&caller, file, wanted, None).await?)
            })
            .await?;
        self.nodes.changed_here(node, &changed);
        Ok(Reply::Structure(reply::attributes(&changed.after, self.view)))
    }
}

impl Operations {
    /// Takes from a file what makes it run as somebody else, before somebody changes what runs.
    pub(super) async fn drop_set_id(&self, header: &Header, node: u64) -> Result<(), Failure> {
        let file = self.handle(node)?;
        let Some(mode) = self.mode_without_set_id(header, file).await? else {
            return Ok(());
        };
        let change = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let changed = self
            .changing(file, superuser(), async |caller| {
                Ok(self.vfs.set_attributes(&caller, file, change, None).await?)
            })
            .await?;
        self.nodes.changed_here(node, &changed);
        Ok(())
    }

    /// `None`: it has nothing of the kind. Who is not in the file's group takes set-gid from it whether the group may execute it or not, as
    /// the kernel has it of its own file systems.
    async fn mode_without_set_id(&self, header: &Header, file: FileHandle) -> Result<Option<u32>, VfsError> {
        let Attributes { mode, gid, kind, .. } = self.vfs.attributes(file).await?;
        let mut without = without_privilege(mode);
        if header.gid != gid {
            without &= !SET_GID;
        }
        Ok((kind == FileKind::Regular && without != mode).then_some(without))
    }
}

fn wanted(change: &SetAttr) -> SetAttributes {
    let has = |bit: u32| change.valid & bit != 0;
    let time = |given, now, seconds: u64, nanoseconds| match (has(now), has(given)) {
        (true, _) => SetTime::Now,
        (false, true) => SetTime::To(Timestamp {
            // Signed, in an unsigned field.
            seconds: seconds as i64,
            nanoseconds,
        }),
        (false, false) => SetTime::Keep,
    };
    SetAttributes {
        mode: has(set::MODE).then_some(change.mode & 0o7777),
        uid: has(set::UID).then_some(change.uid),
        gid: has(set::GID).then_some(change.gid),
        size_bytes: has(set::SIZE).then_some(change.size),
        accessed: time(set::ATIME, set::ATIME_NOW, change.atime, change.atime_nanos),
        modified: time(set::MTIME, set::MTIME_NOW, change.mtime, change.mtime_nanos),
    }
}
