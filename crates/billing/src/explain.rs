//! Cost explanation: a bill shared out to its resources, and advice that would make it smaller; the data behind one screen.
//!
//! The price of a meter is shared out to its resources in proportion to their quantities; the shares are whole nano-units and
//! add up to the meter's price (the largest remainders get what is left over). Advice is computed, not guessed: the same
//! month is priced again with the quantity the advice would leave, allowances and tiers included.

use crate::{
    BillingError, Entries, EntryKey, Hour, Money, PriceBook, Quantity, ReporterRole,
    hours::{Totals, charged},
};
use firn_usage::{Meter, ResourceName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A volume commits no more often than that when its checkpoints wait for 30 s.
const COMMITS_PER_HOUR_AT_30_S: u128 = 120;
/// A disk with fewer operations in an hour is asleep.
const ASLEEP_OPERATIONS_PER_HOUR: u128 = 10;
/// Pieces of advice.
const ADVICE_MAX: usize = 5;

/// A resource's part of a meter's price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Which meter.
    pub meter: Meter,
    /// Which resource.
    pub resource: ResourceName,
    /// How much it used.
    pub quantity: Quantity,
    /// What that costs.
    pub amount: Money,
}

/// What would lower the bill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What to do, in a sentence.
    pub what: String,
    /// About which meter.
    pub meter: Meter,
    /// About which resources.
    pub resources: Vec<ResourceName>,
    /// What the same hours would have cost less.
    pub saves: Money,
}

/// Where the money went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// ISO 4217.
    pub currency: String,
    /// All charges; the sum of the meters, and of the shares.
    pub total: Money,
    /// By meter, dearest first.
    pub meters: Vec<(Meter, Quantity, Money)>,
    /// By resource, dearest first.
    pub shares: Vec<Share>,
    /// What would lower it, the most first.
    pub advice: Vec<Advice>,
}

/// Explains the charges of some hours of one month.
///
/// # Errors
/// [`BillingError::Overflow`].
pub fn explain(book: &PriceBook, hours: &BTreeMap<Hour, Entries>) -> Result<Explanation, BillingError> {
    let mut sums = Entries::new();
    for entries in hours.values() {
        for (key, totals) in entries {
            sums.entry(key.clone()).or_default().add(*totals)?;
        }
    }
    let mut meters = Vec::new();
    let mut shares = Vec::new();
    for (meter, totals) in charged(&sums)? {
        let price = price(book, meter, totals.quantity)?;
        meters.push((meter, Quantity(totals.quantity), price));
        shares.extend(shared_out(meter, &sums, totals, price)?);
    }
    let total = Money::sum(meters.iter().map(|(.., amount)| *amount))?;
    meters.sort_by_key(|(meter, _, amount)| (std::cmp::Reverse(*amount), *meter));
    shares.sort_by(|one, other| {
        (other.amount, &one.resource, one.meter).cmp(&(one.amount, &other.resource, other.meter))
    });
    let mut advice = Vec::new();
    advice.extend(fewer_commits(book, hours)?);
    advice.extend(sleeping_disks(book, &sums, hours.len())?);
    advice.extend(stored_share(book, &sums)?);
    advice.retain(|advice: &Advice| advice.saves > Money::ZERO);
    advice.sort_by_key(|advice| std::cmp::Reverse(advice.saves));
    advice.truncate(ADVICE_MAX);
    Ok(Explanation {
        currency: book.currency.clone(),
        total,
        meters,
        shares,
        advice,
    })
}

fn price(book: &PriceBook, meter: Meter, quantity: u128) -> Result<Money, BillingError> {
    match book.meters.get(&meter) {
        Some(price) => price.price(quantity),
        None => Ok(Money::ZERO),
    }
}

fn saved(book: &PriceBook, meter: Meter, quantity: u128, less: u128) -> Result<Money, BillingError> {
    let after = price(book, meter, quantity.saturating_sub(less))?;
    Ok(price(book, meter, quantity)?.plus(after.negated()?)?)
}

fn observed(sums: &Entries, meter: Meter) -> impl Iterator<Item = (&EntryKey, u128)> {
    sums.iter()
        .filter(move |(key, _)| key.meter == meter && key.role == ReporterRole::Observed)
        .map(|(key, totals)| (key, totals.quantity))
}

