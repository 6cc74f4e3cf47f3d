//! The manifest of segments, as the checkpointer keeps it: which segments must exist in the bucket, under the root (decision 0171).
//!
//! ```text
//! packer closes a segment ─ hash ─▶ Finished ─┐
//! the newest checkpoint's own segment, tail ──┼─▶ listed in the checkpoint, at most 16 ─▶ the tree, once there are more
//! what cleaners wrote, by their rounds ───────┘        what they retired ─▶ taken out of either
//! ```
//!
//! A segment enters with the commit that packed it; only that in which the checkpoint itself lies cannot have its own hash, and enters with
//! the next. So after a start one segment is read, the tail of the root that was found, and nothing else was lost with the process.
//!
//! **What leaves.** Only what the table says was retired, in the order of its rounds: never what no tree of this volume needs. A round that is not
//! there any more, or a part of the tree that cannot be read, ends the manifest: from then on the volume is one without, which audits say. No data
//! is concerned.
//!
//! The tree is written after the usage map and counted in none: it belongs to the head alone, and snapshots need none.

mod finished;
mod leaves;
mod rounds;

pub use finished::FinishedSegments;
pub(crate) use rounds::newer_rounds;

use crate::{
    checkpoint::{CheckpointError, Packer, confirm::is_retired},
    gathering::{Gathered, ManifestStatus},
    objects::{Objects, ReadError},
};
use firn_anchor::StoredRound;
use firn_env::Monotonic;
use firn_format::{
    Gathering, GatheringStage, ListedSegment, MANIFEST, MAX_LISTED_SEGMENTS, ManifestEntry, ManifestPart,
    SegmentId, TreeRoot, Version, decode_segment, usage_slot,
};
use firn_store::{ObjectKey, StoreError};
use std::{collections::BTreeMap, time::Duration};

/// Between two tries to read a segment while the store does not answer; the journal keeps everything meanwhile.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// The manifest of a branch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifest {
    /// As it was committed, with the cleaner's places once a merge took them over. `None`: the volume has none.
    part: Option<ManifestPart>,
    /// The segment in which the newest checkpoint lies.
    tail: Tail,
    /// When rounds were asked for.
    looked: Option<Monotonic>,
}

#[derive(Clone, Debug, Default)]
enum Tail {
    /// It was entered, or there is none.
    #[default]
    Entered,
    /// This process packed it.
    Known(ListedSegment),
    /// Another did, which packed this version in it.
    Unread(SegmentId, Version),
}

/// Why the manifest ends.
enum End {
    Read(ReadError),
    Undecodable(firn_format::FormatError),
    Checkpoint(CheckpointError),
}

impl Manifest {
    /// Of a new, empty volume, in a family that has had so many rounds.
    pub fn of_new_volume(newest_round: u64) -> Self {
        Self {
            part: Some(ManifestPart {
                newest_round,
                ..ManifestPart::default()
            }),
            ..Self::default()
        }
    }

    /// Begins to gather one in a volume that has none, which has taken in so many rounds; whether one was begun. If one is under way it only
    /// takes over the rate; one that ended with gaps is gone through again.
    pub fn begin(&mut self, newest_round: u64, begun: Gathering) -> bool {
        let Some(part) = &mut self.part else {
            *self = Self::found(Some(ManifestPart {
                newest_round,
                gathering: Some(begun),
                ..ManifestPart::default()
            }));
            return true;
        };
        if let Some(gathering) = &mut part.gathering {
            gathering.bytes_per_second = begun.bytes_per_second;
            if gathering.stage == GatheringStage::Gaps {
                *gathering = Gathering {
                    told: gathering.told,
                    run: gathering.run + 1,
                    segments: gathering.segments,
                    ..begun
                };
            }
        }
        false
    }

    /// The same from nothing, whatever there was. What was packed meanwhile and is in no root yet stays to be entered.
    pub fn begin_anew(&mut self, newest_round: u64, begun: Gathering) {
        *self = Self {
            looked: self.looked,
            ..Self::found(Some(ManifestPart {
                newest_round,
                gathering: Some(begun),
                ..ManifestPart::default()
            }))
        };
    }

    /// A clone begins with it: if it is not whole, the clone's own trees are gone through.
    pub fn of_clone(&mut self, now_ms: i64) {
        let gathering = self.part.as_mut().and_then(|part| part.gathering.as_mut());
        if let Some(gathering) = gathering
            && gathering.stage != GatheringStage::Settled
        {
            *gathering = Gathering {
                told: gathering.told,
                bytes_per_second: gathering.bytes_per_second,
                begun_at_ms: now_ms,
                ..Gathering::default()
            };
        }
    }

    /// How far it is gathered; `None`: there is none, or it has all.
    pub fn gathering(&self) -> Option<Gathering> {
        self.part.as_ref()?.gathering
    }

    /// Whether the volume has one.
    pub fn status(&self) -> ManifestStatus {
        match &self.part {
            None => ManifestStatus::Without,
            Some(part) => match part.gathering {
                Some(gathering) if gathering.stage != GatheringStage::Settled => {
                    ManifestStatus::Gathering(gathering)
                }
                Some(_) | None => ManifestStatus::Whole,
            },
        }
    }

