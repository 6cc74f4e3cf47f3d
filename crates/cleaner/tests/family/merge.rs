//! The model's merge of a proposal: for equal uids, the places of the relocated tree.

use super::{
    edge::{Edge, Trees},
    reader::Reader,
    world::run,
};
use firn_format::{INODE_MAP, Location, ORPHAN_MAP, Place, Pointer, TreeRoot, Uid, relocate_children};
use std::collections::BTreeMap;

impl Edge {
    /// Takes the places of the newest proposal over: for equal uids, those of the proposal's tree. Answers its number.
    pub(super) fn merge(&mut self, reader: &mut Reader, trees: &mut Trees) -> Option<u64> {
        let (proposal, _) = run(self.anchor.proposal(self.volume)).unwrap()?;
        if proposal.sequence <= self.cleaner_sequence
            || self.history.get(&proposal.base_version) != Some(&proposal.base_uid)
        {
            return None;
        }
        let pointer = Pointer {
            uid: proposal.base_uid,
            location: proposal.location,
        };
        let relocated = reader.checkpoint(&pointer, proposal.base_version).ok()?;
        let mut places = BTreeMap::new();
        for (map, root) in [(INODE_MAP, relocated.inode_map), (ORPHAN_MAP, relocated.orphans)] {
            if let Some(root) = root {
                collect(reader, map, root, &mut places).ok()?;
            }
        }
        let before = self.packer.next_sequence;
        trees.inode_map = trees
            .inode_map
            .map(|root| self.adopt(reader, INODE_MAP, root, &places));
        trees.orphans = trees
            .orphans
            .map(|root| self.adopt(reader, ORPHAN_MAP, root, &places));
        self.merge_bytes += self.packer.next_sequence - before;
        Some(proposal.sequence)
    }

    fn adopt(
        &mut self,
        reader: &mut Reader,
        inode: u64,
        root: TreeRoot,
        places: &BTreeMap<Uid, Location>,
    ) -> TreeRoot {
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        TreeRoot {
            pointer: self.adopt_object(reader, root.pointer, place, places),
            ..root
        }
    }

    fn adopt_object(
        &mut self,
        reader: &mut Reader,
        pointer: Pointer,
        place: Place,
        places: &BTreeMap<Uid, Location>,
    ) -> Pointer {
        if let Some(location) = places.get(&pointer.uid) {
            return Pointer {
                location: *location,
                ..pointer
            };
        }
        if place.level == 0 && place.inode >= 16 {
            return pointer;
        }
        let object = self.load(reader, pointer, place);
        let mut moved = BTreeMap::new();
        for child in &object.header.children {
            let below = if place.level > 0 {
                Place {
                    inode: place.inode,
                    level: place.level - 1,
                    index: place.index * 128 + u64::from(child.slot),
                }
            } else {
                Place {
                    inode: place.index,
                    level: object.header.plain[0],
                    index: 0,
                }
            };
            let adopted = self.adopt_object(reader, child.pointer, below, places);
            if adopted != child.pointer {
                moved.insert(child.slot, adopted.location);
            }
        }
        if moved.is_empty() {
            return pointer;
        }
        let rewritten = relocate_children(&object, |child| {
            moved.get(&child.slot).copied().unwrap_or(child.pointer.location)
        });
        self.packer.push(rewritten)
    }
}

/// Where every object of a relocated tree lies.
fn collect(
    reader: &mut Reader,
    inode: u64,
    root: TreeRoot,
    places: &mut BTreeMap<Uid, Location>,
) -> Result<(), String> {
    let place = Place {
        inode,
        level: root.level,
        index: 0,
    };
    let mut open = vec![(root.pointer, place)];
    while let Some((pointer, place)) = open.pop() {
        places.insert(pointer.uid, pointer.location);
        if place.level == 0 && place.inode >= 16 {
            continue;
        }
        // A base that is not the head any more may have lost what the head does not have: then nothing is taken over.
        let object = reader.read(&pointer, place)?;
        for child in &object.header.children {
            let below = if place.level > 0 {
                Place {
                    inode: place.inode,
                    level: place.level - 1,
                    index: place.index * 128 + u64::from(child.slot),
                }
            } else {
                Place {
                    inode: place.index,
                    level: object.header.plain[0],
                    index: 0,
                }
            };
            open.push((child.pointer, below));
        }
    }
    Ok(())
}
