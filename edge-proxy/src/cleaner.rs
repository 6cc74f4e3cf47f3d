//! The cleaner inside the edge, for those who have no functions beside their bucket.
//!
//! It is the cleaner of every other host (`docs/cleaner.md`): it has this edge's store and table and nothing else of it, neither
//! keys nor state. What it costs is that its traffic takes the office's line, and that this edge's credentials must be allowed to
//! delete. With an embedded table there is no other way, since that lets one process in at a time.
//!
//! An idle volume makes no request (I9), the cleaner's included. So a run is due only if something may have become garbage or
//! ripe since the last one ([`is_due`]).

use crate::{
    config::CleanerSection,
    parts::Outside,
    periodic::{Running, ShowsWork, millis},
};
use firn_anchor::Anchor;
use firn_cleaner::{CleanError, Cleaner, Limits, Plan, Repair, Report};
use firn_env::Env;
use firn_format::SegmentId;
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route, Store, Usage};
use firn_volume::Volume;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Mutex as AsyncMutex;

/// What the cleaner inside this edge did since the start, as `status` and `/metrics` show it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CleanerPart {
    /// How often it looks whether there is something to do; without it, only when it is told to.
    pub every_ms: Option<u64>,
    pub is_running: bool,
    pub runs: u64,
    pub failures: u64,
    /// Milliseconds since 1970.
    pub last_ended_at_ms: Option<i64>,
    /// Why the last run failed, if it did.
    pub last_error: Option<String>,
    pub retired_bytes: u64,
    pub written_bytes: u64,
    pub deleted_segments: u64,
    pub deleted_bytes: u64,
    /// Retired segments whose grace was not over at the end of the last run.
    pub waiting_segments: u64,
    /// Segments that the store would not delete in the last run.
    pub held_segments: u64,
    /// Retired segments that wait for the parity groups in the second store.
    #[serde(default)]
    pub hold_segments: u64,
    /// Damaged objects that the last run met.
    pub damaged_objects: u64,
    /// Segments that the last run looked for and found neither in the bucket nor retired.
    #[serde(default)]
    pub missing_segments: u64,
    pub requests: u64,
    /// What its requests and transfers cost by the edge's price book; part of the store's money.
    pub nanodollars: u64,
}

/// A run as its caller is told.
pub enum Cleaned {
    Done(Box<Report>, Money),
    Planned(Box<Plan>, Money),
}

/// See the module.
pub struct InsideCleaner {
    env: Env,
    store: Arc<dyn Store>,
    anchor: Anchor,
    limits: Limits,
    every: Option<Duration>,
    book: ProviderPrices,
    /// One run at a time, whoever asked for it.
    cleaner: AsyncMutex<Cleaner>,
    part: Mutex<CleanerPart>,
}

/// What the last run left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastRun {
    began_at_ms: i64,
    /// The volume's checkpoints when it began.
    checkpoints: u64,
    /// From when on there is more to do, whatever the volume does.
    again_at_ms: Option<i64>,
}

/// Whether a run may find something that the last one did not: the volume committed since, the last one did not come to its end,
/// the grace of what it retired is over, or what was written last has become cold meanwhile and is worth moving sooner.
fn is_due(
    last: Option<LastRun>,
    checkpoints: u64,
    last_commit_ms: Option<i64>,
    cold_after_ms: i64,
    now_ms: i64,
) -> bool {
    let Some(last) = last else { return true };
    let is_ripe = last.again_at_ms.is_some_and(|at| now_ms >= at);
    let has_cooled = last_commit_ms.is_some_and(|committed| {
        let cold_from = committed.saturating_add(cold_after_ms);
        last.began_at_ms < cold_from && now_ms >= cold_from
    });
    checkpoints != last.checkpoints || is_ripe || has_cooled
}

impl InsideCleaner {
    /// A cleaner that has made no request yet.
    pub fn new(outside: &Outside, anchor: Anchor, section: &CleanerSection, book: ProviderPrices) -> Self {
        let store = outside.background.clone();
        let limits = section.limits();
        let every = section.every.map(|span| span.0);
        Self {
            cleaner: AsyncMutex::new(Cleaner::new(&outside.env, store.clone(), &anchor, limits.clone())),
            part: Mutex::new(CleanerPart {
                every_ms: every.map(|every| millis(every).unsigned_abs()),
                ..CleanerPart::default()
            }),
            env: outside.env.clone(),
            store,
            anchor,
            limits,
            every,
            book,
        }
    }

