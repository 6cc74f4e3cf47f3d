//! Reachability of segments by walking: which of them the pointers of any root lead to.
//!
//! A segment is judged by its index, which tells what lies in it and where that stands. Of one whose index nobody has, only pointers tell: all
//! trees of all roots are walked by the copies that readers use, and read but for the data. That costs as much as a census of an audit, so only a
//! repair does it, for what neither store has, once for all of that.
//!
//! | what the walk meets | it says |
//! |---|---|
//! | a pointer that leads there since all retirements so far | reached |
//! | none, and everything on the way was read | reached by nobody |
//! | none, and something on the way is lost or leads nowhere | nobody can tell |

use crate::{
    CleanError, Damage,
    branches::{Branch, Trees},
    lookup::{Copies, root_of_map},
    objects::Objects,
    reading::read_together,
};
use firn_format::{
    INODE_MAP, Kind, Location, MANIFEST, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot, USAGE_MAP, Uid,
    VerifiedObject, checkpoint_place, radix,
};
use std::collections::BTreeSet;

/// Objects read together. Each brings at most 128 more, at each of some ten levels: 20 MB wait at most.
const BATCH: usize = 128;

/// Nodes remembered, so that what roots share is walked once: 100 bytes each. Beyond it some are walked again.
const SEEN_MAX: usize = 262_144;

/// What a walk met.
#[derive(Default)]
pub(crate) struct Reached {
    /// Of the wanted segments, those that something leads to.
    pub segments: BTreeSet<SegmentId>,
    /// The first thing on the way that cannot be read: what hangs on it is not known.
    pub cut_off: Option<Damage>,
}

/// Looks which of `wanted`, of which none is retired, any root leads to.
pub(crate) async fn reached(
    objects: &mut Objects,
    branches: &[Branch],
    wanted: &BTreeSet<SegmentId>,
) -> Result<Reached, CleanError> {
    let mut walk = Walk {
        wanted,
        seen: BTreeSet::new(),
        waiting: Vec::new(),
        reached: Reached::default(),
    };
    for branch in branches {
        let head = branch.head.iter().map(|head| &head.trees);
        for trees in head.chain(&branch.retained) {
            walk.root(objects, trees).await?;
        }
    }
    Ok(walk.reached)
}

struct Walk<'a> {
    wanted: &'a BTreeSet<SegmentId>,
    seen: BTreeSet<(Uid, Location)>,
    waiting: Vec<(Pointer, Place)>,
    reached: Reached,
}

impl Walk<'_> {
    async fn root(&mut self, objects: &mut Objects, trees: &Trees) -> Result<(), CleanError> {
        if let Some(checkpoint) = trees.checkpoint {
            let place = checkpoint_place(trees.version);
            self.note(objects, &checkpoint, place).await?;
        }
        for (inode, root) in [
            (INODE_MAP, trees.inode_map),
            (ORPHAN_MAP, trees.orphans),
            (USAGE_MAP, trees.usage),
            (MANIFEST, trees.manifest),
        ] {
            if let Some(root) = root {
                self.meet(objects, root.pointer, top_of(inode, root)).await?;
            }
        }
        while !self.waiting.is_empty() {
            let batch = self.waiting.split_off(self.waiting.len().saturating_sub(BATCH));
            // By the very copies that the pointers lead to: others may know other places of what is below.
            for (read, (_, place)) in read_together(objects, &batch, Copies::Exact)
                .await?
                .into_iter()
                .zip(&batch)
            {
                match read {
                    Ok(object) => self.below(objects, *place, &object).await?,
                    Err(damage) => self.cut(damage),
                }
            }
        }
        Ok(())
    }

    async fn below(
        &mut self,
        objects: &mut Objects,
        place: Place,
        object: &VerifiedObject,
    ) -> Result<(), CleanError> {
        let Place { inode, level, index } = place;
        if level > 0 {
            for child in &object.header.children {
                let below = Place {
                    inode,
                    level: level - 1,
                    index: (index << radix::FANOUT.trailing_zeros()) | u64::from(child.slot),
                };
                self.meet(objects, child.pointer, below).await?;
            }
            return Ok(());
        }
        if object.header.kind != Kind::Inode {
            return Ok(());
        }
        match root_of_map(object) {
            Ok(Some(map)) => self.meet(objects, map.pointer, top_of(index, map)).await,
            Ok(None) => Ok(()),
            Err(CleanError::Damaged(damage)) => {
                self.cut(damage);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Something that a verified object leads to.
    async fn meet(
        &mut self,
        objects: &mut Objects,
        pointer: Pointer,
        place: Place,
    ) -> Result<(), CleanError> {
        if place.level > 0 {
            if self.seen.contains(&(pointer.uid, pointer.location)) {
                return Ok(());
            }
            if self.seen.len() < SEEN_MAX {
                self.seen.insert((pointer.uid, pointer.location));
            }
        }
        self.note(objects, &pointer, place).await?;
        let is_leaf = place.level == 0 && !matches!(place.inode, INODE_MAP | ORPHAN_MAP);
        if !is_leaf {
            self.waiting.push((pointer, place));
        }
        Ok(())
    }

    /// Where a pointer leads.
    async fn note(
        &mut self,
        objects: &mut Objects,
        pointer: &Pointer,
        place: Place,
    ) -> Result<(), CleanError> {
        match objects.settle(&pointer.location).await? {
            Some(settled) if self.wanted.contains(&settled.segment) => {
                self.reached.segments.insert(settled.segment);
            }
            Some(_) => {}
            None => {
                let detail = "its segment was retired, and no record says where it went";
                self.cut(Damage::new(place, pointer.uid, detail));
            }
        }
        Ok(())
    }

    fn cut(&mut self, damage: Damage) {
        self.reached.cut_off.get_or_insert(damage);
    }
}

fn top_of(inode: u64, tree: TreeRoot) -> Place {
    Place {
        inode,
        level: tree.level,
        index: 0,
    }
}
