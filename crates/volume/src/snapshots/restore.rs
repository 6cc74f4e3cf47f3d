//! Bringing a file or a tree back from a snapshot.
//!
//! A restore copies (I4): every object of the copy is new, at the places of new inodes, so what a snapshot shows never comes to
//! life again at its old place. The copy is made inside the edge, through the journal like any other change, and no byte
//! passes a client.
//!
//! ```text
//! walk the snapshot ─→ copy below `.firn-restore-<n>` beside the target ─→ one rename to the target's name
//! ```
//!
//! Nobody sees half a restore under the target's name. One that was interrupted goes on where it stopped when it is asked for
//! again: the temporary name follows from what is restored to where, and a file whose times are already those of its original is
//! complete, since they are set last. Memory: one chunk of data, a directory page a level, and the hard links of the tree.

use super::{administration::administrator, info::SnapshotError};
use crate::{change::RECORD_BYTES_MAX, volume::Volume};
use bytes::Bytes;
use firn_env::{Backoff, Env, Retry};
use firn_vfs::{
    Attributes, Caller, CreateMode, FileHandle, FileKind, Name, SetAttributes, SetTime, Stability, Vfs,
    VfsError, XattrMode,
};
use std::{collections::BTreeMap, time::Duration};

/// Bytes copied at once at most.
const CHUNK_BYTES: u32 = 1 << 20;

/// Entries of a directory looked at together.
const PAGE_ENTRIES: u32 = 512;

/// Files with several names whose copies are remembered; further ones are copied once for each name.
const LINKS_MAX: usize = 100_000;

/// Directories below one another: paths of 4096 bytes have at most half as many names.
const DEPTH_MAX: usize = 2048;

/// How often something that may be tried again is, and how long between: an hour of an unreachable cloud.
const RETRY: Retry = Retry::new(Backoff::constant(Duration::from_secs(5)), 721);

/// What a restore did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Files made, of all kinds but directories.
    pub files: u64,
    /// Directories made.
    pub directories: u64,
    /// Bytes of data copied.
    pub bytes: u64,
    /// Files that an interrupted restore had already brought.
    pub kept: u64,
    /// Names that could not be joined with the file they named before, since there are too many such files.
    pub split_links: u64,
}

/// Why something was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// A path that is none.
    #[error(
        "{path:?} is no path within the volume (names without `.` and `..`, separated by `/`); nothing was changed"
    )]
    BadPath {
        /// As it was given.
        path: String,
    },
    /// Nothing there to restore.
    #[error("the snapshot has no {path:?}; nothing was changed")]
    NotThere {
        /// The path.
        path: String,
    },
    /// Nowhere to restore to.
    #[error("the directory that is to hold {path:?} does not exist; make it first. Nothing was changed")]
    NoDirectory {
        /// The target.
        path: String,
    },
    /// Something is there.
    #[error(
        "{path:?} exists; restore to another name, remove it first, or replace it if it is a file (--replace). Nothing was changed"
    )]
    Exists {
        /// The target.
        path: String,
    },
    /// The copy could not be made, or finished.
    #[error(
        "restoring stopped at {path:?}: {error}. What was copied is kept under a temporary name; the same command goes on from there"
    )]
    Stopped {
        /// Where.
        path: String,
        /// Why.
        error: VfsError,
    },
}

