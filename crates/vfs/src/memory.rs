//! [`MemoryVfs`]: the file system as one would explain it, in memory.
//!
//! It is the executable model: the engine's answers and, after a crash, its recovered tree are checked against it, and the
//! protocol servers are developed on it. So it is written to be right at sight, not to be fast: one lock, ordinary maps,
//! and the [`rules`](crate::rules) the engine uses too. Given a clock it is deterministic.
//!
//! A crash keeps every metadata call and every stable write; of each file's unstable writes it keeps some first ones and
//! loses the rest. [`MemoryVfs::crash`] makes a chosen such state, [`MemoryVfs::adopt_crash`] finds the one a recovered
//! engine shows, or says how it differs from all of them.

mod compare;
mod content;
mod crash;
mod directory;
mod extended;
mod inode;
mod names;
mod state;

pub use compare::{Compare, Difference, compare_trees};
pub use crash::{LossOrder, UnstableFile};

use crate::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed, SeekTo,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode, rules,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use state::{ROOT_INODE, State};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a [`MemoryVfs`] is set up.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The number of the file system.
    pub file_system: u64,
    /// Mode of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// What `df` shows as size; writes beyond it are refused with `NoSpace`.
    pub quota_bytes: u64,
    /// Most files, with directories.
    pub files_max: u64,
    /// Fixed properties.
    pub limits: Limits,
    /// Bits of the name hash that gives cookies, 1 to 63; a test sets few to have collisions.
    pub cookie_bits: u32,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            file_system: 1,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            quota_bytes: 1 << 50,
            files_max: 1 << 40,
            limits: Limits {
                file_bytes: rules::FILE_BYTES_MAX,
                links: 1_000_000,
                preferred_io_bytes: 1 << 20,
                maximum_io_bytes: 1 << 20,
            },
            cookie_bits: 63,
        }
    }
}

/// The executable model of a file system; see the module's header.
pub struct MemoryVfs {
    env: Env,
    options: Arc<MemoryOptions>,
    state: Mutex<State>,
    fixed_now: Mutex<Option<Timestamp>>,
}

/// A state kept by [`MemoryVfs::snapshot`].
#[derive(Clone)]
pub struct MemorySnapshot(State);

impl MemoryVfs {
    /// An empty file system.
    ///
    /// # Panics
    /// If `options.cookie_bits` is not 1 to 63.
    pub fn new(env: &Env, options: MemoryOptions) -> Self {
        assert!(
            (1..=63).contains(&options.cookie_bits),
            "cookies have 1 to 63 bits"
        );
        let options = Arc::new(options);
        let now = Timestamp::from_nanos(env.wall().0);
        Self {
            env: env.clone(),
            state: Mutex::new(State::new(options.clone(), now)),
            options,
            fixed_now: Mutex::new(None),
        }
    }

    /// Stops the model's clock at `now`, so that a call can be made at the instant the engine made it; `None` lets it go
    /// on with the environment's.
    pub fn set_now(&self, now: Option<Timestamp>) {
        *self.fixed_now.lock().expect("no panic under this lock") = now;
    }

    /// Keeps the present state, at the cost of a pointer per file.
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot(self.state().clone())
    }

    /// Goes back to (or over to) a kept state.
    pub fn restore(&self, snapshot: &MemorySnapshot) {
        *self.state() = snapshot.0.clone();
    }

    /// An independent model in the same state.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            env: self.env.clone(),
            options: self.options.clone(),
            state: Mutex::new(self.state().clone()),
            fixed_now: Mutex::new(*self.fixed_now.lock().expect("no panic under this lock")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn now(&self) -> Timestamp {
        let fixed = *self.fixed_now.lock().expect("no panic under this lock");
        fixed.unwrap_or_else(|| Timestamp::from_nanos(self.env.wall().0))
    }
}

#[async_trait]
impl Vfs for MemoryVfs {
    fn root(&self) -> FileHandle {
        self.state().handle(ROOT_INODE)
    }

    fn limits(&self) -> Limits {
        self.options.limits
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.state().starts.to_be_bytes()
    }

    fn completed_requests(&self) -> Vec<CompletedRequest> {
        self.state().completed_before.clone()
    }

    async fn attributes(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        Ok(self.state().get(file)?.attributes.clone())
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.state()
            .set_attributes(caller, file, &change, guard, self.now())
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.state().lookup(caller, directory, name)
    }

    async fn parent(
        &self,
        caller: &Caller,
        directory: FileHandle,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        self.state().parent(caller, directory)
    }

    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        let state = self.state();
        let inode = state.get(file)?;
        let granted = rules::granted(inode.subject(), &caller.credentials, asked);
        Ok((granted, inode.attributes.clone()))
    }

    async fn read_link(&self, _caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        self.state().read_link(file, self.now())
    }

    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        self.state().read(caller, file, offset, length_bytes, self.now())
    }

    async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        let state = self.state();
        let inode = state.get(file)?;
        rules::may_read(inode.subject(), &caller.credentials)?;
        let content = inode.content().ok_or(VfsError::InvalidArgument)?;
        Ok(content.seek(offset, to))
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        self.state()
            .write(caller, file, offset, &data, stability, self.now())
    }

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        self.state().commit(caller, file)
    }

    async fn settle(&self, _caller: &Caller) -> Result<(), VfsError> {
        Ok(())
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        self.state().create(caller, directory, name, &mode, self.now())
    }

    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.state()
            .make_directory(caller, directory, name, &attributes, self.now())
    }

    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.state()
            .make_symlink(caller, directory, name, target, &attributes, self.now())
    }

    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        self.state()
            .make_node(caller, directory, name, kind, &attributes, self.now())
    }

    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        self.state().link(caller, file, directory, name, self.now())
    }

    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        self.state().remove(caller, directory, name, false, self.now())
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        self.state().remove(caller, directory, name, true, self.now())
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let (from, to) = ((from_directory, from_name), (to_directory, to_name));
        self.state().rename(caller, from, to, self.now())
    }

    async fn read_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        self.state()
            .read_directory(caller, directory, cookie, limit, with_attributes, self.now())
    }

    async fn file_system_status(&self) -> Result<FileSystemStatus, VfsError> {
        let state = self.state();
        Ok(FileSystemStatus {
            total_bytes: self.options.quota_bytes,
            free_bytes: state.free_bytes(),
            total_files: self.options.files_max,
            free_files: state.free_files(),
        })
    }

    async fn retain(&self, file: FileHandle) -> Result<(), VfsError> {
        self.state().retain(file)
    }

    async fn release(&self, file: FileHandle) -> Result<(), VfsError> {
        self.state().release(file)
    }

    async fn list_xattrs(&self, caller: &Caller, file: FileHandle) -> Result<Vec<Bytes>, VfsError> {
        self.state().list_xattrs(caller, file)
    }

    async fn get_xattr(&self, caller: &Caller, file: FileHandle, name: &[u8]) -> Result<Bytes, VfsError> {
        self.state().get_xattr(caller, file, name)
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        self.state()
            .set_xattr(caller, file, name, value, mode, self.now())
    }

    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        self.state().remove_xattr(caller, file, name, self.now())
    }

    async fn get_acl(&self, _caller: &Caller, file: FileHandle) -> Result<(Acl, Acl), VfsError> {
        let state = self.state();
        let inode = state.get(file)?;
        Ok((inode.access_acl.clone(), inode.default_acl.clone()))
    }

    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.state().set_acl(caller, file, access, default, self.now())
    }
}

#[cfg(test)]
mod tests;
