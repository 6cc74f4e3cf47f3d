//! Where a disk stands among the changes of its journal, after a crash: by looking at the disk.
//!
//! What the client that died had given to the disk is durable in part. What part, I10 says: in place, all of some epochs and any
//! of the next; in a log, exactly the first n changes. So the position is found by comparing the blocks that the journal names
//! with what its changes would have made of them, and from there on the changes are given to the disk again. Nothing older is ever
//! written over something newer, so a second crash, or an attach elsewhere in the middle, finds a disk as I10 has it.
//!
//! ```text
//! in place   the greatest R: each block named up to epoch R holds the last of its contents up to R, or one of epoch R + 1
//! log        the greatest n: each block named by the first n changes holds the last of its contents among these
//! ```
//!
//! This holds for a disk that nobody else has written since, which its fence tells ([`Journal::claim`](super::Journal::claim)).

use super::{
    entry::Entry,
    journaled::{Inner, Phase},
};
use crate::types::Change;
use aws_lc_rs::digest::{SHA256, digest};
use firn_blockd_nbd::{BlockDevice, DeviceError, Piece};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// What stands, or would stand, in a block: equal for equal contents.
pub(super) type Content = u128;

/// A change of one block, as the journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) block: u64,
    pub(super) content: Content,
    /// Flushes before it.
    pub(super) epoch: u64,
}

/// From which step on a disk in place that holds `found` needs the changes again. `found` has each block of the steps.
pub(super) fn from_epochs(steps: &[Step], found: &BTreeMap<u64, Content>) -> usize {
    let by_epoch: Vec<&[Step]> = steps.chunk_by(|one, other| one.epoch == other.epoch).collect();
    // Blocks that do not hold the last of their contents so far.
    let mut wrong: BTreeSet<u64> = BTreeSet::new();
    let (mut best, mut at) = (0, 0);
    for whole in 0..=by_epoch.len() {
        let next = by_epoch.get(whole).copied().unwrap_or_default();
        let excused: BTreeSet<u64> = next
            .iter()
            .filter(|step| wrong.contains(&step.block) && found.get(&step.block) == Some(&step.content))
            .map(|step| step.block)
            .collect();
        if excused.len() == wrong.len() {
            best = at;
        }
        for step in next {
            if found.get(&step.block) == Some(&step.content) {
                wrong.remove(&step.block);
            } else {
                wrong.insert(step.block);
            }
        }
        at += next.len();
    }
    best
}

/// The same of a log.
pub(super) fn from_prefix(steps: &[Step], found: &BTreeMap<u64, Content>) -> usize {
    let mut wrong: BTreeSet<u64> = BTreeSet::new();
    let mut best = 0;
    for (at, step) in steps.iter().enumerate() {
        if found.get(&step.block) == Some(&step.content) {
            wrong.remove(&step.block);
        } else {
            wrong.insert(step.block);
        }
        if wrong.is_empty() {
            best = at + 1;
        }
    }
    best
}

impl Inner {
    /// Goes on with what an earlier attach left.
    pub(super) async fn resume(&self) -> Result<(), DeviceError> {
        let Some((_, files)) = &self.journal else {
            return Ok(());
        };
        let (first, end) = files.range();
        if first == end {
            return files
                .clear()
                .await
                .map_err(|error| DeviceError::Io(error.to_string()));
        }
        let (mut steps, mut places, mut epoch) = (Vec::new(), Vec::new(), 0);
        let mut spans: Vec<(u64, Range<u64>)> = Vec::new();
        for number in first..end {
            let entry = files
                .read(number)
                .await
                .map_err(|error| DeviceError::Io(error.to_string()))?;
            let Some(Entry::Change(change)) = entry else {
                continue;
            };
            let blocks = self.blocks_of(&change);
            for (at, block) in blocks.clone().enumerate() {
                let content = match &change {
                    Change::Data { data, .. } => {
                        let bytes = self.block_bytes as usize;
                        content_of(&data[at * bytes..(at + 1) * bytes])
                    }
                    Change::Zero { .. } | Change::Flush => content_of(&[]),
                };
                steps.push(Step {
                    block,
                    content,
                    epoch,
                });
                places.push((number, at as u64));
            }
            match change {
                Change::Flush => epoch += 1,
                Change::Data { .. } | Change::Zero { .. } => spans.push((number, blocks)),
            }
        }
        let named: BTreeSet<u64> = steps.iter().map(|step| step.block).collect();
        let found = self.contents(&named).await?;
        let from = if self.env.is_planted("journal.repeats_everything") {
            0
        } else if self.disk.is_log() {
            from_prefix(&steps, &found)
        } else {
            from_epochs(&steps, &found)
        };
        let (given, skip_blocks) = places.get(from).copied().unwrap_or((end, 0));
        tracing::warn!(
            entries = end - first,
            missing = end - given,
            "the local journal has changes of the attach before; the disk is given those that it lacks"
        );
        let mut state = self.state();
        for (number, blocks) in spans.into_iter().filter(|(number, _)| *number >= given) {
            let skip = if number == given { skip_blocks } else { 0 };
            state.spans.insert(blocks.start + skip..blocks.end, number);
        }
        state.phase = Phase::Journaling;
        state.session += 1;
        (state.next, state.synced, state.given) = (end, end, given);
        (state.durable, state.skip_blocks) = (first, skip_blocks);
        Ok(())
    }

