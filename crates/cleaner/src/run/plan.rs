//! Dry run: what a run would do, by the same choice and the same judgement, with nothing changed.

use super::{Cleaner, REMEMBERED};
use crate::{CleanError, Plan, Report, judge::Fate, missing::report_missing};
use firn_format::SegmentId;
use std::collections::BTreeSet;

impl Cleaner {
    /// Looks at the log from its beginning, as far as one run's bounds allow, and changes nothing.
    ///
    /// # Errors
    /// As [`clean_once`](crate::clean_once).
    pub async fn plan(&mut self) -> Result<Plan, CleanError> {
        let before = self.meter.usage();
        let deadline = self.env.now().after(self.limits.time);
        let mut objects = self.objects();
        let mut scene = self.look(&mut objects).await?;
        let mut report = Report::default();
        let mut window = self.window(&mut objects, &scene, None, &mut report).await?;
        report_missing(
            &mut objects,
            &scene.branches,
            None,
            &window,
            deadline,
            &mut report,
        )
        .await?;
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
        plan.missing = report.missing;
        plan.damaged = report.damaged;
        plan.usage = self.meter.usage().since(&before);
        Ok(plan)
    }
}
