//! One run, from the sweep's cursor to the report.

mod plan;
mod repair;
mod retire;

pub use repair::{Beyond, Repair};

use crate::{
    CleanError, Limits, Plan, Report,
    branches::{self, Branch},
    deletion,
    judge::{Judged, Verdict, judge},
    missing::report_missing,
    objects::Objects,
    own_log::OwnLog,
    tenure::{WriterState, WriterStates},
    victims::{self, Candidate, Hint, Window},
};
use firn_anchor::{Anchor, CleanerRound, Sweep, TupleVersion, retirement_segments};
use firn_env::{Env, Monotonic};
use firn_format::{SegmentId, VolumeId, WriterId};
use firn_store::{Meter, Metered, Store};
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
        report_missing(&mut objects, &scene.branches, after, &window, deadline, report).await?;
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
            deletion::forget_rounds(&objects, &scene.branches).await?;
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
                // It was listed: whoever removed it retired it before.
                Verdict::Gone => {
                    if self.anchor.retired(candidate.segment).await?.is_none() {
                        report.missing.add(format!(
                            "segment {}: it was listed, and is neither in the bucket nor retired",
                            candidate.segment
                        ));
                    }
                    continue;
                }
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
