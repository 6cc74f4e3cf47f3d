//! The report of an edge that joined: what it counted and how it stands go to the service, the desired state comes back and is obeyed
//! (decision 0121).
//!
//! ```text
//! something is done ── every 30 s ──▶ counts to the spool ── their delivery carries the state ──▶ POST …/edges/EDGE/usage
//! nothing is done ─── every 10 min ──────────────────────── the state alone ───────────────────▶        │
//!                               volume ◀── cap, snapshot policy, rekey ◀── Desired ◀── signed ─────────┘
//! ```
//!
//! What an audit found to be damaged, or right again, is told at once; its signed report is brought to the service (`reporting/audits.rs`).
//!
//! New writes that are refused are something: a cap that is raised is noticed by the next of them, and in half a minute without any.

mod audits;

use crate::{
    auditor::AuditPart,
    config::Config,
    desired::{Desired, Held},
    failure::Failure,
    joined::{Joined, Reply},
    ordered_rekey::OrderedRekey,
    snapshot::Observed,
    usage::EdgeMeter,
};
use firn_audit_report::Outcome;
use firn_edge_state::{NewWrites, ObservedState, ObservedVolume, SnapshotSource, shortened};
use firn_env::{Env, Monotonic};
use firn_identity::EdgeId;
use firn_volume::{KeptPolicy, RetentionPolicy, Volume};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// What the service wants of this edge, as far as it is in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DesiredPart {
    /// Of the document; 0: none yet.
    pub generation: u64,
    pub new_writes: NewWrites,
    /// By whose word snapshots are made and deleted.
    pub snapshots: SnapshotSource,
    /// Why a later document is not obeyed.
    pub refused: Option<String>,
}

/// Between two reports of an edge that does something: 120 an hour.
pub const PERIOD: Duration = Duration::from_secs(30);
/// Between two of one that does nothing: 6 an hour.
const IDLE_PERIOD: Duration = Duration::from_secs(600);
/// Between two looks whether something was done; it takes no request.
const LOOK: Duration = Duration::from_secs(5);

/// The part of the service's reply that is ours.
#[derive(Deserialize)]
struct Reported {
    #[serde(default)]
    desired: Option<String>,
}

/// What the last audit found to be damaged.
fn damage(audit: AuditPart) -> Option<String> {
    let last = audit.last.filter(|last| last.outcome == Outcome::Damaged)?;
    Some(format!("an audit found {}", last.detail?))
}

/// The volume and how it obeys.
struct Obeying {
    volume: Volume,
    /// The policy of this edge's own configuration, which goes before the service's.
    own_policy: Option<RetentionPolicy>,
    policy: KeptPolicy,
    rekey: OrderedRekey,
}

/// Those that report for the volumes of this process. An edge that serves several says in each report how all of them stand.
#[derive(Default)]
pub struct Reporters(Mutex<Vec<Weak<Reporting>>>);

impl Reporters {
    fn add(&self, reporting: &Arc<Reporting>) {
        let mut known = self.0.lock().expect("no panic under this lock");
        known.retain(|one| one.strong_count() > 0);
        known.push(Arc::downgrade(reporting));
    }

    /// How the volumes of one edge stand, as far as they are open. Of a volume that was opened anew the newest counts.
    fn observed(&self, edge: EdgeId) -> Vec<ObservedVolume> {
        let known = self.0.lock().expect("no panic under this lock").clone();
        let mut volumes: Vec<ObservedVolume> = Vec::new();
        for reporting in known.iter().rev().filter_map(Weak::upgrade) {
            let is_said = volumes.iter().any(|said| said.volume == reporting.joined.volume);
            if reporting.joined.edge() == edge && !is_said {
                volumes.extend(reporting.volume());
            }
        }
        volumes.sort_by_key(|volume| volume.volume);
        volumes
    }
}