    /// What the disk has in these blocks.
    async fn contents(&self, blocks: &BTreeSet<u64>) -> Result<BTreeMap<u64, Content>, DeviceError> {
        let mut found = BTreeMap::new();
        let mut left = blocks.iter().copied().peekable();
        let once = u64::from(self.disk.geometry().payload_bytes_max) / self.block_bytes;
        while let Some(first) = left.next() {
            let mut end = first + 1;
            while end - first < once && left.next_if_eq(&end).is_some() {
                end += 1;
            }
            let length = (end - first) * self.block_bytes;
            let length = u32::try_from(length).expect("within one payload");
            let mut block = first;
            for piece in self.disk.read(first * self.block_bytes, length).await? {
                let count = piece.length_bytes() / self.block_bytes;
                for at in 0..count {
                    let content = match &piece {
                        Piece::Zeroes(_) => content_of(&[]),
                        Piece::Data(data) => {
                            let from = (at * self.block_bytes) as usize;
                            content_of(&data[from..from + self.block_bytes as usize])
                        }
                    };
                    found.insert(block, content);
                    block += 1;
                }
            }
        }
        Ok(found)
    }
}

/// Of a block's bytes; none, or only zeroes, are the same.
fn content_of(bytes: &[u8]) -> Content {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let digest = digest(&SHA256, bytes);
    let first = digest.as_ref().first_chunk().expect("a digest has 32 bytes");
    u128::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn random_steps() -> impl Strategy<Value = Vec<Step>> {
        proptest::collection::vec((0..4_u64, 1..6_u128, any::<bool>()), 0..14).prop_map(|list| {
            let mut epoch = 0;
            let step = |(block, content, flush): (u64, Content, bool)| {
                epoch += u64::from(flush);
                Step {
                    block,
                    content,
                    epoch,
                }
            };
            list.into_iter().map(step).collect()
        })
    }

    fn after(base: &BTreeMap<u64, Content>, steps: &[Step]) -> BTreeMap<u64, Content> {
        let mut disk = base.clone();
        disk.extend(steps.iter().map(|step| (step.block, step.content)));
        disk
    }

    proptest! {
        #[test]
        fn a_disk_in_place_that_goes_on_from_there_ends_as_if_nothing_had_happened(
            steps in random_steps(),
            whole in 0..14_u64,
            part in proptest::collection::vec(any::<bool>(), 14),
        ) {
            let base: BTreeMap<u64, Content> = (0..4).map(|block| (block, 0)).collect();
            let durable: Vec<Step> = steps
                .iter()
                .zip(part)
                .filter(|(step, part)| step.epoch < whole || (step.epoch == whole && *part))
                .map(|(step, _)| *step)
                .collect();
            let found = after(&base, &durable);
            let from = from_epochs(&steps, &found);
            prop_assert_eq!(after(&found, &steps[from..]), after(&base, &steps));
            if let Some(first) = steps.get(from) {
                prop_assert!(first.epoch >= whole, "nothing older than the open epoch is written again");
            }
        }

        #[test]
        fn a_log_goes_on_behind_what_it_has(steps in random_steps(), count in 0..15_usize) {
            let base: BTreeMap<u64, Content> = (0..4).map(|block| (block, 0)).collect();
            let found = after(&base, &steps[..count.min(steps.len())]);
            let from = from_prefix(&steps, &found);
            prop_assert!(from >= count.min(steps.len()), "nothing older is written again");
            for upto in from..=steps.len() {
                // Every state on the way is a prefix.
                prop_assert_eq!(after(&found, &steps[from..upto]), after(&base, &steps[..upto]));
            }
        }
    }
}
