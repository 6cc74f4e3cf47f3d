//! The auditor inside the edge: audits of its volume by a calendar, and what past ones found.
//!
//! ```text
//! [audit] every ──▶ due? ──▶ firn_cleaner::audit within its part of the month's money ──▶ signed ──▶ bucket, kept ──▶ status, metrics, log
//! firn-edge audit ──────────▶ the same with its own budget ─────────────────────────────▶ signed ──▶ bucket, kept
//! ```
//!
//! What it found is a report (`writing.rs`), signed with the key of the owner's roots, which follows the report before it whichever edge made
//! that; it goes into the bucket (`bucket.rs`) and is kept here (`kept.rs`). While the store does not answer it is kept here alone, and put
//! by the next audit. See decision 0197.
//!
//! The key is good for as long as the ownership is: who was overtaken while the audit ran signs nothing any more. What was found is kept and told all the
//! same, as an audit that nobody signed.
//!
//! The audit itself reads the store and the table, not this edge's caches, and has no keys (docs/audits.md). An idle edge makes no
//! request (I9) unless the configuration asks for audits: then they are made whether somebody writes or not, since what was lost
//! is lost without anybody's writing. When the next one is due follows from the last that is kept, so neither a restart nor a day
//! without power makes one more or one fewer. See decision 0196.

pub mod bucket;
pub mod kept;
pub mod rounds;
#[cfg(test)]
mod tests;
mod writing;

use crate::{
    config::AuditSection,
    periodic::{Running, ShowsWork, millis},
    second::Second,
};
use bucket::ReportBucket;
use firn_audit_report::{AskedBy, AuditedSecond, NewReport, Outcome, Report, SignedReport};
use firn_cleaner::{AuditProgress, AuditReport, AuditRequest, CleanError, SecondAudit};
use firn_env::Env;
use firn_format::SegmentId;
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route, Store, StoreError};
use firn_volume::{OwnerSigner, Parts, ServingState, Volume};
use kept::{Kept, KeptAudit, KeptAudits};
use rounds::Rounds;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Mutex as AsyncMutex;
use writing::Subject;

/// How long after one that failed the next is tried, if the calendar does not ask for it sooner.
const RETRY: Duration = Duration::from_secs(3600);

/// Periods of the calendar without one that was right, after which somebody has to look.
const OVERDUE_PERIODS: i64 = 3;

/// Of how much damage the short form tells how likely it would have been found.
pub const TOLD_SHARE: f64 = 0.01;

/// What is known of this edge's audits, as `status` and `/metrics` show it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditPart {
    /// How often they are made; without it, only when somebody asks.
    pub every_ms: Option<u64>,
    pub is_running: bool,
    /// When the next one is due, milliseconds since 1970.
    pub next_at_ms: Option<i64>,
    /// The newest that is kept, also of before the start.
    pub last: Option<LastAudit>,
    /// When the newest ended that asked for everything and found nothing wrong.
    pub last_intact_at_ms: Option<i64>,
    /// A calendar asks for audits, and for three of its periods none was whole and found everything right.
    pub is_overdue: bool,
    /// Of audits that the money is not enough for in one go.
    #[serde(default)]
    pub rounds: Rounds,
    /// Why what was found could not be kept; it is in the log.
    pub not_kept: Option<String>,
}

/// An audit in short.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastAudit {
    pub ended_at_ms: i64,
    pub outcome: Outcome,
    /// Draws that were answered.
    pub challenges: u64,
    /// With which probability one of a hundred damaged bytes would have been found, and of a failed one none.
    pub one_percent_found: f64,
    /// What the store charged, by the edge's price book.
    pub nanodollars: u64,
    /// What is wrong, or why it failed.
    pub detail: Option<String>,
    /// Whether something is wrong in the first store.
    #[serde(default)]
    pub is_first_damaged: bool,
    /// What it says of the second store, if that was audited.
    #[serde(default)]
    pub second: Option<LastOfSecond>,
}

/// What an audit says of the second store, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastOfSecond {
    pub is_damaged: bool,
    /// Draws that were answered.
    pub challenges: u64,
    /// With which probability one of a hundred damaged bytes would have been found.
    pub one_percent_found: f64,
    /// Segments that have neither a copy nor a parity group, and are not young.
    pub missing: u64,
    /// Objects that are not as they were put.
    pub altered: u64,
}