/// Whole nano-units in proportion to quantities, adding up to `price`.
fn shared_out(
    meter: Meter,
    sums: &Entries,
    totals: Totals,
    price: Money,
) -> Result<Vec<Share>, BillingError> {
    let overflow = || BillingError::Overflow("a share");
    let nanos = u128::try_from(price.0).map_err(|_| overflow())?;
    let mut shares = Vec::new();
    let mut remainders = Vec::new();
    let mut given = 0_u128;
    for (key, quantity) in observed(sums, meter) {
        let product = nanos.checked_mul(quantity).ok_or_else(overflow)?;
        let (amount, remainder) = match totals.quantity {
            0 => (0, 0),
            whole => (product / whole, product % whole),
        };
        given += amount;
        remainders.push((std::cmp::Reverse(remainder), shares.len()));
        shares.push(Share {
            meter,
            resource: key.resource.clone(),
            quantity: Quantity(quantity),
            amount: Money(i128::try_from(amount).map_err(|_| overflow())?),
        });
    }
    remainders.sort_unstable();
    let left = usize::try_from(nanos.saturating_sub(given)).map_err(|_| overflow())?;
    for (_, index) in remainders.into_iter().take(left) {
        shares[index].amount = shares[index].amount.plus(Money(1))?;
    }
    Ok(shares)
}

fn fewer_commits(book: &PriceBook, hours: &BTreeMap<Hour, Entries>) -> Result<Option<Advice>, BillingError> {
    let meter = Meter::ROOT_COMMITS;
    let (mut all, mut spared) = (0_u128, 0_u128);
    let mut resources = BTreeSet::new();
    for entries in hours.values() {
        for (key, quantity) in observed(entries, meter) {
            all = all.saturating_add(quantity);
            let above = quantity.saturating_sub(COMMITS_PER_HOUR_AT_30_S);
            if above > 0 {
                spared = spared.saturating_add(above);
                resources.insert(key.resource.clone());
            }
        }
    }
    if resources.is_empty() {
        return Ok(None);
    }
    Ok(Some(Advice {
        what: format!(
            "let checkpoints of {} wait for 30 s: {spared} root commits fewer; what is acknowledged stays on the edge's disk",
            named(&resources)
        ),
        meter,
        resources: resources.into_iter().collect(),
        saves: saved(book, meter, all, spared)?,
    }))
}

fn sleeping_disks(book: &PriceBook, sums: &Entries, hours: usize) -> Result<Option<Advice>, BillingError> {
    let meter = Meter::DISK_BYTE_HOURS;
    let busy: BTreeMap<&ResourceName, u128> = observed(sums, Meter::NODE_OPERATIONS)
        .map(|(key, quantity)| (&key.resource, quantity))
        .collect();
    let limit = ASLEEP_OPERATIONS_PER_HOUR * hours as u128;
    let (mut all, mut spared) = (0_u128, 0_u128);
    let mut resources = BTreeSet::new();
    for (key, quantity) in observed(sums, meter) {
        all = all.saturating_add(quantity);
        if busy.get(&key.resource).copied().unwrap_or(0) < limit {
            spared = spared.saturating_add(quantity);
            resources.insert(key.resource.clone());
        }
    }
    if resources.is_empty() {
        return Ok(None);
    }
    Ok(Some(Advice {
        what: format!(
            "delete or shrink {}: provisioned, and hardly used",
            named(&resources)
        ),
        meter,
        resources: resources.into_iter().collect(),
        saves: saved(book, meter, all, spared)?,
    }))
}

/// What a tenth less stored would save, on the volume that stores the most.
fn stored_share(book: &PriceBook, sums: &Entries) -> Result<Option<Advice>, BillingError> {
    let meter = Meter::STORED_BYTE_HOURS;
    let all: u128 = observed(sums, meter).map(|(_, quantity)| quantity).sum();
    let Some((key, largest)) = observed(sums, meter).max_by_key(|(_, quantity)| *quantity) else {
        return Ok(None);
    };
    Ok(Some(Advice {
        what: format!(
            "keep fewer snapshots of {}: each tenth of it that is freed",
            key.resource
        ),
        meter,
        resources: vec![key.resource.clone()],
        saves: saved(book, meter, all, largest / 10)?,
    }))
}

fn named(resources: &BTreeSet<ResourceName>) -> String {
    let first: Vec<_> = resources.iter().take(3).map(ResourceName::as_str).collect();
    match resources.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl crate::Billing {
    /// Explains a tenant's charges of a month so far.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn explain(
        &self,
        tenant: &firn_usage::TenantName,
        month: crate::Month,
    ) -> Result<Explanation, BillingError> {
        let (head, _) = self.tenant_head(tenant).await?;
        let book = self.book_in_force(&head, month).await?;
        let hours = self
            .hours(tenant, month.first_hour(), month.next().first_hour())
            .await?;
        explain(&book, &hours)
    }
}
