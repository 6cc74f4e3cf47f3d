//! Some of what a step adopts, verified before its commit.

use crate::{objects::ReadError, tree_diff::map_of, volume::Inner};
use firn_format::{INODE_MAP, ORPHAN_MAP, Place, Pointer};

/// Adopted subtrees verified before the commit of a step.
const SAMPLES: usize = 4;

/// Of the sampled leaves one in this many is read whole; of the others the beginning: its place is no other object's but an older
/// or newer version's, and where a cache has the leaf, salt and slot are no other object's at all. A cleaner that means harm could leave the beginnings alone,
/// as it could leave alone what is sampled; one that is mistaken does not. Whole leaves were nine tenths of what merging read.
const WHOLE_LEAF_IN: u64 = 128;

/// What was drawn so far.
#[derive(Default)]
pub(super) struct Samples {
    /// Place, where we had it, where the cleaner put it.
    drawn: Vec<(Place, Pointer, Pointer)>,
    seen: u64,
}

impl Samples {
    /// Takes an adopted subtree into account: any of them is among the drawn ones with about the same chance.
    pub fn draw(&mut self, place: Place, own: Pointer, theirs: Pointer) {
        self.seen += 1;
        if self.drawn.len() < SAMPLES {
            self.drawn.push((place, own, theirs));
            return;
        }
        // The uid is as good as a draw.
        let draw = self.seen.wrapping_add(u64::from(theirs.uid.0[0]) << 8);
        if draw % self.seen < SAMPLES as u64 {
            self.drawn[(draw % SAMPLES as u64) as usize] = (place, own, theirs);
        }
    }

    /// Follows some of the adopted subtrees down to a leaf, by their new places alone.
    pub async fn verify(&self, inner: &Inner) -> Result<(), ReadError> {
        if firn_env::planted!("volume.merge_unverified") {
            return Ok(());
        }
        for (place, own, theirs) in &self.drawn {
            let (mut place, mut own, mut pointer) = (*place, *own, *theirs);
            loop {
                let is_leaf = place.level == 0 && !matches!(place.inode, INODE_MAP | ORPHAN_MAP);
                if is_leaf && inner.env.random_below(WHOLE_LEAF_IN) > 0 {
                    let known = inner.objects.known(&own, place).await;
                    let objects = &inner.objects;
                    objects.check_beginning(&pointer, place, known.as_deref()).await?;
                    break;
                }
                let object = inner.objects.probe_object(&pointer, place).await?;
                let below = if place.level > 0 {
                    let children = &object.header.children;
                    let at = inner.env.random_below(children.len().max(1) as u64) as usize;
                    children.get(at).map(|child| {
                        let below = Place {
                            inode: place.inode,
                            level: place.level - 1,
                            index: place.index << 7 | u64::from(child.slot),
                        };
                        (below, child.pointer)
                    })
                } else if is_leaf {
                    None
                } else {
                    map_of(&object).map(|map| {
                        let below = Place {
                            inode: place.index,
                            level: map.level,
                            index: 0,
                        };
                        (below, map.pointer)
                    })
                };
                match below {
                    // A leaf that is known is known by its uid, wherever it was read.
                    Some((next_place, next)) => (place, own, pointer) = (next_place, next, next),
                    None => break,
                }
            }
        }
        Ok(())
    }
}
