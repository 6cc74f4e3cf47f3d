//! Journal replay position after a crash: where a disk stands among the changes of its journal, by looking at the disk.
//!
//! What the client that died had destaged is durable in part. What part, I10 says: in place, all of some epochs and any
//! of the next; in a log, exactly the first n changes. So the position is found by comparing the blocks that the journal names
//! with what its changes would have made of them, and from there on the changes are destaged again. Nothing older is ever
//! written over something newer, so a second crash, or an attach elsewhere in the middle, finds a disk as I10 has it.
//!
//! ```text
//! in place   the greatest R: each block named up to epoch R holds the last of its contents up to R, or one of epoch R + 1
//! log        the greatest n: each block named by the first n changes holds the last of its contents among these
//! ```
//!
//! Of the epoch from which a disk in place goes on, a block that holds one of its contents already is given only later ones: the
//! one that it holds may have been answered as durable by itself.
//!
//! This holds for a disk that nobody else has written since, which its fence tells ([`Journal::claim`](super::Journal::claim)).

use super::{
    entry::Entry,
    journaled::{Inner, Phase},
    tasks::without,
};
use crate::types::Change;
use aws_lc_rs::digest::{SHA256, digest};
use firn_blockd_nbd::{BlockDevice, DeviceError, Piece};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Bytes that are read of the disk at once, and how often side by side.
const LOOK: (u64, usize) = (4 << 20, 8);

/// What stands, or would stand, in a block: equal for equal contents. 0: zeroes.
pub(super) type Content = u128;
/// Of a run of blocks: that not all of them are zero.
const NOT_ZERO: Content = Content::MAX;

/// A change of one run of blocks, as the journal has it. A run is one block, or several that are only ever zeroed, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The first block of the run.
    pub(super) block: u64,
    pub(super) content: Content,
    /// Flushes before it.
    pub(super) epoch: u64,
}

/// A change of the journal without its data.
struct Outline {
    number: u64,
    epoch: u64,
    blocks: Range<u64>,
    /// Of each block; nothing if they are zeroed.
    contents: Vec<Content>,
}

/// The blocks that changes name, cut into runs; by first block, with the end and what the disk holds.
struct Runs(BTreeMap<u64, (u64, Content)>);

impl Runs {
    fn new(changes: &[Outline]) -> Self {
        let mut named = BTreeMap::new();
        let mut cuts = BTreeSet::new();
        for Outline { blocks, contents, .. } in changes {
            cuts.extend([blocks.start, blocks.end]);
            if !contents.is_empty() {
                cuts.extend(blocks.clone());
            }
            let end = named.entry(blocks.start).or_insert(blocks.end);
            *end = blocks.end.max(*end);
        }
        let mut runs = BTreeMap::new();
        let mut done = 0;
        for (first, end) in named {
            let inside: Vec<u64> = cuts.range(first.max(done)..end.max(done)).copied().collect();
            let ends = inside.iter().skip(1).copied().chain([end]);
            runs.extend(inside.iter().copied().zip(ends.map(|end| (end, 0))));
            done = done.max(end);
        }
        Self(runs)
    }

    /// Those of a range of whole runs.
    fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.range(blocks).map(|(first, (end, _))| *first..*end)
    }

    fn end_of(&self, first: u64) -> u64 {
        self.0.get(&first).map_or(first, |(end, _)| *end)
    }

    /// What is to be read of the disk, in pieces.
    fn to_read(&self, blocks_max: u64) -> Vec<Range<u64>> {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        for (&first, &(end, _)) in &self.0 {
            let mut at = first;
            while at < end {
                match pieces.last_mut() {
                    Some(last) if last.end == at && last.end - last.start < blocks_max => {
                        last.end = end.min(last.start + blocks_max);
                        at = last.end;
                    }
                    Some(_) | None => {
                        pieces.push(at..at + 1);
                        at += 1;
                    }
                }
            }
        }
        pieces
    }

    /// A block holds something else than zeroes.
    fn holds(&mut self, block: u64, content: Content) {
        if let Some((first, (end, holds))) = self.0.range_mut(..=block).next_back() {
            *holds = if *end - *first == 1 { content } else { NOT_ZERO };
        }
    }

    fn found(&self) -> BTreeMap<u64, Content> {
        self.0
            .iter()
            .map(|(first, (_, content))| (*first, *content))
            .collect()
    }
}

