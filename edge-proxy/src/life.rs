//! One volume of an edge, from opening to its end: see the table in [`crate::volumes`].

use crate::{
    access_log,
    admin::{Admin, DrainRequest},
    auditor::{Audited, Auditor},
    certificate::keep_renewed,
    cleaner::InsideCleaner,
    config::Config,
    detached::Detached,
    failure::Failure,
    identity::Identity,
    joined::is_joined,
    junctions,
    opened::{self, MemberTerm, Mode, Opened},
    parts::{Common, Outside},
    readable,
    repair::keep_repaired,
    reporting::{Reporters, Reporting},
    second::Second,
    serve::{Served, Service},
    snapshot::{Fixed, Observed},
    terms::tell_lost,
    usage::EdgeMeter,
    volumes::Volumes,
};
use firn_env::{Backoff, DiskLock, Env, Task};
use firn_nfs::HandleKey;
use firn_volume::{KeptPolicy, ServingState, TermEnd, Volume, VolumeError};
use futures::FutureExt;
use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// How long the end waits for a client to take the news of it.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How long a member of a shared volume may take to publish what it has when it is told to end; below what systemd waits.
const PUBLISH_WITHIN: Duration = Duration::from_secs(20);

/// How long one may take that is drained.
const DRAIN_WITHIN: Duration = Duration::from_secs(3600);

/// Between two openings of a volume that cannot be opened: as systemd would start an edge with it alone, and slower if it lasts.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), BACKOFF_MAX);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// What happened to a volume.
pub enum News {
    /// It is open, or could not be opened the first time; told once.
    Attempted,
    /// It ends, told or not; the last of it.
    Ended(Result<(), Failure>),
}

/// See the module.
pub struct Life {
    pub config: Config,
    pub common: Common,
    pub volumes: Arc<Volumes>,
    /// The volume's number among them.
    pub at: usize,
    /// Store and table, if whoever runs the edge opened them.
    pub outside: Option<Outside>,
    pub fault: Option<PathBuf>,
    /// Whether the others go on when this one cannot.
    pub has_others: bool,
    pub stopping: watch::Receiver<bool>,
    /// Where it was not told yet that this one was tried.
    pub attempt: Option<mpsc::Sender<News>>,
    pub end: mpsc::Sender<News>,
    /// Mounts and SMB of a shared volume, between two terms.
    pub service: Option<Service>,
}

impl Life {
    /// Serves the volume until the process stops, it is drained, or it cannot be served any longer.
    pub async fn live(mut self) {
        let ended = self.until_end().await;
        match &ended {
            Ok(()) => self
                .volumes
                .ended(self.at, "it was drained, or the edge stops".into()),
            Err(failure) => {
                if self.has_others {
                    let volume = &self.config.volume.name;
                    tracing::error!(volume, %failure, "this volume is served no more; the others are");
                }
                self.volumes.ended(self.at, failure.to_string());
            }
        }
        // Nobody listens any more only if the process ends.
        let _ = self.end.send(News::Ended(ended)).await;
    }

    async fn until_end(&mut self) -> Result<(), Failure> {
        let mut lock = None;
        let mut failures = 0;
        loop {
            let began = self.volumes.env.now();
            let failure = match self.attempt(&mut lock).await {
                Ok(Ended::ForGood | Ended::TermOver) => return Ok(()),
                Ok(Ended::Broken) => {
                    tracing::warn!("others went on without this office: the volume is opened again");
                    // Where another has this member's state, the two would break each other without end.
                    let pause = BACKOFF.pause(&self.volumes.env, 1);
                    self.volumes.env.sleep(pause).await;
                    continue;
                }
                Ok(Ended::CloudIsBack) => {
                    tracing::warn!("store and table answer again: the volume is opened anew");
                    self.volumes.opening(self.at, None);
                    continue;
                }
                Err(failure) => failure,
            };
            if !self.has_others || !may_pass(&failure) || *self.stopping.borrow() {
                return Err(failure);
            }
            // Long enough open: it is another failure.
            failures = if self.volumes.env.now().since(began) > 2 * BACKOFF_MAX {
                1
            } else {
                failures + 1
            };
            let volume = &self.config.volume.name;
            tracing::warn!(volume, %failure, "this volume is opened again; the others are served");
            self.volumes.opening(self.at, Some(failure.to_string()));
            self.attempted().await;
            let pause = BACKOFF.pause(&self.volumes.env, failures);
            let (env, mut stopping) = (self.volumes.env.clone(), self.stopping.clone());
            let (slept, stopped) = (pin!(env.sleep(pause)), pin!(stopping.wait_for(|stop| *stop)));
            futures::future::select(slept, stopped).await;
            if *self.stopping.borrow() {
                return Err(failure);
            }
        }
    }

