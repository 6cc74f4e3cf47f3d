//! A reader written from `docs/formats.md` alone: follows pointers and forwarding records, believes nothing but uids.

use super::world::{FAMILY, World};
use bytes::Bytes;
use firn_format::{
    Checkpoint, ForwardingRecord, Kind, Location, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot, Uid,
    VerifiedObject, Version, checkpoint_place, decode_object,
};
use firn_store::{MemoryStore, ObjectKey};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The bucket at one moment.
pub struct Reader {
    contents: BTreeMap<ObjectKey, Bytes>,
    /// The mirror, for what the bucket has lost.
    copies: BTreeMap<ObjectKey, Bytes>,
    seen: BTreeMap<(Uid, Location), Result<Arc<VerifiedObject>, String>>,
    /// Where each object read was found.
    pub found_at: BTreeSet<Location>,
    /// How many were found through forwarding records.
    pub forwarded: u64,
}

/// What a root shows: the uid at every leaf of every file, orphans included.
pub type Shown = BTreeMap<(u64, u64), Uid>;

/// What of a root can be read.
#[derive(Default)]
pub struct Survey {
    pub shown: Shown,
    /// Segments in which the rest should be.
    pub unreadable: BTreeSet<SegmentId>,
}

impl Reader {
    pub fn new(store: &MemoryStore) -> Self {
        Self {
            contents: store.contents(),
            copies: BTreeMap::new(),
            seen: BTreeMap::new(),
            found_at: BTreeSet::new(),
            forwarded: 0,
        }
    }

    /// Both buckets at one moment.
    pub fn of_both(world: &World) -> Self {
        Self {
            copies: world.second.contents(),
            ..Self::new(&world.store)
        }
    }

    pub fn read(&mut self, pointer: &Pointer, place: Place) -> Result<Arc<VerifiedObject>, String> {
        let key = (pointer.uid, pointer.location);
        if let Some(seen) = self.seen.get(&key) {
            return seen.clone();
        }
        let read = self.follow(pointer, place, pointer.location, 0).ok_or_else(|| {
            format!(
                "{place} ({:?}) cannot be read by way of {}",
                pointer.uid, pointer.location
            )
        });
        self.seen.insert(key, read.clone());
        read
    }

    fn follow(
        &mut self,
        pointer: &Pointer,
        place: Place,
        location: Location,
        hops: usize,
    ) -> Option<Arc<VerifiedObject>> {
        if let Some(object) = self.at(pointer, place, location) {
            self.found_at.insert(location);
            self.forwarded += u64::from(hops > 0);
            return Some(Arc::new(object));
        }
        if hops >= 16 {
            return None;
        }
        let prefix = ForwardingRecord::prefix(&FAMILY, location.segment);
        let records: Vec<Bytes> = [&self.contents, &self.copies]
            .into_iter()
            .flat_map(|contents| {
                contents
                    .range(ObjectKey::of_prefix(&prefix)..)
                    .take_while(|(key, _)| key.as_str().starts_with(&prefix))
            })
            .map(|(_, bytes)| bytes.clone())
            .collect();
        for bytes in records {
            if let Ok(record) = ForwardingRecord::decode(&bytes)
                && let Some(next) = record.find(&location)
                && let Some(object) = self.follow(pointer, place, next, hops + 1)
            {
                return Some(object);
            }
        }
        None
    }

    fn at(&self, pointer: &Pointer, place: Place, location: Location) -> Option<VerifiedObject> {
        let key = ObjectKey::new(&location.segment.key(&FAMILY));
        let end = usize::try_from(location.end()).ok()?;
        [&self.contents, &self.copies].into_iter().find_map(|contents| {
            let segment = contents.get(&key)?;
            let bytes = segment.get(location.offset as usize..end)?;
            let fetched = decode_object(segment.slice_ref(bytes)).ok()?;
            fetched.verify(&pointer.uid, Some(place)).ok()
        })
    }

    /// The leaves of a tree, with everything above them read.
    pub fn leaves(&mut self, inode: u64, root: &TreeRoot) -> Result<Vec<(u64, Pointer)>, String> {
        let mut found = Vec::new();
        let mut open = vec![(root.pointer, root.level, 0u64)];
        while let Some((pointer, level, index)) = open.pop() {
            let place = Place { inode, level, index };
            if level == 0 {
                found.push((index, pointer));
                continue;
            }
            for child in &self.read(&pointer, place)?.header.children.clone() {
                open.push((child.pointer, level - 1, index * 128 + u64::from(child.slot)));
            }
        }
        Ok(found)
    }

