//! The meter of what the anchor's tuples count: root commits, requests of the cleaner, bytes that are stored.
//!
//! The tuple of a volume counts its commits in the very write that makes each one, and cleaners note what they sent and found in the
//! account beside it, so nothing is lost or counted twice, whoever dies when and however often a call was repeated. What is stored
//! beside them is how far these counts were made usage records of:
//!
//! ```text
//! item counted of the family's partition: settled counts, records so far, pending (counts, when)
//!   counts rose ──(conditional write)──▶ pending ──(the ledger takes the records, once by their numbers)──(conditional write)──▶ settled
//! ```
//!
//! Records are decided before they are delivered, so that they are the same when they are sent again, by any instance.

use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::{Anchor, AnchorError, AnchorRole};
use firn_env::Env;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_table::{Condition, ItemKey, Table, TableError, Write};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const COUNTED: &str = "counted";
/// Deliver, decide, deliver, with a collision or two.
const STEPS: usize = 8;

/// Takes usage records, each number of a source once.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Takes a batch.
    ///
    /// # Errors
    /// Why it was not taken; it will be offered again.
    async fn accept(&self, batch: &UsageBatch) -> Result<(), String>;
}

/// Why commits were not counted yet; they will be.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// The roots could not be read.
    #[error("the roots of {volume} could not be read: {error}")]
    Anchor {
        /// Of which volume.
        volume: TenantVolume,
        /// Why.
        error: AnchorError,
    },
    /// The table.
    #[error("how far {volume} was counted: {error}")]
    Table {
        /// Of which volume.
        volume: TenantVolume,
        /// Why.
        error: TableError,
    },
    /// What is stored of the count is not what this build writes.
    #[error("how far {volume} was counted cannot be read: {why}")]
    Unreadable {
        /// Of which volume.
        volume: TenantVolume,
        /// Why.
        why: String,
    },
    /// The ledger.
    #[error("the ledger does not take the commits of {volume}: {why}")]
    Ledger {
        /// Of which volume.
        volume: TenantVolume,
        /// Why.
        why: String,
    },
}

impl MeterError {
    /// Whether calling again may help without anybody's doing.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Anchor { error, .. } => error.is_transient(),
            Self::Table { error, .. } => error.is_in_doubt(),
            Self::Ledger { .. } => true,
            Self::Unreadable { .. } => false,
        }
    }
}

/// How far the counts of a volume and its clones are in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    /// So many commits are in the ledger.
    settled: u64,
    /// So many of the cleaner's requests.
    #[serde(default)]
    cleaner_operations: u64,
    /// So many byte-hours.
    #[serde(default)]
    stored_byte_hours: u64,
    /// Records so far.
    records: u64,
    /// Decided on; may be in the ledger.
    pending: Option<Pending>,
}

/// The counts up to which records are decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    until: u64,
    #[serde(default)]
    cleaner_operations: u64,
    #[serde(default)]
    stored_byte_hours: u64,
    decided_at_ms: u64,
}

impl Counted {
    /// What is pending, meter by meter; what did not rise is left out.
    fn rises(&self, pending: &Pending) -> Vec<(Meter, u64)> {
        let rises = [
            (Meter::ROOT_COMMITS, pending.until, self.settled),
            (
                Meter::CLEANER_OPERATIONS,
                pending.cleaner_operations,
                self.cleaner_operations,
            ),
            (
                Meter::STORED_BYTE_HOURS,
                pending.stored_byte_hours,
                self.stored_byte_hours,
            ),
        ];
        let rises = rises.map(|(meter, until, settled)| (meter, until.saturating_sub(settled)));
        rises.into_iter().filter(|(_, quantity)| *quantity > 0).collect()
    }

    /// With what was pending, which made so many records.
    fn settled(self, pending: &Pending, records: u64) -> Self {
        Self {
            settled: self.settled.max(pending.until),
            cleaner_operations: self.cleaner_operations.max(pending.cleaner_operations),
            stored_byte_hours: self.stored_byte_hours.max(pending.stored_byte_hours),
            records: self.records + records,
            pending: None,
        }
    }
}

fn encode(counted: &Counted) -> Bytes {
    serde_json::to_vec(counted)
        .expect("numbers have a JSON form")
        .into()
}

/// Makes usage records of root commits, and of what cleaners noted.
pub struct CommitMeter {
    env: Env,
    table: Arc<dyn Table>,
}

