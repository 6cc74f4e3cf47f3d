//! [`AnnouncingVfs`]: a file system through which every change is told to those who cache.
//!
//! Each protocol has one over the same file system, with its own [`Origin`]. A call that changed something completes when
//! the others' caches have dropped what it made stale ([`Changes::announce`]). A call whose future is dropped (a client that
//! went away) may have changed something, so it is announced as well, without waiting. What a removal or a rename takes a
//! name from is looked up before, since its attributes change too and the reply does not name it.

use crate::{Change, ChangeKind, Changes, Origin};
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    Acl, Attributes, Caller, ChangedAttributes, CreateMode, Created, FileHandle, FileKind, Name, Removed,
    Renamed, SetAttributes, Stability, Timestamp, Vfs, VfsError, VfsLayer, WriteReply, XattrMode,
};
use std::{future::Future, sync::Arc, time::Duration};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct AnnouncingVfs {
    inner: Arc<dyn Vfs>,
    changes: Changes,
    origin: Origin,
    waits: bool,
}

/// A change under way; announced when it was made, or when nobody knows whether it was.
struct Pending<'a> {
    vfs: &'a AnnouncingVfs,
    change: Option<Change>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(change) = self.change.take()
            && !firn_env::planted!("session.dropped_change_is_silent")
        {
            self.vfs.changes.send(self.vfs.origin, &change);
        }
    }
}

impl AnnouncingVfs {
    /// `inner` as the protocol `origin` changes it; a change is answered when all others have dropped what it made stale.
    pub fn new(inner: Arc<dyn Vfs>, changes: Changes, origin: Origin) -> Self {
        Self {
            inner,
            changes,
            origin,
            waits: true,
        }
    }

    /// The same without waiting for the others: for a mount, whose kernel holds a directory locked while it changes it, so
    /// that two mounts would wait for each other.
    pub fn without_waiting(mut self) -> Self {
        self.waits = false;
        self
    }

    pub(crate) async fn announced<T>(
        &self,
        parts: Vec<ChangeKind>,
        work: impl Future<Output = Result<T, VfsError>>,
    ) -> Result<T, VfsError> {
        if firn_env::planted!("session.announce_before_the_change") {
            self.changes.announce(self.origin, &Change { parts }).await;
            // A real engine takes its time.
            self.changes.env().sleep(Duration::from_millis(8)).await;
            return work.await;
        }
        let mut pending = Pending {
            vfs: self,
            change: Some(Change { parts }),
        };
        let result = work.await;
        let change = pending.change.take().unwrap_or_default();
        // A call that returned an error changed nothing.
        if result.is_ok() {
            let sent = self.changes.send(self.origin, &change);
            if self.waits {
                self.changes.acknowledged(sent).await;
            }
        }
        result
    }

    /// What `name` stands for, if anybody may have it in a cache.
    async fn named(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Option<ChangeKind> {
        if firn_env::planted!("session.victims_are_forgotten")
            || !self.changes.is_watched(self.origin, directory)
        {
            return None;
        }
        // Whoever may not look a name up may not remove it either.
        let (file, _) = self.inner.lookup(caller, directory, name).await.ok()?;
        Some(ChangeKind::Attributes(file))
    }

    pub(crate) fn entry(directory: FileHandle, name: &Name) -> [ChangeKind; 2] {
        let entry = ChangeKind::Entry {
            directory,
            name: name.clone(),
        };
        // A listing is content of its directory.
        [entry, ChangeKind::Content(directory)]
    }
}

#[async_trait]
impl VfsLayer for AnnouncingVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.inner
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        let kind = match change.size_bytes {
            Some(_) => ChangeKind::Content(file),
            None => ChangeKind::Attributes(file),
        };
        self.announced(vec![kind], self.inner.set_attributes(caller, file, change, guard))
            .await
    }
    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let work = self.inner.write(caller, file, offset, data, stability);
        self.announced(vec![ChangeKind::Content(file)], work).await
    }
    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let mut parts = Self::entry(directory, name).to_vec();
        if let CreateMode::Unchecked(SetAttributes {
            size_bytes: Some(_), ..
        }) = mode
            && let Some(ChangeKind::Attributes(file)) = self.named(caller, directory, name).await
        {
            parts.push(ChangeKind::Content(file));
        }
        let work = self.inner.create(caller, directory, name, mode);
        self.announced(parts, work).await
    }
    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let work = self.inner.make_directory(caller, directory, name, attributes);
        self.announced(Self::entry(directory, name).to_vec(), work).await
    }
    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let work = self
            .inner
            .make_symlink(caller, directory, name, target, attributes);
        self.announced(Self::entry(directory, name).to_vec(), work).await
    }
    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let work = self.inner.make_node(caller, directory, name, kind, attributes);
        self.announced(Self::entry(directory, name).to_vec(), work).await
    }
    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        let mut parts = Self::entry(directory, name).to_vec();
        parts.push(ChangeKind::Attributes(file));
        let work = self.inner.link(caller, file, directory, name);
        self.announced(parts, work).await
    }
    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        let mut parts = Self::entry(directory, name).to_vec();
        parts.extend(self.named(caller, directory, name).await);
        let work = self.inner.remove(caller, directory, name);
        self.announced(parts, work).await
    }
    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        let mut parts = Self::entry(directory, name).to_vec();
        parts.extend(self.named(caller, directory, name).await);
        let work = self.inner.remove_directory(caller, directory, name);
        self.announced(parts, work).await
    }
    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let mut parts = Self::entry(from_directory, from_name).to_vec();
        if !firn_env::planted!("session.rename_tells_one_side") {
            parts.extend(Self::entry(to_directory, to_name));
        }
        parts.extend(self.named(caller, from_directory, from_name).await);
        parts.extend(self.named(caller, to_directory, to_name).await);
        let work = self
            .inner
            .rename(caller, from_directory, from_name, to_directory, to_name);
        self.announced(parts, work).await
    }
    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.inner.set_xattr(caller, file, name, value, mode);
        self.announced(vec![ChangeKind::Attributes(file)], work).await
    }
    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.inner.remove_xattr(caller, file, name);
        self.announced(vec![ChangeKind::Attributes(file)], work).await
    }
    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.inner.set_acl(caller, file, access, default);
        self.announced(vec![ChangeKind::Attributes(file)], work).await
    }
}
