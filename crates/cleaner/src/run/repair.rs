//! Repair: lost segments are retired like any others, with the second store as the source of what lay in them.
//!
//! ```text
//! lost segment ─ retired already ──────────────────────────────→ nothing to do
//!              ├ its writer may still commit it, or a proposal
//!              │ that nobody merged leads to it ───────────────→ waits for the next repair
//!              ├ no index in either store ─────────────────────→ beyond repair
//!              ├ no root needs anything of it, it is gone, and no
//!              │ manifest has it ──────────────────────────────→ unneeded
//!              ├ what is needed is right in one store or other → moved into the repairer's own log, retired with a record
//!              └ something needed is right in neither ─────────→ beyond repair; it stays, and what is right is read as before
//! ```
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
    victims::{Candidate, Hint},
};
use firn_anchor::retirement_segments;
use firn_format::{SegmentId, WriterId};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Rounds that another cleaner may win before this one gives up for now.
const OVERTAKEN_MAX: u64 = 8;

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
    /// That the first store does not have, and of which no root needs anything.
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
        let mut open = lost.clone();
        loop {
            let mut scene = self.look(objects).await?;
            let batch = self.gather_lost(objects, &mut scene, &mut open, repair).await?;
            if batch.is_empty() {
                break;
            }
            let tried: Vec<SegmentId> = batch.iter().map(|victim| victim.candidate.segment).collect();
            if is_plan {
                repair.repaired.extend(tried);
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
                    false => open.extend(tried),
                }
                continue;
            }
            objects.learn_retirements().await?;
            for segment in tried {
                match objects.is_retired(segment).await? {
                    true => drop(repair.repaired.insert(segment)),
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
        open: &mut BTreeSet<SegmentId>,
        repair: &mut Repair,
    ) -> Result<Vec<Judged>, CleanError> {
        let proposed: BTreeSet<WriterId> = scene.branches.iter().filter_map(Branch::proposed_by).collect();
        let segments_max = retirement_segments(scene.branches.len().min(super::MAX_PROPOSALS));
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        while batch.len() < segments_max
            && batch_bytes < self.limits.batch_bytes
            && let Some(segment) = open.pop_first()
        {
            let is_blind = firn_env::planted!("cleaner.repair_of_a_retired_segment");
            if objects.is_retired(segment).await? && !is_blind {
                repair.retired.insert(segment);
                continue;
            }
            if proposed.contains(&segment.writer) {
                repair.waiting.insert(segment);
                continue;
            }
            let sizes = sizes(objects, segment).await?;
            let (all, states) = (&scene.branches, &mut scene.writer_states);
            let mut verdict = Verdict::Gone;
            for size_bytes in sizes.values() {
                let candidate = Candidate {
                    segment,
                    size_bytes: *size_bytes,
                    modified_ms: 0,
                    hint: Hint::default(),
                };
                verdict = judge(objects, &self.limits, all, states, candidate).await?;
                if !matches!(verdict, Verdict::Unreadable(_) | Verdict::Gone) {
                    break;
                }
            }
            let beyond = |detail: String| Beyond { segment, detail };
            match verdict {
                Verdict::Judged(victim) => {
                    let needed = victim.objects.iter().any(|(_, fate)| *fate != Fate::Dead);
                    // A manifest has it until it is retired.
                    if !needed && !sizes.contains_key("first") && !branches::tell_manifests(all) {
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
                Verdict::Unreadable(detail) => repair.beyond.push(beyond(detail)),
                Verdict::Undecidable(damage) => {
                    repair.report.add_damage(&damage);
                    repair.beyond.push(beyond(damage.to_string()));
                }
                Verdict::Gone => repair.beyond.push(beyond("it is in neither store".into())),
            }
        }
        Ok(batch)
    }
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
