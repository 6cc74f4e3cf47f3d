//! Usage reporting of this edge to the service that it joined: root commits, file operations, requests and bytes to and from the bucket. Shown
//! beside what the service saw and compared with it, never charged (decision 0027).
//!
//! ```text
//! counters ── what they rose by, each report ──▶ Spool (STATE/usage, level 1) ── the edge's certificate ──▶ POST …/edges/EDGE/usage
//! ```
//!
//! When there is a report, and what else it says, is [`crate::reporting`]'s. What was counted since the last is lost if the process dies
//! then. An idle edge writes nothing.

use crate::{
    config::Config,
    failure::Failure,
    joined::{Joined, Reply},
    reporting::Reporting,
    snapshot::Observed,
};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_env::{Env, Task};
use firn_identity::VolumeId;
use firn_usage::{
    Delivery, DeliveryPolicy, Meter, Observation, ResourceName, SinkError, SourceId, Spool, SpoolConfig,
    SpoolError, TenantName, UsageBatch, UsageSink,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// Some hundred thousand records, at five a period: a month without the service. What comes then waits in the counters.
const SPOOL_BYTES: u64 = 4 << 20;

/// Far longer than a task takes to be dropped; nobody else has the state directory, whose lock is this process's.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);
const LET_GO_LOOK: Duration = Duration::from_millis(20);

/// Counters that only rise while the edge runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    commits: u64,
    /// Over NFS, whose server counts for as long as the process lives.
    calls: u64,
    /// By mounts, which end with the volume.
    mount_requests: u64,
    requests: u64,
    bytes_up: u64,
    bytes_down: u64,
}

impl Counts {
    fn of(observed: &Observed) -> Self {
        let store = observed.meter.usage();
        Self {
            commits: observed.volume.status().checkpoints,
            calls: observed.calls(),
            mount_requests: observed.mount_requests(),
            requests: store.requests(),
            bytes_up: store.bytes_up,
            bytes_down: store.bytes_down,
        }
    }

    /// What they rose by since `before`; a counter that fell began anew.
    fn since(&self, before: &Self) -> [(Meter, u64); 5] {
        let risen = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        [
            (Meter::ROOT_COMMITS, risen(self.commits, before.commits)),
            (
                Meter::EDGE_OPERATIONS,
                risen(self.calls, before.calls) + risen(self.mount_requests, before.mount_requests),
            ),
            (Meter::EDGE_REQUESTS, risen(self.requests, before.requests)),
            (Meter::EDGE_BYTES_UP, risen(self.bytes_up, before.bytes_up)),
            (Meter::EDGE_BYTES_DOWN, risen(self.bytes_down, before.bytes_down)),
        ]
    }
}

/// Reports an edge's counts for as long as it is not dropped.
pub struct EdgeMeter {
    env: Env,
    tenant: TenantName,
    volume: VolumeId,
    spool: Spool,
    reported: Mutex<Counts>,
    delivery: Task<()>,
}

impl EdgeMeter {
    /// Opens the spool of the state directory. What the bucket was asked for before is not this volume's serving, and no more are the
    /// first calls `before`, over NFS and by mounts: the volume was open before in the same process, and they were counted then.
    ///
    /// # Errors
    /// If this directory did not join, or its spool cannot be opened.
    pub async fn start(
        config: &Config,
        observed: &Observed,
        reporting: &Arc<Reporting>,
        (calls_before, mounts_before): (u64, u64),
    ) -> Result<Self, Failure> {
        let env = observed.env.clone();
        let joined = Joined::load(config)?;
        let source = SourceId::new(&format!("edge/{}", joined.edge())).map_err(Failure::new)?;
        let spool = SpoolConfig {
            max_bytes: SPOOL_BYTES,
            ..SpoolConfig::default()
        };
        let spool = open(&env, source, spool).await.map_err(Failure::new)?;
        let (tenant, volume) = (TenantName::from(joined.invitation.tenant), joined.volume);
        let sink = Arc::new(ServiceSink(reporting.clone()));
        let delivery = Delivery::new(&spool, sink, DeliveryPolicy::default());
        let before = Counts::of(observed);
        Ok(Self {
            delivery: env.spawn("usage delivery", delivery.run()),
            env,
            tenant,
            volume,
            spool,
            reported: Mutex::new(Counts {
                commits: 0,
                calls: calls_before,
                mount_requests: mounts_before,
                ..before
            }),
        })
    }

