//! One run, from the sweep's cursor to the report.

use crate::{
    CleanError, Limits, Plan, Report,
    branches::{self, Branch},
    deletion,
    judge::{Fate, Judged, Verdict, judge},
    objects::Objects,
    own_log::OwnLog,
    relocate::{Relocated, relocate},
    tenure::{WriterState, WriterStates},
    victims::{self, Candidate, Hint, Window},
};
use firn_anchor::{
    Anchor, CleanerRound, Cover, MAX_COVERS, Proposal, RetiredSegment, Retirement, RetirementOutcome, Sweep,
    TupleVersion, retirement_segments,
};
use firn_env::{Env, Monotonic};
use firn_format::{ForwardingEntry, ForwardingRecord, Location, SegmentId, VolumeId, WriterId};
use firn_store::{Meter, Metered, ObjectKey, Store};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Heads proposed in one batch. Other branches reach what was moved through forwarding records.
const MAX_PROPOSALS: usize = 32;
/// Segments remembered because they were not worth moving out of.
const REMEMBERED: usize = 65_536;

/// Cleans a family once: one bounded run.
///
/// # Errors
/// [`CleanError`]; whatever was retired before stays so, and nothing else was changed.
pub async fn clean_once(
    env: &Env,
    store: Arc<dyn Store>,
    anchor: &Anchor,
    limits: &Limits,
) -> Result<Report, CleanError> {
    Cleaner::new(env, store, anchor, limits.clone()).run().await
}

/// Looks what cleaning would do, and changes nothing.
///
/// # Errors
/// [`CleanError`].
pub async fn plan(
    env: &Env,
    store: Arc<dyn Store>,
    anchor: &Anchor,
    limits: &Limits,
) -> Result<Plan, CleanError> {
    Cleaner::new(env, store, anchor, limits.clone()).plan().await
}

/// A cleaner that runs again and again, and remembers which segments were not worth it. Forgetting that costs lookups only.
pub struct Cleaner {
    env: Env,
    store: Arc<dyn Store>,
    meter: Meter,
    anchor: Anchor,
    limits: Limits,
    /// Segments that retained roots hold although the heads do not, with what was known when they were judged.
    not_worth_it: BTreeMap<SegmentId, Circumstances>,
}

/// What must change before a segment is looked at again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Circumstances {
    hint: Hint,
    /// The oldest retained root of each branch, and how many there are.
    roots: Arc<Vec<(VolumeId, Vec<u64>)>>,
}

/// What was seen when a batch began.
struct Scene {
    round: (CleanerRound, Option<TupleVersion>),
    branches: Vec<Branch>,
    writer_states: WriterStates,
    roots: Arc<Vec<(VolumeId, Vec<u64>)>>,
}

impl Cleaner {
    /// A cleaner of the anchor's family. Makes no request.
    pub fn new(env: &Env, store: Arc<dyn Store>, anchor: &Anchor, limits: Limits) -> Self {
        let metered = Metered::new(store);
        Self {
            env: env.clone(),
            meter: metered.meter(),
            store: Arc::new(metered),
            anchor: anchor.clone(),
            limits,
            not_worth_it: BTreeMap::new(),
        }
    }

    /// One bounded run. Cancel-safe: a run that is dropped anywhere leaves garbage at most, which a later one collects.
    ///
    /// # Errors
    /// As [`clean_once`].
    pub async fn run(&mut self) -> Result<Report, CleanError> {
        let before = self.meter.usage();
        let mut log = OwnLog::new(
            &self.env,
            self.store.clone(),
            &self.anchor,
            self.limits.segment_bytes,
        );
        let mut report = Report::default();
        let done = self.work(&mut log, &mut report).await;
        // Also after an error: what was copied for nothing can then be collected at once.
        let ended = log.end().await;
        report.usage = self.meter.usage().since(&before);
        done?;
        ended?;
        Ok(report)
    }

