//! Hours: what was used of each resource by each meter in one hour of UTC.
//!
//! ```text
//! hour    = "firn-hour 1\n" | line*
//! line    = resource TAB meter number TAB "o" or "a" TAB quantity TAB records "\n"       (in order; o = observed, a = advisory)
//! ```
//!
//! A line that was begun in one part of an hour stays there; new lines go to the first part with room.

use crate::{Billing, BillingError, Hour, ReporterRole, layout};
use bytes::Bytes;
use firn_table::{Condition, Item, ItemVersion, Write};
use firn_usage::{Meter, ResourceName, TenantName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write as _};

const HEADER: &str = "firn-hour 1\n";
/// Bytes that a line's numbers take at most; the resource comes on top.
const LINE_NUMBERS_BYTES: usize = 72;

/// What was counted, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey {
    /// Of what.
    pub resource: ResourceName,
    /// By which meter.
    pub meter: Meter,
    /// Charged, or only compared.
    #[serde(rename = "standing")]
    pub role: ReporterRole,
}

/// A sum of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Units.
    pub quantity: u128,
    /// Records that said so.
    pub records: u64,
}

impl Totals {
    /// Adds another sum.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn add(&mut self, other: Self) -> Result<(), BillingError> {
        let overflow = BillingError::Overflow("a sum of quantities");
        self.quantity = self
            .quantity
            .checked_add(other.quantity)
            .ok_or(overflow.clone())?;
        self.records = self.records.checked_add(other.records).ok_or(overflow)?;
        Ok(())
    }
}

/// Sums by what was counted.
pub type Entries = BTreeMap<EntryKey, Totals>;

fn encode(entries: &Entries) -> Bytes {
    let mut text = String::with_capacity(HEADER.len() + entries.len() * 64);
    text.push_str(HEADER);
    for (key, totals) in entries {
        let role = match key.role {
            ReporterRole::Observed => 'o',
            ReporterRole::Advisory => 'a',
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}\t{}\t{role}\t{}\t{}",
            key.resource, key.meter.0, totals.quantity, totals.records
        );
    }
    text.into()
}

fn decode(item: &Item) -> Result<Entries, BillingError> {
    let wrong = |what: String| BillingError::Item {
        key: format!("{}/{}", item.key.partition, item.key.sort),
        what,
    };
    let text = std::str::from_utf8(&item.value).map_err(|error| wrong(error.to_string()))?;
    let lines = text
        .strip_prefix(HEADER)
        .ok_or_else(|| wrong("it is no hour of version 1".into()))?;
    let mut entries = Entries::new();
    for line in lines.lines() {
        let entry = parse_line(line).ok_or_else(|| wrong(format!("line {line:?}")))?;
        if entries.insert(entry.0, entry.1).is_some() {
            return Err(wrong(format!("line {line:?} comes twice")));
        }
    }
    Ok(entries)
}

fn parse_line(line: &str) -> Option<(EntryKey, Totals)> {
    let mut fields = line.split('\t');
    let key = EntryKey {
        resource: ResourceName::new(fields.next()?).ok()?,
        meter: Meter(fields.next()?.parse().ok()?),
        role: match fields.next()? {
            "o" => ReporterRole::Observed,
            "a" => ReporterRole::Advisory,
            _ => return None,
        },
    };
    let totals = Totals {
        quantity: fields.next()?.parse().ok()?,
        records: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some((key, totals))
}

/// One stored part of an hour.
struct Part {
    version: Option<ItemVersion>,
    entries: Entries,
    bytes: usize,
    changed: bool,
}

impl Billing {
    /// The writes that add `more` to an hour as it is now, and their bytes.
    pub(crate) async fn add_to_hour(
        &self,
        tenant: &TenantName,
        hour: Hour,
        more: &Entries,
    ) -> Result<Vec<Write>, BillingError> {
        let mut parts = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .table
                .query(
                    &layout::hours(tenant),
                    &layout::hour_prefix(hour),
                    after.as_deref(),
                    100,
                )
                .await?;
            for item in &page.items {
                parts.push(Part {
                    version: Some(item.version),
                    entries: decode(item)?,
                    bytes: item.value.len(),
                    changed: false,
                });
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        for (key, totals) in more {
            let index = parts.iter().position(|part| part.entries.contains_key(key));
            let index = index.or_else(|| parts.iter().position(|part| part.bytes < layout::HOUR_PART_BYTES));
            let index = index.unwrap_or_else(|| {
                parts.push(Part {
                    version: None,
                    entries: Entries::new(),
                    bytes: HEADER.len(),
                    changed: false,
                });
                parts.len() - 1
            });
            let part = &mut parts[index];
            if !part.entries.contains_key(key) {
                part.bytes += key.resource.as_str().len() + LINE_NUMBERS_BYTES;
            }
            part.entries.entry(key.clone()).or_default().add(*totals)?;
            part.changed = true;
        }
        Ok(parts
            .into_iter()
            .enumerate()
            .filter(|(_, part)| part.changed)
            .map(|(number, part)| Write::Put {
                key: layout::hour_key(tenant, hour, number),
                value: encode(&part.entries),
                condition: part.version.map_or(Condition::Absent, Condition::Version),
            })
            .collect())
    }

    /// A tenant's hours from `from` to before `until`, in order; hours without usage are left out.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn hours(
        &self,
        tenant: &TenantName,
        from: Hour,
        until: Hour,
    ) -> Result<BTreeMap<Hour, Entries>, BillingError> {
        let mut hours: BTreeMap<Hour, Entries> = BTreeMap::new();
        // Sort keys of an hour begin with its name, so they come after it and before the next hour's.
        let mut after = Some(from.to_string());
        while let Some(start) = after.take() {
            let page = self
                .table
                .query(&layout::hours(tenant), "", Some(start.as_str()), 1000)
                .await?;
            for item in &page.items {
                let hour = item
                    .key
                    .sort
                    .split_once('/')
                    .and_then(|(hour, _)| hour.parse().ok())
                    .ok_or_else(|| BillingError::Item {
                        key: format!("{}/{}", item.key.partition, item.key.sort),
                        what: "its name is no hour".into(),
                    })?;
                if hour >= until {
                    return Ok(hours);
                }
                let here = hours.entry(hour).or_default();
                for (key, totals) in decode(item)? {
                    here.entry(key).or_default().add(totals)?;
                }
            }
            after = page.next;
        }
        Ok(hours)
    }

    /// The sums of a tenant's hours from `from` to before `until`.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn totals(
        &self,
        tenant: &TenantName,
        from: Hour,
        until: Hour,
    ) -> Result<Entries, BillingError> {
        let mut sums = Entries::new();
        for (_, entries) in self.hours(tenant, from, until).await? {
            for (key, totals) in entries {
                sums.entry(key).or_default().add(totals)?;
            }
        }
        Ok(sums)
    }
}

/// Charged quantities by meter.
pub(crate) fn charged(entries: &Entries) -> Result<BTreeMap<Meter, Totals>, BillingError> {
    let mut sums: BTreeMap<Meter, Totals> = BTreeMap::new();
    for (key, totals) in entries {
        if key.role == ReporterRole::Observed || firn_env::planted!("billing.advisory_is_charged") {
            sums.entry(key.meter).or_default().add(*totals)?;
        }
    }
    Ok(sums)
}
