//! Usage, prices, invoices, costs. Amounts and quantities are texts of digits, since programs that read numbers as floating
//! point would round them; amounts are in billionths of the currency.

use firn_billing as ledger;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Usage records, as a spool delivers them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportUsage {
    /// An encoded batch (docs/formats.md), base64 without padding.
    #[schema(min_length = 1, max_length = 349_526)]
    pub batch: String,
}

/// What became of a batch. All of its records are kept now, from this request or an earlier one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageReceived {
    /// Records kept now.
    pub kept: u64,
    /// Records that were there before.
    pub duplicates: u64,
}

/// One hour (UTC) of usage.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageHour {
    /// Such as 2026-11-21T15.
    pub hour: String,
    /// What was used, by resource, meter and standing.
    pub entries: Vec<UsageEntry>,
}

/// What one resource used.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageEntry {
    /// Which resource.
    pub resource: String,
    /// Which meter.
    pub meter: String,
    /// What one unit is called.
    pub unit: String,
    /// `observed`: seen by the service and charged. `advisory`: said by an edge, compared and never charged.
    #[serde(rename = "standing")]
    pub role: String,
    /// How many units, in digits.
    pub quantity: String,
    /// Of how many records it is the sum.
    pub records: u64,
}

impl UsageHour {
    pub(crate) fn of(hour: ledger::Hour, entries: &ledger::Entries) -> Self {
        let entry = |(key, totals): (&ledger::EntryKey, &ledger::Totals)| UsageEntry {
            resource: key.resource.to_string(),
            meter: key.meter.to_string(),
            unit: key.meter.unit().to_owned(),
            role: match key.role {
                ledger::ReporterRole::Observed => "observed",
                ledger::ReporterRole::Advisory => "advisory",
            }
            .to_owned(),
            quantity: totals.quantity.to_string(),
            records: totals.records,
        };
        Self {
            hour: hour.to_string(),
            entries: entries.iter().map(entry).collect(),
        }
    }
}

/// What is owed for a month.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Invoice {
    /// Such as 2026-11.
    pub month: String,
    /// `draft`: what is owed so far. `final`: what is owed; it never changes.
    pub state: String,
    /// ISO 4217.
    pub currency: String,
    /// The price book's name.
    pub book: String,
    /// From which month on that version of it holds.
    pub book_effective: String,
    /// Where it was published.
    pub book_source: String,
    /// How many observed records are behind it.
    pub records: u64,
    /// What it is made of.
    pub lines: Vec<InvoiceLine>,
    /// The sum of the lines, in billionths.
    pub total_nanos: String,
}

/// A line of an invoice.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InvoiceLine {
    /// `usage`, `unpriced`, `credit` or `brought-forward`.
    pub kind: String,
    /// Which meter, of usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meter: Option<String>,
    /// Which tier, from 1; 0: the free units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<u32>,
    /// How many units, in digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<String>,
    /// What `price_per` units cost, in billionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_nanos: Option<String>,
    /// See `price_nanos`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per: Option<String>,
    /// What it is, in words: a unit's meaning, a credit's reason, the month brought forward.
    pub text: String,
    /// How much, in billionths; negative for credits.
    pub amount_nanos: String,
}

impl From<&ledger::Invoice> for Invoice {
    fn from(invoice: &ledger::Invoice) -> Self {
        Self {
            month: invoice.month.to_string(),
            state: match invoice.state {
                ledger::InvoiceState::Draft => "draft",
                ledger::InvoiceState::Final => "final",
            }
            .to_owned(),
            currency: invoice.currency.clone(),
            book: invoice.book.clone(),
            book_effective: invoice.book_effective.to_string(),
            book_source: invoice.book_source.clone(),
            records: invoice.records,
            lines: invoice.lines.iter().map(InvoiceLine::of).collect(),
            total_nanos: invoice.total.0.to_string(),
        }
    }
}

