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

use crate::caused;
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::{Anchor, AnchorError, AnchorRole};
use firn_env::Env;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_table::{Condition, ItemKey, Table, TableError, Write};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Of the commits so many by each grantee, by the names of their counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    caused: BTreeMap<String, u64>,
    /// Records so far.
    records: u64,
    /// Decided on; may be in the ledger.
    pending: Option<Pending>,
}

/// The counts up to which records are decided on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    until: u64,
    #[serde(default)]
    cleaner_operations: u64,
    #[serde(default)]
    stored_byte_hours: u64,
    /// Of grantees whose counts rose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    caused: BTreeMap<String, u64>,
    decided_at_ms: u64,
}

impl Counted {
    /// What is pending, meter by meter and by whom; what did not rise is left out.
    fn rises(&self, pending: &Pending) -> Vec<Rise> {
        let mut own = pending.until.saturating_sub(self.settled);
        let mut caused = Vec::new();
        for (name, until) in &pending.caused {
            let before = self.caused.get(name).copied().unwrap_or(0);
            // Never more than all commits that are new: their sum is what is charged, whatever each count says.
            let quantity = until.saturating_sub(before).min(own);
            own -= quantity;
            caused.push(Rise {
                meter: Meter::ROOT_COMMITS,
                grantee: Some(name.clone()),
                quantity,
            });
        }
        let of_the_volume = |meter, quantity| Rise {
            meter,
            grantee: None,
            quantity,
        };
        let mut rises = vec![
            of_the_volume(Meter::ROOT_COMMITS, own),
            of_the_volume(
                Meter::CLEANER_OPERATIONS,
                pending.cleaner_operations.saturating_sub(self.cleaner_operations),
            ),
            of_the_volume(
                Meter::STORED_BYTE_HOURS,
                pending.stored_byte_hours.saturating_sub(self.stored_byte_hours),
            ),
        ];
        rises.append(&mut caused);
        rises.retain(|rise| rise.quantity > 0);
        rises
    }

    /// With what was pending, which made these records.
    fn settled(self, pending: &Pending, rises: &[Rise]) -> Self {
        let mut caused = self.caused;
        for rise in rises {
            if let Some(name) = &rise.grantee {
                *caused.entry(name.clone()).or_default() += rise.quantity;
            }
        }
        Self {
            settled: self.settled.max(pending.until),
            cleaner_operations: self.cleaner_operations.max(pending.cleaner_operations),
            stored_byte_hours: self.stored_byte_hours.max(pending.stored_byte_hours),
            caused,
            records: self.records + rises.len() as u64,
            pending: None,
        }
    }
}

/// What a count rose by.
struct Rise {
    meter: Meter,
    /// Which grantee did it, by the name of its count; none: the volume's own edges, or nobody's.
    grantee: Option<String>,
    quantity: u64,
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
        let failed = |error| MeterError::Table { volume, error };
        // After the tuples: so no commit that they count of a grantee's is missing here, and taken for the volume's own.
        let caused = caused::all(&*self.table, &partition).await.map_err(failed)?;
        let key = ItemKey::new(partition, COUNTED);
        let mut commits = 0;
        for _ in 0..STEPS {
            let item = self.table.get(&key).await.map_err(failed)?;
            let (counted, condition): (Counted, _) = match &item {
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
            let next = match counted.pending.clone() {
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
                    counted.settled(&pending, &rises)
                }
                None => {
                    let pending = Pending {
                        until: committed,
                        cleaner_operations: account.requests,
                        stored_byte_hours: account.stored_byte_hours(),
                        caused: risen(&caused, &counted.caused),
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

/// The counts that are above what was counted of them.
fn risen(caused: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let rose = |(name, commits): &(&String, &u64)| before.get(*name).is_none_or(|before| before < *commits);
    let risen = caused.iter().filter(rose);
    risen.map(|(name, commits)| (name.clone(), *commits)).collect()
}

async fn deliver(
    volume: TenantVolume,
    counted: &Counted,
    pending: &Pending,
    rises: &[Rise],
    ledger: &dyn Ledger,
) -> Result<(), MeterError> {
    let refused = |why: String| MeterError::Ledger { volume, why };
    let resource = |grantee: Option<&str>| {
        ResourceName::of_volume(&volume.volume.to_string(), grantee)
            .map_err(|error| refused(error.to_string()))
    };
    let observations = rises.iter().map(|rise| {
        Ok(Observation {
            tenant: TenantName::from(volume.tenant),
            resource: resource(rise.grantee.as_deref())?,
            meter: rise.meter,
            quantity: rise.quantity,
            from_ms: pending.decided_at_ms,
            duration_ms: 0,
        })
    });
    let observations = observations.collect::<Result<Vec<_>, MeterError>>()?;
    let source =
        SourceId::new(&format!("anchor/{}", volume.volume)).map_err(|error| refused(error.to_string()))?;
    let batch = UsageBatch::new(source, Incarnation(1), counted.records + 1, observations)
        .map_err(|error| refused(error.to_string()))?;
    ledger.accept(&batch).await.map_err(refused)
}
