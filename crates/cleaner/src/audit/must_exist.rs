//! Segments that must exist by a volume's manifest, in the order of their names (decision 0171).
//!
//! ```text
//! must exist = the manifest of the head − what later rounds retired + what they wrote
//! ```
//!
//! The tree is read leaf by leaf, 8192 segments at a time, so that an archive's manifest need not fit into memory. The segment in which the head's
//! own checkpoint lies is in no manifest yet; who reads the root has met it.

use super::{
    census::{Failure, Sample},
    newest::branches_now,
};
use crate::{CleanError, branches::Branch, lookup::Copies, objects::Objects, reading::read_together};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{
    Gathering, GatheringStage, ListedSegment, MANIFEST, ManifestEntry, ManifestLeaf, Place, Pointer,
    SegmentId, Version, VolumeId, radix, usage_segment, usage_slot,
};
use firn_store::Store;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Leaves read at a time.
const LEAVES: usize = 64;
/// Rounds that a head may be behind; beyond it the manifest is not judged.
const ROUNDS: usize = 10_000;
/// Times that the head is read anew because rounds were forgotten meanwhile.
const TRIES: usize = 4;

/// What must exist, as far as it was not given out yet.
pub(super) struct Reader {
    version: Version,
    leaves: VecDeque<(u64, Pointer)>,
    /// Those that are in no leaf.
    beside: BTreeMap<SegmentId, ManifestEntry>,
    retired: BTreeSet<SegmentId>,
    /// Parts of the tree that cannot be read.
    pub lost: Vec<Failure>,
    /// How far the manifest is gathered; `None`: it has all.
    gathering: Option<Gathering>,
    /// Whether the table has every round since the manifest's newest.
    pub has_all_rounds: bool,
}

impl Reader {
    /// Whether the manifest has all.
    fn is_whole(&self) -> bool {
        self.not_whole().is_none()
    }

    /// How far it is gathered, if it does not have all yet.
    pub fn not_whole(&self) -> Option<Gathering> {
        self.gathering
            .filter(|gathering| gathering.stage != GatheringStage::Settled)
    }

    /// `None`: the volume has no manifest.
    pub async fn open(objects: &mut Objects, branch: &Branch) -> Result<Option<Self>, CleanError> {
        let Some(head) = &branch.head else { return Ok(None) };
        let Some(part) = &head.checkpoint.manifest else {
            return Ok(None);
        };
        let (now, _) = objects.anchor.cleaner_round().await?;
        let mut reader = Self {
            version: head.trees.version,
            leaves: VecDeque::new(),
            beside: part
                .listed
                .iter()
                .map(|listed| (listed.segment, listed.entry))
                .collect(),
            retired: BTreeSet::new(),
            lost: Vec::new(),
            gathering: part.gathering,
            has_all_rounds: now.round >= part.newest_round,
        };
        let mut newest = part.newest_round;
        for stored in objects.anchor.list_rounds(newest, ROUNDS).await? {
            reader.has_all_rounds &= stored.number == newest + 1;
            newest = stored.number;
            for listed in &stored.round.written {
                reader.beside.insert(listed.segment, listed.entry);
            }
            for segment in stored.round.retired {
                reader.beside.remove(&segment);
                reader.retired.insert(segment);
            }
        }
        reader.has_all_rounds &= newest >= now.round;
        if let Some(root) = part.root {
            reader.find_leaves(objects, root.pointer, root.level).await?;
        }
        Ok(Some(reader))
    }

    async fn find_leaves(
        &mut self,
        objects: &mut Objects,
        root: Pointer,
        level: u8,
    ) -> Result<(), CleanError> {
        let mut nodes = vec![(root, 0)];
        for level in (1..=level).rev() {
            let mut below = Vec::new();
            for some in nodes.chunks(LEAVES) {
                let place = |index| Place {
                    inode: MANIFEST,
                    level,
                    index,
                };
                let wanted: Vec<_> = some
                    .iter()
                    .map(|(pointer, index)| (*pointer, place(*index)))
                    .collect();
                for (read, (pointer, index)) in read_together(objects, &wanted, Copies::Any)
                    .await?
                    .into_iter()
                    .zip(some)
                {
                    match read {
                        Ok(node) => below.extend(node.header.children.iter().map(|child| {
                            let slot = u64::from(child.slot);
                            (child.pointer, index << radix::FANOUT.trailing_zeros() | slot)
                        })),
                        Err(_) => self.lose(*pointer, place(*index)),
                    }
                }
            }
            nodes = below;
        }
        self.leaves = nodes
            .into_iter()
            .map(|(pointer, index)| (index, pointer))
            .collect();
        Ok(())
    }

    fn lose(&mut self, pointer: Pointer, place: Place) {
        self.lost.push(Failure {
            sample: Sample {
                pointer,
                place,
                version: self.version,
            },
            is_drawn: false,
        });
    }