    /// Whether it says of this segment.
    ///
    /// # Errors
    /// If a part of it cannot be read.
    pub async fn has(&self, objects: &Objects, segment: SegmentId) -> Result<bool, ReadError> {
        let Some(part) = &self.part else { return Ok(false) };
        let is_tail = match &self.tail {
            Tail::Entered => false,
            Tail::Known(listed) => listed.segment == segment,
            Tail::Unread(tail, _) => *tail == segment,
        };
        let is_listed = part.listed.iter().any(|listed| listed.segment == segment);
        if is_tail || is_listed {
            return Ok(true);
        }
        leaves::has(objects, part.root, segment).await
    }

    /// That of a checkpoint.
    pub fn found(part: Option<ManifestPart>) -> Self {
        Self {
            part,
            ..Self::default()
        }
    }

    /// The checkpoint that it was found in is this version's, and lies in this segment.
    pub fn lies_in(&mut self, segment: SegmentId, version: Version) {
        if self.is_kept() && !firn_env::planted!("volume.manifest_forgets_tail") {
            self.tail = Tail::Unread(segment, version);
        }
    }

    /// Whether the volume has one.
    pub fn is_kept(&self) -> bool {
        self.part.is_some()
    }

    /// The tree's root, for who moves trees.
    pub fn root(&self) -> Option<TreeRoot> {
        self.part.as_ref()?.root
    }

    /// The same tree at other places, or sealed anew.
    pub fn set_root(&mut self, root: TreeRoot) {
        if let Some(part) = &mut self.part {
            part.root = Some(root);
        }
    }

    /// Enters what was packed so far, takes in `rounds`, and returns the checkpoint's part. After everything else but the checkpoint itself.
    ///
    /// # Errors
    /// Only what ends the checkpoint.
    pub async fn write(
        &mut self,
        packer: &mut Packer,
        rounds: &[StoredRound],
        gathered: Option<Gathered>,
    ) -> Result<Option<ManifestPart>, CheckpointError> {
        let Some(mut before) = self.part.clone() else {
            return Ok(None);
        };
        packer.finish_map(MANIFEST).await?;
        let gathered = take_in(&mut before, gathered);
        let tail = match std::mem::take(&mut self.tail) {
            Tail::Entered => None,
            Tail::Known(listed) => Some(listed),
            Tail::Unread(segment, version) => read_tail(packer, segment, version).await?,
        };
        match next(packer, before, tail, rounds, gathered).await {
            Ok(part) => self.part = Some(part),
            Err(End::Checkpoint(error)) => return Err(error),
            Err(End::Read(error)) => self.give_up(packer, &error.to_string()),
            Err(End::Undecodable(error)) => self.give_up(packer, &error.to_string()),
        }
        Ok(self.part.clone())
    }

    /// The checkpoint that was packed last is committed.
    pub fn committed(&mut self, packer: &Packer) {
        if self.part.is_none() {
            return;
        }
        let mut finished = packer.context().finished.take();
        debug_assert!(
            finished.len() <= 1,
            "the checkpoint's own segment is the last one"
        );
        if let Some(listed) = finished.pop() {
            self.tail = Tail::Known(listed);
        }
    }

    /// From now on the volume has no manifest.
    fn give_up(&mut self, packer: &Packer, why: &str) {
        tracing::error!(
            why,
            "the manifest of segments ends here: audits go by the trees alone from now on. No data is concerned"
        );
        packer.context().finished.unwant();
        *self = Self::default();
    }
}

/// The part of the next checkpoint.
async fn next(
    packer: &mut Packer,
    mut part: ManifestPart,
    tail: Option<ListedSegment>,
    rounds: &[StoredRound],
    gathered: Vec<ListedSegment>,
) -> Result<ManifestPart, End> {
    let mut entries: BTreeMap<SegmentId, ManifestEntry> = BTreeMap::new();
    let is_gathered = !gathered.is_empty();
    // First: what else is told of the same segment tells more.
    for listed in gathered {
        enter(&mut entries, listed);
    }
    let listed = std::mem::take(&mut part.listed);
    let finished = packer.context().finished.take();
    for listed in listed.into_iter().chain(tail).chain(finished) {
        enter(&mut entries, listed);
    }
    let mut retired = Vec::new();
    for StoredRound { number, round, .. } in rounds {
        let written = match firn_env::planted!("volume.manifest_ignores_written") {
            true => &[][..],
            false => &round.written,
        };
        for listed in written {
            enter(&mut entries, *listed);
        }
        for segment in &round.retired {
            // What was gathered may stand in the tree, too.
            if entries.remove(segment).is_none() || is_gathered {
                retired.push(*segment);
            }
        }
        part.newest_round = *number;
    }
    if let Some(gathering) = &mut part.gathering {
        gathering.told |= !rounds.is_empty();
        if gathering.told && gathering.stage == GatheringStage::Settled {
            part.gathering = None;
        }
    }
    loop {
        let has_room = entries.len() <= MAX_LISTED_SEGMENTS;
        part.root = leaves::update(packer, part.root, &mut entries, &retired, has_room).await?;
        retired.clear();
        // What the tree itself filled.
        for listed in packer.context().finished.take() {
            enter(&mut entries, listed);
        }
        if entries.len() <= MAX_LISTED_SEGMENTS {
            break;
        }
        // What was just packed is read again.
        packer.finish().await.map_err(End::Checkpoint)?;
    }
    let listed = entries.into_iter();
    part.listed = listed
        .map(|(segment, entry)| ListedSegment { segment, entry })
        .collect();
    Ok(part)
}

