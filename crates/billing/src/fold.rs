//! The fold: chunks into hours.
//!
//! A chunk that was received has a marker. A step takes the oldest markers, adds their records to the hours of their tenants,
//! and removes the markers, all in one transaction whose conditions are the markers' versions: two folds at once, or one
//! that was killed and started again, count nothing twice and leave nothing out.
//!
//! A chunk may name more tenants and hours than a transaction has items. Then it is taken tenant by tenant, in order of their
//! names, and the marker says how far: all tenants before `tenant` are done, and of that one the first `records`. The hour
//! to which a record goes may change between two steps (a month is closed); which records are done does not depend on it.
//!
//! **Which hour.** The one in which the observed interval ended. If that lies after the moment of receipt, the hour of
//! receipt (clocks differ; a minute is nothing, [`CLOCK_TOLERANCE_MS`] is reported), and so if it lies before there were
//! prices. If its month is closed, the first hour of the first open month: an invoice is never edited.

use crate::{
    AuditEvent, Billing, BillingError, Finding, Hour, Month, PriceBook, ReporterRole, chunk,
    heads::Place,
    hours::{Entries, EntryKey, Totals},
    items, layout,
    tenant::TenantHead,
};
use firn_table::{Condition, Item, MAX_TRANSACTION_BYTES, TableError, Write};
use firn_usage::{Observation, SourceId, TenantName};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{LazyLock, atomic::Ordering::Relaxed},
};

/// An observation that ends later than its receipt by more is reported: the sender's clock is wrong.
pub const CLOCK_TOLERANCE_MS: u64 = 5 * 60_000;
/// Bytes of a step's writes: the table's limit, less what keys and events take.
const STEP_BYTES: usize = MAX_TRANSACTION_BYTES - (512 << 10);

/// How far a chunk is in the hours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// All tenants before this one are done; empty: none.
    pub(crate) tenant: String,
    /// Of that tenant's records, the first so many are done.
    pub(crate) records: usize,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FoldStep {
    /// Chunks that are wholly in the hours now.
    chunks: u64,
    /// Records added.
    records: u64,
    /// Whether there is more to do.
    more: bool,
}

/// A chunk and what is left of it.
struct Work {
    marker: Item,
    received_ms: u64,
    source: SourceId,
    role: ReporterRole,
    /// What is not done, by tenant.
    left: BTreeMap<TenantName, Vec<Observation>>,
    /// Records of the first tenant of `left` that were done by an earlier step.
    skipped: usize,
    taken: u64,
    touched: bool,
    events: Vec<AuditEvent>,
}

/// What a step adds.
#[derive(Default)]
struct Plan {
    heads: BTreeMap<TenantName, (TenantHead, Place)>,
    hours: BTreeMap<(TenantName, Hour), Entries>,
    events: Vec<AuditEvent>,
    late: BTreeMap<(TenantName, SourceId, Month), (u64, u64)>,
}

impl Billing {
    /// Moves received records into the hours, by at most so many transactions; returns how many records. The next call goes on where this one ended.
    ///
    /// # Errors
    /// [`BillingError`]; whatever it is, nothing counts twice when it is called again.
    pub async fn fold(&self, transactions: usize) -> Result<u64, BillingError> {
        let partitions = self.pending_partitions().await?;
        let mut left = transactions;
        let mut records = 0;
        for _ in 0..partitions.len() {
            let at = self.fold_next.load(Relaxed) % partitions.len();
            loop {
                if left == 0 {
                    return Ok(records);
                }
                let step = self.fold_step(&partitions[at]).await?;
                left -= usize::from(step != FoldStep::default());
                records += step.records;
                if !step.more {
                    break;
                }
            }
            self.fold_next.store(at + 1, Relaxed);
        }
        Ok(records)
    }

