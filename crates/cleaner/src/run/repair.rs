//! Repair: lost segments are retired like any others, with the second store as the source of what lay in them.
//!
//! ```text
//! lost segment ─ retired already ──────────────────────────────→ nothing to do
//!              ├ its writer may still commit it ───────────────→ waits for the next repair
//!              ├ no index in either store, and a pointer leads
//!              │ there, or what does cannot be told ───────────→ beyond repair
//!              ├ no index in either store, its writer never was ─→ beyond repair: nothing of this name was ever put, or the table was put back
//!              ├ no root needs anything of it ─────────────────→ unneeded; retired, if it is there or a manifest may have it
//!              ├ what is needed is right in one store or other → moved into the repairer's own log, retired with a record
//!              └ something needed is right in neither ─────────→ beyond repair; it stays, and what is right is read as before
//! ```
//!
//! That neither store has it does not make a segment a loss: a cleaner that found nothing needed of it deletes it, and forgets that it was ever
//! retired, while whoever met its damage still remembers the name. So what has no index is looked for from the roots ([`reached`]).
//!
//! It is a cleaner's round in all else: judged by the roots of all branches, written bottom-up, one conditional transaction. So it runs beside
//! cleaners and takeovers, may end anywhere, and is refused if anything was retired since it looked.

use super::{Cleaner, Scene};
use crate::{
    CleanError, Report,
    branches::{self, Branch},
    deletion,
    judge::{Fate, Judged, Verdict, judge},
    objects::Objects,
    own_log::OwnLog,
    reachability::reached,
    tenure::WriterState,
    victims::{Candidate, Hint},
};
use firn_anchor::retirement_segments;
use firn_format::SegmentId;
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Rounds that another cleaner may win before this one gives up for now.
const OVERTAKEN_MAX: u64 = 8;

/// What is said of a name that nothing can have been put under.
const NEVER_EXISTED: &str = "and no file needs it: the table has given its number to no writer. Either no segment of this name ever existed, and whoever told \
                             the manifest of it was wrong; or the table was put back to an earlier state";

/// What is beyond repair of a segment, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// The segment.
    pub segment: SegmentId,
    /// In neither store, or what is wrong there.
    pub detail: String,
}

/// What a repair did, or would do.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// Whose needed objects lie elsewhere now.
    pub repaired: BTreeSet<SegmentId>,
    /// Of which no root needs anything, and none will.
    pub unneeded: BTreeSet<SegmentId>,
    /// That were retired before: by a cleaner, or by an earlier repair.
    pub retired: BTreeSet<SegmentId>,
    /// That cannot be judged yet: come again after the next commit.
    pub waiting: BTreeSet<SegmentId>,
    /// That nothing can be done about.
    pub beyond: Vec<Beyond>,
    /// Objects that were moved, or would be.
    pub moved_objects: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// The round's own report: what it wrote and what it cost of the first store.
    pub report: Report,
}

impl Cleaner {
    /// Writes what is needed of `lost` segments anew, from `second` where the store does not have it, and retires them; with `is_plan` it only
    /// tells. Cancel-safe as [`Cleaner::run`] is.
    ///
    /// # Errors
    /// [`CleanError`]; what was retired before stays so, and nothing else was changed.
    pub async fn repair(
        &mut self,
        second: Option<Arc<dyn Store>>,
        lost: &BTreeSet<SegmentId>,
        is_plan: bool,
    ) -> Result<Repair, CleanError> {
        let before = self.meter.usage();
        let segment_bytes = self.limits.segment_bytes;
        let mut log = OwnLog::new(&self.env, self.store.clone(), &self.anchor, segment_bytes);
        let mut repair = Repair::default();
        let mut objects = self.objects().with_second(second, lost.clone());
        let done = self
            .repair_all(&mut objects, &mut log, lost, is_plan, &mut repair)
            .await;
        let ended = log.end().await;
        repair.report.written_bytes += log.written_bytes;
        repair.report.usage = self.meter.usage().since(&before);
        done?;
        ended?;
        Ok(repair)
    }