    async fn work(&mut self, log: &mut OwnLog, report: &mut Report) -> Result<(), CleanError> {
        let deadline = self.env.now().after(self.limits.time);
        let mut objects = self.objects();
        let waiting = deletion::delete_doomed(&objects, &self.limits, deadline, report).await?;
        let mut scene = self.look(&mut objects).await?;
        let after = self.anchor.cleaner_cursor(Sweep::Log).await?;
        let window = self.window(&mut objects, &scene, after, report).await?;
        let mut candidates = self.choose(&scene, &window, &waiting);
        let (mut judged, mut batches) = (0, 0);
        loop {
            if self.is_over(deadline) {
                report.out_of_time = true;
                break;
            }
            if batches >= self.limits.batches || judged >= self.limits.judged_segments {
                break;
            }
            let batch = self
                .gather(
                    &mut objects,
                    &mut scene,
                    &mut candidates,
                    &mut judged,
                    deadline,
                    report,
                )
                .await?;
            if batch.is_empty() {
                break;
            }
            batches += 1;
            if !self.retire(&mut objects, log, &scene, batch, report).await? {
                report.overtaken += 1;
                break;
            }
            if candidates.is_empty() {
                break;
            }
            scene = self.look(&mut objects).await?;
        }
        // What this run had no time for comes first in the next one, as long as runs get somewhere.
        let finished = candidates.is_empty() || report.retired_segments == 0;
        let mut next = if finished { window.next } else { after };
        report.sweep_ended = finished && window.next.is_none();
        report.listing = finished.then_some(window.listing(after));
        if firn_env::planted!("cleaner.cursor_skips") && next.is_none() {
            next = Some(SegmentId {
                writer: WriterId(u64::MAX),
                sequence: 0,
            });
        }
        if next != after {
            self.anchor.set_cleaner_cursor(Sweep::Log, next).await?;
        }
        if report.retired_segments > 0 {
            deletion::start_grace(&objects).await?;
        }
        if !self.is_over(deadline) {
            objects.learn_retirements().await?;
            let limits = &self.limits;
            deletion::tidy(&mut objects, log, limits, report).await?;
        }
        report.lookup_fetches = objects.fetched;
        report.lookups = objects.lookups;
        report.written_bytes += log.written_bytes;
        Ok(())
    }

    fn objects(&self) -> Objects {
        Objects::new(
            &self.env,
            self.store.clone(),
            &self.anchor,
            self.limits.cache_bytes,
        )
    }

    fn is_over(&self, deadline: Monotonic) -> bool {
        !self.env.now().since(deadline).is_zero()
    }

    /// Sees the round first and everything else after it: what is retired meanwhile makes our own retirement fail.
    async fn look(&self, objects: &mut Objects) -> Result<Scene, CleanError> {
        let round = self.anchor.cleaner_round().await?;
        objects.learn_retirements().await?;
        let branches = branches::load(objects).await?;
        let roots = branches.iter().map(|branch| {
            let versions = branch.retained.iter().map(|trees| trees.version.0);
            (branch.volume, versions.collect())
        });
        let roots = Arc::new(roots.collect());
        Ok(Scene {
            round,
            branches,
            writer_states: WriterStates::default(),
            roots,
        })
    }

    async fn window(
        &self,
        objects: &mut Objects,
        scene: &Scene,
        after: Option<SegmentId>,
        report: &mut Report,
    ) -> Result<Window, CleanError> {
        let window = victims::window(objects, &self.limits, &scene.branches, after).await?;
        report.listed_segments = window.listed;
        report.listed_bytes = window.listed_bytes;
        for key in &window.foreign {
            report.foreign.add(format!("{key} is no segment's name"));
        }
        Ok(window)
    }

    /// The candidates in reverse order, so that the best is taken from the end.
    fn choose(&self, scene: &Scene, window: &Window, waiting: &BTreeSet<SegmentId>) -> Vec<Candidate> {
        // What only an unmerged proposal leads to is needed by whoever merges it.
        let proposed: BTreeSet<WriterId> = scene.branches.iter().filter_map(Branch::proposed_by).collect();
        let mut chosen: Vec<Candidate> = window
            .candidates
            .iter()
            .chain(&window.audited)
            .filter(|candidate| {
                let unchanged = self
                    .not_worth_it
                    .get(&candidate.segment)
                    .is_some_and(|known| *known == circumstances(candidate, scene));
                !waiting.contains(&candidate.segment)
                    && !proposed.contains(&candidate.segment.writer)
                    && !unchanged
            })
            .copied()
            .collect();
        chosen.reverse();
        chosen
    }