    /// Tells, once, that clients need not wait for this volume.
    async fn attempted(&mut self) {
        if let Some(news) = self.attempt.take() {
            let _ = news.send(News::Attempted).await;
        }
    }

    /// Opens and serves it once. `lock` is that of its directory, once it was taken.
    async fn attempt(&mut self, lock: &mut Option<Box<dyn DiskLock>>) -> Result<Ended, Failure> {
        readable::volume(&self.config.volume.state_directory)?;
        let identity = Identity::load(&self.config.volume.state_directory)?;
        let outside = match &self.outside {
            Some(outside) => outside.clone(),
            None => {
                let opened = Outside::for_serving_beside(&self.config, &self.common, self.fault.as_deref());
                self.outside.insert(opened.await?).clone()
            }
        };
        if lock.is_none() && self.config.volume.state_directory != self.config.edge.directory {
            *lock = Some(lock_of(&outside.env).await?);
        }
        if let Some(options) = self.config.volume.shared.clone() {
            return self.live_by_terms(&outside, &options, identity).await;
        }
        let opened = opened::open(&self.config, &outside, &self.volumes.nfs.table()).await?;
        self.serve(&outside, opened, HandleKey::new(&identity.handle_key))
            .await
    }
}

/// The lock of a state directory.
pub async fn lock_of(env: &Env) -> Result<Box<dyn DiskLock>, Failure> {
    env.disk().lock("lock").await.map_err(|error| {
        Failure::new(format!(
            "another firn-edge uses this state directory ({error}); nothing was changed"
        ))
    })
}

/// Whether a volume that ended so may be served again though nobody does anything. After a journal that failed (5) only another process
/// knows that nobody writes into its files any more.
fn may_pass(failure: &Failure) -> bool {
    !matches!(failure.exit_code(), 2..=5)
}

/// Why a volume is served no more, if nothing failed.
pub(crate) enum Ended {
    ForGood,
    CloudIsBack,
    /// The term of a member of a shared volume; the next one begins.
    TermOver,
    /// Others went on without this member: the volume is opened again, which judges its journal.
    Broken,
}