    async fn repair_all(
        &mut self,
        objects: &mut Objects,
        log: &mut OwnLog,
        lost: &BTreeSet<SegmentId>,
        is_plan: bool,
        repair: &mut Repair,
    ) -> Result<(), CleanError> {
        let mut open = Open {
            segments: lost.clone(),
            unreached: BTreeMap::new(),
        };
        loop {
            let mut scene = self.look(objects).await?;
            let batch = self.gather_lost(objects, &mut scene, &mut open, repair).await?;
            if batch.is_empty() {
                match open.segments.is_empty() {
                    true => break,
                    false => continue,
                }
            }
            let tried: Vec<SegmentId> = batch.iter().map(|victim| victim.candidate.segment).collect();
            let unneeded: BTreeSet<SegmentId> = batch
                .iter()
                .filter(|victim| !victim.is_needed())
                .map(|victim| victim.candidate.segment)
                .collect();
            if is_plan {
                repair.settle(tried, &unneeded);
                continue;
            }
            if !self
                .retire(objects, log, &scene, batch, &mut repair.report)
                .await?
            {
                repair.report.overtaken += 1;
                match repair.report.overtaken > OVERTAKEN_MAX {
                    true => repair.waiting.extend(tried),
                    // Looked at again, for whoever was first may have retired some of them.
                    false => open.segments.extend(tried),
                }
                continue;
            }
            objects.learn_retirements().await?;
            for segment in tried {
                match objects.is_retired(segment).await? {
                    true => repair.settle([segment], &unneeded),
                    false => repair.beyond.push(Beyond {
                        segment,
                        detail: "an object of it that is needed is right in neither store".into(),
                    }),
                }
            }
        }
        if repair.report.retired_segments > 0 {
            deletion::start_grace(objects).await?;
        }
        Ok(())
    }

    /// Judges lost segments until a batch is full.
    async fn gather_lost(
        &self,
        objects: &mut Objects,
        scene: &mut Scene,
        open: &mut Open,
        repair: &mut Repair,
    ) -> Result<Vec<Judged>, CleanError> {
        let segments_max = retirement_segments(scene.branches.len().min(super::MAX_PROPOSALS));
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        let mut without_index = BTreeMap::new();
        while batch.len() < segments_max
            && batch_bytes < self.limits.batch_bytes
            && let Some(segment) = open.segments.pop_first()
        {
            let is_blind = firn_env::planted!("cleaner.repair_of_a_retired_segment");
            if objects.is_retired(segment).await? && !is_blind {
                repair.retired.insert(segment);
                continue;
            }
            if let Some(victim) = open.unreached.remove(&segment) {
                batch.push(victim);
                continue;
            }
            let sizes = sizes(objects, segment).await?;
            let (all, states) = (&scene.branches, &mut scene.writer_states);
            let mut verdict = Verdict::Gone;
            for size_bytes in sizes.values() {
                let candidate = candidate(segment, *size_bytes);
                verdict = judge(objects, &self.limits, all, states, candidate).await?;
                if !matches!(verdict, Verdict::Unreadable(_) | Verdict::Gone) {
                    break;
                }
            }
            let beyond = |detail: String| Beyond { segment, detail };
            match verdict {
                Verdict::Judged(victim) => {
                    if !victim.is_needed() && !is_to_be_retired(&sizes, all) {
                        repair.unneeded.insert(segment);
                        continue;
                    }
                    let moved = victim.objects.iter().filter(|(_, fate)| *fate == Fate::Move);
                    repair.moved_objects += moved.count() as u64;
                    repair.moved_bytes += victim.moved_bytes();
                    batch_bytes += victim.moved_bytes();
                    batch.push(victim);
                }
                Verdict::NotYet(_) => {
                    repair.waiting.insert(segment);
                }
                Verdict::Unreadable(detail) => {
                    without_index.insert(segment, WithoutIndex { sizes, detail });
                }
                Verdict::Undecidable(damage) => {
                    repair.report.add_damage(&damage);
                    repair.beyond.push(beyond(damage.to_string()));
                }
                Verdict::Gone => {
                    let detail = "it is in neither store".to_owned();
                    without_index.insert(segment, WithoutIndex { sizes, detail });
                }
            }
        }
        self.judge_by_roots(objects, scene, without_index, &mut batch, (open, repair))
            .await?;
        Ok(batch)
    }