impl CommitMeter {
    /// Over the table in which the roots are. Makes no request.
    pub fn new(env: Env, table: Arc<dyn Table>) -> Self {
        Self { env, table }
    }

    /// Brings all that was committed to a volume and its clones into the ledger, and what cleaners noted of it; gives how many
    /// commits. Costs a query and two reads, more only where there is news.
    ///
    /// # Errors
    /// [`MeterError`]; calling again goes on.
    pub async fn settle(&self, volume: TenantVolume, ledger: &dyn Ledger) -> Result<u64, MeterError> {
        let partition = volume.roots_partition();
        // The partition is the family's; its name matters to nobody here.
        let family = FamilyId([0; 16]);
        let anchor = Anchor::within(
            self.table.clone(),
            self.env.clone(),
            family,
            &*partition,
            AnchorRole::Observer,
        );
        let branches = anchor
            .volumes()
            .await
            .map_err(|error| MeterError::Anchor { volume, error })?;
        // Those of the volume and its clones: tuples only go when all of them do, so the sum only rises.
        let committed = branches
            .iter()
            .fold(0_u64, |sum, branch| sum.saturating_add(branch.tuple.commits));
        let (account, _) = anchor
            .cleaning_account()
            .await
            .map_err(|error| MeterError::Anchor { volume, error })?;
        let key = ItemKey::new(partition, COUNTED);
        let failed = |error| MeterError::Table { volume, error };
        let mut commits = 0;
        for _ in 0..STEPS {
            let item = self.table.get(&key).await.map_err(failed)?;
            let (counted, condition) = match &item {
                Some(item) => {
                    let counted =
                        serde_json::from_slice(&item.value).map_err(|error| MeterError::Unreadable {
                            volume,
                            why: error.to_string(),
                        })?;
                    (counted, Condition::Version(item.version))
                }
                None => (Counted::default(), Condition::Absent),
            };
            let next = match counted.pending {
                Some(pending) => {
                    let pending = match firn_env::planted!("anchor.records_decided_anew") {
                        true => Pending {
                            until: committed,
                            ..pending
                        },
                        false => pending,
                    };
                    let rises = counted.rises(&pending);
                    let delivered = deliver(volume, &counted, &pending, &rises, ledger).await;
                    if !firn_env::planted!("anchor.settled_undelivered") {
                        delivered?;
                    }
                    self.env.fault_point("anchor.commits_delivered").await;
                    commits += pending.until.saturating_sub(counted.settled);
                    counted.settled(&pending, rises.len() as u64)
                }
                None => {
                    let pending = Pending {
                        until: committed,
                        cleaner_operations: account.requests,
                        stored_byte_hours: account.stored_byte_hours(),
                        decided_at_ms: u64::try_from(self.env.wall().as_millis()).unwrap_or(0),
                    };
                    if counted.rises(&pending).is_empty() {
                        return Ok(commits);
                    }
                    Counted {
                        pending: Some(pending),
                        ..counted
                    }
                }
            };
            let put = Write::Put {
                key: key.clone(),
                value: encode(&next),
                condition,
            };
            match self.table.transact(vec![put]).await {
                // Another instance was faster; what it decided is delivered by either.
                Ok(_) | Err(TableError::ConditionFailed { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            self.env.fault_point("anchor.commits_decided").await;
        }
        Ok(commits)
    }
}

async fn deliver(
    volume: TenantVolume,
    counted: &Counted,
    pending: &Pending,
    rises: &[(Meter, u64)],
    ledger: &dyn Ledger,
) -> Result<(), MeterError> {
    let refused = |why: String| MeterError::Ledger { volume, why };
    let resource = ResourceName::new(&format!("volume/{}", volume.volume))
        .map_err(|error| refused(error.to_string()))?;
    let observations = rises.iter().map(|(meter, quantity)| Observation {
        tenant: TenantName::from(volume.tenant),
        resource: resource.clone(),
        meter: *meter,
        quantity: *quantity,
        from_ms: pending.decided_at_ms,
        duration_ms: 0,
    });
    let source =
        SourceId::new(&format!("anchor/{}", volume.volume)).map_err(|error| refused(error.to_string()))?;
    let batch = UsageBatch::new(
        source,
        Incarnation(1),
        counted.records + 1,
        observations.collect(),
    )
    .map_err(|error| refused(error.to_string()))?;
    ledger.accept(&batch).await.map_err(refused)
}
