//! The volume as a [`Vfs`]: each call is a plan, a change and an answer.

use crate::{
    mutants::{Mutant, active},
    read::{self, Unresolved},
    record::Operation,
    state::{LINKS_MAX, NewKind, PlannedCreate, State, Stop},
    volume::{Before, ChangeRequest, Inner, Planned, Volume, contiguous},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::ROOT_DIRECTORY;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryEntry, DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed,
    Renamed, SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode,
    rules::{self, Subject, XattrUse},
};
use futures::future::join_all;

/// One read or write; what NFS clients ask for at most by default.
const IO_BYTES_MAX: u32 = 1 << 20;

/// Plans of one read: each but the last met a checkpoint that moved its data from the journal to the log.
const READ_PLANS_MAX: usize = 16;

/// Entries returned in one page at most, whatever the caller asks.
const ENTRIES_MAX: usize = 4096;

/// Inodes loaded side by side for one directory page.
const LOADS_AT_ONCE: usize = 64;

/// The longest symbolic link target (PATH_MAX less its NUL).
const SYMLINK_BYTES_MAX: usize = 4095;

impl Inner {
    fn number(&self, handle: FileHandle) -> Result<u64, VfsError> {
        if handle.file_system == self.lock().file_system {
            Ok(handle.inode)
        } else {
            Err(VfsError::Stale)
        }
    }

    fn handle(&self, inode: u64) -> FileHandle {
        FileHandle {
            file_system: self.lock().file_system,
            inode,
        }
    }