/// See the module.
pub struct Reporting {
    env: Env,
    config: Config,
    joined: Joined,
    /// Itself among them.
    reporters: Arc<Reporters>,
    path: String,
    desired: Desired,
    obeying: Obeying,
    observed: Mutex<Weak<Observed>>,
    /// When the service was asked last, whether it answered or not.
    asked: Mutex<Option<Monotonic>>,
    /// Whether it sent something since: what became of that is reported at once.
    is_owed: AtomicBool,
}

impl Reporting {
    /// Takes what was kept into force: before the first client is served. Snapshots are made by `policy` from then on.
    ///
    /// # Errors
    /// If this directory did not join.
    pub fn start(
        config: &Config,
        env: &Env,
        volume: &Volume,
        policy: &KeptPolicy,
        reporters: &Arc<Reporters>,
    ) -> Result<Arc<Self>, Failure> {
        let joined = Joined::load(config)?;
        let reporting = Self {
            env: env.clone(),
            path: format!("edges/{}/usage", joined.edge()),
            desired: Desired::load(config, &joined)?,
            joined,
            reporters: reporters.clone(),
            obeying: Obeying {
                volume: volume.clone(),
                own_policy: config.retention().map_err(Failure::usage)?,
                policy: policy.clone(),
                rekey: OrderedRekey::new(volume),
            },
            config: config.clone(),
            observed: Mutex::default(),
            asked: Mutex::default(),
            is_owed: AtomicBool::default(),
        };
        reporting.obey();
        let reporting = Arc::new(reporting);
        reporters.add(&reporting);
        Ok(reporting)
    }

    /// What is reported from now on.
    pub fn observe(&self, observed: &Arc<Observed>) {
        *self.observed.lock().expect("no panic under this lock") = Arc::downgrade(observed);
    }

    fn obey(&self) {
        let held = self.desired.held();
        let Obeying {
            volume,
            own_policy,
            policy,
            // At its own pace: it waits for commits.
            rekey: _,
        } = &self.obeying;
        volume.set_quota_reached(held.new_writes() == NewWrites::RefusedByCap);
        policy.set(own_policy.clone().or_else(|| held.retention(self.joined.volume)));
    }

    fn snapshots(&self, held: &Held) -> SnapshotSource {
        if self.obeying.own_policy.is_some() {
            SnapshotSource::Edge
        } else if held.retention(self.joined.volume).is_some() {
            SnapshotSource::Service
        } else {
            SnapshotSource::Nobody
        }
    }

    /// What is in force, for people.
    pub fn part(&self) -> DesiredPart {
        let held = self.desired.held();
        DesiredPart {
            generation: held.generation(),
            new_writes: held.new_writes(),
            snapshots: self.snapshots(&held),
            refused: held.refused().map(|refused| refused.why.clone()),
        }
    }

    /// How this edge stands.
    fn state(&self) -> ObservedState {
        let held = self.desired.held();
        ObservedState {
            version: env!("CARGO_PKG_VERSION").into(),
            in_force: held.generation(),
            refused: held.refused().cloned(),
            volumes: self.reporters.observed(self.joined.edge()),
        }
    }

    /// How its volume stands, once that is open.
    fn volume(&self) -> Option<ObservedVolume> {
        let observed = self
            .observed
            .lock()
            .expect("no panic under this lock")
            .upgrade()?;
        let held = &self.desired.held();
        let now = observed.snapshot();
        let away = now.detached.as_ref().map(|detached| detached.words());
        let state = match &away {
            Some(_) if now.is_serving() => "detached",
            _ => &now.volume.state,
        };
        let damage = damage(now.audit);
        let error = now.volume.reason.or(away).or(damage).or(now.commits.last_error);
        Some(ObservedVolume {
            volume: self.joined.volume,
            state: state.into(),
            new_writes: held.new_writes(),
            snapshots: self.snapshots(held),
            up_ms: now.volume.up_ms,
            lag_ms: now.uncommitted.oldest_ms,
            dirty_bytes: now.uncommitted.bytes,
            used_bytes: now.volume.used_bytes,
            cache_bytes: now.cache.disk_bytes,
            cache_limit_bytes: now.cache.disk_capacity_bytes,
            clients: now.nfs.connections,
            last_error: error.as_deref().map(shortened),
            rekey: self.obeying.rekey.observed(held.rekey(self.joined.volume)),
        })
    }