/// Steps of the epoch that begins at `from` whose run holds that content, or a later one of the epoch.
pub(super) fn superseded(steps: &[Step], from: usize, found: &BTreeMap<u64, Content>) -> Vec<usize> {
    let Some(open) = steps.get(from).map(|step| step.epoch) else {
        return Vec::new();
    };
    let epoch = || {
        (from..)
            .zip(&steps[from..])
            .take_while(|(_, step)| step.epoch == open)
    };
    let held: BTreeMap<u64, usize> = epoch()
        .filter(|(_, step)| found.get(&step.block) == Some(&step.content))
        .map(|(at, step)| (step.block, at))
        .collect();
    epoch()
        .filter(|(at, step)| held.get(&step.block).is_some_and(|held| at <= held))
        .map(|(at, _)| at)
        .collect()
}

/// From which step on a disk in place that holds `found` needs the changes again. `found` has each run of the steps.
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
        let changes = self.journaled_changes(first..end).await?;
        let mut runs = Runs::new(&changes);
        self.look(&mut runs).await?;
        let (mut steps, mut numbers) = (Vec::new(), Vec::new());
        for change in &changes {
            for run in runs.within(change.blocks.clone()) {
                let at = (run.start - change.blocks.start) as usize;
                steps.push(Step {
                    block: run.start,
                    content: change.contents.get(at).copied().unwrap_or(0),
                    epoch: change.epoch,
                });
                numbers.push(change.number);
            }
        }
        let found = runs.found();
        let is_log = self.disk.is_log();
        let from = if firn_env::planted!("journal.repeats_everything") {
            0
        } else if is_log {
            from_prefix(&steps, &found)
        } else {
            from_epochs(&steps, &found)
        };
        let destaged = numbers.get(from).copied().unwrap_or(end);
        let mut skipped: Vec<usize> = (0..from)
            .rev()
            .take_while(|at| numbers[*at] == destaged)
            .collect();
        skipped.reverse();
        if !is_log && !firn_env::planted!("journal.repeats_the_epoch") {
            skipped.extend(superseded(&steps, from, &found));
        }
        let mut skip: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for at in skipped {
            let run = steps[at].block..runs.end_of(steps[at].block);
            skip.entry(numbers[at]).or_default().push(run);
        }
        tracing::warn!(
            entries = end - first,
            missing = end - destaged,
            "the local journal has changes of the attach before; the disk is given those that it lacks"
        );
        let mut state = self.state();
        for Outline { number, blocks, .. } in changes {
            if number < destaged {
                continue;
            }
            let skipped = skip.get(&number).map_or(&[][..], Vec::as_slice);
            for part in without(blocks, skipped) {
                state.spans.insert(part, number);
            }
        }
        state.phase = Phase::Journaling;
        state.session += 1;
        (state.next, state.synced, state.destaged) = (end, end, destaged);
        (state.durable, state.syncing, state.skip) = (first, first, skip);
        Ok(())
    }

    /// The changes of some entries, with what they would make of each block.
    async fn journaled_changes(&self, numbers: Range<u64>) -> Result<Vec<Outline>, DeviceError> {
        let (mut changes, mut epoch) = (Vec::new(), 0);
        for number in numbers {
            let entry = self
                .files()
                .read(number)
                .await
                .map_err(|error| DeviceError::Io(error.to_string()))?;
            let Some(Entry::Change(change)) = entry else {
                continue;
            };
            let contents = match &change {
                Change::Data { data, .. } => data.chunks(self.block_bytes as usize).map(content_of).collect(),
                Change::Zero { .. } => Vec::new(),
                Change::Flush => {
                    epoch += 1;
                    continue;
                }
            };
            changes.push(Outline {
                number,
                epoch,
                blocks: self.blocks_of(&change),
                contents,
            });
        }
        Ok(changes)
    }

    /// What the disk has in these runs.
    async fn look(&self, runs: &mut Runs) -> Result<(), DeviceError> {
        let bytes = u64::from(self.disk.geometry().payload_bytes_max).min(LOOK.0);
        let mut looks = stream::iter(runs.to_read((bytes / self.block_bytes).max(1)))
            .map(|blocks| async move {
                let pieces = self.read_disk(&blocks).await?;
                Ok::<_, DeviceError>((blocks.start, pieces))
            })
            .buffered(LOOK.1);
        while let Some((mut block, pieces)) = looks.try_next().await? {
            for piece in pieces {
                match &piece {
                    Piece::Zeroes(_) => {}
                    Piece::Data(data) => {
                        for (block, bytes) in (block..).zip(data.chunks(self.block_bytes as usize)) {
                            let content = content_of(bytes);
                            if content != 0 {
                                runs.holds(block, content);
                            }
                        }
                    }
                }
                block += piece.length_bytes() / self.block_bytes;
            }
        }
        Ok(())
    }
}