    /// Judges segments whose index neither store has, by what leads to them.
    async fn judge_by_roots(
        &self,
        objects: &mut Objects,
        scene: &mut Scene,
        without_index: BTreeMap<SegmentId, WithoutIndex>,
        batch: &mut Vec<Judged>,
        (open, repair): (&mut Open, &mut Repair),
    ) -> Result<(), CleanError> {
        if without_index.is_empty() {
            return Ok(());
        }
        let segments_max = retirement_segments(scene.branches.len().min(super::MAX_PROPOSALS));
        let wanted: BTreeSet<SegmentId> = without_index.keys().copied().collect();
        let met = reached(objects, &scene.branches, &wanted).await?;
        if self.anchor.cleaner_round().await?.0 != scene.round.0 {
            // What the roots needed that were walked may be gone by now, and rightly so.
            repair.report.overtaken += 1;
            match repair.report.overtaken > OVERTAKEN_MAX {
                true => repair.waiting.extend(wanted),
                false => open.segments.extend(wanted),
            }
            return Ok(());
        }
        for (segment, WithoutIndex { sizes, detail }) in without_index {
            let is_planted = firn_env::planted!("cleaner.repair_without_a_walk");
            if met.segments.contains(&segment) || is_planted {
                repair.beyond.push(Beyond { segment, detail });
            } else if let Some(damage) = &met.cut_off {
                let detail = format!("{detail}; whether anything of it is needed cannot be told: {damage}");
                repair.beyond.push(Beyond { segment, detail });
            } else if let Some(why) = self.unsettled(objects, scene, segment).await? {
                match why {
                    // Not retired: whoever is given the number later may write under this name.
                    WriterState::NeverDrawn => repair.beyond.push(Beyond {
                        segment,
                        detail: format!("{detail}, {NEVER_EXISTED}"),
                    }),
                    WriterState::Over
                    | WriterState::UpTo { .. }
                    | WriterState::MayCommit
                    | WriterState::Unknown => drop(repair.waiting.insert(segment)),
                }
            } else if !is_to_be_retired(&sizes, &scene.branches) {
                repair.unneeded.insert(segment);
            } else {
                let victim = Judged {
                    candidate: candidate(segment, sizes.values().copied().max().unwrap_or(0)),
                    objects: Vec::new(),
                };
                if batch.len() < segments_max {
                    batch.push(victim);
                } else {
                    open.segments.insert(segment);
                    open.unreached.insert(segment, victim);
                }
            }
        }
        Ok(())
    }

    /// Why a segment cannot be judged; `None`: its writer can commit nothing of it any more.
    async fn unsettled(
        &self,
        objects: &Objects,
        scene: &mut Scene,
        segment: SegmentId,
    ) -> Result<Option<WriterState>, CleanError> {
        let (all, states) = (&scene.branches, &mut scene.writer_states);
        let state = states.of(objects, &self.limits, all, segment.writer).await?;
        let is_planted = firn_env::planted!("cleaner.repair_waits_for_what_never_was");
        Ok(match state {
            WriterState::NeverDrawn if is_planted => Some(WriterState::MayCommit),
            state => (!state.allows(segment.sequence, None)).then_some(state),
        })
    }
}

/// A segment that tells of nothing that lies in it.
struct WithoutIndex {
    sizes: BTreeMap<&'static str, u64>,
    detail: String,
}

/// What a repair still has to look at.
struct Open {
    segments: BTreeSet<SegmentId>,
    /// Of these, those without an index that were seen to be reached by nobody. Their writers are over, so nobody ever will (I4).
    unreached: BTreeMap<SegmentId, Judged>,
}

impl Repair {
    /// Retired, or to be.
    fn settle(&mut self, segments: impl IntoIterator<Item = SegmentId>, unneeded: &BTreeSet<SegmentId>) {
        for segment in segments {
            match unneeded.contains(&segment) {
                true => self.unneeded.insert(segment),
                false => self.repaired.insert(segment),
            };
        }
    }
}

fn candidate(segment: SegmentId, size_bytes: u64) -> Candidate {
    Candidate {
        segment,
        size_bytes,
        modified_ms: 0,
        hint: Hint::default(),
    }
}

/// Whether a segment that nobody needs is to be retired all the same: a manifest has it until then, and the first store keeps what is there.
fn is_to_be_retired(sizes: &BTreeMap<&'static str, u64>, branches: &[Branch]) -> bool {
    sizes.contains_key("first") || branches::tell_manifests(branches)
}

/// How long the segment is in each store that has it; that of the second, which is not known to be wrong, is looked at first.
async fn sizes(objects: &Objects, segment: SegmentId) -> Result<BTreeMap<&'static str, u64>, CleanError> {
    let key = ObjectKey::new(&segment.key(&objects.anchor.family()));
    let sources = objects.sources(segment);
    let names: &[&str] = if sources.len() > 1 {
        &["a copy", "first"]
    } else {
        &["first"]
    };
    let mut sizes = BTreeMap::new();
    for (store, name) in sources.iter().zip(names) {
        match store.head(&key).await {
            Ok(found) => {
                sizes.insert(*name, found.size_bytes);
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sizes)
}
