//! The plan of one transaction of the fold: what it adds to which hours, and how far each chunk is then.
//!
//! **Which hour.** The one in which the observed interval ended. If that lies after the moment of receipt, the hour of
//! receipt (clocks differ; a minute is nothing, [`CLOCK_TOLERANCE_MS`](crate::CLOCK_TOLERANCE_MS) is reported), and so if it lies before there were
//! prices. If its month is closed, the first hour of the first open month: an invoice is never edited.

use super::work::{Progress, Work};
use crate::{
    AuditEvent, BillingError, Finding, Hour, Month, PriceBook,
    heads::Place,
    hours::{Entries, EntryKey, Totals},
    items,
    tenant::TenantHead,
};
use firn_table::{Condition, Write};
use firn_usage::{Observation, SourceId, TenantName};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

/// Tenants' heads as they were read, and where.
pub(super) type Heads = BTreeMap<TenantName, (TenantHead, Place)>;

/// What a step adds.
#[derive(Default)]
pub(super) struct Plan {
    /// Tenants to which it adds.
    pub(super) tenants: BTreeSet<TenantName>,
    pub(super) hours: BTreeMap<(TenantName, Hour), Entries>,
    events: Vec<AuditEvent>,
    late: BTreeMap<(TenantName, SourceId, Month), (u64, u64)>,
}

impl Plan {
    /// Takes records from `works`, tenant by tenant, until `room` items are used. `head_writes` says how many a head takes.
    ///
    /// # Errors
    /// [`BillingError::Overflow`], with whose sum it is.
    pub(super) fn of(
        works: &mut [Work],
        heads: &Heads,
        room: usize,
        head_writes: impl Fn(Place) -> usize,
    ) -> Result<Self, (TenantName, BillingError)> {
        let mut plan = Self::default();
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
            let tenants: BTreeSet<&TenantName> = works.iter().filter_map(Work::next_tenant).collect();
            let Some(tenant) = tenants.first().copied().cloned() else {
                return Ok(plan);
            };
            let Some((head, place)) = heads.get(&tenant) else {
                return Ok(plan);
            };
            // The tenant's own item, which may move, and one hour at least.
            if items + 3 > room && !plan.tenants.is_empty() {
                return Ok(plan);
            }
            items += head_writes(*place);
            let mut full = false;
            for work in works
                .iter_mut()
                .filter(|work| work.next_tenant() == Some(&tenant))
            {
                let observations = work
                    .left
                    .remove(&tenant)
                    .expect("it is the next one of this chunk");
                let mut done = 0;
                for observation in &observations {
                    let hour = hour_of(observation, work.received_ms, head);
                    let place = (tenant.clone(), hour);
                    if !plan.hours.contains_key(&place) {
                        if items + 1 > room && !plan.hours.is_empty() {
                            full = true;
                            break;
                        }
                        items += 1;
                    }
                    plan.add(place, observation, work)
                        .map_err(|error| (tenant.clone(), error))?;
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
                work.claimed -= 1;
            }
            plan.tenants.insert(tenant);
            if full {
                return Ok(plan);
            }
        }
    }

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

    /// What somebody has to look at.
    pub(super) fn take_events(&mut self) -> Vec<AuditEvent> {
        let mut events = std::mem::take(&mut self.events);
        for ((tenant, source, month), (records, received_ms)) in std::mem::take(&mut self.late) {
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
        events
    }
}

/// Writes that say how far chunks are.
pub(super) fn markers(works: &[Work]) -> Result<Vec<Write>, BillingError> {
    let mut writes = Vec::new();
    for work in works.iter().filter(|work| work.touched) {
        let (key, version) = (work.marker.key.clone(), work.marker.version);
        let Some((tenant, _)) = work.left.first_key_value() else {
            writes.push(Write::Delete { key, version });
            continue;
        };
        let progress = Progress {
            tenant: tenant.to_string(),
            records: work.skipped,
        };
        writes.push(Write::Put {
            key,
            value: items::encode(&progress)?,
            condition: Condition::Version(version),
        });
    }
    Ok(writes)
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