/// Of a block's bytes.
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

    /// Whether the disk holds for a block what came after `step`, which is in the same epoch.
    fn overtaken(steps: &[Step], durable: &[Step], step: Step) -> bool {
        let last = durable.iter().rev().find(|other| other.block == step.block);
        let place = |of: Step| steps.iter().rposition(|other| *other == of);
        last.is_some_and(|last| last.epoch == step.epoch && place(*last) > place(step))
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
            let skipped = superseded(&steps, from, &found);
            let given: Vec<Step> = (from..steps.len())
                .filter(|at| !skipped.contains(at))
                .map(|at| steps[at])
                .collect();
            prop_assert_eq!(after(&found, &given), after(&base, &steps));
            for step in given {
                prop_assert!(step.epoch >= whole, "nothing older than the open epoch is written again");
                prop_assert!(
                    !overtaken(&steps, &durable, step),
                    "nothing is written over what came later: {step:?}"
                );
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

    fn outline(number: u64, blocks: Range<u64>, contents: &[Content]) -> Outline {
        Outline {
            number,
            epoch: 0,
            blocks,
            contents: contents.to_vec(),
        }
    }

    #[test]
    fn what_is_only_zeroed_is_one_run_however_long() {
        let mut runs = Runs::new(&[
            outline(1, 0..1 << 40, &[]),
            outline(2, 10..12, &[7, 8]),
            outline(3, 11..20, &[]),
            outline(4, (1 << 40) + 5..(1 << 40) + 6, &[9]),
        ]);
        let all: Vec<Range<u64>> = runs.within(0..1 << 41).collect();
        let last = (1 << 40) + 5;
        assert_eq!(all, [0..10, 10..11, 11..12, 12..20, 20..1 << 40, last..last + 1]);
        runs.holds(3, 77);
        runs.holds(11, 8);
        runs.holds(last, 9);
        let found: Vec<Content> = runs.found().into_values().collect();
        assert_eq!(found, [NOT_ZERO, 0, 8, 0, 0, 9]);
        assert_eq!(runs.end_of(12), 20);
    }

    #[test]
    fn runs_are_read_in_pieces() {
        let runs = Runs::new(&[
            outline(1, 2..9, &[]),
            outline(2, 9..10, &[1]),
            outline(3, 20..21, &[2]),
        ]);
        assert_eq!(runs.to_read(3), [2..5, 5..8, 8..10, 20..21]);
    }

    proptest! {
        #[test]
        fn runs_cover_what_is_named_and_no_change_names_a_part(
            named in proptest::collection::vec((0..30_u64, 1..12_u64, any::<bool>()), 0..12),
        ) {
            let changes: Vec<Outline> = (1..)
                .zip(&named)
                .map(|(number, (first, count, data))| {
                    let contents = vec![5; if *data { *count as usize } else { 0 }];
                    outline(number, *first..first + count, &contents)
                })
                .collect();
            let runs = Runs::new(&changes);
            let covered: Vec<u64> = runs.within(0..100).flatten().collect();
            let expected: BTreeSet<u64> = changes.iter().flat_map(|change| change.blocks.clone()).collect();
            prop_assert_eq!(&covered, &expected.into_iter().collect::<Vec<u64>>());
            let read: Vec<u64> = runs.to_read(4).into_iter().flatten().collect();
            prop_assert_eq!(&covered, &read);
            for change in &changes {
                let within: Vec<u64> = runs.within(change.blocks.clone()).flatten().collect();
                prop_assert_eq!(within, change.blocks.clone().collect::<Vec<u64>>());
                if !change.contents.is_empty() {
                    prop_assert!(runs.within(change.blocks.clone()).all(|run| run.end - run.start == 1));
                }
            }
        }
    }
}
