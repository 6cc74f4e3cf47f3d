//! Billing by operation: from usage records to an invoice that adds up to the last of them.
//!
//! ```text
//! UsageBatch ──accept──▶ chunks + markers ──fold──▶ hours (UTC) ──prices──▶ invoice, forecast, budgets, explanation
//!              (exactly once,                (exactly once,          (integers; one rounding
//!               one transaction)              one transaction)        for each line)
//! ```
//!
//! Everything lies in [`firn_table::Table`] and nothing in memory, so any number of processes may do any of it at any time,
//! and any of them may die at any instruction. The rules:
//!
//! - **Charged is what the service itself observed** ([`ReporterRole::Observed`]). An edge's own counts are advisory: compared
//!   ([`Billing::reconcile`]), never charged.
//! - **Exactly once.** A record's name is (source, incarnation, sequence); `ingest.rs` and `fold.rs` tell how.
//! - **An invoice is never edited.** A closed month is closed; what comes late is charged in the first open month, and a
//!   correction is a credit line.
//! - **Whole nano-units, rounded once a line**, half up ([`Rate::of`]). The total is the sum of its lines.

mod audit;
mod books;
mod budget;
mod calendar;
mod chunk;
mod credit;
mod error;
mod explain;
mod export;
mod fold;
mod gaps;
mod heads;
mod hours;
mod ingest;
mod invoice;
mod items;
mod layout;
mod partitions;
mod price;
mod quantity;
mod reconcile;
mod reporter;
mod stream;
mod tenant;
#[cfg(test)]
mod tests;

pub use audit::{AuditEvent, AuditPage, Finding};
pub use budget::{Alert, Budget, BudgetState, Operation, QuotaRefusal, Spending, decide};
pub use calendar::{CalendarError, Hour, Month};
pub use credit::{Credit, Granted};
pub use error::BillingError;
pub use explain::{Advice, Explanation, Share, explain};
pub use export::{hours_csv, invoice_csv};
pub use firn_quantity::{Money, Rate};
pub use fold::CLOCK_TOLERANCE_MS;
pub use gaps::GAP_GRACE;
pub use hours::{Entries, EntryKey, Totals};
pub use ingest::{BillingSink, Receipt};
pub use invoice::{CLOSING_GRACE_HOURS, Invoice, InvoiceState, Line, LineKind};
pub use price::{BookError, MeterPrice, PriceBook, RatedPart, Tier};
pub use quantity::Quantity;
pub use reconcile::{MINIMUM_OBSERVED, REPORT_LAG, reconcile};
pub use reporter::{Reporter, ReporterRole};

use firn_env::{Backoff, Env};
use firn_table::Table;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// Tries of a transaction that others get in the way of. Above them stands whoever asked.
pub(crate) const ATTEMPTS: u32 = 8;
/// Before the second try two round trips to the table at most.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// The ledger.
pub struct Billing {
    pub(crate) env: Env,
    pub(crate) table: Arc<dyn Table>,
    /// Whether heads move to shards, and markers are put into them.
    spreads: bool,
    /// It is known of the table that something may lie in a shard.
    spread_noted: AtomicBool,
    /// Requests that a fold has in flight.
    side_by_side: usize,
}

impl Billing {
    /// Over this table; its partitions begin with `billing/`.
    pub fn new(env: &Env, table: Arc<dyn Table>) -> Self {
        Self {
            env: env.clone(),
            table,
            spreads: false,
            spread_noted: AtomicBool::new(false),
            side_by_side: fold::SIDE_BY_SIDE,
        }
    }

    /// Spreads over many partitions what all tenants share: streams, markers of the fold, heads of tenants.
    ///
    /// Others that do not may work on the same table, if their build knows of it; older ones refuse what was spread.
    #[must_use]
    pub fn spread(mut self, spreads: bool) -> Self {
        self.spreads = spreads;
        self
    }

    /// With so many requests of a fold in flight at most (from 1). What it does does not depend on it.
    #[must_use]
    pub fn fold_side_by_side(mut self, requests: usize) -> Self {
        self.side_by_side = requests.max(1);
        self
    }

    /// The wall clock in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.env.wall().as_millis()).unwrap_or(0)
    }

    /// Waits before try number `attempt` (from 0, before which there is no wait).
    pub(crate) async fn pause(&self, attempt: u32) {
        BACKOFF.wait(&self.env, attempt).await;
    }
}