impl Life {
    /// Serves the opened volume until it ends.
    pub(crate) async fn serve(
        &mut self,
        outside: &Outside,
        opened: Opened,
        handle_key: HandleKey,
    ) -> Result<Ended, Failure> {
        let volumes = self.volumes.clone();
        let config = &self.config.clone();
        let Opened { parts, volume, .. } = opened;
        let mut beside = Vec::new();
        let member = match &opened.mode {
            Mode::Member(of) => Some((**of).clone()),
            Mode::Owned(_) | Mode::Following(_) | Mode::ByInode(_) | Mode::Detached(_) => None,
        };
        let by_inode = match &opened.mode {
            Mode::ByInode(of) => Some((of.options, of.salvaged.clone())),
            Mode::Owned(_) | Mode::Following(_) | Mode::Member(_) | Mode::Detached(_) => None,
        };
        let is_owned = matches!(opened.mode, Mode::Owned(_))
            || member.as_ref().is_some_and(|member| member.term.is_owner());
        if is_joined(config) {
            let renewal = keep_renewed(config.clone(), outside.env.clone());
            beside.push(Background(outside.env.spawn("renew certificate", renewal)));
        }
        let policy = KeptPolicy::default();
        policy.set(config.retention().map_err(Failure::usage)?);
        // From here on the volume obeys what the service said last: before there is a client.
        let reporting = reporting(config, (&outside.env, &volumes.reporters), &volume, &policy);
        let _keeper = is_owned.then(|| volume.keep_snapshots(&policy));
        let book = config.price_book()?;
        let cleaner = Arc::new(InsideCleaner::new(
            outside,
            parts.anchor.clone(),
            &config.cleaner,
            book.clone(),
        ));
        let second = outside.second.as_ref().map(|second| {
            let env = &outside.env;
            let first = (outside.stack.store.clone(), outside.background.clone());
            Arc::new(Second::new(
                env,
                first,
                second,
                parts.anchor.clone(),
                &volume,
                is_owned.then_some(config.parity.as_ref()),
            ))
        });
        let auditor = Arc::new(Auditor::new(
            Audited {
                parts: &parts,
                signer: volume.owner_signer(),
                second: second.clone(),
                store: outside.background.clone(),
            },
            &config.audit,
            book.clone(),
            &config.volume.state_directory,
        ));
        if let Some(second) = &second {
            beside.push(Background(
                outside.env.spawn("second store", second.clone().keep()),
            ));
        }
        if is_owned {
            let auditing = auditor.clone().keep_audited(volume.clone());
            beside.push(Background(outside.env.spawn("audit", auditing)));
        }
        let detached = match opened.mode {
            Mode::Owned(rings) => {
                let of = volume.clone();
                let following =
                    rings.follow(outside.env.clone(), move || Some(of.clone()), parts.keys.clone());
                beside.push(Background(outside.env.spawn("follow key rings", following)));
                let cleaning = cleaner.clone().keep_clean(volume.clone());
                beside.push(Background(outside.env.spawn("clean", cleaning)));
                None
            }
            Mode::Following(rings) => {
                let of = volume.clone();
                let following =
                    rings.follow(outside.env.clone(), move || Some(of.clone()), parts.keys.clone());
                beside.push(Background(outside.env.spawn("follow key rings", following)));
                None
            }
            Mode::ByInode(by_inode) => {
                let of = volume.clone();
                let rings = by_inode.rings;
                let following =
                    rings.follow(outside.env.clone(), move || Some(of.clone()), parts.keys.clone());
                beside.push(Background(outside.env.spawn("follow key rings", following)));
                if let Some(lost) = volume.lost_locks() {
                    let telling = tell_lost(lost, volumes.clone());
                    beside.push(Background(outside.env.spawn("tell lost locks", telling)));
                }
                None
            }
            Mode::Member(_) => {
                if is_owned {
                    let cleaning = cleaner.clone().keep_clean(volume.clone());
                    beside.push(Background(outside.env.spawn("clean", cleaning)));
                }
                None
            }
            Mode::Detached(detached) => Some(detached),
        };
        let of_all = (volumes.nfs.table(), volumes.access_log.as_ref());
        let _resolving = access_log::resolve(of_all.1, config, &volume);
        let served = match (&member, &by_inode) {
            (Some(member), _) => Served::Member(&member.member),
            (None, Some((options, _))) => Served::ByInode(&volume, options.freshness),
            (None, None) => Served::Volume(&volume),
        };
        let of_last_term = self.service.take();
        let was_served = of_last_term.is_some();
        let started = match of_last_term {
            Some(of_last_term) => Ok(of_last_term),
            None => Service::start(config, outside, of_all, &served).await,
        };
        let service = match started {
            Ok(started) => started,
            Err(failure) => {
                // Whoever opens it again finds the journal closed.
                volume.stop().await.map_err(Failure::stopped)?;
                return Err(failure);
            }
        };
        let exported = service.exported(config, &served);
        let exports = config.exports.iter().map(|export| export.path.clone());
        let fixed = Fixed {
            volume_name: opened.volume_name,
            volume_id: parts.volume.hex().to_string(),
            family: parts.keys.family().to_string(),
            keys: parts.keys.clone(),
            owner: opened.owner,
            reporting: reporting.clone(),
            store_url: config.volume.store.to_string(),
            table_url: config.volume.anchor.to_string(),
            book,
            nfs: volumes.nfs.clone(),
            second,
            member: member.as_ref().map(|member| member.member.clone()),
            salvaged: by_inode.and_then(|(_, salvaged)| salvaged),
            config: config.clone(),
            exports: volumes.has_names.then(|| exports.collect()),
        };
        let observed = Arc::new(Observed::new(
            outside,
            &volume,
            config.volume_config()?,
            fixed,
            (cleaner, auditor),
            (service, detached.clone()),
        ));
        if is_owned {
            let repairing = keep_repaired(outside.env.clone(), observed.clone());
            beside.push(Background(outside.env.spawn("repair", repairing)));
        }
        let (drains, mut drain_requests) = mpsc::channel(1);
        let admin = Arc::new(Admin::new(observed.clone(), drains));
        let mounts_before = if was_served { observed.mount_requests() } else { 0 };
        let calls_before = (observed.calls(), mounts_before);
        volumes.publish(self.at, &exported, &handle_key, admin);
        junctions::look(&outside.env, &volumes.nfs).await;
        self.attempted().await;
        let mut meter = None;
        if let Some(reporting) = reporting {
            reporting.observe(&observed);
            meter = edge_meter(config, &observed, &reporting, calls_before).await;
            let reports = reporting.keep(meter.clone(), observed.clone());
            beside.push(Background(outside.env.spawn("report", reports)));
        }
        let at = (config, outside);
        let told = self.stopping.wait_for(|stop| *stop).map(drop);
        let of = (&volume, member.as_ref());
        let end = until_stopped(at, of, told, &mut drain_requests, detached.as_deref()).await;
        match end {
            // Its clients wait at the member's gate, and find the next term.
            End::Term(Ok(TermEnd::MayOwn | TermEnd::Given | TermEnd::Fenced)) => drop(exported),
            End::Term(_) | End::Signal | End::Drain(_) | End::Volume(_) | End::Back => {
                volumes.withdraw(self.at, exported).await;
            }
        }
        if let Some(meter) = &meter {
            meter.record(&observed).await;
        }
        let service = observed.take_service();
        match (&end, service) {
            // Its processes wait at the member's gate as well.
            (End::Term(Ok(TermEnd::MayOwn | TermEnd::Given | TermEnd::Fenced)), service) => {
                self.service = service
            }
            (_, Some(service)) => service.end().await,
            (_, None) => {}
        }
        match end {
            End::Signal => {
                match &member {
                    Some(member) => member.member.stop(&member.term, PUBLISH_WITHIN).await?,
                    None if volume.member_by_inode().is_some() => {
                        if let Err(failure) = left(&volume, PUBLISH_WITHIN).await {
                            tracing::warn!(%failure, "this office stops without having gone away");
                        }
                    }
                    None => volume.stop().await?,
                }
                match volume.is_follower() {
                    true => tracing::info!("stopped; nothing was changed here"),
                    false => tracing::info!("stopped; everything acknowledged is in the journal (level 1)"),
                }
                Ok(Ended::ForGood)
            }
            End::Term(Ok(TermEnd::MayOwn | TermEnd::Given | TermEnd::Fenced)) => Ok(Ended::TermOver),
            End::Term(Ok(TermEnd::Failed(reason))) => Err(Failure::stopped(format!(
                "the shared volume stopped here: {reason}. What was acknowledged is in the journal or in the cloud; start again"
            ))),
            End::Term(Err(error)) => Err(error.into()),
            End::Back => {
                volume.stop().await.map_err(Failure::stopped)?;
                Ok(Ended::CloudIsBack)
            }
            End::Drain(request) => {
                let drained = match volume.member_by_inode() {
                    Some(_) => left(&volume, DRAIN_WITHIN).await,
                    None => volume.drain().await.map_err(Failure::from),
                };
                if let Some(meter) = &meter {
                    meter.record(&observed).await;
                }
                let outcome = drained.as_ref().copied().map_err(ToString::to_string);
                let _ = request.outcome.send(outcome);
                let _ = outside.env.timeout(LAST_WORD, request.told).await;
                tracing::info!("drained; everything is in the cloud (level 2)");
                drained.map(|()| Ended::ForGood)
            }
            End::Volume(ServingState::Fenced) => {
                volumes.opening(self.at, Some("another edge took it over".into()));
                drop((observed, volume));
                let salvaged = Volume::salvage(&parts, &config.volume_config()?).await?;
                Err(Failure::fenced(match salvaged {
                    Some(clone) => format!(
                        "another edge took the volume over; what this one acknowledged and had not committed is in the clone {}",
                        clone.name
                    ),
                    None => "another edge took the volume over; nothing of this one was uncommitted".into(),
                }))
            }
            End::Volume(ServingState::Broken(reason)) => {
                volumes.opening(self.at, Some(reason));
                let is_copied = volume.is_started_elsewhere().await;
                volume.stop().await.map_err(Failure::stopped)?;
                match is_copied {
                    false => Ok(Ended::Broken),
                    true => Err(Failure::fenced(
                        "another machine was started with a copy of this state directory, and is this member of the volume now. This one serves nothing; what it \
                         acknowledged and had not published is in its journal. Stop one of the two, and give it a state directory of its own (firn-edge join)",
                    )),
                }
            }
            End::Volume(ServingState::Failed(reason)) if volume.is_follower() => Err(Failure::stopped(
                format!("this edge follows the volume no more: {reason}"),
            )),
            End::Volume(other) => Err(Failure::stopped(format!(
                "the volume stopped: {other:?}. Everything acknowledged is in the journal; start again to recover"
            ))),
        }
    }
}