impl InvoiceLine {
    fn of(line: &ledger::Line) -> Self {
        let mut shown = Self {
            kind: String::new(),
            meter: None,
            tier: None,
            quantity: None,
            price_nanos: None,
            price_per: None,
            text: String::new(),
            amount_nanos: line.amount.0.to_string(),
        };
        match &line.kind {
            ledger::LineKind::Usage {
                meter,
                tier,
                quantity,
                price,
            } => {
                shown.kind = "usage".into();
                shown.meter = Some(meter.to_string());
                shown.tier = u32::try_from(*tier).ok();
                shown.quantity = Some(quantity.to_string());
                shown.price_nanos = price.map(|rate| rate.amount.0.to_string());
                shown.price_per = price.map(|rate| rate.per.to_string());
                shown.text = meter.meaning().into();
            }
            ledger::LineKind::Unpriced { meter, quantity } => {
                shown.kind = "unpriced".into();
                shown.meter = Some(meter.to_string());
                shown.quantity = Some(quantity.to_string());
                shown.text = "not in the price book: free of charge".into();
            }
            ledger::LineKind::Credit { id, reason } => {
                shown.kind = "credit".into();
                shown.text = format!("{id}: {reason}");
            }
            ledger::LineKind::BroughtForward { month } => {
                shown.kind = "brought-forward".into();
                shown.text = format!("left over from {month}");
            }
        }
        shown
    }
}

/// What the current month costs so far and probably will.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Forecast {
    /// Which month.
    pub month: String,
    /// ISO 4217.
    pub currency: String,
    /// Charges so far, credits not taken off, in billionths.
    pub spent_nanos: String,
    /// Charges of the whole month, if it goes on as it began, in billionths.
    pub forecast_nanos: String,
    /// Whether the hard cap of the budget is in force now.
    pub capped: bool,
}

/// Why a month costs what it does, and what would lower it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Costs {
    /// Which month.
    pub month: String,
    /// ISO 4217.
    pub currency: String,
    /// All charges, in billionths.
    pub total_nanos: String,
    /// By meter, dearest first.
    pub meters: Vec<MeterCost>,
    /// By resource, dearest first; at most a hundred.
    pub resources: Vec<ResourceCost>,
    /// What would lower it, the most first.
    pub advice: Vec<CostAdvice>,
}

/// What one meter costs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MeterCost {
    /// Which.
    pub meter: String,
    /// What one unit is called.
    pub unit: String,
    /// How many units, in digits.
    pub quantity: String,
    /// In billionths.
    pub amount_nanos: String,
}

/// What one resource costs by one meter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResourceCost {
    /// Which.
    pub resource: String,
    /// By which meter.
    pub meter: String,
    /// How many units, in digits.
    pub quantity: String,
    /// In billionths.
    pub amount_nanos: String,
}

/// What would lower a bill, computed by pricing the same month again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CostAdvice {
    /// What to do, in a sentence.
    pub what: String,
    /// What the same hours would have cost less, in billionths.
    pub saves_nanos: String,
}

/// Resources shown in an explanation: one screen several times over.
const RESOURCES_SHOWN: usize = 100;

impl Costs {
    pub(crate) fn of(month: ledger::Month, explanation: &ledger::Explanation) -> Self {
        Self {
            month: month.to_string(),
            currency: explanation.currency.clone(),
            total_nanos: explanation.total.0.to_string(),
            meters: explanation
                .meters
                .iter()
                .map(|(meter, quantity, amount)| MeterCost {
                    meter: meter.to_string(),
                    unit: meter.unit().to_owned(),
                    quantity: quantity.to_string(),
                    amount_nanos: amount.0.to_string(),
                })
                .collect(),
            resources: explanation
                .shares
                .iter()
                .take(RESOURCES_SHOWN)
                .map(|share| ResourceCost {
                    resource: share.resource.to_string(),
                    meter: share.meter.to_string(),
                    quantity: share.quantity.to_string(),
                    amount_nanos: share.amount.0.to_string(),
                })
                .collect(),
            advice: explanation
                .advice
                .iter()
                .map(|advice| CostAdvice {
                    what: advice.what.clone(),
                    saves_nanos: advice.saves.0.to_string(),
                })
                .collect(),
        }
    }
}

