//! Layers: a file system over another (a stackable file system) that says only what it does otherwise.
//!
//! A call that is added to [`Vfs`] passes through every layer from then on; one that changes something has to be thought of in each.

use crate::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CompletedRequest, CreateMode, Created,
    DirectoryPage, FileHandle, FileKind, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed, SeekTo,
    SetAttributes, Stability, Timestamp, Vfs, VfsError, WriteReply, XattrMode,
};
use async_trait::async_trait;
use bytes::Bytes;

/// The trait and what makes a [`Vfs`] of it, from one list of calls: a call that the list lacks does not compile.
macro_rules! layer {
    ($($name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {
        /// A file system over another one: what it does not say is done by the one below. Every layer is a [`Vfs`].
        ///
        /// A call through a layer costs one more allocation than one to the file system below.
        #[async_trait]
        pub trait VfsLayer: Send + Sync {
            /// The file system that this one stands on.
            fn below(&self) -> &dyn Vfs;
            $(
                #[doc = concat!("As [`Vfs::", stringify!($name), "`].")]
                async fn $name(&self, $($argument: $type),*) -> Result<$reply, VfsError> {
                    self.below().$name($($argument),*).await
                }
            )*
        }

        #[async_trait]
        impl<L: VfsLayer> Vfs for L {
            fn root(&self) -> FileHandle {
                self.below().root()
            }

            fn limits(&self) -> Limits {
                self.below().limits()
            }

            fn write_verifier(&self) -> [u8; 8] {
                self.below().write_verifier()
            }

            fn completed_requests(&self) -> Vec<CompletedRequest> {
                self.below().completed_requests()
            }
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$reply, VfsError> {
                    VfsLayer::$name(self, $($argument),*).await
                }
            )*
        }
    };
}

layer! {
    attributes(file: FileHandle) -> Attributes;
    set_attributes(caller: &Caller, file: FileHandle, change: SetAttributes, guard: Option<Timestamp>) -> ChangedAttributes;
    lookup(caller: &Caller, directory: FileHandle, name: &Name) -> (FileHandle, Attributes);
    parent(caller: &Caller, directory: FileHandle) -> (FileHandle, Attributes);
    check_access(caller: &Caller, file: FileHandle, asked: AccessMask) -> (AccessMask, Attributes);
    read_link(caller: &Caller, file: FileHandle) -> (Bytes, Attributes);
    read(caller: &Caller, file: FileHandle, offset: u64, length_bytes: u32) -> ReadReply;
    seek(caller: &Caller, file: FileHandle, offset: u64, to: SeekTo) -> Option<u64>;
    write(caller: &Caller, file: FileHandle, offset: u64, data: Vec<Bytes>, stability: Stability) -> WriteReply;
    commit(caller: &Caller, file: FileHandle) -> ChangedAttributes;
    settle(caller: &Caller) -> ();
    create(caller: &Caller, directory: FileHandle, name: &Name, mode: CreateMode) -> Created;
    make_directory(caller: &Caller, directory: FileHandle, name: &Name, attributes: SetAttributes) -> Created;
    make_symlink(caller: &Caller, directory: FileHandle, name: &Name, target: Bytes, attributes: SetAttributes) -> Created;
    make_node(caller: &Caller, directory: FileHandle, name: &Name, kind: FileKind, attributes: SetAttributes) -> Created;
    link(caller: &Caller, file: FileHandle, directory: FileHandle, name: &Name) -> (Attributes, ChangedAttributes);
    remove(caller: &Caller, directory: FileHandle, name: &Name) -> Removed;
    remove_directory(caller: &Caller, directory: FileHandle, name: &Name) -> Removed;
    rename(caller: &Caller, from_directory: FileHandle, from_name: &Name, to_directory: FileHandle, to_name: &Name) -> Renamed;
    read_directory(caller: &Caller, directory: FileHandle, cookie: u64, limit: u32, with_attributes: bool) -> DirectoryPage;
    file_system_status() -> FileSystemStatus;
    retain(file: FileHandle) -> ();
    release(file: FileHandle) -> ();
    list_xattrs(caller: &Caller, file: FileHandle) -> Vec<Bytes>;
    get_xattr(caller: &Caller, file: FileHandle, name: &[u8]) -> Bytes;
    set_xattr(caller: &Caller, file: FileHandle, name: &[u8], value: Bytes, mode: XattrMode) -> ChangedAttributes;
    remove_xattr(caller: &Caller, file: FileHandle, name: &[u8]) -> ChangedAttributes;
    get_acl(caller: &Caller, file: FileHandle) -> (Acl, Acl);
    set_acl(caller: &Caller, file: FileHandle, access: Option<Acl>, default: Option<Acl>) -> ChangedAttributes;
}
