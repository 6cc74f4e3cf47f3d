//! Where a proposal's cleaner put what lay in the segments that it retired, by its own forwarding records.
//!
//! Where the head's node differs from the proposed one, the node of the proposal would be fetched for the places of the leaves
//! that both have: 7 KB for each changed node. The records say the same in 28 bytes for each leaf that moved, once for all
//! nodes, and they are the same party's word: no better and no worse than the proposal, and sampled like it.

use crate::objects::{Objects, ReadError};
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
}

impl Moves {
    pub fn new(mover: WriterId, told: &[UsageChange]) -> Self {
        let retired = told.iter().filter(|change| change.is_retired);
        Self {
            mover,
            retired: retired.map(|change| change.segment).collect(),
            records: BTreeMap::new(),
            entries: 0,
        }
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
            if !self.records.contains_key(&old.segment) {
                if self.entries > ENTRIES_MAX {
                    return Ok(None);
                }
                let record = objects.moved_by(old.segment, self.mover).await?;
                self.entries += record.as_ref().map_or(0, |record| record.entries.len());
                self.records.insert(old.segment, record);
            }
            let record = self.records[&old.segment].as_ref();
            match record.and_then(|record| record.find(&old)) {
                // Moved twice by one proposal.
                Some(new) if self.retired.contains(&new.segment) => return Ok(None),
                Some(new) => found.insert(leaf.slot, new),
                None => return Ok(None),
            };
        }
        Ok(Some(found))
    }
}