    /// What it did so far.
    pub fn part(&self) -> CleanerPart {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, CleanerPart> {
        self.part.lock().expect("no panic under this lock")
    }

    /// Cleans whenever it is due, as often as the configuration says; without that it ends at once.
    pub async fn keep_clean(self: Arc<Self>, volume: Volume) {
        let Some(every) = self.every else { return };
        let mut last = None;
        loop {
            self.env.sleep(every).await;
            let status = volume.status();
            let now_ms = self.env.wall().as_millis();
            let cold_after_ms = millis(self.limits.cold_after);
            if !is_due(
                last,
                status.checkpoints,
                status.last_commit_ms,
                cold_after_ms,
                now_ms,
            ) {
                continue;
            }
            let again_at_ms = match self.clean().await {
                Ok(report) if report.out_of_time || !report.sweep_ended || report.overtaken > 0 => {
                    Some(now_ms)
                }
                Ok(report) if report.retired_segments + report.waiting_segments > 0 => {
                    let now_ms = self.env.wall().as_millis();
                    Some(now_ms.saturating_add(millis(self.limits.grace)))
                }
                Ok(_) => None,
                Err(_) => Some(now_ms),
            };
            last = Some(LastRun {
                began_at_ms: now_ms,
                checkpoints: status.checkpoints,
                again_at_ms,
            });
        }
    }

    /// One run, now; after the one that is under way, if there is one. Cancel-safe as [`Cleaner::run`] is.
    ///
    /// # Errors
    /// [`CleanError`]; what was retired before stays so, and nothing else was changed.
    pub async fn clean(&self) -> Result<Report, CleanError> {
        let mut cleaner = self.cleaner.lock().await;
        let _running = Running::begin(&self.part);
        let ended = cleaner.run().await;
        let mut part = self.lock();
        part.runs += 1;
        part.last_ended_at_ms = Some(self.env.wall().as_millis());
        part.last_error = None;
        match &ended {
            Ok(report) => {
                part.retired_bytes += report.retired_bytes;
                part.written_bytes += report.written_bytes;
                part.deleted_segments += report.deleted_segments;
                part.deleted_bytes += report.deleted_bytes;
                part.waiting_segments = report.waiting_segments;
                part.held_segments = report.held.count;
                part.hold_segments = report.hold_segments;
                part.damaged_objects = report.damaged.len() as u64 + report.damaged_more;
                part.missing_segments = report.missing.count;
                part.requests += report.usage.requests();
                part.nanodollars = part.nanodollars.saturating_add(self.cost(&report.usage).nanos());
                for damage in &report.damaged {
                    tracing::error!(
                        inode = damage.inode,
                        detail = damage.detail,
                        "the cleaner met damage"
                    );
                }
                if report.missing.count > 0 {
                    tracing::error!(missing = ?report.missing, "the bucket does not have all that is needed of it");
                }
                if report.held.count > 0 {
                    tracing::warn!(held = ?report.held, "the store does not let the cleaner delete");
                }
                tracing::debug!(?report, "a run of the cleaner ended");
            }
            Err(error) => {
                part.failures += 1;
                part.last_error = Some(error.to_string());
                tracing::warn!(%error, "a run of the cleaner failed; it is tried again");
            }
        }
        ended
    }

    /// Writes lost segments anew, or tells what would be; after the run that is under way, if there is one. Cancel-safe likewise.
    ///
    /// # Errors
    /// As [`InsideCleaner::clean`].
    pub async fn repair(
        &self,
        second: Option<Arc<dyn Store>>,
        lost: &BTreeSet<SegmentId>,
        plan: bool,
    ) -> Result<Repair, CleanError> {
        let mut cleaner = self.cleaner.lock().await;
        let _running = Running::begin(&self.part);
        let repaired = cleaner.repair(second, lost, plan).await?;
        let mut part = self.lock();
        part.requests += repaired.report.usage.requests();
        part.written_bytes += repaired.report.written_bytes;
        part.nanodollars = part
            .nanodollars
            .saturating_add(self.cost(&repaired.report.usage).nanos());
        Ok(repaired)
    }

    /// What an administrator asked for: a run, or only a look at what it would do.
    ///
    /// # Errors
    /// As [`InsideCleaner::clean`].
    pub async fn asked(&self, plan: bool) -> Result<Cleaned, CleanError> {
        if plan {
            let plan = firn_cleaner::plan(&self.env, self.store.clone(), &self.anchor, &self.limits).await?;
            let cost = self.book.cost(&plan.expected_usage(), Route::Internet).total();
            return Ok(Cleaned::Planned(Box::new(plan), cost));
        }
        let report = self.clean().await?;
        let cost = self.cost(&report.usage);
        Ok(Cleaned::Done(Box::new(report), cost))
    }

    /// The office's line is not in the bucket's region.
    fn cost(&self, usage: &Usage) -> Money {
        self.book.cost(usage, Route::Internet).total()
    }
}

impl ShowsWork for CleanerPart {
    fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLD_AFTER_MS: i64 = 1000;

    fn after(again_at_ms: Option<i64>) -> Option<LastRun> {
        Some(LastRun {
            began_at_ms: 5000,
            checkpoints: 3,
            again_at_ms,
        })
    }

    #[test]
    fn nothing_is_due_while_the_volume_is_idle_and_nothing_is_left_to_do() {
        for now_ms in [5000, 6000, i64::MAX] {
            assert!(!is_due(after(None), 3, Some(2000), COLD_AFTER_MS, now_ms));
            assert!(!is_due(after(None), 3, None, COLD_AFTER_MS, now_ms));
        }
    }

    #[test]
    fn the_first_run_is_due_and_one_after_every_commit() {
        assert!(is_due(None, 0, None, COLD_AFTER_MS, 0));
        assert!(is_due(after(None), 4, Some(2000), COLD_AFTER_MS, 5001));
    }

    #[test]
    fn what_was_retired_is_due_when_its_grace_is_over() {
        assert!(!is_due(after(Some(7000)), 3, Some(2000), COLD_AFTER_MS, 6999));
        assert!(is_due(after(Some(7000)), 3, Some(2000), COLD_AFTER_MS, 7000));
    }

    #[test]
    fn one_run_is_due_once_the_last_commit_has_become_cold() {
        assert!(!is_due(after(None), 3, Some(4500), COLD_AFTER_MS, 5400));
        assert!(is_due(after(None), 3, Some(4500), COLD_AFTER_MS, 5500));
        let later = LastRun {
            began_at_ms: 5500,
            checkpoints: 3,
            again_at_ms: None,
        };
        assert!(!is_due(Some(later), 3, Some(4500), COLD_AFTER_MS, 9000));
    }
}