/// Has a member publish what it has and go away, and closes its journal.
async fn left(volume: &Volume, within: Duration) -> Result<(), Failure> {
    match volume.leave_by_inode(within).await? {
        true => Ok(()),
        false => Err(Failure::new(
            "not everything was published in time: what was acknowledged is in the journal (level 1), and others wait a minute for what this office holds. Start it \
             again to publish it",
        )),
    }
}

/// What reports to the service, if there is one. That nothing is reported keeps nobody from serving.
fn reporting(
    config: &Config,
    (env, reporters): (&Env, &Arc<Reporters>),
    volume: &Volume,
    policy: &KeptPolicy,
) -> Option<Arc<Reporting>> {
    if !is_joined(config) {
        return None;
    }
    match Reporting::start(config, env, volume, policy, reporters) {
        Ok(reporting) => Some(reporting),
        Err(failure) => {
            tracing::warn!(%failure, "this edge reports nothing, and learns neither caps nor snapshot policies");
            None
        }
    }
}

/// What counts for the report.
async fn edge_meter(
    config: &Config,
    observed: &Observed,
    reporting: &Arc<Reporting>,
    calls_before: (u64, u64),
) -> Option<Arc<EdgeMeter>> {
    match EdgeMeter::start(config, observed, reporting, calls_before).await {
        Ok(meter) => Some(Arc::new(meter)),
        Err(failure) => {
            tracing::warn!(%failure, "what this edge counts is not reported");
            None
        }
    }
}