/// What a step of gathering found, if it is of this run and no round was taken in since.
fn take_in(part: &mut ManifestPart, gathered: Option<Gathered>) -> Vec<ListedSegment> {
    let (Some(now), Some(gathered)) = (part.gathering, gathered) else {
        return Vec::new();
    };
    if now.run != gathered.run || part.newest_round > gathered.as_of_round {
        return Vec::new();
    }
    // Whoever began it again meanwhile set the rate.
    part.gathering = Some(Gathering {
        bytes_per_second: now.bytes_per_second,
        told: now.told,
        ..gathered.next
    });
    gathered.entries
}

fn enter(entries: &mut BTreeMap<SegmentId, ManifestEntry>, listed: ListedSegment) {
    // Beyond what the map can name there is nothing: 2^39 starts.
    if usage_slot(listed.segment).is_some() {
        entries.insert(listed.segment, listed.entry);
    }
}

/// The entry of a segment that an earlier process packed; `None` if it was retired since.
async fn read_tail(
    packer: &Packer,
    segment: SegmentId,
    version: Version,
) -> Result<Option<ListedSegment>, CheckpointError> {
    let context = packer.context();
    let key = ObjectKey::new(&segment.key(&context.family));
    let is_it = |bytes: &bytes::Bytes| {
        decode_segment(bytes.clone()).is_ok_and(|found| (found.id, found.family) == (segment, context.family))
    };
    let listed = |entry| Some(ListedSegment { segment, entry });
    let entry_of = async |bytes: bytes::Bytes| {
        let hashed = context
            .env
            .compute(move || ManifestEntry::of_bytes(&bytes, version));
        hashed.await
    };
    if let Some(pinned) = context.objects.pinned_segment(segment).await
        && is_it(&pinned)
    {
        return Ok(entry_of(pinned).await.and_then(listed));
    }
    loop {
        match context.store.get(&key).await {
            Ok(bytes) if is_it(&bytes) => return Ok(entry_of(bytes).await.and_then(listed)),
            Ok(_) | Err(StoreError::NotFound { .. }) => {
                match is_retired(&*context.store, &context.anchor, context.family, segment).await {
                    Ok(true) => return Ok(None),
                    Ok(false) => {
                        tracing::error!(%key, "the segment of the newest checkpoint is not there as it was put");
                        return Ok(listed(ManifestEntry::unread(version)));
                    }
                    Err(_) => {}
                }
            }
            Err(error) => tracing::debug!(%error, "the segment of the newest checkpoint cannot be read now"),
        }
        context.env.sleep(READ_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_format::WriterId;

    #[test]
    fn what_a_step_found_counts_only_in_its_run_and_if_no_round_was_taken_in_since() {
        let segment = SegmentId {
            writer: WriterId(1),
            sequence: 2,
        };
        let entry = ManifestEntry::unread(Version(0));
        let gathered = |as_of_round, run| Gathered {
            as_of_round,
            run,
            entries: vec![ListedSegment { segment, entry }],
            next: Gathering {
                inode: 9,
                run,
                ..Gathering::default()
            },
        };
        let taken = |newest_round, gathered| {
            let mut part = ManifestPart {
                newest_round,
                gathering: Some(Gathering {
                    bytes_per_second: 7,
                    told: true,
                    run: 1,
                    ..Gathering::default()
                }),
                ..ManifestPart::default()
            };
            let entries = take_in(&mut part, gathered).len();
            let now = part.gathering.expect("it is gathered");
            assert_eq!((now.bytes_per_second, now.told, now.run), (7, true, 1));
            (entries, now.inode)
        };
        assert_eq!(taken(4, Some(gathered(4, 1))), (1, 9));
        assert_eq!(
            taken(4, Some(gathered(5, 1))),
            (1, 9),
            "the round 5 takes it out again"
        );
        assert_eq!(
            taken(5, Some(gathered(4, 1))),
            (0, 0),
            "the round 5 may have retired it"
        );
        assert_eq!(taken(4, Some(gathered(4, 0))), (0, 0), "it was begun anew");
        assert_eq!(taken(4, None), (0, 0));
        let mut whole = ManifestPart::default();
        assert!(take_in(&mut whole, Some(gathered(4, 1))).is_empty() && whole.gathering.is_none());
    }
}