    /// Whether a segment must exist, of a reader that nothing was taken from yet; `None` if nobody can tell.
    pub async fn has(&self, objects: &mut Objects, segment: SegmentId) -> Result<Option<bool>, CleanError> {
        if self.retired.contains(&segment) || objects.is_retired(segment).await? {
            return Ok(Some(false));
        }
        if !self.has_all_rounds || !self.lost.is_empty() {
            return Ok(None);
        }
        if self.beside.contains_key(&segment) {
            return Ok(Some(true));
        }
        let Some((index, slot)) = usage_slot(segment) else {
            return Ok(Some(false));
        };
        let Ok(at) = self.leaves.binary_search_by_key(&index, |(index, _)| *index) else {
            return Ok(Some(false));
        };
        match objects.get(&self.leaves[at].1, ManifestLeaf::place(index)).await {
            Ok(object) => {
                let leaf = ManifestLeaf::from_verified(&object).ok();
                let has = |leaf: &ManifestLeaf| leaf.entries().iter().any(|(at, _)| usize::from(*at) == slot);
                Ok(leaf.as_ref().map(has))
            }
            Err(CleanError::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next ones, some thousand; `None` at the end.
    pub async fn next(&mut self, objects: &mut Objects) -> Result<Option<Vec<ListedSegment>>, CleanError> {
        if self.leaves.is_empty() && self.beside.is_empty() {
            return Ok(None);
        }
        let count = self.leaves.len().min(LEAVES);
        let some: Vec<_> = self.leaves.drain(..count).collect();
        let wanted: Vec<_> = some
            .iter()
            .map(|(index, pointer)| (*pointer, ManifestLeaf::place(*index)))
            .collect();
        // What comes after these leaves comes with later ones.
        let mut found = match self.leaves.front() {
            Some((index, _)) => {
                let later = self.beside.split_off(&usage_segment(*index, 0));
                std::mem::replace(&mut self.beside, later)
            }
            None => std::mem::take(&mut self.beside),
        };
        for (read, (index, pointer)) in read_together(objects, &wanted, Copies::Any)
            .await?
            .into_iter()
            .zip(&some)
        {
            let leaf = read
                .ok()
                .and_then(|object| ManifestLeaf::from_verified(&object).ok());
            let Some(leaf) = leaf else {
                self.lose(*pointer, ManifestLeaf::place(*index));
                continue;
            };
            for (slot, entry) in leaf.entries() {
                let segment = usage_segment(*index, usize::from(*slot));
                if !self.retired.contains(&segment) {
                    found.entry(segment).or_insert(*entry);
                }
            }
        }
        let found = found.into_iter();
        Ok(Some(
            found
                .map(|(segment, entry)| ListedSegment { segment, entry })
                .collect(),
        ))
    }
}

/// Which segments must exist by a volume's manifest as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MustExist {
    /// Them, and what is in them.
    pub segments: BTreeMap<SegmentId, ManifestEntry>,
    /// That in which the newest checkpoint lies, by the root.
    pub tail: SegmentId,
    /// The newest round that the manifest itself has taken in.
    pub newest_round: u64,
    /// Whether that is all: a manifest that is being gathered has not yet what no step has met.
    pub is_whole: bool,
}

/// Reads the manifest of a volume whole; `None` if it has none. For tests and for who holds a small bucket against it.
///
/// # Errors
/// [`CleanError`] if store or table cannot be asked, or a part of it is lost, or rounds are.
pub async fn must_exist(
    env: &Env,
    store: Arc<dyn Store>,
    anchor: &Anchor,
    volume: VolumeId,
) -> Result<Option<MustExist>, CleanError> {
    let mut objects = Objects::new(env, store, anchor, 1 << 20);
    let mut tries = 0;
    loop {
        let branches = branches_now(&mut objects).await?;
        let branch = branches.iter().find(|branch| branch.volume == volume);
        let Some((branch, root)) = branch.and_then(|branch| Some((branch, branch.tuple.root.as_ref()?)))
        else {
            return Ok(None);
        };
        let Some(mut reader) = Reader::open(&mut objects, branch).await? else {
            return Ok(None);
        };
        let part = branch
            .head
            .as_ref()
            .and_then(|head| head.checkpoint.manifest.as_ref());
        let mut found = MustExist {
            segments: BTreeMap::new(),
            tail: root.location.segment,
            newest_round: part.map_or(0, |part| part.newest_round),
            is_whole: reader.is_whole(),
        };
        while let Some(some) = reader.next(&mut objects).await? {
            found
                .segments
                .extend(some.into_iter().map(|listed| (listed.segment, listed.entry)));
        }
        tries += 1;
        if !reader.has_all_rounds && tries < TRIES {
            continue;
        }
        let place = reader.lost.first().map(|failure| failure.sample);
        return match place {
            Some(sample) => {
                let detail = "a part of the manifest is lost";
                Err(crate::Damage::new(sample.place, sample.pointer.uid, detail).into())
            }
            // One that is not whole is gathered anew then.
            None if !reader.has_all_rounds && reader.gathering.is_none() => {
                let place = ManifestLeaf::place(0);
                let detail = "rounds of retirement are missing that the manifest has not taken in";
                Err(crate::Damage::new(place, root.uid, detail).into())
            }
            None => {
                found.is_whole &= reader.has_all_rounds;
                Ok(Some(found))
            }
        };
    }
}
