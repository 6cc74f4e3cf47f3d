//! Cache reuse across relocation: objects that a cleaner moved and that this volume has already.
//!
//! After a merge, pointers lead to the cleaner's copies. A copy of a block is the same bytes; a copy of a node above blocks is
//! the same node with other places of its leaves. So neither needs to be fetched while it is cached from where it lay before:
//!
//! | wanted at its new place | had | then |
//! |---|---|---|
//! | a block | in the disk cache, at its old place | read there |
//! | a node above blocks | in memory or in the disk cache, the old copy | that, with the places of its leaves changed |
//!
//! What moved where is said by the mover's forwarding records: those that the merge has read, and a few more where that is
//! cheaper than the node. They are hints: blocks are verified by their uid as ever, and a wrong place of a leaf is no worse than
//! one in the mover's own copy of the node, which nobody but the mover vouches for either.
//!
//! Nodes further up and inodes lead to nodes that the cleaner wrote anew; of those no record tells, and they are small.

use super::{Inner, Object};
use firn_format::{CHECKPOINTS, Child, INODE_MAP, MANIFEST, ORPHAN_MAP, Place, Pointer, USAGE_MAP};
use std::sync::Arc;

/// Moves of one object that are followed: more often than this nothing is moved between two merges that are remembered.
const HOPS_MAX: usize = 16;
/// Records fetched for one node. Two have about as many bytes as it has, and serve for its neighbours too.
const RECORDS_FETCHED: usize = 2;

/// Whether the place is in the map of a file, where leaves are moved and never written anew by a cleaner.
fn is_of_a_file(place: Place) -> bool {
    !matches!(
        place.inode,
        INODE_MAP | ORPHAN_MAP | USAGE_MAP | CHECKPOINTS | MANIFEST
    )
}

impl Inner {
    /// The object, if it is one that a cleaner moved and that is had from before; nothing of it is asked of the store.
    pub(super) async fn load_relocated(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        if !is_of_a_file(place) || place.level > 1 || !self.relocations.knows(pointer.location.segment.writer)
        {
            return None;
        }
        if place.level == 0 {
            return self.load_from_before(pointer, place).await;
        }
        let had = self.lock().memory.get_copy(&pointer.uid);
        let had = match had {
            Some(had) => had,
            None => self.load_from_before(pointer, place).await?,
        };
        let mut children = had.header.children.clone();
        self.follow_moves(&mut children).await?;
        let mut object = (*had).clone();
        object.header.children = children;
        (object.header.place == place).then(|| Arc::new(object))
    }

    /// From the disk cache, where it lay before.
    async fn load_from_before(&self, pointer: &Pointer, place: Place) -> Option<Arc<Object>> {
        let mut location = pointer.location;
        for _ in 0..HOPS_MAX {
            location = self.relocations.before(&location)?;
            let before = Pointer { location, ..*pointer };
            if let Some(object) = self.load_from_disk(&before, place).await {
                return Some(object);
            }
        }
        None
    }

    /// Gives leaves the places that they were moved to; `None` if that is not known of all.
    async fn follow_moves(&self, leaves: &mut [Child]) -> Option<()> {
        let mut fetched = 0;
        for leaf in leaves {
            for _ in 0..HOPS_MAX {
                let location = leaf.pointer.location;
                let Some(mover) = self.relocations.mover(location.segment) else {
                    break;
                };
                let record = match self.relocations.record(location.segment) {
                    Some(record) => record,
                    None if fetched == RECORDS_FETCHED => return None,
                    None => {
                        fetched += 1;
                        let forwarding = self.fetcher.forwarding();
                        let read = forwarding.record_of(location.segment, mover).await;
                        let record = read.ok().flatten()?;
                        self.relocations.keep(record.clone());
                        Arc::new(record)
                    }
                };
                leaf.pointer.location = record.find(&location)?;
            }
            if self.relocations.mover(leaf.pointer.location.segment).is_some() {
                return None; // In circles, which only a forged record does.
            }
        }
        Some(())
    }
}
