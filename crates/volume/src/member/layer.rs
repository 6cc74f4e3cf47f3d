//! The volume as protocols see it, over all terms of a member: each call passes the gate, and is made on the term at hand.

use super::{
    Inner,
    gate::{Gate, Need},
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
use std::sync::Arc;

/// Terms in which one call is made.
const TERMS_MAX: usize = 8;

const CHANGES_HANDS: VfsError = VfsError::TryAgain {
    reason: "the volume changes hands again and again",
};

/// See the module.
pub struct MemberVfs {
    inner: Arc<Inner>,
    root: FileHandle,
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
                for _ in 0..TERMS_MAX {
                    let entered = self.gate().enter(Need::Read).await?;
                    let answer = match entered.is_owner() {
                        true => entered.vfs().commit(caller, file).await,
                        false => entered
                            .vfs()
                            .attributes(file)
                            .await
                            .map(|after| ChangedAttributes { before: None, after }),
                    };
                    if let Some(answer) = self.gate().leave(entered, Need::Read, answer).await {
                        return answer;
                    }
                }
                Err(CHANGES_HANDS)
            }
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$reply, VfsError> {
                    for _ in 0..TERMS_MAX {
                        let entered = self.gate().enter(Need::$need).await?;
                        let answer = entered.vfs().$name($($given),*).await;
                        if let Some(answer) = self.gate().leave(entered, Need::$need, answer).await {
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
    retain: Read (file: FileHandle = file) -> ();
    release: Read (file: FileHandle = file) -> ();
    list_xattrs: Read (caller: &Caller = caller, file: FileHandle = file) -> Vec<Bytes>;
    get_xattr: Read (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name) -> Bytes;
    set_xattr: Change (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name, value: Bytes = value.clone(), mode: XattrMode = mode) -> ChangedAttributes;
    remove_xattr: Change (caller: &Caller = caller, file: FileHandle = file, name: &[u8] = name) -> ChangedAttributes;
    get_acl: Read (caller: &Caller = caller, file: FileHandle = file) -> (Acl, Acl);
    set_acl: Change (caller: &Caller = caller, file: FileHandle = file, access: Option<Acl> = access.clone(), default: Option<Acl> = default.clone()) -> ChangedAttributes;
}
