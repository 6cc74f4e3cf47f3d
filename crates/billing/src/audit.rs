//! Audit events: what somebody has to look at.
//!
//! An event is stored in the same transaction as what it tells of, under a name made of its moment and content, so that it
//! is stored once however often the request is repeated. The control plane copies events into its hash-chained log.

use crate::{Billing, BillingError, Hour, Month, items, layout};
use firn_table::{Condition, ItemKey, Write};
use firn_usage::{Incarnation, Meter, ResourceName, SourceId, TenantName};
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the variants say what their fields are")]
pub enum Finding {
    /// Records from `first` to before `next` are missing for longer than reordering explains: usage that was not charged.
    Gap {
        source: SourceId,
        incarnation: Incarnation,
        first: u64,
        next: u64,
    },
    /// Two different records came under one name. The first one counts.
    Contradiction {
        source: SourceId,
        incarnation: Incarnation,
        sequence: u64,
        kept: String,
        came: String,
    },
    /// A source began to number anew: its spool was lost, replaced, or its disk copied.
    NewIncarnation {
        source: SourceId,
        incarnation: Incarnation,
        before: String,
    },
    /// Somebody reported under another's name. Nothing was taken.
    WrongSource { identity: SourceId, claimed: SourceId },
    /// An edge reported usage of a tenant that is not its own. It was not counted.
    ForeignTenant {
        source: SourceId,
        claimed: TenantName,
        records: u64,
    },
    /// Records say they were observed after they were received. They count in the hour in which they came.
    ClockAhead {
        source: SourceId,
        records: u64,
        furthest_ms: u64,
    },
    /// Usage of a month that is closed. It is charged in the first month that is open.
    Late {
        source: SourceId,
        month: Month,
        records: u64,
    },
    /// An edge counted clearly less than the service saw.
    UnderReported {
        resource: ResourceName,
        meter: Meter,
        observed: String,
        reported: String,
        from: String,
        until: String,
    },
    /// An edge counted clearly more than the service saw.
    OverReported {
        resource: ResourceName,
        meter: Meter,
        observed: String,
        reported: String,
        from: String,
        until: String,
    },
    /// An edge reported nothing while the root advanced.
    Silent {
        resource: ResourceName,
        meter: Meter,
        observed: String,
        from: String,
        until: String,
    },
}

/// A finding, whom it concerns, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// The tenant; none: the service's own affair.
    pub tenant: Option<TenantName>,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub finding: Finding,
}

impl AuditEvent {
    fn key(&self) -> Result<ItemKey, BillingError> {
        let content = serde_json::to_vec(self).map_err(|error| BillingError::Invalid(error.to_string()))?;
        let digest = blake3::hash(&content).to_hex();
        let sort = format!("{:020}|{}", self.at_ms, &digest[..16]);
        Ok(ItemKey::new(layout::audit(self.tenant.as_ref()), sort))
    }
}

/// Events in order of time, and where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    /// The events.
    pub events: Vec<AuditEvent>,
    /// Give this as `after` for the next page; `None`: there is no more.
    pub next: Option<String>,
}

impl Billing {
    /// The writes that store those of `events` that are not stored yet.
    pub(crate) async fn new_events(&self, events: Vec<AuditEvent>) -> Result<Vec<Write>, BillingError> {
        let mut writes: Vec<Write> = Vec::new();
        for event in events {
            let key = event.key()?;
            let is_named = writes.iter().any(|write| *write.key() == key);
            if !is_named && self.table.get(&key).await?.is_none() {
                tracing::warn!(?event, "audit event");
                writes.push(Write::Put {
                    value: items::encode(&event)?,
                    key,
                    condition: Condition::Absent,
                });
            }
        }
        Ok(writes)
    }

    /// Stores events that belong to no other change. Returns how many were new.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn record_events(&self, events: Vec<AuditEvent>) -> Result<usize, BillingError> {
        let mut stored = 0;
        for write in self.new_events(events).await? {
            match self.table.transact(vec![write]).await {
                Ok(_) => stored += 1,
                // Somebody else was faster with the same event.
                Err(firn_table::TableError::ConditionFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(stored)
    }

    /// A tenant's events, or the service's own, in order of time.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn audit_events(
        &self,
        tenant: Option<&TenantName>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<AuditPage, BillingError> {
        let page = self
            .table
            .query(&layout::audit(tenant), "", after, limit.clamp(1, 1000))
            .await?;
        let events = page.items.iter().map(items::decode).collect::<Result<_, _>>()?;
        Ok(AuditPage {
            events,
            next: page.next,
        })
    }
}

/// An hour as events print it.
pub(crate) fn printed(hour: Hour) -> String {
    hour.to_string()
}
