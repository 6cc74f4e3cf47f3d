//! Virtual file system: the trait between file protocols and a file system, and nothing else.
//!
//! The engine implements [`Vfs`] and knows no protocol; protocols call it and know no engine. What stands between, such as
//! announcements to caches, is a [`VfsLayer`]. Every call
//! carries a [`Caller`]: who asks, and which request it is, so that permission checks happen at the same instant as the
//! change and an answered request is recognised after a restart.
//!
//! Durability is named by [`Stability`] and by the caller's [`Durability`]: a metadata call that returned is at level 1 (local journal), or at
//! level 2 (cloud) for callers who ask for that.

mod attributes;
mod error;
mod filesystem;
mod layer;
#[cfg(feature = "testing")]
mod memory;
mod permission;
pub mod rules;

pub use attributes::{Attributes, ChangedAttributes, FileKind, SetAttributes, SetTime, Timestamp};
pub use error::VfsError;
pub use filesystem::{
    AT_END, AccessMask, Caller, CompletedRequest, CreateMode, Created, DirectoryEntry, DirectoryPage,
    Durability, FileHandle, FileSystemStatus, Limits, Name, ReadReply, Removed, Renamed, RequestId, SeekTo,
    Stability, Vfs, WriteReply, XattrMode,
};
pub use layer::VfsLayer;
#[cfg(feature = "testing")]
pub use memory::{
    Compare, Difference, LossOrder, MemoryOptions, MemorySnapshot, MemoryVfs, UnstableFile, compare_trees,
};
pub use permission::{Acl, AclEntry, AclTag, Credentials};
