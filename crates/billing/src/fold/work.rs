//! A received chunk on its way into the hours: its marker, and the records of it that are not done yet.

use crate::{
    AuditEvent, Billing, BillingError, CLOCK_TOLERANCE_MS, Finding, ReporterRole, chunk, items, layout,
};
use firn_table::Item;
use firn_usage::{Observation, SourceId, TenantName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Audit events of one chunk.
const EVENTS_MAX: usize = 4;

/// How far a chunk is in the hours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// All tenants before this one are done; empty: none.
    pub(crate) tenant: String,
    /// Of that tenant's records, the first so many are done.
    pub(crate) records: usize,
}

/// A chunk and what is left of it.
pub(super) struct Work {
    pub(super) marker: Item,
    pub(super) received_ms: u64,
    pub(super) source: SourceId,
    pub(super) role: ReporterRole,
    /// What is not done, by tenant.
    pub(super) left: BTreeMap<TenantName, Vec<Observation>>,
    /// Of the tenants in `left`, the first so many are this group's (`groups.rs`).
    pub(super) claimed: usize,
    /// Records of the first tenant of `left` that are done.
    pub(super) skipped: usize,
    /// Records that this step takes.
    pub(super) taken: u64,
    /// Whether the marker has to change.
    pub(super) touched: bool,
    pub(super) events: Vec<AuditEvent>,
}

impl Work {
    pub(super) fn partition(&self) -> &str {
        &self.marker.key.partition
    }

    /// The first tenant of which something is left, if it is this group's.
    pub(super) fn next_tenant(&self) -> Option<&TenantName> {
        self.left.keys().next().filter(|_| self.claimed > 0)
    }

    /// Records that are left.
    pub(super) fn records(&self) -> usize {
        self.left.values().map(Vec::len).sum()
    }
}

impl Billing {
    /// Reads the chunk that a marker stands for.
    pub(super) async fn work(&self, marker: Item) -> Result<Work, BillingError> {
        let lost = |what: &str| BillingError::Item {
            key: format!("{}/{}", marker.key.partition, marker.key.sort),
            what: what.into(),
        };
        let progress: Progress = items::decode(&marker)?;
        let key = layout::chunk_of(&marker.key).ok_or_else(|| lost("its name is no chunk's"))?;
        let item = self
            .table
            .get(&key)
            .await?
            .ok_or_else(|| lost("the chunk it stands for is not there"))?;
        let chunk = chunk::decode(&item)?;
        let mut left: BTreeMap<TenantName, Vec<Observation>> = BTreeMap::new();
        let mut foreign: BTreeMap<TenantName, u64> = BTreeMap::new();
        for observation in chunk.batch.observations() {
            match &chunk.bound {
                Some(bound) if *bound != observation.tenant && !firn_env::planted!("billing.any_source") => {
                    *foreign.entry(observation.tenant.clone()).or_default() += 1;
                }
                Some(_) | None => left
                    .entry(observation.tenant.clone())
                    .or_default()
                    .push(observation.clone()),
            }
        }
        let total: usize = left.values().map(Vec::len).sum();
        left.retain(|tenant, _| tenant.as_str() >= progress.tenant.as_str());
        let mut skipped = 0;
        if let Some(mut first) = left.first_entry()
            && first.key().as_str() == progress.tenant
        {
            skipped = progress.records.min(first.get().len());
            first.get_mut().drain(..skipped);
            if first.get().is_empty() {
                first.remove();
                skipped = 0;
            }
        }
        let source = chunk.batch.source().clone();
        let mut events: Vec<AuditEvent> = foreign
            .into_iter()
            .map(|(claimed, records)| AuditEvent {
                tenant: chunk.bound.clone(),
                at_ms: chunk.received_ms,
                finding: Finding::ForeignTenant {
                    source: source.clone(),
                    claimed,
                    records,
                },
            })
            .collect();
        events.extend(clock_ahead(&chunk, &source));
        // Told once, with the chunk's first step; a chunk has one or two of them.
        if total > left.values().map(Vec::len).sum::<usize>() {
            events.clear();
        }
        events.truncate(EVENTS_MAX);
        Ok(Work {
            marker,
            received_ms: chunk.received_ms,
            source,
            role: chunk.role,
            left,
            claimed: 0,
            skipped,
            taken: 0,
            touched: false,
            events,
        })
    }
}

fn clock_ahead(chunk: &chunk::Chunk, source: &SourceId) -> Option<AuditEvent> {
    let limit = chunk.received_ms.saturating_add(CLOCK_TOLERANCE_MS);
    let ahead = chunk.batch.observations().iter().map(Observation::until_ms);
    let ahead: Vec<u64> = ahead.filter(|until_ms| *until_ms > limit).collect();
    Some(AuditEvent {
        tenant: chunk.bound.clone(),
        at_ms: chunk.received_ms,
        finding: Finding::ClockAhead {
            source: source.clone(),
            records: ahead.len() as u64,
            furthest_ms: ahead.iter().copied().max()?,
        },
    })
}
