//! The volume as a [`Vfs`]: a call that reads asks the tree its handle is of ([`place`]); one that changes is a plan, a change
//! and an answer.

mod changes;
mod data;
mod extended;
mod listing;
pub(crate) mod place;
mod query;

use crate::{
    change::{Before, ChangeRequest, Planned},
    read::IO_BYTES_MAX,
    record::Operation,
    state::{LINKS_MAX, NewKind, PlannedCreate, State},
    volume::Volume,
};
use async_trait::async_trait;
use bytes::Bytes;
use changes::{after, changed, planned_create};
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed, SeekTo,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode, rules,
};
use place::{Place, Tree};

/// The longest symbolic link target (PATH_MAX less its NUL).
const SYMLINK_BYTES_MAX: usize = 4095;

#[async_trait]
impl Vfs for Volume {
    fn root(&self) -> FileHandle {
        self.root
    }

    fn limits(&self) -> Limits {
        Limits {
            file_bytes: rules::FILE_BYTES_MAX,
            links: LINKS_MAX,
            preferred_io_bytes: IO_BYTES_MAX,
            maximum_io_bytes: IO_BYTES_MAX,
        }
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.inner.verifier
    }

    fn completed_requests(&self) -> Vec<CompletedRequest> {
        self.inner.replayed.clone()
    }

    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => self.inner.snapshots_attributes(),
            Place::Tree(tree) => tree.read_view(&self.inner).see(file).await,
        }
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        inner
            .change_inode(caller, number, ChangeRequest::metadata(), |state, now| {
                state.plan_set_attributes(caller, number, &change, guard, now)
            })
            .await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let inner = &self.inner;
        match inner.place(directory)? {
            Place::Snapshots => inner.snapshot_by_name(name.as_bytes(), self.snapshot_names).await,
            Place::Tree(_) if inner.is_reserved(directory, name) => {
                Ok((inner.snapshots_handle(), inner.snapshots_attributes()?))
            }
            Place::Tree(tree) => tree.read_view(inner).lookup(caller, directory, name).await,
        }
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let inner = &self.inner;
        match inner.place(directory)? {
            Place::Snapshots => Ok((inner.root(), inner.read_view().see(inner.root()).await?)),
            Place::Tree(tree) if tree.is_below_snapshots(directory) => {
                Ok((inner.snapshots_handle(), inner.snapshots_attributes()?))
            }
            Place::Tree(tree) => tree.read_view(inner).parent(caller, directory).await,
        }
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Ok((place::reading(asked), self.inner.snapshots_attributes()?)),
            Place::Tree(tree) => {
                let asked = tree.grantable(asked);
                tree.read_view(&self.inner)
                    .check_access(caller, file, asked)
                    .await
            }
        }
    }

    async fn read_link(&self, _caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Err(VfsError::InvalidArgument),
            Place::Tree(tree) => tree.read_view(&self.inner).read_link(file).await,
        }
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Err(VfsError::IsDirectory),
            Place::Tree(tree) => {
                let view = tree.read_view(&self.inner);
                view.read(caller, file, offset, length_bytes).await
            }
        }
    }

    async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Err(VfsError::InvalidArgument),
            Place::Tree(tree) => tree.read_view(&self.inner).seek(caller, file, offset, to).await,
        }
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        self.inner.write_data(caller, file, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        self.inner.commit_data(caller, file).await
    }

    async fn settle(&self, caller: &Caller) -> Result<(), VfsError> {
        self.inner.settle(caller).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let inner = &self.inner;
        let directory = inner.number_to_add(directory, name)?;
        inner
            .change(caller, ChangeRequest::metadata(), |state, now| {
                let before = state.see(directory)?.attributes;
                match state.plan_create(caller, directory, name, &mode, now)? {
                    PlannedCreate::New(operation) => Ok(planned_create(directory, before, operation)),
                    PlannedCreate::Existing(number, None) => Ok(Planned::Unchanged(Created {
                        handle: FileHandle {
                            file_system: state.file_system,
                            inode: number,
                        },
                        attributes: state.see(number)?.attributes,
                        directory: ChangedAttributes {
                            before: Some(before.clone()),
                            after: before,
                        },
                    })),
                    PlannedCreate::Existing(number, Some(operation)) => Ok(Planned::Change {
                        operation,
                        before: Before(vec![before]),
                        answer: Box::new(move |state, before| Created {
                            handle: FileHandle {
                                file_system: state.file_system,
                                inode: number,
                            },
                            attributes: after(state, number),
                            directory: changed(state, directory, before.0.into_iter().next()),
                        }),
                    }),
                }
            })
            .await
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let directory = self.inner.number_to_add(directory, name)?;
        self.inner
            .change_new(caller, directory, ChangeRequest::metadata(), |state, now| {
                let new = NewKind {
                    kind: FileKind::Directory,
                    symlink_target: Bytes::new(),
                    exclusive_verifier: None,
                };
                state.plan_new(caller, directory, name, new, &attributes, now)
            })
            .await
    }

    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        if target.is_empty() {
            return Err(VfsError::InvalidArgument);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(VfsError::NameTooLong);
        }
        let directory = self.inner.number_to_add(directory, name)?;
        let request = ChangeRequest {
            extra_bytes: target.len() as u64,
            ..ChangeRequest::metadata()
        };
        self.inner
            .change_new(caller, directory, request, |state, now| {
                let symlink_target = Bytes::copy_from_slice(&target);
                let new = NewKind {
                    kind: FileKind::Symlink,
                    symlink_target,
                    exclusive_verifier: None,
                };
                state.plan_new(caller, directory, name, new, &attributes, now)
            })
            .await
    }

    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let directory = self.inner.number_to_add(directory, name)?;
        self.inner
            .change_new(caller, directory, ChangeRequest::metadata(), |state, now| {
                let new = NewKind {
                    kind,
                    symlink_target: Bytes::new(),
                    exclusive_verifier: None,
                };
                state.plan_new(caller, directory, name, new, &attributes, now)
            })
            .await
    }

    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        let inner = &self.inner;
        let directory = inner.number_to_add(directory, name)?;
        // What is in a snapshot is on another file system, for whoever links it.
        let number = inner.number(file).map_err(|error| match error {
            VfsError::ReadOnly => VfsError::CrossDevice,
            error => error,
        })?;
        inner
            .change(caller, ChangeRequest::metadata(), |state, _| {
                let operation = state.plan_link(caller, number, directory, name)?;
                let before = state.see(directory)?.attributes;
                Ok(Planned::Change {
                    operation,
                    before: Before(vec![before]),
                    answer: Box::new(move |state, before| {
                        (
                            after(state, number),
                            changed(state, directory, before.0.into_iter().next()),
                        )
                    }),
                })
            })
            .await
    }

    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        self.unlink(caller, directory, name, false).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        self.unlink(caller, directory, name, true).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let inner = &self.inner;
        let from = inner.number_to_remove(from_directory, from_name)?;
        let to = inner.number_to_remove(to_directory, to_name)?;
        inner
            .change(caller, ChangeRequest::metadata(), |state, _| {
                let operation = state.plan_rename(caller, (from, from_name), (to, to_name))?;
                let (from_before, to_before) = (state.see(from)?.attributes, state.see(to)?.attributes);
                Ok(match operation {
                    None => Planned::Unchanged(Renamed {
                        from: ChangedAttributes {
                            before: Some(from_before.clone()),
                            after: from_before,
                        },
                        to: ChangedAttributes {
                            before: Some(to_before.clone()),
                            after: to_before,
                        },
                    }),
                    Some(operation) => Planned::Change {
                        operation,
                        before: Before(vec![from_before, to_before]),
                        answer: Box::new(move |state, before| {
                            let mut before = before.0.into_iter();
                            Renamed {
                                from: changed(state, from, before.next()),
                                to: changed(state, to, before.next()),
                            }
                        }),
                    },
                })
            })
            .await
    }

    async fn read_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        let inner = &self.inner;
        let tree = match inner.place(directory)? {
            Place::Snapshots => {
                let names = self.snapshot_names;
                return inner
                    .list_snapshots((cookie, limit), with_attributes, names)
                    .await;
            }
            Place::Tree(Tree::Live) if self.lists_snapshots && directory == inner.root() => {
                return inner.list_root(caller, cookie, limit, with_attributes).await;
            }
            Place::Tree(tree) => tree,
        };
        let view = tree.read_view(inner);
        let mut page = view
            .list_directory(caller, directory, cookie, limit, with_attributes)
            .await?;
        if tree.is_below_snapshots(directory) {
            for entry in page
                .entries
                .iter_mut()
                .filter(|entry| entry.cookie == listing::PARENT_COOKIE)
            {
                entry.handle = inner.snapshots_handle();
                if with_attributes {
                    entry.attributes = Some(inner.snapshots_attributes()?);
                }
            }
        }
        Ok(page)
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        self.inner.check_serving()?;
        let state = self.inner.lock();
        let total_bytes = self.inner.config.quota_bytes;
        // Inode numbers are 64-bit and cost nothing until used; 2^40 is what tools display sensibly.
        let total_files = 1 << 40;
        Ok(FileSystemStatus {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(state.counters.used_bytes),
            total_files,
            free_files: total_files - state.counters.files.min(total_files),
        })
    }

    async fn retain(&self, file: FileHandle) -> Result<(), VfsError> {
        match self.inner.place(file)? {
            Place::Tree(Tree::Live) => {
                let retained = |state: &mut State| {
                    state.see(file.inode)?;
                    state.retain(file.inode);
                    Ok(())
                };
                self.inner.ask(retained).await
            }
            // A snapshot is retained or gone as a whole.
            Place::Snapshots | Place::Tree(Tree::Snapshot(_)) => Ok(()),
        }
    }

    async fn release(&self, file: FileHandle) -> Result<(), VfsError> {
        let inner = &self.inner;
        let number = file.inode;
        // Nothing was retained outside the live tree, and a snapshot that is gone needs no release.
        if file.file_system != inner.file_system || !inner.lock().release(number) {
            return Ok(());
        }
        let caller = Caller::new(firn_vfs::Credentials::root());
        inner
            .change(&caller, ChangeRequest::removal(), |_, _| {
                Ok(Planned::Change {
                    operation: Operation::FreeOrphan { inode: number },
                    before: Before::default(),
                    answer: Box::new(|_, _| ()),
                })
            })
            .await
    }

    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Ok(Vec::new()),
            Place::Tree(tree) => tree.read_view(&self.inner).list_xattrs(caller, file).await,
        }
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Err(VfsError::NoAttribute),
            Place::Tree(tree) => tree.read_view(&self.inner).get_xattr(caller, file, name).await,
        }
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        self.inner.set_xattr(caller, file, name, value, mode).await
    }

    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        self.inner.remove_xattr(caller, file, name).await
    }

    async fn get_acl(&self, _caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        match self.inner.place(file)? {
            Place::Snapshots => Ok((Acl::default(), Acl::default())),
            Place::Tree(tree) => tree.read_view(&self.inner).get_acl(file).await,
        }
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.inner.set_acl(caller, file, access, default).await
    }
}

impl Volume {
    async fn unlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        want_directory: bool,
    ) -> Result<Removed, VfsError> {
        let inner = &self.inner;
        let directory = inner.number_to_remove(directory, name)?;
        inner
            .change(caller, ChangeRequest::removal(), |state, _| {
                let operation = state.plan_unlink(caller, directory, name, want_directory)?;
                let before = state.see(directory)?.attributes;
                Ok(Planned::Change {
                    operation,
                    before: Before(vec![before]),
                    answer: Box::new(move |state, before| Removed {
                        directory: changed(state, directory, before.0.into_iter().next()),
                    }),
                })
            })
            .await
    }
}
