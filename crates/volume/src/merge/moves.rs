//! Relocations of a proposal: the places to which its cleaner moved what lay in the segments that it
//! retired, by its own forwarding records.
//!
//! Where the head's node differs from the proposed one, the node of the proposal would be fetched for the places of the leaves
//! that both have: 7 KB for each changed node. The records say the same in 28 bytes for each leaf that moved, once for all
//! nodes, and they are the same party's word: no better and no worse than the proposal, and sampled like it.

use crate::objects::{Objects, ReadError, Relocation};
use firn_anchor::UsageChange;
use firn_format::{Child, ForwardingRecord, Location, SegmentId, WriterId};
use std::collections::{BTreeMap, BTreeSet};

/// Entries of records held while a proposal is merged, of 28 bytes: those of a thousand segments. Beyond, nodes are fetched.
const ENTRIES_MAX: usize = 1 << 17;

/// The records of one proposal, read as they are needed.
pub(crate) struct Moves {
    mover: WriterId,
    retired: BTreeSet<SegmentId>,
    /// `None`: there is none by this mover.
    records: BTreeMap<SegmentId, Option<ForwardingRecord>>,
    entries: usize,
    /// Segments that things were moved to.
    moved_to: BTreeSet<SegmentId>,
    /// Nodes and inodes of the proposal that nothing of ours leads to, as far as they were moved.
    unused: BTreeSet<Location>,
}

impl Moves {
    pub fn new(mover: WriterId, proposed: &[UsageChange]) -> Self {
        let retired = proposed.iter().filter(|change| change.is_retired);
        Self {
            mover,
            retired: retired.map(|change| change.segment).collect(),
            records: BTreeMap::new(),
            entries: 0,
            moved_to: proposed
                .iter()
                .filter(|change| change.bytes > 0)
                .map(|change| change.segment)
                .collect(),
            unused: BTreeSet::new(),
        }
    }

    /// What readers need to know of it once it is merged.
    pub fn into_relocation(self) -> Relocation {
        Relocation {
            mover: self.mover,
            retired: self.retired,
            records: self.records.into_values().flatten().collect(),
        }
    }

    /// Notes that ours is newer than what the proposal has here.
    pub fn note_unused(&mut self, location: Location) {
        if self.moved_to.contains(&location.segment) && self.unused.len() < ENTRIES_MAX {
            self.unused.insert(location);
        }
    }

    /// What of the moved things nothing leads to: what was noted, and where went what lay at `released`.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`].
    pub async fn unused(
        &mut self,
        objects: &Objects,
        released: impl Iterator<Item = Location>,
    ) -> Result<BTreeSet<Location>, ReadError> {
        for old in released {
            if let Some(new) = self.of(objects, &old).await? {
                self.note_unused(new);
            }
        }
        Ok(std::mem::take(&mut self.unused))
    }

    /// The new places of those leaves that lie in retired segments, by slot; `None` if the records do not say them all.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`].
    pub async fn of_leaves(
        &mut self,
        objects: &Objects,
        leaves: &[Child],
    ) -> Result<Option<BTreeMap<u16, Location>>, ReadError> {
        if self.retired.is_empty() {
            return Ok(None);
        }
        let mut found = BTreeMap::new();
        for leaf in leaves {
            let old = leaf.pointer.location;
            if !self.retired.contains(&old.segment) {
                continue;
            }
            let Some(record) = self.record(objects, old.segment).await? else {
                return Ok(None);
            };
            let new = record.find(&old);
            match new {
                // Moved twice by one proposal.
                Some(new) if self.retired.contains(&new.segment) => return Ok(None),
                Some(new) => found.insert(leaf.slot, new),
                None => return Ok(None),
            };
        }
        Ok(Some(found))
    }

    /// Where one object went; `None` if it was not moved, as far as records say.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`].
    async fn of(&mut self, objects: &Objects, old: &Location) -> Result<Option<Location>, ReadError> {
        if !self.retired.contains(&old.segment) {
            return Ok(None);
        }
        let record = self.record(objects, old.segment).await?;
        Ok(record.and_then(|record| record.find(old)))
    }

    async fn record(
        &mut self,
        objects: &Objects,
        segment: SegmentId,
    ) -> Result<Option<&ForwardingRecord>, ReadError> {
        if !self.records.contains_key(&segment) {
            if self.entries > ENTRIES_MAX {
                return Ok(None);
            }
            let record = objects.moved_by(segment, self.mover).await?;
            self.entries += record.as_ref().map_or(0, |record| record.entries.len());
            self.records.insert(segment, record);
        }
        Ok(self.records[&segment].as_ref())
    }
}