    /// Folds all that was received before; returns how many records were added.
    ///
    /// # Errors
    /// As [`Self::fold`].
    pub async fn fold_all(&self) -> Result<u64, BillingError> {
        let mut records = 0;
        for partition in self.pending_partitions().await? {
            loop {
                let step = self.fold_step(&partition).await?;
                records += step.records;
                if !step.more {
                    break;
                }
            }
        }
        Ok(records)
    }

    /// One transaction, of the oldest markers in one partition.
    async fn fold_step(&self, partition: &str) -> Result<FoldStep, BillingError> {
        let mut why = BillingError::Unavailable("no try was made".into());
        // Halved when the hours turn out larger than a transaction.
        let mut room = layout::FOLD_ITEMS;
        for attempt in 0..crate::ATTEMPTS {
            self.pause(attempt).await;
            let page = self.table.query(partition, "", None, layout::FOLD_CHUNKS).await?;
            if page.items.is_empty() {
                return Ok(FoldStep::default());
            }
            let mut works = Vec::with_capacity(page.items.len());
            for marker in page.items {
                works.push(self.work(marker).await?);
            }
            let plan = self.plan(&mut works, room).await?;
            let step = FoldStep {
                chunks: works.iter().filter(|work| work.left.is_empty()).count() as u64,
                records: works.iter().map(|work| work.taken).sum(),
                more: page.next.is_some() || works.iter().any(|work| !work.left.is_empty()),
            };
            let writes = self.writes(works, plan).await?;
            let bytes: usize = writes.iter().map(write_bytes).sum();
            if (writes.len() > firn_table::MAX_TRANSACTION_OPERATIONS || bytes > STEP_BYTES) && room > 4 {
                room /= 2;
                continue;
            }
            self.env.fault_point("billing.fold.before_transact").await;
            match self.table.transact(writes).await {
                Ok(_) => {
                    self.env.fault_point("billing.fold.after_transact").await;
                    return Ok(step);
                }
                // Another fold was faster, a month was closed, or it happened and the reply was lost: look again.
                Err(TableError::ConditionFailed { .. }) => {
                    why = BillingError::Unavailable("others fold the same records".into());
                }
                Err(error @ TableError::Unavailable(_)) => why = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(why)
    }

    async fn work(&self, marker: Item) -> Result<Work, BillingError> {
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
        events.truncate(4);
        Ok(Work {
            marker,
            received_ms: chunk.received_ms,
            source,
            role: chunk.role,
            left,
            skipped,
            taken: 0,
            touched: false,
            events,
        })
    }

    /// Takes records from `works`, tenant by tenant, until `room` items are used.
    async fn plan(&self, works: &mut [Work], room: usize) -> Result<Plan, BillingError> {
        let mut plan = Plan::default();
        let mut items = 0;
        for work in works.iter_mut() {
            items += 1;
            if !work.events.is_empty() && items + work.events.len() < room / 2 {
                items += work.events.len();
                plan.events.append(&mut work.events);
            }
            work.touched |= work.left.is_empty();
        }
        loop {
            let tenants: BTreeSet<&TenantName> =
                works.iter().filter_map(|work| work.left.keys().next()).collect();
            let Some(tenant) = tenants.first().copied().cloned() else {
                return Ok(plan);
            };
            // The tenant's own item, which may move, and one hour at least.
            if items + 3 > room && !plan.heads.is_empty() {
                return Ok(plan);
            }
            let head = self.tenant_head(&tenant).await?;
            items += self.head_writes(head.1);
            let mut full = false;
            for work in works.iter_mut() {
                let Some(observations) = work.left.remove(&tenant) else {
                    continue;
                };
                let mut done = 0;
                for observation in &observations {
                    let hour = hour_of(observation, work.received_ms, &head.0);
                    let place = (tenant.clone(), hour);
                    if !plan.hours.contains_key(&place) {
                        if items + 1 > room && !plan.hours.is_empty() {
                            full = true;
                            break;
                        }
                        items += 1;
                    }
                    plan.add(place, observation, work)?;
                    done += 1;
                }
                work.taken += done as u64;
                work.touched |= done > 0;
                if done < observations.len() {
                    work.left.insert(tenant.clone(), observations[done..].to_vec());
                    work.skipped += done;
                    break;
                }
                work.skipped = 0;
            }
            plan.heads.insert(tenant, head);
            if full {
                return Ok(plan);
            }
        }
    }

    async fn writes(&self, works: Vec<Work>, plan: Plan) -> Result<Vec<Write>, BillingError> {
        let mut writes = Vec::new();
        let mut events = plan.events;
        for ((tenant, source, month), (records, received_ms)) in plan.late {
            events.push(AuditEvent {
                tenant: Some(tenant),
                at_ms: received_ms,
                finding: Finding::Late {
                    source,
                    month,
                    records,
                },
            });
        }
        for work in works {
            let stays = firn_env::planted!("billing.marker_stays") && self.env.random_below(4) == 0;
            if !work.touched || stays {
                continue;
            }
            let Some((tenant, _)) = work.left.first_key_value() else {
                writes.push(Write::Delete {
                    key: work.marker.key,
                    version: work.marker.version,
                });
                continue;
            };
            let progress = Progress {
                tenant: tenant.to_string(),
                records: work.skipped,
            };
            writes.push(Write::Put {
                key: work.marker.key,
                value: items::encode(&progress)?,
                condition: Condition::Version(work.marker.version),
            });
        }
        for (tenant, (head, place)) in &plan.heads {
            if !firn_env::planted!("billing.close_is_not_checked") {
                writes.extend(self.check_tenant_head(tenant, head, *place)?);
            }
        }
        for ((tenant, hour), entries) in &plan.hours {
            writes.extend(self.add_to_hour(tenant, *hour, entries).await?);
        }
        let room = firn_table::MAX_TRANSACTION_OPERATIONS.saturating_sub(writes.len());
        let mut events = self.new_events(events).await?;
        events.truncate(room);
        writes.append(&mut events);
        Ok(writes)
    }
}

impl Plan {
    fn add(
        &mut self,
        place: (TenantName, Hour),
        observation: &Observation,
        work: &Work,
    ) -> Result<(), BillingError> {
        let said = Hour::of_ms(observation.until_ms()).month();
        if said < place.1.month() {
            let late = (place.0.clone(), work.source.clone(), said);
            let entry = self.late.entry(late).or_insert((0, work.received_ms));
            entry.0 += 1;
            entry.1 = entry.1.min(work.received_ms);
        }
        let key = EntryKey {
            resource: observation.resource.clone(),
            meter: observation.meter,
            role: work.role,
        };
        let quantity = if firn_env::planted!("billing.quantity_is_32_bits") {
            u128::from(observation.quantity as u32)
        } else {
            u128::from(observation.quantity)
        };
        self.hours
            .entry(place)
            .or_default()
            .entry(key)
            .or_default()
            .add(Totals { quantity, records: 1 })
    }
}

/// The first hour in which anything has a price: before it nothing was observed, whatever a clock without a battery says.
static FIRST_PRICED: LazyLock<Hour> = LazyLock::new(|| PriceBook::standard().effective.first_hour());

/// The hour in which a record is charged.
fn hour_of(observation: &Observation, received_ms: u64, head: &TenantHead) -> Hour {
    let received = Hour::of_ms(received_ms);
    let mut hour = Hour::of_ms(observation.until_ms()).min(received);
    // A month without a price could never be closed, and none after it.
    if hour < *FIRST_PRICED && !firn_env::planted!("billing.believes_any_past") {
        hour = received;
    }
    match head.first_open() {
        Some(open) if hour < open.first_hour() && !firn_env::planted!("billing.late_edits_the_past") => {
            open.first_hour()
        }
        Some(_) | None => hour,
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

fn write_bytes(write: &Write) -> usize {
    let value = match write {
        Write::Put { value, .. } => value.len(),
        Write::Delete { .. } | Write::Check { .. } => 0,
    };
    firn_table::limits::item_bytes(write.key(), value)
}