impl LastOfSecond {
    fn of(second: &SecondAudit) -> Self {
        Self {
            is_damaged: !second.is_intact(),
            challenges: second.answered(),
            one_percent_found: second.probability(TOLD_SHARE),
            missing: second.missing,
            altered: second.altered,
        }
    }

    fn of_report(second: &AuditedSecond) -> Self {
        Self {
            is_damaged: second.is_damaged(),
            challenges: second.answered(),
            one_percent_found: second.found(TOLD_PPM),
            missing: second.missing,
            altered: second.altered,
        }
    }
}

impl LastAudit {
    pub fn of(audit: &KeptAudit) -> Self {
        let volumes = || audit.report.iter().flat_map(|report| &report.volumes);
        Self {
            ended_at_ms: audit.ended_at_ms,
            outcome: audit.outcome,
            challenges: volumes().map(firn_cleaner::VolumeAudit::answered).sum(),
            one_percent_found: volumes()
                .map(|volume| volume.probability(TOLD_SHARE))
                .fold(0.0, f64::max),
            nanodollars: audit.report.as_ref().map_or(0, |report| report.cost.nanos()),
            detail: audit.detail.clone(),
            is_first_damaged: audit.outcome == Outcome::Damaged
                && audit
                    .report
                    .as_ref()
                    .is_none_or(|report| !report.is_first_intact()),
            second: volumes()
                .filter_map(|volume| volume.second.as_ref())
                .map(LastOfSecond::of)
                .next(),
        }
    }

    pub fn of_report(report: &Report) -> Self {
        Self {
            ended_at_ms: report.ended_at_ms,
            outcome: report.outcome,
            challenges: report.answered(),
            one_percent_found: report.found(TOLD_PPM),
            nanodollars: report.cost.nanodollars,
            detail: report.detail.clone(),
            is_first_damaged: report.outcome == Outcome::Damaged && report.is_first_damaged(),
            second: report.second().map(LastOfSecond::of_report),
        }
    }
}

/// What somebody wants audited.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub by: AskedBy,
    /// Bytes that are drawn.
    pub challenges: u32,
    /// What the store may charge.
    pub budget: Money,
    /// What the draws follow from; random if nobody says.
    pub seed: Option<[u8; 32]>,
    /// Whether the second store is audited as well, if there is one.
    pub second: bool,
    /// Whether it goes on where the last was cut off, if one was.
    pub goes_on: bool,
}

/// Whose volume is audited, and who signs.
pub struct Audited<'a> {
    pub parts: &'a Parts,
    /// `None` where another edge owns the volume, or nobody knows who does: then nothing is audited.
    pub signer: Option<OwnerSigner>,
    /// The second store, if there is one.
    pub second: Option<Arc<Second>>,
    /// The store, for work in the background.
    pub store: Arc<dyn Store>,
}

/// Millionths of damage that are [`TOLD_SHARE`].
const TOLD_PPM: u32 = 10_000;

/// Times that the next number is tried while others use it up, or somebody puts what is no report there.
const NUMBERS_TRIED: usize = 4;

/// What is told of an audit whose signer does not own the volume any more.
const NOT_SIGNED: &str = "it is no signed report: the volume was taken over while this audit ran, and the key of this edge does not count for it any \
                          more. What was found is kept here (firn-edge audit list); for a report audit again where the volume is owned now";

/// What came of an audit.
pub struct Ended {
    pub found: Result<AuditReport, CleanError>,
    /// Why what was found is no signed report, though it says something of the store.
    pub not_signed: Option<&'static str>,
}

/// The volume has another owner by now.
struct Overtaken;

/// Tells of an audit that is dropped before its end.
struct Unfinished {
    by: AskedBy,
    is_done: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_done {
            let asked_by = self.by.name();
            tracing::warn!(
                asked_by,
                "an audit was given up before its end, so nothing is kept of it: the edge stops, or who asked went away"
            );
        }
    }
}

