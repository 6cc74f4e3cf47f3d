//! The manifest's tree: leaves of 128 segments, rewritten where something enters or leaves.

use super::End;
use crate::{
    checkpoint::{Packer, ToPack},
    objects::{Objects, ReadError},
    tree::{self, Update},
};
use bytes::Bytes;
use firn_format::{Kind, MANIFEST, ManifestEntry, ManifestLeaf, SegmentId, TreeRoot, usage_slot};
use std::collections::{BTreeMap, btree_map::Entry};

/// Takes `retired` out of the tree, and `entries` in: all of them, unless there is room for them elsewhere and nothing is rewritten anyway.
pub(super) async fn update(
    packer: &mut Packer,
    root: Option<TreeRoot>,
    entries: &mut BTreeMap<SegmentId, ManifestEntry>,
    retired: &[SegmentId],
    has_room: bool,
) -> Result<Option<TreeRoot>, End> {
    // With whether something left it.
    let mut seen: BTreeMap<u64, (ManifestLeaf, bool)> = BTreeMap::new();
    for segment in retired {
        let Some((index, slot)) = usage_slot(*segment) else {
            continue;
        };
        if let Entry::Vacant(vacant) = seen.entry(index) {
            vacant.insert((read(packer, root, index).await?, false));
        }
        let (leaf, is_changed) = seen.get_mut(&index).expect("just read");
        // One that is not there is another volume's, or was never committed.
        *is_changed |= leaf.remove(slot);
    }
    let changed = seen.into_iter().filter(|(_, (_, is_changed))| *is_changed);
    let mut leaves: BTreeMap<u64, ManifestLeaf> = changed.map(|(index, (leaf, _))| (index, leaf)).collect();
    if firn_env::planted!("volume.manifest_drops_unretired") {
        for leaf in leaves.values_mut() {
            if let Some((slot, _)) = leaf.entries().last().copied() {
                leaf.remove(usize::from(slot));
            }
        }
    }
    if leaves.is_empty() && has_room {
        return Ok(root);
    }
    if firn_env::planted!("volume.manifest_forgets_at_merge") {
        entries.pop_first();
    }
    for (segment, entry) in std::mem::take(entries) {
        let (index, slot) = usage_slot(segment).expect("others do not enter");
        if let Entry::Vacant(vacant) = leaves.entry(index) {
            vacant.insert(read(packer, root, index).await?);
        }
        let leaf = leaves.get_mut(&index).expect("just read");
        leaf.insert(slot, entry);
    }
    let (mut changed, mut indices, mut batch) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (index, leaf) in leaves {
        if leaf.entries().is_empty() {
            changed.insert(index, None);
            continue;
        }
        indices.push(index);
        batch.push(ToPack {
            kind: Kind::Block,
            place: ManifestLeaf::place(index),
            plain: leaf.to_plain(),
            children: Vec::new(),
            payload: Bytes::new(),
        });
    }
    let packed = packer.pack_all(batch).await.map_err(End::Checkpoint)?;
    changed.extend(indices.into_iter().zip(packed.into_iter().map(Some)));
    let change = Update {
        leaves: changed,
        keep_below: u64::MAX,
        // What a node leads to that is lost a moment after it was read stays lost for whoever reads it, instead of being a hole.
        lost_below: u64::MAX,
    };
    let updated = tree::update(packer, MANIFEST, root, change).await;
    Ok(updated.map_err(End::Checkpoint)?.root)
}

/// Whether the tree has an entry of a segment.
pub(super) async fn has(
    objects: &Objects,
    root: Option<TreeRoot>,
    segment: SegmentId,
) -> Result<bool, ReadError> {
    let (Some(root), Some((index, slot))) = (root, usage_slot(segment)) else {
        return Ok(false);
    };
    let Some(pointer) = tree::lookup(objects, MANIFEST, &root, index).await? else {
        return Ok(false);
    };
    let object = objects.get(&pointer, ManifestLeaf::place(index)).await?;
    let leaf = ManifestLeaf::from_plain(&object.header.plain).unwrap_or_default();
    Ok(leaf.entries().iter().any(|(at, _)| usize::from(*at) == slot))
}

/// The leaf as it is in the tree.
async fn read(packer: &Packer, root: Option<TreeRoot>, index: u64) -> Result<ManifestLeaf, End> {
    let Some(root) = &root else {
        return Ok(ManifestLeaf::default());
    };
    let objects = packer.objects();
    let read = packer.patiently(|| async {
        match tree::lookup(objects, MANIFEST, root, index).await? {
            Some(pointer) => objects.get(&pointer, ManifestLeaf::place(index)).await.map(Some),
            None => Ok(None),
        }
    });
    match read.await.map_err(End::Read)? {
        Some(object) => ManifestLeaf::from_plain(&object.header.plain).map_err(End::Undecodable),
        None => Ok(ManifestLeaf::default()),
    }
}
