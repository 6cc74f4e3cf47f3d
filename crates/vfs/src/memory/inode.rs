//! One file of the model, and what a crash may make of it.
//!
//! Unstable writes may be lost in a crash, all of a file's from some one on; everything else stays. To know the states
//! that allows, a file with unstable writes keeps its content as it was before the first of them, and every change of
//! content or mode since. A state after a crash is a replay of these changes that leaves out the last unstable ones.
//! COMMIT forgets the list.

use super::{content::Content, directory::Directory};
use crate::{Acl, Attributes};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What kind-dependent part a file has.
#[derive(Clone)]
pub(super) enum Body {
    Regular(Content),
    Directory(Directory),
    Symlink(Bytes),
    Node,
}

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) attributes: Attributes,
    pub(super) body: Body,
    /// Empty: none.
    pub(super) access_acl: Acl,
    pub(super) default_acl: Acl,
    pub(super) xattrs: BTreeMap<Bytes, Bytes>,
    /// Of an exclusive create.
    pub(super) create_verifier: Option<[u8; 8]>,
    /// Set while there are unstable writes.
    unstable: Option<Box<Unstable>>,
}

#[derive(Clone)]
struct Unstable {
    content: Content,
    mode: u32,
    changes: Vec<Change>,
}

/// A change of what a lost write would have changed.
#[derive(Clone)]
enum Change {
    Write {
        offset: u64,
        data: Bytes,
        mode: u32,
        /// The place among all unstable writes of the file system; `None` for a stable write.
        unstable: Option<u64>,
    },
    Resize(u64),
    Mode(u32),
}

impl Inode {
    pub(super) fn new(attributes: Attributes, body: Body) -> Self {
        let mut inode = Self {
            attributes,
            body,
            access_acl: Acl::default(),
            default_acl: Acl::default(),
            xattrs: BTreeMap::new(),
            create_verifier: None,
            unstable: None,
        };
        inode.measure();
        inode
    }

    pub(super) fn access_acl(&self) -> Option<&Acl> {
        Some(&self.access_acl).filter(|acl| !acl.entries.is_empty())
    }

    pub(super) fn subject(&self) -> crate::rules::Subject<'_> {
        crate::rules::Subject::new(&self.attributes, self.access_acl())
    }

    pub(super) fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            Body::Regular(_) | Body::Symlink(_) | Body::Node => None,
        }
    }

    pub(super) fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::Regular(content) => Some(content),
            Body::Directory(_) | Body::Symlink(_) | Body::Node => None,
        }
    }

    /// Writes, where `mode` is the mode afterwards and `unstable` as in [`Change::Write`].
    pub(super) fn write(&mut self, offset: u64, data: Bytes, mode: u32, unstable: Option<u64>) {
        self.change(Change::Write {
            offset,
            data,
            mode,
            unstable,
        });
    }

    pub(super) fn resize(&mut self, size_bytes: u64) {
        self.change(Change::Resize(size_bytes));
    }

    pub(super) fn set_mode(&mut self, mode: u32) {
        self.change(Change::Mode(mode));
    }

    fn change(&mut self, change: Change) {
        let starts = matches!(
            change,
            Change::Write {
                unstable: Some(_),
                ..
            }
        );
        if starts && self.unstable.is_none() {
            self.unstable = Some(Box::new(Unstable {
                content: self.content().cloned().unwrap_or_default(),
                mode: self.attributes.mode,
                changes: Vec::new(),
            }));
        }
        self.apply(&change);
        if let Some(unstable) = &mut self.unstable {
            unstable.changes.push(change);
        }
    }

    fn apply(&mut self, change: &Change) {
        match (change, &mut self.body) {
            (
                Change::Write {
                    offset, data, mode, ..
                },
                Body::Regular(content),
            ) => {
                content.write(*offset, data);
                self.attributes.mode = *mode;
            }
            (Change::Resize(size_bytes), Body::Regular(content)) => content.resize(*size_bytes),
            (Change::Mode(mode), _) => self.attributes.mode = *mode,
            (
                Change::Write { .. } | Change::Resize(_),
                Body::Directory(_) | Body::Symlink(_) | Body::Node,
            ) => unreachable!("the rules let only regular files be written"),
        }
        self.measure();
    }

    /// Brings the attributes that follow from the body up to date.
    pub(super) fn measure(&mut self) {
        let (size_bytes, used_bytes) = match &self.body {
            Body::Regular(content) => (content.size_bytes(), content.used_bytes()),
            // Entries, with `.` and `..`.
            Body::Directory(directory) => (directory.len() as u64 + 2, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Node => (0, 0),
        };
        self.attributes.size_bytes = size_bytes;
        self.attributes.used_bytes = used_bytes;
    }

    pub(super) fn commit(&mut self) {
        self.unstable = None;
    }

    /// The places of the file's unstable writes among all of the file system, oldest first.
    pub(super) fn unstable_writes(&self) -> Vec<u64> {
        let changes = self.unstable.iter().flat_map(|unstable| &unstable.changes);
        changes
            .filter_map(|change| match change {
                Change::Write { unstable, .. } => *unstable,
                Change::Resize(_) | Change::Mode(_) => None,
            })
            .collect()
    }

    /// Changes that a crash would have to replay.
    pub(super) fn pending_changes(&self) -> usize {
        self.unstable
            .as_ref()
            .map_or(0, |unstable| unstable.changes.len())
    }

    /// The file after a crash that kept the first `kept` unstable writes.
    pub(super) fn after_crash(&self, kept: usize) -> Self {
        let mut after = self.clone();
        let Some(unstable) = after.unstable.take() else {
            return after;
        };
        after.body = Body::Regular(unstable.content);
        after.attributes.mode = unstable.mode;
        let mut left = kept;
        // A write sets the mode to what it found without some bits; when an earlier write that took these bits is lost,
        // it still takes them, so the mode is right for every replay.
        for change in &unstable.changes {
            let lost = matches!(
                change,
                Change::Write {
                    unstable: Some(_),
                    ..
                }
            ) && {
                let lost = left == 0;
                left = left.saturating_sub(1);
                lost
            };
            if !lost {
                after.apply(change);
            }
        }
        after.measure();
        after
    }
}