    /// Judges candidates until a batch is full.
    async fn gather(
        &mut self,
        objects: &mut Objects,
        scene: &mut Scene,
        candidates: &mut Vec<Candidate>,
        judged: &mut usize,
        deadline: Monotonic,
        report: &mut Report,
    ) -> Result<Vec<Judged>, CleanError> {
        let segments_max = retirement_segments(scene.branches.len().min(MAX_PROPOSALS));
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        while batch.len() < segments_max
            && *judged < self.limits.judged_segments
            && !self.is_over(deadline)
            && let Some(candidate) = candidates.pop()
        {
            if objects.is_retired(candidate.segment).await? {
                continue;
            }
            let verdict = judge(
                objects,
                &self.limits,
                &scene.branches,
                &mut scene.writer_states,
                candidate,
            )
            .await?;
            let victim = match verdict {
                Verdict::Judged(victim) => victim,
                Verdict::NotYet(writer_state) => {
                    note_writer_state(report, candidate.segment, writer_state);
                    continue;
                }
                Verdict::Unreadable(detail) => {
                    report
                        .foreign
                        .add(format!("segment {}: {detail}", candidate.segment));
                    continue;
                }
                Verdict::Undecidable(damage) => {
                    report.add_damage(&damage);
                    continue;
                }
                Verdict::Gone => continue,
            };
            *judged += 1;
            report.judged_segments += 1;
            report.judged_objects += victim.objects.len() as u64;
            if !victim.is_worth_moving(&self.limits, self.env.wall().as_millis()) {
                let known = circumstances(&candidate, scene);
                // Without a usage map nothing would ever say that the segment has emptied since.
                if known.hint.is_complete {
                    if self.not_worth_it.len() >= REMEMBERED {
                        self.not_worth_it.clear();
                    }
                    self.not_worth_it.insert(candidate.segment, known);
                }
                continue;
            }
            let moved_bytes = victim.moved_bytes();
            if batch_bytes + moved_bytes > self.limits.batch_bytes && !batch.is_empty() {
                // It is looked at again with the next batch.
                candidates.push(candidate);
                break;
            }
            batch_bytes += moved_bytes;
            batch.push(victim);
        }
        Ok(batch)
    }