    /// Everything that a root's trees show.
    pub fn show(&mut self, inode_map: Option<TreeRoot>, orphans: Option<TreeRoot>) -> Result<Shown, String> {
        let mut shown = Shown::new();
        for (map, root) in [(0, inode_map), (ORPHAN_MAP, orphans)] {
            let Some(root) = root else { continue };
            for (number, pointer) in self.leaves(map, &root)? {
                let place = Place {
                    inode: map,
                    level: 0,
                    index: number,
                };
                let inode = self.read(&pointer, place)?;
                assert_eq!(inode.header.kind, Kind::Inode);
                let Some(child) = inode.header.children.first() else {
                    continue;
                };
                let tree = TreeRoot {
                    pointer: child.pointer,
                    level: inode.header.plain[0],
                };
                for (index, pointer) in self.leaves(number, &tree)? {
                    let place = Place {
                        inode: number,
                        level: 0,
                        index,
                    };
                    self.read(&pointer, place)?;
                    shown.insert((number, index), pointer.uid);
                }
            }
        }
        Ok(shown)
    }

    /// What of a root's trees can be read, and in which segments the rest should be.
    pub fn survey(&mut self, inode_map: Option<TreeRoot>, orphans: Option<TreeRoot>) -> Survey {
        let mut survey = Survey::default();
        for (map, root) in [(0, inode_map), (ORPHAN_MAP, orphans)] {
            let Some(root) = root else { continue };
            for (number, pointer) in self.survey_leaves(map, &root, &mut survey) {
                let place = Place {
                    inode: map,
                    level: 0,
                    index: number,
                };
                let Ok(inode) = self.read(&pointer, place) else {
                    survey.unreadable.insert(self.end_of(pointer.location).segment);
                    continue;
                };
                let Some(child) = inode.header.children.first() else {
                    continue;
                };
                let tree = TreeRoot {
                    pointer: child.pointer,
                    level: inode.header.plain[0],
                };
                for (index, pointer) in self.survey_leaves(number, &tree, &mut survey) {
                    let place = Place {
                        inode: number,
                        level: 0,
                        index,
                    };
                    match self.read(&pointer, place) {
                        Ok(_) => drop(survey.shown.insert((number, index), pointer.uid)),
                        Err(_) => drop(survey.unreadable.insert(self.end_of(pointer.location).segment)),
                    }
                }
            }
        }
        survey
    }

    fn survey_leaves(&mut self, inode: u64, root: &TreeRoot, survey: &mut Survey) -> Vec<(u64, Pointer)> {
        let mut found = Vec::new();
        let mut open = vec![(root.pointer, root.level, 0u64)];
        while let Some((pointer, level, index)) = open.pop() {
            if level == 0 {
                found.push((index, pointer));
                continue;
            }
            let Ok(node) = self.read(&pointer, Place { inode, level, index }) else {
                survey.unreadable.insert(self.end_of(pointer.location).segment);
                continue;
            };
            for child in &node.header.children {
                open.push((child.pointer, level - 1, index * 128 + u64::from(child.slot)));
            }
        }
        found
    }

    /// Where records lead from a place, as far as they do.
    fn end_of(&self, mut location: Location) -> Location {
        for _ in 0..16 {
            let prefix = ForwardingRecord::prefix(&FAMILY, location.segment);
            let next = [&self.contents, &self.copies].into_iter().find_map(|contents| {
                contents
                    .range(ObjectKey::of_prefix(&prefix)..)
                    .take_while(|(key, _)| key.as_str().starts_with(&prefix))
                    .find_map(|(_, bytes)| ForwardingRecord::decode(bytes).ok()?.find(&location))
            });
            match next {
                Some(next) => location = next,
                None => break,
            }
        }
        location
    }

    pub fn checkpoint(&mut self, pointer: &Pointer, version: Version) -> Result<Checkpoint, String> {
        let object = self.read(pointer, checkpoint_place(version))?;
        Checkpoint::from_verified(&object).map_err(|error| error.to_string())
    }
}

/// Reads a committed root with all its snapshots, each against what the model says it must show.
pub fn check_root(
    reader: &mut Reader,
    pointer: &Pointer,
    version: Version,
    with_snapshots: bool,
    expected: &BTreeMap<Version, Shown>,
) -> Result<(), String> {
    let checkpoint = reader.checkpoint(pointer, version)?;
    let mut roots = vec![(version, checkpoint.inode_map, checkpoint.orphans)];
    if with_snapshots {
        let kept = checkpoint.snapshots.iter();
        roots.extend(kept.map(|snapshot| (snapshot.version, Some(snapshot.inode_map), snapshot.orphans)));
        if let Some(usage) = &checkpoint.usage {
            for (index, pointer) in reader.leaves(firn_format::USAGE_MAP, usage)? {
                reader.read(&pointer, firn_format::UsageLeaf::place(index))?;
            }
        }
    }
    for (version, inode_map, orphans) in roots {
        let shown = reader.show(inode_map, orphans)?;
        if Some(&shown) != expected.get(&version) {
            return Err(format!(
                "version {version} shows something else than was committed"
            ));
        }
    }
    Ok(())
}
