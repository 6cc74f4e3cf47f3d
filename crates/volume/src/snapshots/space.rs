//! Space of a snapshot: the bytes that only it keeps in the bucket.
//!
//! An object's life in a branch is one interval of versions (I4), so what neither the next older nor the next newer snapshot
//! (or the head) has, nothing else has. The three trees are walked side by side; equal uids end the walk, so it costs what
//! differs. It stops after [`OBJECTS_MAX`] objects, and then says that it found *at least* so much.

use super::info::{SnapshotError, shown};
use crate::{
    objects::{Objects, ReadError},
    read_view::read_failed,
    tree_diff::{Counterpart, map_of},
    volume::Volume,
};
use firn_format::{INODE_MAP, Place};

/// Objects of the snapshot that are looked at: some seconds of work, and 64 MiB of nodes fetched at most.
const OBJECTS_MAX: u64 = 20_000;

/// What a snapshot costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Bytes of objects, as they lie in the bucket, that would be freed if this snapshot alone were deleted.
    pub unique_bytes: u64,
    /// The rest of its data (as `df` counted it then): shared with the head or with other snapshots.
    pub shared_bytes: u64,
    /// Whether the walk came to its end; if not, `unique_bytes` is what was found so far.
    pub complete: bool,
}

/// Where the walk is: a place, the snapshot's object there, and what the neighbours have.
struct Step {
    place: Place,
    own: Counterpart,
    others: [Option<Counterpart>; 2],
}

impl Volume {
    /// What a snapshot costs. Reads what differs between it and its neighbours.
    ///
    /// # Errors
    /// If there is none of that name, its commit is under way, or the store is out of reach.
    pub async fn snapshot_space(&self, name: &[u8]) -> Result<SnapshotSpace, SnapshotError> {
        let inner = &self.inner;
        inner.check_serving()?;
        let (used_bytes, own, others) = {
            let state = inner.lock();
            let all = state.snapshots();
            let at = all.iter().position(|snapshot| snapshot.name == name);
            let at = at.ok_or_else(|| SnapshotError::NoSuchSnapshot { name: shown(name) })?;
            let root = |at: usize| Some(Counterpart::from(all.get(at)?.retained?.inode_map));
            let own = root(at).ok_or_else(|| SnapshotError::NotYet { name: shown(name) })?;
            let older = at.checked_sub(1).and_then(root);
            let newer = root(at + 1).or_else(|| state.inode_map.map(Counterpart::from));
            (all[at].used_bytes, own, [older, newer])
        };
        let (unique_bytes, complete) = unique(&inner.objects, own, others).await.map_err(read_failed)?;
        Ok(SnapshotSpace {
            unique_bytes,
            shared_bytes: used_bytes.saturating_sub(unique_bytes),
            complete,
        })
    }
}

async fn unique(
    objects: &Objects,
    own: Counterpart,
    others: [Option<Counterpart>; 2],
) -> Result<(u64, bool), ReadError> {
    let mut steps = vec![tree(objects, INODE_MAP, own, others).await?];
    let (mut bytes, mut looked_at) = (0, 0);
    while let Some(Step { place, own, others }) = steps.pop() {
        let same = |other: &Counterpart| other.pointer.uid == own.pointer.uid;
        if others.iter().flatten().any(same) {
            continue;
        }
        if looked_at >= OBJECTS_MAX {
            return Ok((bytes, false));
        }
        looked_at += 1;
        bytes += u64::from(own.pointer.location.length);
        let is_leaf = place.level == 0;
        if is_leaf && place.inode != INODE_MAP {
            continue;
        }
        let object = objects.get(&own.pointer, place).await?;
        let mut beside = [None, None];
        for (found, other) in beside.iter_mut().zip(others) {
            if let Some(other) = other {
                *found = other.object(objects, place).await?;
            }
        }
        if is_leaf {
            if let Some(map) = map_of(&object) {
                let maps = beside.map(|object| map_of(&*object?).map(Counterpart::from));
                steps.push(tree(objects, place.index, map.into(), maps).await?);
            }
            continue;
        }
        for child in &object.header.children {
            let below =
                |number: usize| others[number]?.below(place.level, child.slot, beside[number].as_deref());
            steps.push(Step {
                place: Place {
                    inode: place.inode,
                    level: place.level - 1,
                    index: place.index << 7 | u64::from(child.slot),
                },
                own: Counterpart {
                    pointer: child.pointer,
                    level: place.level - 1,
                },
                others: [below(0), below(1)],
            });
        }
    }
    Ok((bytes, true))
}

/// The first step into a tree, with the others brought to its level.
async fn tree(
    objects: &Objects,
    inode: u64,
    own: Counterpart,
    others: [Option<Counterpart>; 2],
) -> Result<Step, ReadError> {
    let mut level = [None, None];
    for (found, other) in level.iter_mut().zip(others) {
        if let Some(other) = other {
            *found = other.down_to(objects, inode, own.level).await?;
        }
    }
    Ok(Step {
        place: Place {
            inode,
            level: own.level,
            index: 0,
        },
        own,
        others: level,
    })
}