/// Work beside serving, for as long as the volume is served.
pub(crate) struct Background(Task<()>);

impl Background {
    pub(crate) fn new(task: Task<()>) -> Self {
        Self(task)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why serving ends.
enum End {
    Signal,
    Drain(DrainRequest),
    Volume(ServingState),
    /// Of a member of a shared volume.
    Term(Result<TermEnd, VolumeError>),
    /// The cloud is back.
    Back,
}

async fn until_stopped(
    (config, outside): (&Config, &Outside),
    (volume, member): (&Volume, Option<&MemberTerm>),
    told: impl Future<Output = ()> + Send,
    drains: &mut mpsc::Receiver<DrainRequest>,
    detached: Option<&Detached>,
) -> End {
    let back = pin!(async {
        match detached {
            Some(detached) => detached.until_back(outside, config).await,
            None => std::future::pending().await,
        }
        End::Back
    });
    let ended = pin!(async {
        match member {
            Some(of) => End::Term(of.member.run(&of.term).await),
            None => End::Volume(volume.ended().await),
        }
    });
    let told = pin!(told.map(|()| End::Signal));
    let drain = pin!(async {
        match drains.recv().await {
            Some(request) => End::Drain(request),
            None => std::future::pending().await,
        }
    });
    let told = futures::future::select(told, drain).map(|told| told.factor_first().0);
    let ended = futures::future::select(ended, back).map(|ended| ended.factor_first().0);
    futures::future::select(ended, told).await.factor_first().0
}