/// One version of a price book.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PriceBook)]
pub struct PriceBookDocument {
    /// Its name.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// ISO 4217.
    pub currency: String,
    /// Where it was published.
    pub source: String,
    /// The first month in which it holds.
    pub effective: String,
    /// What is charged.
    pub meters: Vec<MeterPriceDocument>,
}

/// The price of a month's units of one meter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MeterPrice)]
pub struct MeterPriceDocument {
    /// Which.
    pub meter: String,
    /// What one unit is called.
    pub unit: String,
    /// What one unit is.
    pub meaning: String,
    /// Units of each month that cost nothing, in digits.
    pub free: String,
    /// From small quantities to large ones.
    pub tiers: Vec<PriceTier>,
}

/// A price up to some quantity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PriceTier {
    /// Units beyond the free ones up to which it holds, in digits; absent: without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<String>,
    /// What `per` units cost, in billionths.
    pub amount_nanos: String,
    /// See `amount_nanos`.
    pub per: String,
}

impl From<&ledger::PriceBook> for PriceBookDocument {
    fn from(book: &ledger::PriceBook) -> Self {
        let tier = |tier: &ledger::Tier| PriceTier {
            up_to: tier.up_to.map(|units| units.to_string()),
            amount_nanos: tier.rate.amount.0.to_string(),
            per: tier.rate.per.to_string(),
        };
        Self {
            name: book.name.clone(),
            title: book.title.clone(),
            currency: book.currency.clone(),
            source: book.source.clone(),
            effective: book.effective.to_string(),
            meters: book
                .meters
                .iter()
                .map(|(meter, price)| MeterPriceDocument {
                    meter: meter.to_string(),
                    unit: meter.unit().to_owned(),
                    meaning: meter.meaning().to_owned(),
                    free: price.free.to_string(),
                    tiers: price.tiers.iter().map(tier).collect(),
                })
                .collect(),
        }
    }
}

/// All published versions of a price book, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PriceBookVersions {
    /// The versions.
    pub versions: Vec<PriceBookDocument>,
}

/// A credit: how what was charged is corrected.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Credit {
    /// Its id.
    pub id: String,
    /// How much is owed less, in billionths.
    pub amount_nanos: String,
    /// Why.
    pub reason: String,
    /// Of which month's invoice it is a line.
    pub month: String,
}

/// All credits of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Credits {
    /// By id.
    pub credits: Vec<Credit>,
}

/// A threshold of the budget that was reached.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetAlert {
    /// In which month.
    pub month: String,
    /// `alert` or `hard-cap`.
    pub budget: String,
    /// In per cent of the amount.
    pub threshold_percent: u16,
    /// What was spent when it was noticed, in billionths.
    pub spent_nanos: String,
    /// The amount, in billionths.
    pub amount_nanos: String,
    /// When it was noticed, in seconds since 1970.
    pub at: u64,
}

/// The alerts of a month.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetAlerts {
    /// In order of budget and threshold.
    pub alerts: Vec<BudgetAlert>,
}

/// Grants a credit. For the service's own staff.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantCredit {
    /// To whom.
    pub tenant: String,
    /// Chosen by the granter; granting the same again changes nothing.
    #[schema(min_length = 1, max_length = 128)]
    pub id: String,
    /// How much is owed less, in billionths, in digits.
    pub amount_nanos: String,
    /// Why, as the invoice prints it.
    #[schema(min_length = 1, max_length = 500)]
    pub reason: String,
    /// Who grants it.
    #[schema(min_length = 1, max_length = 500)]
    pub granted_by: String,
}

/// Publishes a version of a price book. For the service's own staff.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishPriceBook {
    /// The data file's text (crates/billing/prices).
    #[schema(min_length = 1, max_length = 65_536)]
    pub text: String,
}

/// Lets a price book hold for a tenant. For the service's own staff.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignPriceBook {
    /// For whom.
    pub tenant: String,
    /// Which.
    pub book: String,
    /// From which month on: one that has not begun, unless the tenant is new.
    pub from: String,
}
