//! The volume as protocols see it, over all terms of a member: each call passes the gate, and is made on the term at hand.

use super::{
    Inner,
    gate::{Gate, Need, Way},
};
use crate::read::IO_BYTES_MAX;
use crate::state::LINKS_MAX;
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::ROOT_DIRECTORY;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed, SeekTo,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode, rules,
};
use std::{sync::Arc, time::Duration};

/// Terms in which one call is made.
const TERMS_MAX: usize = 8;

/// How long a mount's call waits at the gate at a time. Whoever makes it waits on by trying again, and between two tries a signal of its process ends
/// the waiting.
const MOUNT_WAITS: Duration = Duration::from_millis(500);

const CHANGES_HANDS: VfsError = VfsError::TryAgain {
    reason: "the volume changes hands again and again",
};

/// See the module.
#[derive(Clone)]
pub struct MemberVfs {
    inner: Arc<Inner>,
    root: FileHandle,
    is_mounted: bool,
    by_time: bool,
}

impl MemberVfs {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let file_system = crate::parts::file_system_id(inner.parts.volume);
        Self {
            inner,
            root: FileHandle {
                file_system,
                inode: ROOT_DIRECTORY,
            },
            is_mounted: false,
            by_time: false,
        }
    }

    /// The same for a mount, which makes a call again that is told to.
    #[must_use]
    pub fn for_mounts(mut self) -> Self {
        self.is_mounted = true;
        self
    }

    /// The same with the snapshots under their times ([`Volume::naming_snapshots_by_time`](crate::Volume::naming_snapshots_by_time)).
    #[must_use]
    pub fn naming_snapshots_by_time(mut self) -> Self {
        self.by_time = true;
        self
    }

    fn way(&self, need: Need) -> Way {
        Way {
            need,
            limit: match self.is_mounted {
                true => MOUNT_WAITS,
                false => self.gate().wait_limit,
            },
            waits_out: self.is_mounted,
        }
    }

    fn gate(&self) -> &Gate {
        &self.inner.gate
    }
}

/// The calls, each with what it needs: made anew where the term it was made in turned out to be over before it did anything.
macro_rules! calls {
    ($($name:ident: $need:ident ($($argument:ident: $type:ty = $given:expr),*) -> $reply:ty;)*) => {
        #[async_trait]
        impl Vfs for MemberVfs {
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
                self.gate().verifier()
            }

            fn completed_requests(&self) -> Vec<CompletedRequest> {
                self.gate()
                    .at_hand()
                    .map(|served| served.vfs.completed_requests())
                    .unwrap_or_default()
            }

            /// What a follower is asked to commit was published when this member gave the volume, or another verifier has been drawn.
            async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
                let way = self.way(Need::Read);
                for _ in 0..TERMS_MAX {
                    let entered = self.gate().enter(way).await?;
                    let answer = match entered.is_owner() {
                        true => entered.vfs(self.by_time).commit(caller, file).await,
                        false => entered
                            .vfs(self.by_time)
                            .attributes(file)
                            .await
                            .map(|after| ChangedAttributes { before: None, after }),
                    };
                    if let Some(answer) = self.gate().leave(entered, way, answer).await {
                        return answer;
                    }
                }
                Err(CHANGES_HANDS)
            }

            /// Known before it is asked for, so that no term begins in between that does not know of it.
            async fn retain(&self, file: FileHandle) -> Result<(), VfsError> {
                let way = self.way(Need::Read);
                for _ in 0..TERMS_MAX {
                    let entered = self.gate().enter(way).await?;
                    self.inner.opens.opened(file);
                    let answer = entered.vfs(self.by_time).retain(file).await;
                    let is_open = answer.is_ok();
                    let answer = self.gate().leave(entered, way, answer).await;
                    if !matches!((is_open, &answer), (true, Some(Ok(())))) {
                        self.inner.opens.closed(file);
                    }
                    if let Some(answer) = answer {
                        return answer;
                    }
                }
                Err(CHANGES_HANDS)
            }

            /// Told to the term at hand if it answers soon: each begins with what is open then.
            async fn release(&self, file: FileHandle) -> Result<(), VfsError> {
                let entered = self.gate().enter(self.way(Need::Read)).await;
                self.inner.opens.closed(file);
                match entered {
                    Ok(entered) => entered.vfs(self.by_time).release(file).await,
                    Err(_) => Ok(()),
                }
            }
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$reply, VfsError> {
                    let way = self.way(Need::$need);
                    for _ in 0..TERMS_MAX {
                        let entered = self.gate().enter(way).await?;
                        let answer = entered.vfs(self.by_time).$name($($given),*).await;
                        if let Some(answer) = self.gate().leave(entered, way, answer).await {
                            return answer;
                        }
                    }
                    Err(CHANGES_HANDS)
                }
            )*
        }
    };
}