/// A path within a volume, as names.
fn names_of(path: &[u8]) -> Result<Vec<Name>, RestoreError> {
    let bad = || RestoreError::BadPath {
        path: String::from_utf8_lossy(path).into_owned(),
    };
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let names: Result<Vec<Name>, _> = parts.map(|part| Name::new(part.to_vec())).collect();
    let names = names.map_err(|_| bad())?;
    if names.len() > DEPTH_MAX {
        return Err(bad());
    }
    Ok(names)
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Volume {
    /// Copies what the snapshot `snapshot` has at `from` to `to` in the live tree. `replace`: a file that is there is replaced
    /// (atomically); a directory never is. Owners, modes, times, extended attributes and ACLs come along; hard links within
    /// the tree stay hard links.
    ///
    /// # Errors
    /// If there is nothing to restore or no place for it, or the volume stops serving. What was copied is then kept for the
    /// next try.
    pub async fn restore(
        &self,
        snapshot: &[u8],
        from: &[u8],
        to: &[u8],
        replace: bool,
        progress: &(dyn Fn(&RestoreReport) + Send + Sync),
    ) -> Result<RestoreReport, RestoreError> {
        self.restore_through(self, snapshot, from, to, replace, progress)
            .await
    }

    /// [`Volume::restore`] with every change of the live tree made through `live`, which must lead to this volume: for whoever
    /// counts or judges calls.
    ///
    /// # Errors
    /// As [`Volume::restore`].
    pub async fn restore_through(
        &self,
        live: &dyn Vfs,
        snapshot: &[u8],
        from: &[u8],
        to: &[u8],
        replace: bool,
        progress: &(dyn Fn(&RestoreReport) + Send + Sync),
    ) -> Result<RestoreReport, RestoreError> {
        self.inner.checkpointer.attached().map_err(SnapshotError::from)?;
        let no_such = || SnapshotError::NoSuchSnapshot {
            name: shown(snapshot),
        };
        let source = self.rooted_in_snapshot(snapshot).map_err(|_| no_such())?;
        let (from_names, mut to_names) = (names_of(from)?, names_of(to)?);
        let caller = administrator();
        // As much as is let in as one record; whole pages of the cache.
        let largest = self.inner.journal.largest_record_bytes();
        let largest = largest.saturating_sub(RECORD_BYTES_MAX) & !4095;
        let mut restore = Restore {
            env: self.inner.env.clone(),
            target: live,
            source: &source,
            chunk_bytes: CHUNK_BYTES
                .min(u32::try_from(largest).unwrap_or(CHUNK_BYTES))
                .max(4096),
            caller,
            report: RestoreReport::default(),
            links: BTreeMap::new(),
            progress,
        };
        let original =
            restore
                .find(&source, source.root(), &from_names)
                .await
                .map_err(|error| match error {
                    VfsError::NotFound | VfsError::NotDirectory => {
                        RestoreError::NotThere { path: shown(from) }
                    }
                    error => restore.stopped(from, error),
                })?;
        let target_name = to_names
            .pop()
            .ok_or_else(|| RestoreError::Exists { path: shown(to) })?;
        let directory = restore
            .find(live, live.root(), &to_names)
            .await
            .map_err(|error| match error {
                VfsError::NotFound | VfsError::NotDirectory => RestoreError::NoDirectory { path: shown(to) },
                error => restore.stopped(to, error),
            })?;
        let is_directory = original.1.kind == FileKind::Directory;
        match restore
            .patiently(|| live.lookup(&restore.caller, directory.0, &target_name))
            .await
        {
            Err(VfsError::NotFound) => {}
            Ok((_, there)) if replace && !is_directory && there.kind != FileKind::Directory => {}
            Ok(_) => return Err(RestoreError::Exists { path: shown(to) }),
            Err(error) => return Err(restore.stopped(to, error)),
        }
        let temporary = temporary_name(original.0, directory.0, &target_name);
        restore
            .tree(original, directory.0, &temporary)
            .await
            .map_err(|(path, error)| restore.stopped(&path, error))?;
        self.inner.env.fault_point("restore.before_rename").await;
        restore
            .patiently(|| {
                live.rename(
                    &restore.caller,
                    directory.0,
                    &temporary,
                    directory.0,
                    &target_name,
                )
            })
            .await
            .map_err(|error| restore.stopped(to, error))?;
        Ok(restore.report)
    }
}

fn temporary_name(original: FileHandle, directory: FileHandle, name: &Name) -> Name {
    let mut hasher = blake3::Hasher::new_derive_key("firn restore temporary name v1");
    for number in [original.file_system, original.inode, directory.inode] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(name.as_bytes());
    let hash = hasher.finalize().to_hex();
    Name::new(format!(".firn-restore-{}", &hash[..16]).into_bytes()).expect("short, no slash")
}

struct Restore<'a> {
    env: Env,
    target: &'a dyn Vfs,
    source: &'a Volume,
    /// Bytes copied at once: a record of the journal must hold them.
    chunk_bytes: u32,
    caller: Caller,
    report: RestoreReport,
    /// Copies of files with several names, by the original's inode.
    links: BTreeMap<u64, FileHandle>,
    progress: &'a (dyn Fn(&RestoreReport) + Send + Sync),
}

/// A directory being copied.
struct Level {
    original: (FileHandle, Attributes),
    copy: FileHandle,
    path: Vec<u8>,
    cookie: u64,
    waiting: std::vec::IntoIter<(Bytes, FileHandle)>,
    end: bool,
}

type Failed = (Vec<u8>, VfsError);

