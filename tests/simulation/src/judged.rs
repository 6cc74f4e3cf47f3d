//! A file system whose changes are told to a judge: for work that the edge does by itself as its clients would, such as a restore.
//!
//! Only changes are judged; what is read in between passes through, since clients read the same and are judged for it.

use crate::{
    history::{SharedOracle, judge},
    operation::{Data, Operation},
    oracle::in_call,
    outcome::Reply,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    Acl, Attributes, Caller, ChangedAttributes, CreateMode, Created, FileHandle, FileKind, Name, Removed,
    Renamed, SetAttributes, Stability, Timestamp, Vfs, VfsError, VfsLayer, WriteReply, XattrMode,
};
use std::sync::Arc;

/// See the module.
pub(crate) struct Judged {
    inner: Arc<dyn Vfs>,
    oracle: SharedOracle,
    /// Under which number the judge names the caller.
    client: usize,
}

impl Judged {
    pub fn new(inner: Arc<dyn Vfs>, oracle: SharedOracle, client: usize) -> Self {
        Self {
            inner,
            oracle,
            client,
        }
    }

    async fn judged<T>(
        &self,
        caller: &Caller,
        operation: Operation,
        call: impl Future<Output = Result<T, VfsError>>,
        reply: impl Fn(&T) -> Reply,
    ) -> Result<T, VfsError> {
        let id = judge(&self.oracle).begin(self.client, caller, &operation);
        let (answered, outcome) = in_call(id, async {
            let answered = call.await;
            let outcome = answered.as_ref().map(&reply).map_err(Clone::clone);
            judge(&self.oracle).returned(id, &outcome);
            (answered, outcome)
        })
        .await;
        judge(&self.oracle).end(id, &outcome);
        answered
    }
}

fn created(created: &Created) -> Reply {
    Reply::created(created.clone())
}

fn changed(changed: &ChangedAttributes) -> Reply {
    Reply::default().changed(changed.clone())
}

#[async_trait]
impl VfsLayer for Judged {
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
        let operation = Operation::SetAttributes {
            file,
            change: change.clone(),
            guard,
        };
        let call = self.inner.set_attributes(caller, file, change, guard);
        self.judged(caller, operation, call, changed).await
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let operation = Operation::Write {
            file,
            offset,
            data: Data(Bytes::from(data.concat())),
            stability,
        };
        let call = self.inner.write(caller, file, offset, data, stability);
        let reply = |written: &WriteReply| {
            Reply::default()
                .stable(written.stability)
                .changed(written.file.clone())
        };
        self.judged(caller, operation, call, reply).await
    }

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        let call = self.inner.commit(caller, file);
        let reply = |committed: &ChangedAttributes| Reply::default().attributes(committed.after.clone());
        self.judged(caller, Operation::Commit { file }, call, reply).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let operation = Operation::Create {
            directory,
            name: name.clone(),
            mode: mode.clone(),
        };
        let call = self.inner.create(caller, directory, name, mode);
        self.judged(caller, operation, call, created).await
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let operation = Operation::MakeDirectory {
            directory,
            name: name.clone(),
            attributes: attributes.clone(),
        };
        let call = self.inner.make_directory(caller, directory, name, attributes);
        self.judged(caller, operation, call, created).await
    }

    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let operation = Operation::MakeSymlink {
            directory,
            name: name.clone(),
            target: target.clone(),
            attributes: attributes.clone(),
        };
        let call = self
            .inner
            .make_symlink(caller, directory, name, target, attributes);
        self.judged(caller, operation, call, created).await
    }

    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let operation = Operation::MakeNode {
            directory,
            name: name.clone(),
            kind,
            attributes: attributes.clone(),
        };
        let call = self.inner.make_node(caller, directory, name, kind, attributes);
        self.judged(caller, operation, call, created).await
    }

    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        let operation = Operation::Link {
            file,
            directory,
            name: name.clone(),
        };
        let call = self.inner.link(caller, file, directory, name);
        let reply = |(file, directory): &(Attributes, ChangedAttributes)| {
            Reply::default()
                .attributes(file.clone())
                .changed(directory.clone())
        };
        self.judged(caller, operation, call, reply).await
    }

    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        let operation = Operation::Remove {
            directory,
            name: name.clone(),
        };
        let call = self.inner.remove(caller, directory, name);
        let reply = |removed: &Removed| changed(&removed.directory);
        self.judged(caller, operation, call, reply).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        let operation = Operation::RemoveDirectory {
            directory,
            name: name.clone(),
        };
        let call = self.inner.remove_directory(caller, directory, name);
        let reply = |removed: &Removed| changed(&removed.directory);
        self.judged(caller, operation, call, reply).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let operation = Operation::Rename {
            from: from_directory,
            from_name: from_name.clone(),
            to: to_directory,
            to_name: to_name.clone(),
        };
        let call = self
            .inner
            .rename(caller, from_directory, from_name, to_directory, to_name);
        let reply = |renamed: &Renamed| changed(&renamed.from).changed(renamed.to.clone());
        self.judged(caller, operation, call, reply).await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        let operation = Operation::SetXattr {
            file,
            name: Bytes::copy_from_slice(name),
            value: value.clone(),
            mode,
        };
        let call = self.inner.set_xattr(caller, file, name, value, mode);
        self.judged(caller, operation, call, changed).await
    }

    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        let operation = Operation::RemoveXattr {
            file,
            name: Bytes::copy_from_slice(name),
        };
        let call = self.inner.remove_xattr(caller, file, name);
        self.judged(caller, operation, call, changed).await
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        let operation = Operation::SetAcl {
            file,
            access: access.clone(),
            default: default.clone(),
        };
        let call = self.inner.set_acl(caller, file, access, default);
        self.judged(caller, operation, call, changed).await
    }
}
