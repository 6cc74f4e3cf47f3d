//! The leaves of a tree, in order, past whatever node cannot be read, and without what another version of the tree shares.
//!
//! A node that is lost costs what it led to and nothing else; it is reported once, with the range of leaves behind it. Of two
//! versions of a tree only what differs is gone through: where both have the same pointer, all below was gone through before.

use crate::{
    objects::{Objects, ReadError},
    tree_diff::Counterpart,
};
use firn_format::{KeyEpoch, Place, Pointer, TreeRoot, radix};
use std::collections::BTreeMap;

/// What the walk came to.
pub(super) enum Step {
    /// An object at a leaf, and what the other version has there.
    Leaf {
        index: u64,
        pointer: Pointer,
        other: Option<Pointer>,
    },
    /// A node that cannot be read, and the leaves behind it: none of them is gone through.
    Lost { from: u64, to: u64, error: ReadError },
}

/// Where the walk has still to go: a node or leaf, and the other version's at the same place.
struct Pending {
    pointer: Pointer,
    level: u8,
    first: u64,
    other: Option<Counterpart>,
}

/// See the module.
pub(super) struct Leaves<'a> {
    objects: &'a Objects,
    inode: u64,
    /// The next one last; at most a node's children for each level.
    pending: Vec<Pending>,
    /// Nodes gone through, by the epoch of their key.
    pub(super) epochs: BTreeMap<KeyEpoch, u64>,
}

impl<'a> Leaves<'a> {
    /// All leaves of `root` that `other` has not at the same place.
    pub(super) async fn of(
        objects: &'a Objects,
        inode: u64,
        root: &TreeRoot,
        other: Option<TreeRoot>,
    ) -> Result<Leaves<'a>, ReadError> {
        let other = match other {
            // What cannot be compared is gone through.
            Some(other) => {
                readable(Counterpart::from(other).down_to(objects, inode, root.level).await)?.flatten()
            }
            None => None,
        };
        let top = Pending {
            pointer: root.pointer,
            level: root.level,
            first: 0,
            other,
        };
        Ok(Self {
            objects,
            inode,
            pending: vec![top],
            epochs: BTreeMap::new(),
        })
    }

    /// The next step; `None` at the end.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`].
    pub(super) async fn next(&mut self) -> Result<Option<Step>, ReadError> {
        while let Some(Pending {
            pointer,
            level,
            first,
            other,
        }) = self.pending.pop()
        {
            if other.is_some_and(|other| other.level == level && other.pointer == pointer) {
                continue;
            }
            if level == 0 {
                return Ok(Some(Step::Leaf {
                    index: first,
                    pointer,
                    other: other.filter(|other| other.level == 0).map(|other| other.pointer),
                }));
            }
            let place = Place {
                inode: self.inode,
                level,
                index: radix::node_index(first, level),
            };
            let node = match self.objects.get(&pointer, place).await {
                Ok(node) => node,
                Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => {
                    return Err(error);
                }
                Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
                    let to = first.saturating_add(leaves_below(level) - 1);
                    return Ok(Some(Step::Lost {
                        from: first,
                        to,
                        error,
                    }));
                }
            };
            *self.epochs.entry(node.header.seal.key_epoch).or_default() += 1;
            let theirs = match other {
                Some(other) => readable(other.object(self.objects, place).await)?.flatten(),
                None => None,
            };
            let width = leaves_below(level - 1);
            for child in node.header.children.iter().rev() {
                let skip = width.checked_mul(u64::from(child.slot));
                let Some(start) = skip.and_then(|skip| first.checked_add(skip)) else {
                    continue;
                };
                self.pending.push(Pending {
                    pointer: child.pointer,
                    level: level - 1,
                    first: start,
                    other: other.and_then(|other| other.below(level, child.slot, theirs.as_deref())),
                });
            }
        }
        Ok(None)
    }
}

/// How many leaves a node at `level` covers (saturating: 128^9 is 2^63).
fn leaves_below(level: u8) -> u64 {
    u64::from(radix::FANOUT)
        .checked_pow(u32::from(level))
        .unwrap_or(u64::MAX)
}

/// What could be read, if it was damage that kept it from being so.
pub(super) fn readable<T>(found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => Err(error),
        Err(ReadError::Corrupt { .. } | ReadError::Missing { .. }) => Ok(None),
    }
}