/// An audit is under way already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// See the module.
pub struct Auditor {
    env: Env,
    parts: Parts,
    signer: Option<OwnerSigner>,
    second: Option<Arc<Second>>,
    store: Arc<dyn Store>,
    book: ProviderPrices,
    section: AuditSection,
    started_at_ms: i64,
    /// One at a time, whoever asked for it.
    kept: AsyncMutex<KeptAudits>,
    part: Mutex<AuditPart>,
    /// Segments that audits of this process found damaged, and that were not repaired since.
    damaged: Mutex<BTreeSet<SegmentId>>,
}

impl Auditor {
    /// An auditor that has made no request yet; it reads what is kept in the volume's state directory.
    pub fn new(
        audited: Audited<'_>,
        section: &AuditSection,
        book: ProviderPrices,
        state_directory: &Path,
    ) -> Self {
        let env = audited.parts.env.clone();
        let kept = KeptAudits::open(state_directory);
        for file in kept.unreadable() {
            let (path, why) = (file.path.display(), &file.why);
            tracing::warn!(%path, why, "a kept audit cannot be read, and is left out");
        }
        // Of an edge whose audits never were right it is known since when it makes some.
        let first_at_ms = kept.audits().first().map(Kept::ended_at_ms);
        let now_ms = env.wall().as_millis();
        let started_at_ms = first_at_ms.map_or(now_ms, |first| first.min(now_ms));
        let part = AuditPart {
            every_ms: section.every.map(|every| millis(every.0).unsigned_abs()),
            last: kept.last().map(Kept::last),
            last_intact_at_ms: kept.last_intact_at_ms(),
            rounds: kept.rounds(),
            ..AuditPart::default()
        };
        Self {
            env,
            parts: audited.parts.clone(),
            signer: audited.signer,
            second: audited.second,
            store: audited.store,
            book,
            section: section.clone(),
            started_at_ms,
            kept: AsyncMutex::new(kept),
            part: Mutex::new(part),
            damaged: Mutex::default(),
        }
    }

