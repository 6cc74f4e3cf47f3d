//! Store, table and runs, behind whatever calls.

mod mirror;

pub use mirror::{Grouped, Mirrored, Second};

use crate::{
    RootsAt, Settings, Target, Work,
    anchor_at::Roots,
    families::{self, Division, Found},
};
use firn_anchor::Anchor;
use firn_cleaner::{
    AuditProgress, AuditReport, AuditRequest, CleanError, Cleaner, CleaningNotes, Damage, Limits, Plan,
    Report,
};
use firn_env::{DiskError, Env, Monotonic};
use firn_mirror::MirrorError;
use firn_quantity::Money;
use firn_store::{Meter, Stack, StackConfig, Store, StoreError, StoreUrl, StoreUrlError};
use firn_store_cloud::{Credentials, OpenError};
use firn_table::TableError;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Mutex, OnceCell};

/// What a run needs beyond its own time: the batch under way, the end of its log.
const MARGIN: Duration = Duration::from_secs(8);
/// With less than this there is no use in beginning.
const LEAST: Duration = Duration::from_secs(2);
/// Requests that wait for the one that runs. A queue keeps what is refused; a process need not.
const WAITING_MAX: usize = 16;
/// Families whose judged segments a process remembers between runs.
const REMEMBERED_FAMILIES: usize = 16;
const GIB: u128 = 1 << 30;

/// Why nothing, or not everything, was done. What was retired stays so; nothing is ever half done.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The place for files of a store or table on this machine.
    #[error("this machine's disk: {0}")]
    Disk(#[from] DiskError),
    /// The store's address or credentials cannot be right.
    #[error("the store: {0}")]
    Store(#[from] OpenError),
    /// The table or the anchor service cannot be reached, or refuses.
    #[error("the anchor: {0}")]
    Table(#[from] TableError),
    /// The bucket could not be searched for families.
    #[error("finding the families in the bucket: {0}")]
    Families(#[from] StoreError),
    /// The run itself.
    #[error("family {target}: {error}")]
    Clean {
        /// The family.
        target: Target,
        /// What stopped the run.
        error: Box<CleanError>,
    },
    /// The stores could not be compared, or one is the other.
    #[error("family {target}: {error}")]
    Mirror {
        /// The family.
        target: Target,
        /// What stopped it.
        error: Box<MirrorError>,
    },
    /// Too little time is left for a run.
    #[error("family {target}: only {left_ms} ms are left, too few for a run; it is safe to ask again")]
    NoTime {
        /// The family.
        target: Target,
        /// Milliseconds until whoever called gives up.
        left_ms: u128,
    },
    /// The roots that the service keeps do not lead into this log.
    #[error(
        "family {target}: the root that the service keeps is not in this log ({damage}); store, volume and family do not belong \
         together, or the head is damaged. Nothing was changed"
    )]
    Foreign {
        /// The family.
        target: Target,
        /// What was looked for.
        damage: Box<Damage>,
    },
    /// Something that these settings do not have.
    #[error(
        "{target} is not for this cleaner: FIRN_CLEANER_ROOTS and FIRN_CLEANER_FAMILIES say what is (a volume is named where they \
         say service, and only there)"
    )]
    NotOurs {
        /// What was asked for.
        target: Target,
    },
    /// Not a place below the store.
    #[error(transparent)]
    Place(#[from] StoreUrlError),
    /// Too many requests at once.
    #[error("{WAITING_MAX} requests wait already; ask again later, or start another process")]
    Busy,
}

/// One run of one family, as it is reported and logged.
#[derive(Clone, Debug, Serialize)]
pub struct Cleaned {
    /// The family.
    pub family: String,
    /// Its volume, where the service keeps the roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// What was done, if it was to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// What would be done, if that was all that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// What the run's requests to store and table cost, in 10⁻⁹ dollars.
    pub cost_nanodollars: u64,
    /// That, for each GiB that became free or is about to (retired less written); absent if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_gib_nanodollars: Option<u64>,
    /// What a month of storing what became free would have cost, in 10⁻⁹ dollars.
    pub saved_a_month_nanodollars: u64,
    /// How long it took.
    pub took_ms: u64,
}