impl Restore<'_> {
    fn stopped(&self, path: &[u8], error: VfsError) -> RestoreError {
        RestoreError::Stopped {
            path: shown(path),
            error,
        }
    }

    /// Does again what may be done again (I7): the cloud may be away for long.
    async fn patiently<T, F: Future<Output = Result<T, VfsError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, VfsError> {
        let may_be_later = |error: &VfsError| matches!(error, VfsError::TryAgain { .. });
        self.env.retry(&RETRY, may_be_later, |_| call()).await
    }

    async fn find(
        &self,
        vfs: &dyn Vfs,
        root: FileHandle,
        names: &[Name],
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let mut here = (root, self.patiently(|| vfs.attributes(root)).await?);
        for name in names {
            here = self.patiently(|| vfs.lookup(&self.caller, here.0, name)).await?;
        }
        Ok(here)
    }

    /// Copies a file, or a directory with all below it, to `name` in `directory`.
    async fn tree(
        &mut self,
        original: (FileHandle, Attributes),
        directory: FileHandle,
        name: &Name,
    ) -> Result<(), Failed> {
        let path = name.as_bytes().to_vec();
        let mut levels: Vec<Level> = Vec::new();
        levels.extend(self.entry(original, directory, name, path).await?);
        while let Some(level) = levels.last_mut() {
            if let Some((name, handle)) = level.waiting.next() {
                let mut path = level.path.clone();
                path.push(b'/');
                path.extend_from_slice(&name);
                let copy = level.copy;
                let failed = |error| (path.clone(), error);
                let name = Name::new(name).map_err(failed)?;
                let source = self.source;
                let attributes = self
                    .patiently(|| source.attributes(handle))
                    .await
                    .map_err(failed)?;
                if levels.len() >= DEPTH_MAX {
                    return Err((path, VfsError::NameTooLong));
                }
                levels.extend(self.entry((handle, attributes), copy, &name, path).await?);
                continue;
            }
            if level.end {
                let level = levels.pop().expect("just looked at");
                // Last, since what was made in it changed its times.
                self.finish(&level.original, level.copy)
                    .await
                    .map_err(|error| (level.path, error))?;
                (self.progress)(&self.report);
                continue;
            }
            let (handle, cookie, source) = (level.original.0, level.cookie, self.source);
            let caller = self.caller.clone();
            let page = self
                .patiently(|| source.read_directory(&caller, handle, cookie, PAGE_ENTRIES, false))
                .await;
            let level = levels.last_mut().expect("just looked at");
            let page = page.map_err(|error| (level.path.clone(), error))?;
            level.end = page.end;
            level.cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let entries: Vec<_> = page
                .entries
                .into_iter()
                .filter(|entry| entry.name != "." && entry.name != "..")
                .map(|entry| (entry.name, entry.handle))
                .collect();
            level.waiting = entries.into_iter();
        }
        Ok(())
    }

    /// Copies one file; of a directory only itself, to be filled.
    async fn entry(
        &mut self,
        original: (FileHandle, Attributes),
        directory: FileHandle,
        name: &Name,
        path: Vec<u8>,
    ) -> Result<Option<Level>, Failed> {
        let made = self.make(&original, directory, name).await;
        let copy = made.map_err(|error| (path.clone(), error))?;
        Ok(copy.map(|copy| Level {
            original,
            copy,
            path,
            cookie: 0,
            waiting: Vec::new().into_iter(),
            end: false,
        }))
    }

    /// Returns the copy if it is a directory.
    async fn make(
        &mut self,
        original: &(FileHandle, Attributes),
        directory: FileHandle,
        name: &Name,
    ) -> Result<Option<FileHandle>, VfsError> {
        let (target, caller) = (self.target, self.caller.clone());
        let (handle, attributes) = (original.0, &original.1);
        let there = match self.patiently(|| target.lookup(&caller, directory, name)).await {
            Ok(there) => Some(there),
            Err(VfsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        if let Some((copy, found)) = &there {
            if found.kind == FileKind::Directory && attributes.kind == FileKind::Directory {
                return Ok(Some(*copy));
            }
            let complete = found.kind == attributes.kind
                && found.size_bytes == attributes.size_bytes
                && found.modified == attributes.modified
                && found.mode == attributes.mode;
            if complete {
                self.remember_link(attributes, *copy);
                self.report.kept += 1;
                return Ok(None);
            }
            self.patiently(|| target.remove(&caller, directory, name)).await?;
        }
        if let Some(first) = self.links.get(&attributes.inode).copied() {
            self.patiently(|| target.link(&caller, first, directory, name))
                .await?;
            self.report.files += 1;
            return Ok(None);
        }
        // Nobody else may look in before it is whole.
        let private = SetAttributes {
            mode: Some(if attributes.kind == FileKind::Directory {
                0o700
            } else {
                0o600
            }),
            ..SetAttributes::default()
        };
        let copy = match attributes.kind {
            FileKind::Directory => {
                let made = self
                    .patiently(|| target.make_directory(&caller, directory, name, private.clone()))
                    .await?;
                self.report.directories += 1;
                return Ok(Some(made.handle));
            }
            FileKind::Regular => {
                let mode = CreateMode::Guarded(private);
                let made = self
                    .patiently(|| target.create(&caller, directory, name, mode.clone()))
                    .await?;
                self.content(handle, attributes, made.handle).await?;
                made.handle
            }
            FileKind::Symlink => {
                let source = self.source;
                let (link, _) = self.patiently(|| source.read_link(&caller, handle)).await?;
                let make = || target.make_symlink(&caller, directory, name, link.clone(), private.clone());
                self.patiently(make).await?.handle
            }
            kind @ (FileKind::BlockDevice { .. }
            | FileKind::CharacterDevice { .. }
            | FileKind::Fifo
            | FileKind::Socket) => {
                let make = || target.make_node(&caller, directory, name, kind, private.clone());
                self.patiently(make).await?.handle
            }
        };
        self.finish(original, copy).await?;
        self.remember_link(attributes, copy);
        self.report.files += 1;
        (self.progress)(&self.report);
        Ok(None)
    }

    fn remember_link(&mut self, attributes: &Attributes, copy: FileHandle) {
        if attributes.links < 2 {
            return;
        }
        if self.links.len() < LINKS_MAX {
            self.links.insert(attributes.inode, copy);
        } else if !self.links.contains_key(&attributes.inode) {
            self.report.split_links += 1;
        }
    }

    async fn content(
        &mut self,
        original: FileHandle,
        attributes: &Attributes,
        copy: FileHandle,
    ) -> Result<(), VfsError> {
        let (source, target, caller) = (self.source, self.target, self.caller.clone());
        let mut offset = 0;
        while offset < attributes.size_bytes {
            let reply = self
                .patiently(|| source.read(&caller, original, offset, self.chunk_bytes))
                .await?;
            let length: u64 = reply.data.iter().map(|part| part.len() as u64).sum();
            if length == 0 {
                return Err(VfsError::Io(format!(
                    "nothing to read at {offset}, before the end"
                )));
            }
            // A hole stays one.
            if reply.data.iter().any(|part| part.iter().any(|byte| *byte != 0)) {
                let write = || target.write(&caller, copy, offset, reply.data.clone(), Stability::Unstable);
                self.patiently(write).await?;
                self.report.bytes += length;
            }
            offset += length;
            (self.progress)(&self.report);
        }
        let sized = SetAttributes {
            size_bytes: Some(attributes.size_bytes),
            ..SetAttributes::default()
        };
        self.patiently(|| target.set_attributes(&caller, copy, sized.clone(), None))
            .await?;
        Ok(())
    }

    /// Everything but the content; the times last, which say that the copy is whole.
    async fn finish(&self, original: &(FileHandle, Attributes), copy: FileHandle) -> Result<(), VfsError> {
        let (source, target, caller) = (self.source, self.target, self.caller.clone());
        let (handle, attributes) = (original.0, &original.1);
        for name in self.patiently(|| source.list_xattrs(&caller, handle)).await? {
            let value = self
                .patiently(|| source.get_xattr(&caller, handle, &name))
                .await?;
            let set = || target.set_xattr(&caller, copy, &name, value.clone(), XattrMode::Either);
            self.patiently(set).await?;
        }
        // Owner before mode, since a change of owner clears set-uid; ACL before mode, since it sets it.
        let owned = SetAttributes {
            uid: Some(attributes.uid),
            gid: Some(attributes.gid),
            ..SetAttributes::default()
        };
        self.patiently(|| target.set_attributes(&caller, copy, owned.clone(), None))
            .await?;
        let (access, default) = self.patiently(|| source.get_acl(&caller, handle)).await?;
        // What a new file inherits from the directory it is restored into, its original did not have.
        let (inherited, inherited_default) = self.patiently(|| target.get_acl(&caller, copy)).await?;
        let (access, default) = (
            (access != inherited).then_some(access),
            (default != inherited_default).then_some(default),
        );
        if access.is_some() || default.is_some() {
            let set = || target.set_acl(&caller, copy, access.clone(), default.clone());
            self.patiently(set).await?;
        }
        let rest = SetAttributes {
            mode: (attributes.kind != FileKind::Symlink).then_some(attributes.mode),
            accessed: SetTime::To(attributes.accessed),
            modified: SetTime::To(attributes.modified),
            ..SetAttributes::default()
        };
        self.patiently(|| target.set_attributes(&caller, copy, rest.clone(), None))
            .await?;
        Ok(())
    }
}