    /// Segments that audits found lost or altered.
    pub fn damaged_segments(&self) -> MutexGuard<'_, BTreeSet<SegmentId>> {
        self.damaged.lock().expect("no panic under this lock")
    }

    /// Signed reports after number `last`, oldest first, as far as they are kept here. Waits for an audit that is under way.
    pub async fn reports_after(&self, last: u64) -> Vec<SignedReport> {
        let kept = self.kept.lock().await;
        let reports = kept.reports().filter(|report| report.report().sequence > last);
        reports.cloned().collect()
    }

    /// What is known.
    pub fn part(&self) -> AuditPart {
        let mut part = self.lock().clone();
        let right_at_ms = part.last_intact_at_ms.unwrap_or(self.started_at_ms);
        part.is_overdue = self.section.every.is_some_and(|every| {
            let allowed_ms = millis(every.0).saturating_mul(OVERDUE_PERIODS);
            self.env.wall().as_millis().saturating_sub(right_at_ms) > allowed_ms
        });
        part
    }

    fn lock(&self) -> MutexGuard<'_, AuditPart> {
        self.part.lock().expect("no panic under this lock")
    }

    /// Audits whenever the calendar says so; without one it ends at once.
    pub async fn keep_audited(self: Arc<Self>, volume: Volume) {
        let Some(every) = self.section.every else { return };
        let started_at_ms = self.env.wall().as_millis();
        // Offices that are switched on together do not ask their stores together.
        let first_after = millis(every.0.min(RETRY));
        let first_after =
            i64::try_from(self.env.random_below(first_after.unsigned_abs().max(1))).unwrap_or(0);
        loop {
            let last = self
                .kept
                .lock()
                .await
                .last()
                .map(|last| (last.ended_at_ms(), last.outcome()));
            let now_ms = self.env.wall().as_millis();
            let due_ms = due_at(last, every.0, started_at_ms.saturating_add(first_after), now_ms);
            self.lock().next_at_ms = Some(due_ms);
            let wait = u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0);
            if wait > 0 {
                // A clock that is set meanwhile is noticed within the hour.
                self.env.sleep(Duration::from_millis(wait).min(RETRY)).await;
                continue;
            }
            let is_served = volume.status().serving_state == ServingState::Serving;
            let asked = Asked {
                by: AskedBy::Calendar,
                challenges: self.section.challenges,
                budget: self.section.budget_of_one(),
                seed: None,
                second: self.section.second,
                goes_on: true,
            };
            if !is_served || self.audit(asked, &AuditProgress::default()).await.is_err() {
                self.env.sleep(Duration::from_secs(60)).await;
            }
        }
    }

    /// One audit, now: a random sample of what the volume needs. What comes of it is kept and told. Cancel-safe: then nothing is.
    ///
    /// # Errors
    /// [`Busy`] if one is under way.
    pub async fn audit(&self, asked: Asked, progress: &AuditProgress) -> Result<Ended, Busy> {
        let mut kept = self.kept.try_lock().map_err(|_| Busy)?;
        let mut unfinished = Unfinished {
            by: asked.by,
            is_done: false,
        };
        let _running = Running::begin(&self.part);
        let began_at_ms = self.env.wall().as_millis();
        let open = kept.rounds().open.filter(|_| asked.goes_on);
        let request = AuditRequest {
            from: open
                .map(|open| (self.parts.volume, open.goes_on_at))
                .into_iter()
                .collect(),
            volume: Some(self.parts.volume),
            challenges: asked.challenges,
            budget: asked.budget,
            seed: asked.seed,
            prices: self.book.clone(),
            // The office's line is not in the bucket's region.
            route: Route::Internet,
            second: self
                .second
                .as_ref()
                .filter(|_| asked.second)
                .and_then(|second| second.to_audit()),
        };
        let (store, anchor) = (self.store.clone(), &self.parts.anchor);
        let found = firn_cleaner::audit(&self.env, store, anchor, &request, progress).await;
        let ended_at_ms = self.env.wall().as_millis();
        let mut rounds = kept.rounds();
        for volume in found.iter().flat_map(|report| &report.volumes) {
            self.damaged_segments().extend(&volume.damaged_segments);
            rounds = rounds.after(began_at_ms, ended_at_ms, volume);
        }
        let mut audit = KeptAudit::of(ended_at_ms, asked.by, &found);
        log(&audit);
        let signed = self.sign(&kept, began_at_ms, &audit).await;
        let not_signed = signed.is_err().then_some(NOT_SIGNED);
        if let Some(why) = not_signed {
            tracing::warn!("{why}");
            let before = audit.detail.take().map(|detail| format!("{detail}; "));
            audit.detail = Some(before.unwrap_or_default() + why);
        }
        let signed = signed.unwrap_or(None);
        let last = signed.map_or_else(
            || Kept::Unsigned(Box::new(audit)),
            |signed| Kept::Signed(Box::new(signed)),
        );
        let in_short = last.last();
        let written = kept.keep(last).and(kept.keep_rounds(rounds));
        let not_kept = written.err().map(|error| error.to_string());
        if let Some(error) = &not_kept {
            tracing::warn!(error, "what an audit found could not be kept for later");
        }
        let mut part = self.lock();
        part.last = Some(in_short);
        part.last_intact_at_ms = kept.last_intact_at_ms();
        part.rounds = rounds;
        part.not_kept = not_kept;
        unfinished.is_done = true;
        Ok(Ended { found, not_signed })
    }

    /// Signs what an audit found as the next report of the volume's, and puts it into the bucket, with those before it that are not there
    /// yet. If the store does not answer it follows what is known here. `None` if there is nothing to sign.
    async fn sign(
        &self,
        kept: &KeptAudits,
        began_at_ms: i64,
        audit: &KeptAudit,
    ) -> Result<Option<SignedReport>, Overtaken> {
        let Some(signer) = self.signer.as_ref() else {
            return Ok(None);
        };
        let subject = Subject {
            prices: &self.book.name,
            signer,
        };
        let Some(new) = writing::report(&subject, began_at_ms, audit) else {
            return Ok(None);
        };
        match self.parts.anchor.load(self.parts.volume).await {
            Ok((now, _)) if (now.epoch, now.grant) != (signer.epoch(), signer.grant()) => {
                return Err(Overtaken);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "whether this edge owns the volume still is told by the reports alone")
            }
        }
        let sign = |end| {
            let report: Report = NewReport::clone(&new).following(end);
            SignedReport::sign(&report, |message| signer.sign(message))
                .expect("the signer's own key is named")
        };
        let bucket = ReportBucket {
            store: self.parts.store.clone(),
            keys: self.parts.keys.clone(),
            volume: self.parts.volume,
        };
        match file(&bucket, kept, signer.epoch().0, &sign).await {
            Ok(signed) => signed.map(Some),
            Err(error) => {
                tracing::warn!(%error, "the report of an audit is kept here, and put into the bucket by the next one");
                Ok(Some(sign(kept.end_of_chain())))
            }
        }
    }
}

