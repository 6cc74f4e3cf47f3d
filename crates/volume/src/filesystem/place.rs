//! Handle resolution: the tree that a handle is of. The live one, a snapshot's, or `.snapshots` itself.
//!
//! | file system of the handle | what it is |
//! |---|---|
//! | the volume's | the live tree |
//! | that of the directory of snapshots | `.snapshots` |
//! | another | a snapshot's; `Stale` where there is none such, or none any more |
//!
//! What reads asks [`Inner::place`]; what changes asks for the number of a live inode, which nothing else has.

use crate::{
    read_view::ReadView,
    snapshots::{SNAPSHOTS_DIRECTORY, View},
    volume::Inner,
};
use firn_format::ROOT_DIRECTORY;
use firn_vfs::{AccessMask, FileHandle, Name, VfsError};
use std::sync::Arc;

/// Where a handle leads.
pub(crate) enum Place {
    /// `.snapshots`.
    Snapshots,
    Tree(Tree),
}

/// A tree that can be read.
pub(crate) enum Tree {
    Live,
    Snapshot(Arc<View>),
}

impl Tree {
    pub fn read_view<'a>(&'a self, inner: &'a Inner) -> ReadView<'a> {
        match self {
            Self::Live => inner.read_view(),
            Self::Snapshot(view) => inner.read_view_in(view),
        }
    }

    /// Whether this is a snapshot's root, above which `.snapshots` is.
    pub fn is_below_snapshots(&self, directory: FileHandle) -> bool {
        matches!(self, Self::Snapshot(_)) && directory.inode == ROOT_DIRECTORY
    }

    /// What of this may be granted at all: nobody changes a snapshot.
    pub fn grantable(&self, asked: AccessMask) -> AccessMask {
        match self {
            Self::Live => asked,
            Self::Snapshot(_) => reading(asked),
        }
    }
}

/// Of these permissions those that change nothing.
pub(crate) fn reading(asked: AccessMask) -> AccessMask {
    AccessMask {
        modify: false,
        extend: false,
        delete: false,
        ..asked
    }
}

impl Inner {
    /// The root of the live tree.
    pub fn root(&self) -> FileHandle {
        FileHandle {
            file_system: self.file_system,
            inode: ROOT_DIRECTORY,
        }
    }

    /// Where a handle leads; for what changes nothing.
    pub(crate) fn place(&self, handle: FileHandle) -> Result<Place, VfsError> {
        if handle.file_system == self.file_system {
            return Ok(Place::Tree(Tree::Live));
        }
        if handle.file_system == self.snapshots.directory_file_system {
            return Ok(Place::Snapshots);
        }
        self.check_serving()?;
        Ok(Place::Tree(Tree::Snapshot(self.view(handle.file_system)?)))
    }

    /// The inode a handle names, for a change to it.
    ///
    /// # Errors
    /// `ReadOnly` outside the live tree; `Stale` where the handle leads nowhere, whatever was wanted of it.
    pub(super) fn number(&self, handle: FileHandle) -> Result<u64, VfsError> {
        match self.place(handle)? {
            // Who follows changes nothing.
            Place::Tree(Tree::Live) if self.follower.is_some() => Err(VfsError::ReadOnly),
            Place::Tree(Tree::Live) => Ok(handle.inode),
            Place::Snapshots | Place::Tree(Tree::Snapshot(_)) => Err(VfsError::ReadOnly),
        }
    }

    /// The directory's inode, for a new name in it: `.snapshots` is taken.
    pub(super) fn number_to_add(&self, directory: FileHandle, name: &Name) -> Result<u64, VfsError> {
        let number = self.number(directory)?;
        if self.is_reserved(directory, name) {
            return Err(VfsError::Exists);
        }
        Ok(number)
    }

    /// The directory's inode, for a name in it to go, or to be replaced: `.snapshots` stays.
    pub(super) fn number_to_remove(&self, directory: FileHandle, name: &Name) -> Result<u64, VfsError> {
        let number = self.number(directory)?;
        if self.is_reserved(directory, name) {
            return Err(VfsError::ReadOnly);
        }
        Ok(number)
    }

    /// Whether this is the name in the root directory that stands for the snapshots.
    pub(super) fn is_reserved(&self, directory: FileHandle, name: &Name) -> bool {
        directory == self.root() && name.as_bytes() == SNAPSHOTS_DIRECTORY.as_bytes()
    }
}