    /// Moves, proposes and retires a batch. `false`: another cleaner was first.
    async fn retire(
        &self,
        objects: &mut Objects,
        log: &mut OwnLog,
        scene: &Scene,
        mut batch: Vec<Judged>,
        report: &mut Report,
    ) -> Result<bool, CleanError> {
        let plans = self.proposals(scene);
        let proposable = plans.keys().copied().collect();
        let relocated = relocate(objects, log, &scene.branches, &proposable, &mut batch).await?;
        for damage in &relocated.damaged {
            report.add_damage(damage);
        }
        if batch.is_empty() {
            return Ok(true);
        }
        let (mover, registered) = log.writer().await?;
        let retired_at_ms = self.env.wall().as_millis();
        let mut proposals = Vec::new();
        let retired = batch.iter().map(|victim| victim.candidate.segment).collect();
        for (ordinal, location) in &relocated.heads {
            let (proposal, replaced) = &plans[ordinal];
            let mut proposal = Proposal {
                location: *location,
                mover,
                proposed_at_ms: retired_at_ms,
                usage: relocated.usage(*ordinal, &retired, &proposal.usage),
                ..proposal.clone()
            };
            let volume = scene.branches[*ordinal].volume;
            if firn_env::planted!("cleaner.propose_on_another_base")
                && let Some(root) = self.anchor.load(volume).await?.0.root
            {
                proposal.base_version = root.version;
                proposal.base_uid = root.uid;
            }
            proposals.push((volume, proposal, *replaced));
        }
        let mut segments = Vec::new();
        for victim in &batch {
            let segment = victim.candidate.segment;
            let Some(entries) = entries(victim, &relocated.places) else {
                continue; // Something live has no new place: it stays.
            };
            let covers = covers(scene, &plans, &relocated, segment);
            let retired = RetiredSegment {
                mover,
                retired_at_ms,
                segment_bytes: victim.candidate.size_bytes,
                moved_objects: entries.len() as u32,
                keep_for_ever: covers.is_none(),
                covers: covers.unwrap_or_default(),
            };
            if !entries.is_empty() && !firn_env::planted!("cleaner.no_forwarding_record") {
                let record = ForwardingRecord {
                    family: self.anchor.family(),
                    old: segment,
                    mover,
                    retired_at_ms,
                    entries,
                };
                let key = ForwardingRecord::key(&record.family, segment, mover);
                let bytes = record.encode();
                report.written_bytes += bytes.len() as u64;
                log.put_once(&ObjectKey::new(&key), vec![bytes]).await?;
                self.env.fault_point("cleaner.after_record").await;
            }
            segments.push((segment, retired));
        }
        self.env.fault_point("cleaner.before_retire").await;
        let mut seen = scene.round.clone();
        if firn_env::planted!("cleaner.retire_without_round") {
            seen = self.anchor.cleaner_round().await?;
        }
        let moved: u64 = segments
            .iter()
            .map(|(_, retired)| u64::from(retired.moved_objects))
            .sum();
        let bytes: u64 = segments.iter().map(|(_, retired)| retired.segment_bytes).sum();
        let (count, proposed) = (segments.len() as u64, proposals.len() as u64);
        let retirement = Retirement {
            seen,
            mover: (mover, registered),
            segments,
            proposals,
        };
        let outcome = self.anchor.retire(retirement).await?;
        self.env.fault_point("cleaner.after_retire").await;
        if outcome == RetirementOutcome::Overtaken {
            return Ok(false);
        }
        report.retired_segments += count;
        report.retired_bytes += bytes;
        report.moved_objects += moved;
        report.moved_data_bytes += relocated.data_bytes;
        report.moved_node_bytes += relocated.node_bytes;
        report.proposals += proposed;
        Ok(true)
    }

    /// The branches whose heads may be proposed, with the proposal as far as it is known before anything is written.
    fn proposals(&self, scene: &Scene) -> BTreeMap<usize, (Proposal, Option<TupleVersion>)> {
        let mut plans = BTreeMap::new();
        for (ordinal, branch) in scene.branches.iter().enumerate() {
            let Some(head) = &branch.head else { continue };
            let (uid, version) = (head.object.uid(), head.trees.version);
            let mut usage = Vec::new();
            let (sequence, chained_from) = match (&branch.proposal, branch.unmerged()) {
                (None, _) => (1, 1),
                (Some((last, _)), None) => (last.sequence + 1, last.chained_from),
                // The head was read through the proposal itself: the next one includes it.
                (Some((last, _)), Some(_)) if last.base_uid == uid => {
                    usage.clone_from(&last.usage);
                    (last.sequence + 1, last.chained_from)
                }
                (Some((last, _)), Some(_))
                    if version.0.saturating_sub(last.base_version.0) > self.limits.give_up_versions =>
                {
                    (last.sequence + 1, last.sequence + 1)
                }
                // It is about to be merged; meanwhile forwarding records are enough.
                (Some(_), Some(_)) => continue,
            };
            if plans.len() >= MAX_PROPOSALS {
                break;
            }
            let proposal = Proposal {
                sequence,
                chained_from,
                base_version: version,
                base_uid: uid,
                location: Location::UNKNOWN,
                mover: WriterId(0),
                proposed_at_ms: 0,
                change_id: self.env.random_bytes(),
                usage,
            };
            let replaced = branch.proposal.as_ref().map(|(_, version)| *version);
            plans.insert(ordinal, (proposal, replaced));
        }
        plans
    }