/// Puts into the bucket what is only here, and behind it what `sign` makes of the end of the chain; nothing behind a report of an owner of after
/// this `epoch`. A number is used once, so who signs at the same time as a new owner is told here.
async fn file(
    bucket: &ReportBucket,
    kept: &KeptAudits,
    epoch: u64,
    sign: &impl Fn((u64, Option<[u8; 32]>)) -> SignedReport,
) -> Result<Result<SignedReport, Overtaken>, StoreError> {
    let is_later = |newest: &Option<SignedReport>| {
        let newest = newest.as_ref().map(|newest| newest.report().signer.epoch);
        newest.is_some_and(|newest| newest > epoch)
    };
    let in_bucket = bucket.newest().await?;
    if is_later(&in_bucket) {
        return Ok(Err(Overtaken));
    }
    let mut end = in_bucket.as_ref().map_or((0, None), SignedReport::link);
    let newest_there = end.0;
    for report in kept
        .reports()
        .filter(|report| report.report().sequence > newest_there)
    {
        if bucket.put(report).await? {
            end = report.link();
        } else {
            let sequence = report.report().sequence;
            tracing::warn!(
                sequence,
                "the bucket has another report of this number than this machine"
            );
        }
    }
    let (last_here, hash_here) = kept.end_of_chain();
    if last_here > end.0 {
        // The newest here cannot be read, or its number is taken: no number is used twice.
        end = (last_here, end.1.or(hash_here));
    }
    for _ in 0..NUMBERS_TRIED {
        let signed = sign(end);
        if bucket.put(&signed).await? {
            return Ok(Ok(signed));
        }
        // Another owner's by now, or something that is no report: whatever it is, it is not replaced.
        let newest = bucket.newest().await?;
        if is_later(&newest) {
            return Ok(Err(Overtaken));
        }
        let newest = newest.as_ref().map_or((0, None), SignedReport::link);
        end = match newest.0 > end.0 {
            true => newest,
            false => (end.0 + 1, end.1),
        };
    }
    Ok(Ok(sign(end)))
}

/// Once, where it is known; an administrator who asked is told as well.
fn log(audit: &KeptAudit) {
    let detail = audit.detail.as_deref();
    match audit.outcome {
        Outcome::Intact => tracing::info!("an audit found nothing lost or damaged"),
        Outcome::Empty => tracing::debug!("an audit found nothing committed yet"),
        Outcome::Incomplete => tracing::warn!(detail, "an audit did not come to its end"),
        Outcome::Failed => tracing::warn!(detail, "an audit failed; it is tried again"),
        Outcome::Damaged => {
            tracing::error!(detail, "an audit found that the store lost or altered something")
        }
    }
}

/// When the next audit is due. A last one in the future is of a clock that was wrong: no audit is later than `every` from now.
fn due_at(last: Option<(i64, Outcome)>, every: Duration, first_ms: i64, now_ms: i64) -> i64 {
    let after = |outcome| match outcome {
        // What is away comes back, and who has nothing yet will soon have something.
        Outcome::Failed | Outcome::Empty => every.min(RETRY),
        Outcome::Intact | Outcome::Damaged | Outcome::Incomplete => every,
    };
    match last {
        None => first_ms.min(now_ms.saturating_add(millis(every))),
        Some((ended_at_ms, outcome)) => ended_at_ms.min(now_ms).saturating_add(millis(after(outcome))),
    }
}

impl ShowsWork for AuditPart {
    fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
    }
}
