//! Lookup by place: a walk down one path of one tree of a root, never a scan.
//!
//! ```text
//! place (0, 1, 2 or 4, level, index)   down the inode map, the orphan map, the usage map or the manifest
//! place (3, 0, version)                the root's checkpoint
//! place (inode, level, index)          the inode's object, in the inode map or else in the orphan map; then down its map
//! ```
//!
//! Every step is verified against the uid that the step before names. Nodes are shared between the lookups of neighbours
//! through the cache of [`Objects`], so a hundred blocks of one file cost one path; an inode that is gone answers for all its
//! blocks at once.

use crate::{CleanError, Damage, branches::Trees, objects::Objects};
use firn_format::{
    CHECKPOINTS, INODE_MAP, Kind, Location, MANIFEST, ORPHAN_MAP, Place, Pointer, TreeRoot, USAGE_MAP,
    VerifiedObject, radix,
};
use std::sync::Arc;

/// Objects, and where they were said to lie.
pub(crate) type Path = Vec<(Location, Arc<VerifiedObject>)>;

/// What stands at a place, and what leads there.
pub(crate) struct Found {
    pub pointer: Pointer,
    /// The objects on the way and where the root's pointers say that they lie, the topmost first, below the checkpoint.
    pub path: Path,
}

/// Which copies a walk may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Any: their uids are the same, so they tell the same of what stands where.
    Any,
    /// Only those that the root's own pointers lead to: where they say that children lie is what readers will see.
    Exact,
}

/// Looks `place` up in a root; `None` is a hole.
pub(crate) async fn lookup(
    objects: &mut Objects,
    trees: &Trees,
    place: Place,
) -> Result<Option<Found>, CleanError> {
    objects.lookups += 1;
    walk(objects, trees, place, Copies::Any).await
}

/// Looks `place` up in a root by the copies of the nodes that its readers will use.
pub(crate) async fn lookup_exact(
    objects: &mut Objects,
    trees: &Trees,
    place: Place,
) -> Result<Option<Found>, CleanError> {
    walk(objects, trees, place, Copies::Exact).await
}

/// One object of a walk.
pub(crate) async fn step(
    objects: &mut Objects,
    pointer: &Pointer,
    place: Place,
    copies: Copies,
) -> Result<Arc<VerifiedObject>, CleanError> {
    match copies {
        Copies::Any => objects.get(pointer, place).await,
        Copies::Exact => objects.get_exact(pointer, place).await,
    }
}

async fn walk(
    objects: &mut Objects,
    trees: &Trees,
    place: Place,
    copies: Copies,
) -> Result<Option<Found>, CleanError> {
    let mut path = Vec::new();
    let tree = match place.inode {
        CHECKPOINTS => {
            let here = trees.checkpoint.filter(|_| trees.version.0 == place.index);
            return Ok(here.map(|pointer| Found { pointer, path }));
        }
        INODE_MAP => trees.inode_map,
        ORPHAN_MAP => trees.orphans,
        USAGE_MAP => trees.usage,
        MANIFEST => trees.manifest,
        number => file_map(objects, trees, number, copies, &mut path).await?,
    };
    let Some(tree) = tree else { return Ok(None) };
    let found = descend(objects, tree, place, copies, &mut path).await?;
    Ok(found.map(|pointer| Found { pointer, path }))
}

/// The block map of a file: through its inode, which stands in the inode map or, unlinked but open, in the orphan map.
async fn file_map(
    objects: &mut Objects,
    trees: &Trees,
    number: u64,
    copies: Copies,
    path: &mut Path,
) -> Result<Option<TreeRoot>, CleanError> {
    for (map, root) in [(INODE_MAP, trees.inode_map), (ORPHAN_MAP, trees.orphans)] {
        let Some(root) = root else { continue };
        let place = Place {
            inode: map,
            level: 0,
            index: number,
        };
        path.clear();
        if let Some(pointer) = descend(objects, root, place, copies, path).await? {
            let inode = step(objects, &pointer, place, copies).await?;
            let tree = root_of_map(&inode)?;
            path.push((pointer.location, inode));
            return Ok(tree);
        }
    }
    Ok(None)
}

/// The map of an inode: its one child, at the level its plain section tells.
pub(crate) fn root_of_map(inode: &VerifiedObject) -> Result<Option<TreeRoot>, CleanError> {
    let header = &inode.header;
    let level = header.plain.first().copied().unwrap_or(0);
    match (&header.children[..], level) {
        _ if header.kind != Kind::Inode => Err(Damage::new(header.place, inode.uid(), "no inode").into()),
        ([], _) => Ok(None),
        ([child], 1..) if level <= firn_format::MAX_LEVEL => Ok(Some(TreeRoot {
            pointer: child.pointer,
            level,
        })),
        _ => Err(Damage::new(header.place, inode.uid(), "an inode whose map has no level").into()),
    }
}

async fn descend(
    objects: &mut Objects,
    root: TreeRoot,
    place: Place,
    copies: Copies,
    path: &mut Path,
) -> Result<Option<Pointer>, CleanError> {
    let leaf = radix::first_leaf(place.index, place.level);
    if place.level > root.level || radix::levels_for(leaf) > root.level {
        return Ok(None);
    }
    if radix::node_index(leaf, place.level) != place.index {
        return Ok(None); // No tree has such a place.
    }
    let mut pointer = root.pointer;
    for level in (place.level + 1..=root.level).rev() {
        let here = Place {
            inode: place.inode,
            level,
            index: radix::node_index(leaf, level),
        };
        let node = step(objects, &pointer, here, copies).await?;
        let location = pointer.location;
        let slot = radix::slot(leaf, level);
        let children = &node.header.children;
        match children.binary_search_by_key(&slot, |child| child.slot) {
            Ok(found) => pointer = children[found].pointer,
            Err(_) => return Ok(None),
        }
        path.push((location, node));
    }
    Ok(Some(pointer))
}
