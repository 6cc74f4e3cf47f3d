//! The volume as a [`Vfs`]: each call is a plan, a change and an answer.

mod data;
mod extended;
mod listing;
mod query;

use crate::{
    change::{Before, ChangeRequest, Planned},
    record::Operation,
    state::{LINKS_MAX, NewKind, PlannedCreate, State, Stop},
    volume::{Inner, Volume},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::ROOT_DIRECTORY;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode, rules,
};

/// One read or write; what NFS clients ask for at most by default.
pub(crate) const IO_BYTES_MAX: u32 = 1 << 20;

/// The longest symbolic link target (PATH_MAX less its NUL).
const SYMLINK_BYTES_MAX: usize = 4095;

impl Inner {
    /// The inode a handle names, if the handle is of the live tree.
    fn number(&self, handle: FileHandle) -> Result<u64, VfsError> {
        if handle.file_system == self.file_system {
            Ok(handle.inode)
        } else {
            Err(VfsError::Stale)
        }
    }

    fn handle(&self, inode: u64) -> FileHandle {
        FileHandle {
            file_system: self.file_system,
            inode,
        }
    }

    /// A change of one inode whose answer is its attributes before and after.
    async fn change_inode(
        &self,
        caller: &Caller,
        number: u64,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Option<Operation>, Stop>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.change(caller, request, |state, now| {
            let before = state.see(number)?.attributes;
            Ok(match plan(state, now)? {
                None => Planned::Unchanged(ChangedAttributes {
                    before: Some(before.clone()),
                    after: before,
                }),
                Some(operation) => Planned::Change {
                    operation,
                    before: Before(vec![before]),
                    answer: Box::new(move |state, before| {
                        changed(state, number, before.0.into_iter().next())
                    }),
                },
            })
        })
        .await
    }

    /// A change that makes a new file.
    async fn change_new(
        &self,
        caller: &Caller,
        directory: u64,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Operation, Stop>,
    ) -> Result<Created, VfsError> {
        self.change(caller, request, |state, now| {
            let operation = plan(state, now)?;
            let before = state.see(directory)?.attributes;
            Ok(planned_create(directory, before, operation))
        })
        .await
    }
}

/// The attributes of an inode that was just changed, under the same lock.
fn after(state: &mut State, number: u64) -> Attributes {
    match state.see(number) {
        Ok(seen) => seen.attributes,
        Err(stop) => unreachable!("inode {number} was changed under this lock, yet {stop:?}"),
    }
}

fn changed(state: &mut State, number: u64, before: Option<Attributes>) -> ChangedAttributes {
    ChangedAttributes {
        before,
        after: after(state, number),
    }
}

fn planned_create(directory: u64, before: Attributes, operation: Operation) -> Planned<Created> {
    let Operation::Create { inode, .. } = &operation else {
        unreachable!("a new file is planned as a creation");
    };
    let number = inode.number;
    Planned::Change {
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
    }
}

#[async_trait]
impl Vfs for Volume {
    fn root(&self) -> FileHandle {
        self.inner.handle(ROOT_DIRECTORY)
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
        self.inner.shown().see(file).await
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
        self.inner.shown().lookup(caller, directory, name).await
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.inner.shown().parent(caller, directory).await
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        self.inner.shown().check_access(caller, file, asked).await
    }

    async fn read_link(&self, _caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        self.inner.shown().read_link(file).await
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        self.inner.read_data(caller, file, offset, length_bytes).await
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

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let inner = &self.inner;
        let directory = inner.number(directory)?;
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
        let directory = self.inner.number(directory)?;
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
        let directory = self.inner.number(directory)?;
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
        let directory = self.inner.number(directory)?;
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
        let (number, directory) = (inner.number(file)?, inner.number(directory)?);
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
        let (from, to) = (inner.number(from_directory)?, inner.number(to_directory)?);
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
        self.inner
            .shown()
            .list_directory(caller, directory, cookie, limit, with_attributes)
            .await
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
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                state.see(number)?;
                state.retain(number);
                Ok(())
            })
            .await
    }

    async fn release(&self, file: FileHandle) -> Result<(), VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        if !inner.lock().release(number) {
            return Ok(());
        }
        let caller = Caller {
            credentials: firn_vfs::Credentials::root(),
            request: None,
        };
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
        self.inner.shown().list_xattrs(caller, file).await
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        self.inner.shown().get_xattr(caller, file, name).await
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
        self.inner.shown().get_acl(file).await
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
        let directory = inner.number(directory)?;
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