/// A family that could not be cleaned, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The family.
    pub family: String,
    /// Its volume, where the service keeps the roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The whole story.
    pub why: String,
}

/// A timer's round over all families.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// Those that were cleaned.
    pub cleaned: Vec<Cleaned>,
    /// Those that failed.
    pub failed: Vec<Failed>,
    /// Those that time did not reach; the next round begins at a family drawn by lot, so that none is always last.
    pub not_reached: usize,
    /// Whether there are more families than one round looks for.
    pub more: bool,
}

struct Opened {
    bucket: Bucket,
    roots: Roots,
}

/// A store, and what counts every request that is sent to it.
#[derive(Clone)]
struct Bucket {
    store: Arc<dyn Store>,
    meter: Meter,
}

/// What is kept of a family between its runs.
struct Known {
    bucket: Bucket,
    notes: CleaningNotes,
    /// Knows what was not worth moving.
    cleaner: Option<Cleaner>,
}

/// A host's one cleaner, opened when it is first asked for something.
pub struct Host {
    env: Env,
    settings: Settings,
    opened: OnceCell<Opened>,
    /// One run at a time. What it knows of each family spares the next run lookups.
    running: Mutex<BTreeMap<Target, Known>>,
    waiting: AtomicUsize,
}

/// Counts a request for as long as it waits or runs.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Host {
    /// A host that has made no request yet.
    pub fn new(env: Env, settings: Settings) -> Self {
        Self {
            env,
            settings,
            opened: OnceCell::new(),
            running: Mutex::new(BTreeMap::new()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// The environment it runs in.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// One bounded run for one family, within `left`. Cancel-safe: what a dropped run copied is garbage for a later one.
    ///
    /// # Errors
    /// [`HostError`]; it is safe to ask again.
    pub async fn clean(&self, work: Work, left: Duration) -> Result<Cleaned, HostError> {
        let until = self.env.now().after(left);
        let _place = self.wait()?;
        let mut running = self.running.lock().await;
        let opened = self.open().await?;
        self.run(opened, &mut running, work, until).await
    }

    /// An audit of a family's volumes: what the bucket should have is sampled at random, and nothing is changed. It takes as long as
    /// its budget lasts; cancel-safe.
    ///
    /// # Errors
    /// [`HostError`]; of a root that is itself lost or damaged, [`HostError::Clean`] with that. It is safe to ask again.
    pub async fn audit(&self, asked: Target, request: &AuditRequest) -> Result<AuditReport, HostError> {
        let _place = self.wait()?;
        let mut running = self.running.lock().await;
        let opened = self.open().await?;
        let target = asked
            .resolve(self.settings.roots, &self.settings.families)
            .ok_or(HostError::NotOurs { target: asked })?;
        let failed = |error: CleanError| HostError::Clean {
            target,
            error: Box::new(error),
        };
        let anchor = opened.roots.anchor(&self.env, target);
        let store = self
            .known(opened, &mut running, target)
            .await?
            .bucket
            .store
            .clone();
        // A family that the table does not know would look like one without roots.
        anchor
            .undrawn_writer()
            .await
            .map_err(|error| failed(error.into()))?;
        firn_cleaner::audit(&self.env, store, &anchor, request, &AuditProgress::default())
            .await
            .map_err(failed)
    }

    /// One run for each family that the settings name, or that there is, as far as `left` goes.
    ///
    /// # Errors
    /// If the work could not begin; what went wrong with single families is in the [`Round`].
    pub async fn clean_all(&self, left: Duration) -> Result<Round, HostError> {
        let until = self.env.now().after(left);
        let _place = self.wait()?;
        let mut running = self.running.lock().await;
        let opened = self.open().await?;
        let Found { mut targets, more } = match (self.settings.roots, &self.settings.families[..]) {
            (RootsAt::Service, _) => families::find(&*opened.bucket.store, Division::Volumes).await?,
            (RootsAt::Table | RootsAt::Volume(_), []) => {
                families::find(&*opened.bucket.store, Division::Families).await?
            }
            (RootsAt::Table | RootsAt::Volume(_), named) => Found {
                targets: named
                    .iter()
                    .map(|family| Target {
                        volume: None,
                        family: *family,
                    })
                    .collect(),
                more: false,
            },
        };
        if !targets.is_empty() {
            let first = self.env.random_below(targets.len() as u64) as usize;
            targets.rotate_left(first);
        }
        let mut round = Round {
            more,
            ..Round::default()
        };
        for (index, target) in targets.iter().copied().enumerate() {
            let work = Work { target, plan: false };
            match self.run(opened, &mut running, work, until).await {
                Ok(cleaned) => round.cleaned.push(cleaned),
                Err(HostError::NoTime { .. }) => {
                    round.not_reached = targets.len() - index;
                    break;
                }
                Err(error) => {
                    tracing::error!(family = %target, %error, "a family was not cleaned");
                    round.failed.push(Failed {
                        family: target.family.to_string(),
                        volume: target.volume.map(|volume| volume.to_string()),
                        why: error.to_string(),
                    });
                }
            }
        }
        tracing::info!(
            cleaned = round.cleaned.len(),
            failed = round.failed.len(),
            not_reached = round.not_reached,
            more = round.more,
            "a round over the families ended"
        );
        Ok(round)
    }

    fn wait(&self) -> Result<Place<'_>, HostError> {
        let place = Place(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            return Err(HostError::Busy);
        }
        Ok(place)
    }

    /// A failure is not remembered: the next request tries again.
    async fn open(&self) -> Result<&Opened, HostError> {
        self.opened
            .get_or_try_init(|| async {
                let settings = &self.settings;
                let bucket = self.bucket(&settings.store).await?;
                // Boxed: a future of this depth in those of all hosts is more than the compiler lays out.
                let roots = Box::pin(settings.anchor.open(&self.env)).await?;
                Ok(Opened { bucket, roots })
            })
            .await
    }

    async fn bucket(&self, url: &StoreUrl) -> Result<Bucket, HostError> {
        let backend = firn_store_cloud::open(&self.env, url, &Credentials::Environment).await?;
        let Stack { store, meter, .. } = Stack::new(&self.env, backend, StackConfig::default());
        Ok(Bucket { store, meter })
    }

    /// What is known of a target, whose objects' place is opened if it was not.
    async fn known<'a>(
        &self,
        opened: &Opened,
        running: &'a mut BTreeMap<Target, Known>,
        target: Target,
    ) -> Result<&'a mut Known, HostError> {
        if !running.contains_key(&target) {
            let bucket = match (self.settings.roots, target.volume) {
                (RootsAt::Service, Some(volume)) => {
                    let below = self.settings.store.clone().below(&volume.to_string())?;
                    self.bucket(&below).await?
                }
                (RootsAt::Table | RootsAt::Volume(_) | RootsAt::Service, _) => opened.bucket.clone(),
            };
            if running.len() >= REMEMBERED_FAMILIES {
                running.clear();
            }
            let known = Known {
                notes: CleaningNotes::new(bucket.meter.clone()),
                bucket,
                cleaner: None,
            };
            running.insert(target, known);
        }
        Ok(running.get_mut(&target).expect("it is there now"))
    }

    async fn run(
        &self,
        opened: &Opened,
        running: &mut BTreeMap<Target, Known>,
        work: Work,
        until: Monotonic,
    ) -> Result<Cleaned, HostError> {
        let Work { target: asked, plan } = work;
        let target = asked
            .resolve(self.settings.roots, &self.settings.families)
            .ok_or(HostError::NotOurs { target: asked })?;
        let began = self.env.now();
        let left = until.since(began).saturating_sub(MARGIN);
        if left < LEAST {
            return Err(HostError::NoTime {
                target,
                left_ms: until.since(began).as_millis(),
            });
        }
        let table_before = opened.roots.nano_dollars();
        let anchor = opened.roots.anchor(&self.env, target);
        let known = self.known(opened, running, target).await?;
        let done = self.work(known, target, &anchor, plan, left).await;
        let listing = match &done {
            Ok(cleaned) => cleaned.report.as_ref().and_then(|report| report.listing),
            Err(_) => None,
        };
        // For the bill, which those have whose roots the service keeps. What a failed run sent was sent.
        if target.volume.is_some()
            && let Err(error) = known.notes.note(&self.env, &anchor, listing).await
        {
            tracing::warn!(family = %target, %error, "a run may be missing on the bill");
        }
        let mut cleaned = done?;
        cleaned.add_table(opened.roots.nano_dollars() - table_before);
        cleaned.took_ms = u64::try_from(self.env.now().since(began).as_millis()).unwrap_or(u64::MAX);
        match serde_json::to_string(&cleaned) {
            Ok(answer) => tracing::info!(family = %target, answer, "a run ended"),
            Err(error) => {
                tracing::error!(family = %target, %error, "a run ended, and its report cannot be written")
            }
        }
        Ok(cleaned)
    }

    /// Whether there is something to clean; fails if the table does not know the family, which would look like one without roots.
    async fn has_root(
        &self,
        store: &Arc<dyn Store>,
        target: Target,
        anchor: &Anchor,
    ) -> Result<bool, HostError> {
        let failed = |error: CleanError| HostError::Clean {
            target,
            error: Box::new(error),
        };
        anchor
            .undrawn_writer()
            .await
            .map_err(|error| failed(error.into()))?;
        if target.volume.is_none() {
            return Ok(true);
        }
        // What the service keeps does not say of which family it is.
        match firn_cleaner::has_head(&self.env, store.clone(), anchor).await {
            Err(CleanError::Damaged(damage)) => Err(HostError::Foreign {
                target,
                damage: Box::new(damage),
            }),
            other => other.map_err(failed),
        }
    }

    /// One run, or a look at what it would do.
    async fn work(
        &self,
        known: &mut Known,
        target: Target,
        anchor: &Anchor,
        plan: bool,
        left: Duration,
    ) -> Result<Cleaned, HostError> {
        let failed = |error: CleanError| HostError::Clean {
            target,
            error: Box::new(error),
        };
        let store = known.bucket.store.clone();
        if !self.has_root(&store, target, anchor).await? {
            return Ok(Cleaned::new(target, Money::ZERO, Money::ZERO));
        }
        let mut limits = self.settings.limits.clone();
        if plan {
            limits.time = limits.time.min(left);
            let plan = firn_cleaner::plan(&self.env, store, anchor, &limits).await;
            return Ok(Cleaned::planned(target, plan.map_err(failed)?, self));
        }
        let report = if left < limits.time {
            // A cleaner keeps its limits for life, and this run must be shorter than others.
            let limits = Limits { time: left, ..limits };
            firn_cleaner::clean_once(&self.env, store, anchor, &limits).await
        } else {
            let cleaner = known
                .cleaner
                .get_or_insert_with(|| Cleaner::new(&self.env, store, anchor, limits));
            cleaner.run().await
        };
        Ok(Cleaned::done(target, report.map_err(failed)?, self))
    }
}