    /// Writes down what the counters rose by, to be delivered; whether there was something. What the spool does not take waits in them.
    pub async fn record(&self, observed: &Observed) -> bool {
        let mut reported = self.reported.lock().await;
        let now = Counts::of(observed);
        let risen = now.since(&reported);
        let observations: Vec<_> = risen
            .into_iter()
            .filter(|(_, quantity)| *quantity > 0)
            .map(|(meter, quantity)| Observation {
                tenant: self.tenant.clone(),
                resource: ResourceName::new(&format!("volume/{}", self.volume))
                    .expect("made of letters, digits, slashes and underscores"),
                meter,
                quantity,
                from_ms: u64::try_from(self.env.wall().as_millis()).unwrap_or(0),
                duration_ms: 0,
            })
            .collect();
        if observations.is_empty() {
            return false;
        }
        match self.spool.append(observations).await {
            Ok(_) => {
                *reported = now;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "what this edge counted waits for its spool");
                false
            }
        }
    }
}

impl Drop for EdgeMeter {
    fn drop(&mut self) {
        // It holds the spool, which the volume's next life in this process opens again.
        self.delivery.abort();
    }
}

/// Opens the spool. When a volume is opened anew in one process, tasks of its last life end in a moment, and hold the spool until then.
async fn open(env: &Env, source: SourceId, config: SpoolConfig) -> Result<Spool, SpoolError> {
    let until = env.now().after(LET_GO_WITHIN);
    loop {
        match Spool::open(env, "usage", source.clone(), config.clone()).await {
            Err(SpoolError::InUse(_)) if env.now() < until => env.sleep(LET_GO_LOOK).await,
            opened => return opened,
        }
    }
}

/// The service's door for this edge's usage records.
struct ServiceSink(Arc<Reporting>);

#[async_trait]
impl UsageSink for ServiceSink {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        let batch = batch
            .encode()
            .map_err(|error| SinkError::Refused(error.to_string()))?;
        let replied = self.0.exchange(Some(STANDARD_NO_PAD.encode(batch))).await;
        // This edge's own files may be readable again.
        let replied = replied.map_err(|failure| SinkError::Unavailable(failure.to_string()))?;
        received(replied)
    }
}

fn received(replied: Result<Reply, String>) -> Result<(), SinkError> {
    let reply = replied.map_err(SinkError::Unavailable)?;
    match reply.status {
        200..300 => Ok(()),
        status => {
            let problem = reply.problem();
            let why = format!("the service says {status} {}: {}", problem.code, problem.detail);
            Err(match status {
                408 | 409 => SinkError::Unavailable(why),
                _ => SinkError::Refused(why),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_reported_by_what_they_rose_and_from_nothing_when_they_began_anew() {
        let counts = |commits, calls| Counts {
            commits,
            calls,
            mount_requests: calls,
            ..Counts::default()
        };
        let risen = |now: Counts, before| {
            let [commits, operations, ..] = now.since(&before);
            (commits.1, operations.1)
        };
        assert_eq!(risen(counts(5, 100), counts(3, 100)), (2, 0));
        assert_eq!(risen(counts(1, 7), counts(3, 100)), (1, 14));
    }

    #[test]
    fn a_refusal_is_final_and_everything_else_is_sent_again() {
        let status = |status| {
            received(Ok(Reply {
                status,
                text: b"{\"code\":\"x\",\"detail\":\"why\"}".to_vec(),
            }))
        };
        assert_eq!(status(200), Ok(()));
        assert!(matches!(status(403), Err(SinkError::Refused(why)) if why.contains("why")));
        assert!(matches!(status(409), Err(SinkError::Unavailable(_))));
        assert!(matches!(
            received(Err("no route".into())),
            Err(SinkError::Unavailable(_))
        ));
    }
}
