//! Attributes.

use super::{Operations, Outcome, superuser};
use crate::{
    abi::set,
    reply::{self, Reply},
    request::SetAttr,
};
use firn_vfs::{SetAttributes, SetTime, Timestamp};

impl Operations {
    pub(super) async fn get_attributes(&self, node: u64) -> Outcome {
        let attributes = self.vfs.attributes(self.handle(node)?).await?;
        Ok(Reply::Structure(reply::attributes(
            &attributes,
            self.live_file_system,
        )))
    }

    pub(super) async fn set_attributes(&self, node: u64, change: &SetAttr) -> Outcome {
        let file = self.handle(node)?;
        let changed = self
            .changing(file, superuser(), async |caller| {
                Ok(self
                    .vfs
                    .set_attributes(&caller, file, wanted(change), None)
                    .await?)
            })
            .await?;
        self.nodes.changed_here(node, &changed);
        Ok(Reply::Structure(reply::attributes(
            &changed.after,
            self.live_file_system,
        )))
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
