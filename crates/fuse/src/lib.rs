//! The volume as a directory of this machine: the Linux kernel's FUSE protocol over [`firn_vfs::Vfs`].
//!
//! The kernel sends a request for each system call that its caches cannot answer; it is decoded ([`request`]), turned into
//! calls of the file system ([`operations`]) in a task of its own, and answered. What other protocols change is taken out of the kernel's
//! caches before they are answered ([`invalidation`]), so those may live long.
//!
//! ```text
//! process ─> kernel ─> /dev/fuse ─read─> connection ─task─> operations ─> vfs, locks, open files
//!              ▲                              │ INTERRUPT ends a waiting request
//!              └──────── invalidation <───────┴──────────── what NFS changed
//! ```
//!
//! *Who may do what* is decided by the kernel (`default_permissions`, with POSIX ACLs): it knows a process's supplementary groups
//! and capabilities, which a request does not carry, and without it a name in its cache would be found by whoever may not
//! search the directory. So calls are made as the superuser, and what is created is given its owner and group explicitly.
//!
//! *In whatever case* a name is found where the mount has an index of folded names ([`case_index`]), which smbd asks.
//!
//! The protocol is written here and not taken from a crate: decision 0131.

mod abi;
mod acl;
mod case_index;
mod connection;
mod device;
mod errno;
mod fold;
mod fusermount;
mod indexed;
mod interrupted;
mod invalidation;
mod locking_opens;
mod mount;
mod nodes;
mod operations;
mod reply;
mod request;
mod staging;
mod traffic;
mod written_files;

pub use abi::KERNEL_OLDEST;
pub use case_index::CaseIndexCounts;
pub use device::{MountError, is_available};
pub use mount::{Mount, MountOptions, MountRecorder, MountStatus, OnFailedSync};
pub use traffic::TrafficCounts;