impl Cleaned {
    fn new(target: Target, cost: Money, saved: Money) -> Self {
        Self {
            family: target.family.to_string(),
            volume: target.volume.map(|volume| volume.to_string()),
            report: None,
            plan: None,
            cost_nanodollars: cost.nanos(),
            cost_per_gib_nanodollars: None,
            saved_a_month_nanodollars: saved.nanos(),
            took_ms: 0,
        }
    }

    fn done(target: Target, report: Report, host: &Host) -> Self {
        let prices = host.settings.prices;
        Self {
            report: Some(report.clone()),
            ..Self::new(target, report.cost(prices), report.saved_a_month(prices))
        }
    }

    /// The money is what doing it would cost, not what the look did.
    fn planned(target: Target, plan: Plan, host: &Host) -> Self {
        let prices = host.settings.prices;
        Self {
            plan: Some(plan.clone()),
            ..Self::new(target, plan.cost(prices), plan.saved_a_month(prices))
        }
    }

    fn add_table(&mut self, nano_dollars: u64) {
        if self.plan.is_none() {
            self.cost_nanodollars = self.cost_nanodollars.saturating_add(nano_dollars);
        }
        let freed = match (&self.report, &self.plan) {
            (Some(report), _) => report.retired_bytes.saturating_sub(report.written_bytes),
            (None, Some(plan)) => plan.freed_bytes,
            (None, None) => 0,
        };
        self.cost_per_gib_nanodollars = (u128::from(self.cost_nanodollars) * GIB)
            .checked_div(u128::from(freed))
            .map(|cost| u64::try_from(cost).unwrap_or(u64::MAX));
    }
}