    /// Reports how this edge stands, with a batch of usage records or without, and obeys what comes back. The inner error is why there was
    /// no answer.
    ///
    /// # Errors
    /// If this edge's own files do not make a client.
    pub async fn exchange(&self, batch: Option<String>) -> Result<Result<Reply, String>, Failure> {
        *self.asked.lock().expect("no panic under this lock") = Some(self.env.now());
        let mut body = json!({ "state": self.state() });
        if let Some(batch) = batch {
            body["batch"] = batch.into();
        }
        let replied = self
            .joined
            .exchange(&self.config, &self.path, Some(&body))
            .await?;
        if let Ok(reply) = &replied
            && (200..300).contains(&reply.status)
            && let Ok(Reported { desired: Some(text) }) = serde_json::from_slice(&reply.text)
        {
            let before = self.desired.held();
            if self.desired.offer(&text) {
                self.obey();
            }
            if self.desired.held() != before {
                self.is_owed.store(true, Ordering::Relaxed);
            }
        }
        Ok(replied)
    }

    /// Reports and obeys for ever; end it by aborting its task.
    pub async fn keep(self: Arc<Self>, meter: Option<Arc<EdgeMeter>>, observed: Arc<Observed>) {
        futures::join!(
            self.keep_reporting(meter, observed.clone()),
            self.keep_rekeying(),
            self.keep_filing(&observed.auditor)
        );
    }

    /// Obeys orders about rekeying, and owes a report when there is news of that.
    async fn keep_rekeying(&self) {
        loop {
            let wanted = self.desired.held().rekey(self.joined.volume);
            self.obeying.rekey.obey(wanted).await;
            if self.obeying.rekey.has_news(wanted) {
                self.is_owed.store(true, Ordering::Relaxed);
            }
            self.env.sleep(LOOK).await;
        }
    }

    async fn keep_reporting(&self, meter: Option<Arc<EdgeMeter>>, observed: Arc<Observed>) {
        let mut calls = 0;
        let mut said = damage(observed.auditor.part());
        self.say(&self.exchange(None).await);
        loop {
            // Whether somebody writes meanwhile or not.
            let found = damage(observed.auditor.part());
            if found != said {
                said = found;
                self.is_owed.store(true, Ordering::Relaxed);
            }
            if self.is_owed.swap(false, Ordering::Relaxed) {
                self.say(&self.exchange(None).await);
            }
            self.env.sleep(LOOK).await;
            let asked = *self.asked.lock().expect("no panic under this lock");
            let since = asked.map_or(Duration::MAX, |asked| self.env.now().since(asked));
            if since < PERIOD {
                continue;
            }
            let made = observed.requests();
            let is_active = made != calls
                || observed.volume.status().oldest_uncommitted.is_some()
                || self.desired.held().new_writes() != NewWrites::Allowed
                || self.obeying.rekey.is_under_way();
            if !is_active && since < IDLE_PERIOD {
                continue;
            }
            let is_recorded = match &meter {
                Some(meter) => meter.record(&observed).await,
                None => false,
            };
            calls = made;
            // Else the delivery of what was recorded says it, unless it has stopped.
            if !is_recorded || since >= 2 * PERIOD {
                self.say(&self.exchange(None).await);
            }
        }
    }

    fn say(&self, replied: &Result<Result<Reply, String>, Failure>) {
        match replied {
            Ok(Ok(reply)) if !(200..300).contains(&reply.status) => {
                let problem = reply.problem();
                tracing::warn!(
                    status = reply.status,
                    code = problem.code,
                    why = problem.detail,
                    "the service refuses the report"
                );
            }
            Ok(Ok(_)) => {}
            Ok(Err(why)) => tracing::debug!(why, "the service did not take the report"),
            Err(failure) => tracing::warn!(%failure, "nothing is reported"),
        }
    }
}