    async fn see(&self, handle: FileHandle) -> Result<Attributes, VfsError> {
        let number = self.number(handle)?;
        self.ask(|state| Ok(state.see(number)?.attributes)).await
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
        self.inner.see(file).await
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
        let directory = inner.number(directory)?;
        inner
            .ask(|state| {
                let number = state.plan_lookup(caller, directory, name)?;
                let seen = state.see(number)?;
                Ok((
                    FileHandle {
                        file_system: state.file_system,
                        inode: number,
                    },
                    seen.attributes,
                ))
            })
            .await
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let inner = &self.inner;
        let directory = inner.number(directory)?;
        inner
            .ask(|state| {
                let seen = state.see(directory)?;
                rules::may_search(seen.subject(), &caller.credentials)?;
                let parent = state.inode(directory)?.ok_or(VfsError::Stale)?.parent;
                let seen = state.see(parent)?;
                Ok((
                    FileHandle {
                        file_system: state.file_system,
                        inode: parent,
                    },
                    seen.attributes,
                ))
            })
            .await
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                let seen = state.see(number)?;
                Ok((
                    rules::granted(seen.subject(), &caller.credentials, asked),
                    seen.attributes,
                ))
            })
            .await
    }

    async fn read_link(&self, _caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                let attributes = state.see(number)?.attributes;
                if attributes.kind != FileKind::Symlink {
                    return Err(VfsError::InvalidArgument.into());
                }
                let target = state
                    .inode(number)?
                    .ok_or(VfsError::Stale)?
                    .symlink_target
                    .clone();
                Ok((target, attributes))
            })
            .await
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        for _ in 0..READ_PLANS_MAX {
            let (attributes, end, pieces) = inner
                .ask(|state| {
                    let seen = state.see(number)?;
                    rules::may_read(seen.subject(), &caller.credentials)?;
                    let size = seen.attributes.size_bytes;
                    let start = offset.min(size);
                    let end = offset
                        .saturating_add(u64::from(length_bytes.min(IO_BYTES_MAX)))
                        .min(size)
                        .max(start);
                    let entry = state.entry(number)?.ok_or(VfsError::Stale)?;
                    let pieces = match &entry.frozen {
                        Some(frozen) => read::plan(&[&entry.active, frozen], &entry.content, start, end),
                        None => read::plan(&[&entry.active], &entry.content, start, end),
                    };
                    Ok((seen.attributes, end, pieces))
                })
                .await?;
            match inner.resolve(number, pieces).await {
                Ok(data) => {
                    return Ok(ReadReply {
                        data,
                        end_of_file: end >= attributes.size_bytes,
                        attributes,
                    });
                }
                Err(Unresolved::Moved) => {}
                Err(Unresolved::Failed(error)) => return Err(error),
            }
        }
        Err(VfsError::TryAgain {
            reason: "the file is changed and committed faster than it can be read",
        })
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        let data = contiguous(data);
        if data.len() > IO_BYTES_MAX as usize {
            return Err(VfsError::InvalidArgument);
        }
        let length = data.len() as u64;
        let quota = inner.config.quota_bytes;
        let request = ChangeRequest {
            data: (length > 0).then_some(data),
            stable: stability != Stability::Unstable,
            ..ChangeRequest::metadata()
        };
        let file = inner
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

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        let (attributes, applied) = inner
            .ask(|state| {
                let seen = state.see(number)?;
                rules::may_write(seen.subject(), &caller.credentials)?;
                Ok((seen.attributes, state.applied))
            })
            .await?;
        if !active(&inner.env, Mutant::CommitWithoutSync) {
            inner.durable(applied).await?;
        }
        Ok(ChangedAttributes {
            before: Some(attributes.clone()),
            after: attributes,
        })
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
        let inner = &self.inner;
        let number = inner.number(directory)?;
        let limit = (limit as usize).clamp(1, ENTRIES_MAX);
        if cookie > i64::MAX as u64 {
            return Err(VfsError::BadCookie);
        }
        let mut page = inner
            .ask(|state| {
                let seen = state.see(number)?;
                rules::may_list(seen.subject(), &caller.credentials)?;
                let parent = state.inode(number)?.ok_or(VfsError::Stale)?.parent;
                let (entries, end) = entries_after(state, number, parent, cookie, limit)?;
                Ok(DirectoryPage {
                    entries,
                    end,
                    directory: seen.attributes,
                })
            })
            .await?;
        if with_attributes {
            for entries in page.entries.chunks_mut(LOADS_AT_ONCE) {
                let seen = join_all(entries.iter().map(|entry| inner.see(entry.handle))).await;
                for (entry, seen) in entries.iter_mut().zip(seen) {
                    entry.attributes = match seen {
                        Ok(attributes) => Some(attributes),
                        // Removed meanwhile: the entry was there when the page was read.
                        Err(VfsError::Stale) => None,
                        Err(error) => return Err(error),
                    };
                }
            }
        }
        Ok(page)
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        self.inner.check_standing()?;
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
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
                let seen = inode.xattrs.keys();
                Ok(seen
                    .filter(|name| rules::xattr_is_listed(&caller.credentials, name))
                    .cloned()
                    .collect())
            })
            .await
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                let seen = state.see(number)?;
                let subject = Subject::new(&seen.attributes, Some(&seen.acl));
                rules::check_xattr(subject, &caller.credentials, name, XattrUse::Get)?;
                let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
                Ok(inode.xattrs.get(name).cloned().ok_or(VfsError::NoAttribute)?)
            })
            .await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        let request = ChangeRequest {
            extra_bytes: value.len() as u64,
            ..ChangeRequest::metadata()
        };
        inner
            .change_inode(caller, number, request, |state, _| {
                state
                    .plan_xattr(caller, number, name, Some(value.clone()), mode)
                    .map(Some)
            })
            .await
    }

    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        inner
            .change_inode(caller, number, ChangeRequest::removal(), |state, _| {
                state
                    .plan_xattr(caller, number, name, None, XattrMode::Replace)
                    .map(Some)
            })
            .await
    }

    async fn get_acl(&self, _caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        let number = self.inner.number(file)?;
        self.inner
            .ask(|state| {
                let inode = state.inode(number)?.ok_or(VfsError::Stale)?;
                Ok((inode.access_acl.clone(), inode.default_acl.clone()))
            })
            .await
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        let inner = &self.inner;
        let number = inner.number(file)?;
        inner
            .change_inode(caller, number, ChangeRequest::metadata(), |state, _| {
                state
                    .plan_acl(caller, number, access.clone(), default.clone())
                    .map(Some)
            })
            .await
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

/// Entries after `cookie`, at most `limit`, and whether they include the last. `.` and `..` have cookies 1 and 2; all others
/// their key.
fn entries_after(
    state: &mut State,
    directory: u64,
    parent: u64,
    cookie: u64,
    limit: usize,
) -> Result<(Vec<DirectoryEntry>, bool), Stop> {
    let file_system = state.file_system;
    let entry = |name: Bytes, inode: u64, cookie: u64| DirectoryEntry {
        name,
        handle: FileHandle { file_system, inode },
        cookie,
        attributes: None,
    };
    let mut entries = Vec::new();
    for (name, inode, at) in [(&b"."[..], directory, 1), (b"..", parent, 2)] {
        if cookie < at {
            entries.push(entry(Bytes::from_static(name), inode, at));
        }
    }
    let mut key = cookie.max(2) + 1;
    loop {
        if entries.len() >= limit {
            entries.truncate(limit);
            return Ok((entries, false));
        }
        if key > i64::MAX as u64 {
            return Ok((entries, true));
        }
        let room = limit - entries.len();
        let (place, page) = match state.page(directory, key) {
            Ok(found) => found,
            // What was gathered is a good answer; the caller comes back for the rest.
            Err(_) if entries.len() > 2 => return Ok((entries, false)),
            Err(missing) => return Err(missing.into()),
        };
        entries.extend(
            page.entries
                .range(key..)
                .take(room)
                .map(|(key, named)| entry(Bytes::copy_from_slice(&named.name), named.inode, *key)),
        );
        if entries.len() < limit {
            key = place.end();
        } else {
            let last = entries.last().expect("the limit is at least one").cookie;
            let more = page.entries.range(last + 1..).next().is_some() || place.end() <= i64::MAX as u64;
            return Ok((entries, !more));
        }
    }
}