    /// Looks at the log from its beginning, as far as one run's bounds allow, and changes nothing.
    ///
    /// # Errors
    /// As [`clean_once`].
    pub async fn plan(&mut self) -> Result<Plan, CleanError> {
        let before = self.meter.usage();
        let deadline = self.env.now().after(self.limits.time);
        let mut objects = self.objects();
        let mut scene = self.look(&mut objects).await?;
        let mut report = Report::default();
        let mut window = self.window(&mut objects, &scene, None, &mut report).await?;
        window.audited.clear();
        let waiting = self.anchor.list_doomed(None, REMEMBERED).await?;
        let waiting: BTreeSet<SegmentId> = waiting.iter().map(|doomed| doomed.segment).collect();
        let mut candidates = self.choose(&scene, &window, &waiting);
        let mut plan = Plan {
            waiting_segments: waiting.len() as u64,
            ..Plan::default()
        };
        let mut judged = 0;
        loop {
            let batch = self
                .gather(
                    &mut objects,
                    &mut scene,
                    &mut candidates,
                    &mut judged,
                    deadline,
                    &mut report,
                )
                .await?;
            if batch.is_empty() {
                break;
            }
            for victim in &batch {
                let moved = victim.objects.iter().filter(|(_, fate)| *fate == Fate::Move);
                plan.victims += 1;
                plan.victim_bytes += victim.candidate.size_bytes;
                plan.moved_objects += moved.count() as u64;
                plan.moved_bytes += victim.moved_bytes();
                plan.freed_bytes += victim.free_bytes();
            }
        }
        plan.whole_log = window.next.is_none() && candidates.is_empty();
        plan.listed_segments = report.listed_segments;
        plan.listed_bytes = report.listed_bytes;
        plan.unclaimed = report.unclaimed;
        plan.foreign = report.foreign;
        plan.damaged = report.damaged;
        plan.usage = self.meter.usage().since(&before);
        Ok(plan)
    }
}

fn circumstances(candidate: &Candidate, scene: &Scene) -> Circumstances {
    Circumstances {
        hint: candidate.hint,
        roots: scene.roots.clone(),
    }
}

fn note_writer_state(report: &mut Report, segment: SegmentId, writer_state: WriterState) {
    match writer_state {
        WriterState::Over | WriterState::UpTo { .. } | WriterState::MayCommit => {
            report.uncommitted_segments += 1
        }
        WriterState::NeverDrawn => report
            .unclaimed
            .add(format!("segment {segment}: its writer was never drawn")),
        WriterState::Unknown => report.unclaimed.add(format!(
            "segment {segment}: its writer did not say what it is for"
        )),
    }
}

/// The forwarding entries of a victim; `None` if something live has no other place.
fn entries(victim: &Judged, places: &BTreeMap<firn_format::Uid, Location>) -> Option<Vec<ForwardingEntry>> {
    let live = victim.objects.iter().filter(|(_, fate)| *fate != Fate::Dead);
    live.map(|(entry, _)| {
        let new = *places.get(&entry.uid)?;
        let fits = new.segment != victim.candidate.segment && new.length == entry.length;
        fits.then_some(ForwardingEntry {
            offset: entry.offset,
            new,
        })
    })
    .collect()
}

/// What leads each branch away from a victim; `None` if something leads there that nothing will lead away.
fn covers(
    scene: &Scene,
    plans: &BTreeMap<usize, (Proposal, Option<TupleVersion>)>,
    relocated: &Relocated,
    segment: SegmentId,
) -> Option<Vec<Cover>> {
    let is_in = |led: &BTreeMap<SegmentId, BTreeSet<usize>>, ordinal: usize| {
        led.get(&segment).is_some_and(|led| led.contains(&ordinal))
    };
    let mut covers = Vec::new();
    for (ordinal, branch) in scene.branches.iter().enumerate() {
        let Some(head) = &branch.head else { continue };
        let cover = if is_in(&relocated.led, ordinal) {
            Cover {
                volume: branch.volume,
                proposal: plans.get(&ordinal)?.0.sequence,
                clean_from: None,
            }
        } else if is_in(&relocated.led_before, ordinal) {
            Cover {
                volume: branch.volume,
                proposal: branch.unmerged()?.sequence,
                clean_from: None,
            }
        } else {
            Cover {
                volume: branch.volume,
                proposal: 0,
                clean_from: Some(head.trees.version),
            }
        };
        covers.push(cover);
    }
    (covers.len() <= MAX_COVERS).then_some(covers)
}
