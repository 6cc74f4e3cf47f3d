//! The Merkle tree diff: two or more versions of one tree walked side by side, from their roots down.
//!
//! Versions of a tree share what did not change between them, and a uid says so at once: where two versions have the same uid,
//! all below is the same. So a walk that stops there costs what differs, whatever the size of the tree.
//!
//! Trees grow at the top: a newer version may have nodes above the place where the root of an older one stands. That root is
//! then met at slot 0 of the levels between, and [`Counterpart`] carries it down to its level.

use crate::objects::{Object, Objects, ReadError};
use firn_format::{Child, Kind, Place, Pointer, TreeRoot};
use std::sync::Arc;

/// What stands in another version where the walk is, or further down at slot 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counterpart {
    pub pointer: Pointer,
    /// Its level, which may be lower than the walk's.
    pub level: u8,
}

impl From<TreeRoot> for Counterpart {
    fn from(root: TreeRoot) -> Self {
        Self {
            pointer: root.pointer,
            level: root.level,
        }
    }
}

impl Counterpart {
    /// Goes down to `level` where this version's tree is the higher one; `None` if it has nothing at its leftmost place there.
    ///
    /// # Errors
    /// If a node cannot be read.
    pub async fn down_to(
        mut self,
        objects: &Objects,
        inode: u64,
        level: u8,
    ) -> Result<Option<Self>, ReadError> {
        while self.level > level {
            let place = Place {
                inode,
                level: self.level,
                index: 0,
            };
            let node = objects.get(&self.pointer, place).await?;
            match node.header.children.first() {
                Some(Child { slot: 0, pointer }) => {
                    self.pointer = *pointer;
                    self.level -= 1;
                }
                Some(_) | None => return Ok(None),
            }
        }
        Ok(Some(self))
    }

    /// What stands below `slot` of the walk's node at `level`; `object` is this version's node there, if it is of that level.
    pub fn below(self, level: u8, slot: u16, object: Option<&Object>) -> Option<Self> {
        if self.level < level {
            return (slot == 0).then_some(self);
        }
        let children = &object?.header.children;
        let found = children.binary_search_by_key(&slot, |child| child.slot).ok()?;
        Some(Self {
            pointer: children[found].pointer,
            level: level.checked_sub(1)?,
        })
    }

    /// This version's object at `place`, if it has one of that level.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn object(self, objects: &Objects, place: Place) -> Result<Option<Arc<Object>>, ReadError> {
        if self.level < place.level {
            return Ok(None);
        }
        objects.get(&self.pointer, place).await.map(Some)
    }
}

/// The map below an inode object: its root.
pub(crate) fn map_of(object: &Object) -> Option<TreeRoot> {
    if object.header.kind != Kind::Inode {
        return None;
    }
    match (object.header.children.first(), object.header.plain.first()) {
        (Some(child), Some(level)) if *level > 0 => Some(TreeRoot {
            pointer: child.pointer,
            level: *level,
        }),
        (_, _) => None,
    }
}