calls! {
    attributes: Read (file: FileHandle = file) -> Attributes;
    set_attributes: Change (caller: &Caller = caller, file: FileHandle = file, change: SetAttributes = change.clone(), guard: Option<Timestamp> = guard) -> ChangedAttributes;
    lookup: Read (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name) -> (FileHandle, Attributes);
    parent: Read (caller: &Caller = caller, directory: FileHandle = directory) -> (FileHandle, Attributes);
    check_access: Read (caller: &Caller = caller, file: FileHandle = file, asked: AccessMask = asked) -> (AccessMask, Attributes);
    read_link: Read (caller: &Caller = caller, file: FileHandle = file) -> (Bytes, Attributes);
    read: Read (caller: &Caller = caller, file: FileHandle = file, offset: u64 = offset, length_bytes: u32 = length_bytes) -> ReadReply;
    seek: Read (caller: &Caller = caller, file: FileHandle = file, offset: u64 = offset, to: SeekTo = to) -> Option<u64>;
    write: Change (caller: &Caller = caller, file: FileHandle = file, offset: u64 = offset, data: Vec<Bytes> = data.clone(), stability: Stability = stability) -> WriteReply;
    settle: Read (caller: &Caller = caller) -> ();
    create: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name, mode: CreateMode = mode.clone()) -> Created;
    make_directory: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name, attributes: SetAttributes = attributes.clone()) -> Created;
    make_symlink: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name, target: Bytes = target.clone(), attributes: SetAttributes = attributes.clone()) -> Created;
    make_node: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name, kind: FileKind = kind, attributes: SetAttributes = attributes.clone()) -> Created;
    link: Change (caller: &Caller = caller, file: FileHandle = file, directory: FileHandle = directory, name: &Name = name) -> (Attributes, ChangedAttributes);
    remove: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name) -> Removed;
    remove_directory: Change (caller: &Caller = caller, directory: FileHandle = directory, name: &Name = name) -> Removed;
    rename: Change (caller: &Caller = caller, from_directory: FileHandle = from_directory, from_name: &Name = from_name, to_directory: FileHandle = to_directory, to_name: &Name = to_name) -> Renamed;
    read_directory: Read (caller: &Caller = caller, directory: FileHandle = directory, cookie: u64 = cookie, limit: u32 = limit, with_attributes: bool = with_attributes) -> DirectoryPage;
    file_system_status: Read () -> FileSystemStatus;
    list_xattrs: Read (caller: &Caller = caller, file: FileHandle = file) -> Vec<Bytes>;
    get_xattr: Read (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name) -> Bytes;
    set_xattr: Change (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name, value: Bytes = value.clone(), mode: XattrMode = mode) -> ChangedAttributes;
    remove_xattr: Change (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name) -> ChangedAttributes;
    get_acl: Read (caller: &Caller = caller, file: FileHandle = file) -> (Acl, Acl);
    set_acl: Change (caller: &Caller = caller, file: FileHandle = file, access: Option<Acl> = access.clone(), default: Option<Acl> = default.clone()) -> ChangedAttributes;
}
