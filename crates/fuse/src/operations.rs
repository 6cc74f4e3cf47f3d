//! Operations of the kernel on the file system, one for each request.
//!
//! A request may be carried out again from the start after [`Failure::TryAgain`], which a call of the file system returns only
//! when it changed nothing; so a request that changes something twice waits by itself between the two.

mod attributes;
mod data;
mod extended;
mod listing;
mod locking;
mod names;
mod space;

use crate::{
    case_index::CaseIndex,
    errno::Failure,
    interrupted::Interrupted,
    locking_opens::LockingOpens,
    mount::{MountRecorder, OnFailedSync},
    nodes::Nodes,
    reply::{self, Reply, View},
    request::{Header, Operation},
    written_files::WrittenFiles,
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_access_log::{Protocol, RecordedVfs, Who};
use firn_env::Env;
use firn_session::{LockClient, LockOwner, LockProtocol, LockTable, OpenFiles};
use firn_vfs::{Attributes, Caller, Credentials, Durability, FileHandle, Name, Vfs, VfsError};
use rustix::io::Errno;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The file system as one mount uses it.
pub(crate) struct Operations {
    env: Env,
    vfs: Arc<dyn Vfs>,
    locks: LockTable,
    locking_opens: Arc<LockingOpens>,
    files: OpenFiles,
    client: LockClient,
    durability: Durability,
    nodes: Arc<Nodes>,
    case_index: Option<Arc<CaseIndex>>,
    written: Arc<WrittenFiles>,
    listings: Arc<AtomicU64>,
    entering: Arc<AtomicBool>,
    on_failed_sync: Option<OnFailedSync>,
    recorder: Option<MountRecorder>,
    /// `vfs` as the process behind one request uses it, if that is recorded.
    recorded: Option<Arc<RecordedVfs>>,
    view: View,
}

/// What has a result is answered with it.
type Outcome = Result<Reply, Failure>;

impl Operations {
    pub(crate) fn new(
        env: &Env,
        vfs: Arc<dyn Vfs>,
        (locks, files): (LockTable, OpenFiles),
        client: LockClient,
        (recorder, durability, cached_for): (Option<MountRecorder>, Durability, Option<Duration>),
        case_index: Option<Arc<CaseIndex>>,
        on_failed_sync: Option<OnFailedSync>,
    ) -> Self {
        let root = vfs.root();
        Self {
            env: env.clone(),
            vfs,
            locks,
            locking_opens: Arc::default(),
            files,
            client,
            durability,
            nodes: Arc::new(Nodes::new(root)),
            case_index,
            written: Arc::default(),
            listings: Arc::default(),
            entering: Arc::default(),
            on_failed_sync,
            recorder,
            recorded: None,
            view: View::new(root.file_system, cached_for),
        }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn case_index(&self) -> Option<&CaseIndex> {
        self.case_index.as_deref()
    }

    /// Requests that list a directory.
    pub(crate) fn listings(&self) -> u64 {
        self.listings.load(Ordering::Relaxed)
    }

    /// While set, this process finds the root in itself, by the name [`ENTRANCE`](crate::staging::ENTRANCE).
    pub(crate) fn set_entering(&self, is_entering: bool) {
        self.entering.store(is_entering, Ordering::Release);
    }

    /// Whether the kernel, or the index, may have something of a file.
    pub(crate) fn caches(&self, file: FileHandle) -> bool {
        self.nodes.number(file).is_some() || self.case_index().is_some_and(|index| index.has(file))
    }

    /// The same on behalf of the process behind a request; `None` if it makes no difference.
    pub(crate) fn recorded_for(&self, header: &Header) -> Option<Self> {
        let MountRecorder { recorder, address_of } = self.recorder.as_ref()?;
        // What the kernel does by itself (it writes back what was mapped) has no user.
        let is_kernel = header.pid == 0 && header.uid == 0;
        let uid = Some(header.uid).filter(|uid| !is_kernel && *uid != u32::MAX);
        let who = Who {
            protocol: match self.client.protocol {
                LockProtocol::Smb => Protocol::Smb,
                LockProtocol::Local | LockProtocol::Nlm | LockProtocol::Nfs4 | LockProtocol::Office => {
                    Protocol::Local
                }
            },
            address: address_of.as_ref().and_then(|address_of| address_of(header.pid)),
            uid,
            effective_uid: uid,
        };
        let recorded = Arc::new(recorder.view(self.vfs.clone(), who));
        Some(Self {
            env: self.env.clone(),
            vfs: recorded.clone(),
            locks: self.locks.clone(),
            locking_opens: self.locking_opens.clone(),
            files: self.files.clone(),
            client: self.client.clone(),
            durability: self.durability,
            nodes: self.nodes.clone(),
            case_index: self.case_index.clone(),
            written: self.written.clone(),
            listings: self.listings.clone(),
            entering: self.entering.clone(),
            on_failed_sync: self.on_failed_sync.clone(),
            recorder: None,
            recorded: Some(recorded),
            view: self.view,
        })
    }

    /// Carries a request out.
    pub(crate) async fn execute(
        &self,
        header: &Header,
        operation: Operation,
        interrupted: &Interrupted,
    ) -> Outcome {
        let node = header.node;
        match operation {
            Operation::Lookup { name } => self.lookup(header, &name).await,
            Operation::GetAttr => self.get_attributes(node).await,
            Operation::SetAttr(change) => self.set_attributes(header, &change).await,
            Operation::ReadLink => self.read_link(node).await,
            Operation::Symlink { name, target } => self.symlink(header, &name, target).await,
            Operation::MkNod {
                mode,
                device,
                umask,
                name,
            } => self.make_node(header, &name, (mode, umask), device).await,
            Operation::MkDir { mode, umask, name } => self.make_directory(header, &name, (mode, umask)).await,
            Operation::Unlink { name } => self.remove(node, &name).await,
            Operation::RmDir { name } => self.remove_directory(node, &name).await,
            Operation::Rename {
                to,
                flags,
                from_name,
                to_name,
            } => self.rename((node, &from_name), (to, &to_name), flags).await,
            Operation::Link { old, name } => self.link(old, node, &name).await,
            Operation::Open { flags } => self.open(node, flags).await,
            Operation::Create {
                flags,
                mode,
                umask,
                name,
            } => {
                self.create(header, &name, (mode, umask), flags, interrupted)
                    .await
            }
            Operation::Read { offset, size } => self.read(node, offset, size).await,
            Operation::Write {
                handle: _,
                offset,
                flags,
                is_from_cache,
                kills_set_id,
                data,
            } => {
                if kills_set_id {
                    self.drop_set_id(header, node).await?;
                }
                let appends = !is_from_cache && data::appends(flags);
                self.write(node, offset, flags, appends, data).await
            }
            Operation::StatFs => Ok(Reply::Structure(reply::status(
                &self.vfs.file_system_status().await?,
            ))),
            Operation::Release {
                handle,
                flags,
                lock_owner,
            } => self.release(node, handle, flags, lock_owner).await,
            Operation::Allocate { offset, length, mode } => {
                if header.uid != 0 {
                    self.drop_set_id(header, node).await?;
                }
                self.allocate(node, (offset, length), mode, interrupted).await
            }
            Operation::Seek { offset, whence } => self.seek(node, offset, whence).await,
            Operation::CopyRange {
                offset,
                to,
                to_offset,
                length,
                flags,
            } => {
                if header.uid != 0 {
                    self.drop_set_id(header, to).await?;
                }
                self.copy_range((node, offset), (to, to_offset), length, flags, interrupted)
                    .await
            }
            Operation::FSync => {
                let synced = self.commit(node).await;
                if let (Err(Failure::Error(_)), Some(told)) = (&synced, &self.on_failed_sync) {
                    (told.0)(header.pid);
                }
                synced
            }
            Operation::Flush { handle, lock_owner } => self.flush(node, handle, lock_owner).await,
            Operation::SetXattr {
                name,
                value,
                flags,
                extra,
            } => self.set_xattr(node, &name, value, flags, extra).await,
            Operation::GetXattr { name, size } => self.get_xattr(node, &name, size).await,
            Operation::ListXattr { size } => self.list_xattrs(header, size).await,
            Operation::RemoveXattr { name } => self.remove_xattr(node, &name).await,
            Operation::OpenDir { flags } => self.open_directory(header, flags),
            Operation::ReadDir { offset, size, plus } => self.read_directory(node, offset, size, plus).await,
            Operation::FSyncDir => self.settle().await,
            Operation::ReleaseDir | Operation::Destroy => Ok(Reply::Empty),
            Operation::GetLock(lock) => self.get_lock(node, &lock, interrupted).await,
            Operation::SetLock { lock, waits } => self.set_lock(node, &lock, waits, interrupted).await,
            Operation::Init { .. } | Operation::Forget { .. } | Operation::Interrupt { .. } => {
                Ok(Reply::Nothing)
            }
            Operation::Unknown => Err(Errno::NOSYS.into()),
        }
    }

    fn handle(&self, node: u64) -> Result<FileHandle, Failure> {
        // The kernel asks only for what it knows; an invalidated node may be asked for once more.
        self.nodes.handle(node).ok_or(Failure::Error(Errno::STALE))
    }

    fn lock_owner(&self, owner: u64) -> LockOwner {
        LockOwner {
            client: self.client.clone(),
            owner: owner_bytes(owner),
        }
    }

    /// The superuser, who waits until what it makes durable is so.
    fn syncing(&self) -> Caller {
        Caller {
            durability: self.durability,
            ..superuser()
        }
    }

    /// Makes a change of a file's attributes: at level 0 while its close is still to come, else at level 1.
    async fn changing<T>(
        &self,
        file: FileHandle,
        caller: Caller,
        change: impl AsyncFnOnce(Caller) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let has_close = self.written.is_open(file);
        let durability = match has_close {
            true => Durability::Memory,
            false => Durability::Journal,
        };
        let verifier = self.vfs.write_verifier();
        let changed = change(Caller { durability, ..caller }).await?;
        self.written.wrote(file, verifier);
        if has_close && !self.written.changed(file) {
            self.vfs.settle(&superuser()).await?;
        }
        Ok(changed)
    }

    /// A reply that makes the kernel know a file.
    fn entry(&self, handle: FileHandle, attributes: &Attributes) -> Reply {
        let node = self.nodes.look_up(handle);
        Reply::Structure(reply::entry(node, attributes, self.view))
    }
}

/// Owners of the kernel have eight bytes, those of opens as well: a byte before them keeps the two apart.
fn owner_bytes(owner: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(9);
    bytes.put_u8(1);
    bytes.put_u64(owner);
    bytes.freeze()
}

/// As whom calls are made: the kernel has decided already whether the process may.
fn superuser() -> Caller {
    Caller::new(Credentials::root())
}

/// The name of an entry.
fn name(bytes: &Bytes) -> Result<Name, VfsError> {
    // Its own memory: the whole request would otherwise live as long as the name.
    Name::new(Bytes::copy_from_slice(bytes))
}
