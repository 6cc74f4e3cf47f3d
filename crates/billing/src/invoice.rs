//! Invoices: a month's hours, priced.
//!
//! | state  | what it is                                                                     |
//! |--------|--------------------------------------------------------------------------------|
//! | draft  | computed anew from the hours whenever somebody asks; stored nowhere            |
//! | final  | made once, after the month was closed; never changed                           |
//!
//! Closing takes two steps, so that it may be interrupted anywhere. First the tenant's item says that the month is closed:
//! from then on no record is added to its hours, since every fold checks that item. Now the hours cannot change, so whoever
//! computes the invoice, and however often, gets the same one; the first to store it wins.
//!
//! A closed invoice covers every hour after the last closed month. Credits that exceed the charges make a negative total; it
//! is a line of the next invoice.

use crate::{
    Billing, BillingError, Entries, Hour, Money, Month, PriceBook, Quantity, Rate,
    hours::{Totals, charged},
    items, layout,
    tenant::TenantHead,
};
use firn_table::{Condition, TableError, Write};
use firn_usage::{Meter, TenantName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A month can be closed so long after its end: records of its last hours are still in spools and on their way.
pub const CLOSING_GRACE_HOURS: u64 = 24;

/// Whether it can still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InvoiceState {
    /// What is owed so far.
    Draft,
    /// What is owed.
    Final,
}

/// What a line is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LineKind {
    /// Units of a meter at one price.
    Usage {
        /// Which.
        meter: Meter,
        /// Which tier, from 1; zero: the free units.
        tier: usize,
        /// How many.
        quantity: Quantity,
        /// At which price; none: free.
        price: Option<Rate>,
    },
    /// Units of a meter that the price book does not name: they cost nothing, and somebody should know.
    Unpriced {
        /// Which.
        meter: Meter,
        /// How many.
        quantity: Quantity,
    },
    /// A credit.
    Credit {
        /// Its id.
        id: String,
        /// Why.
        reason: String,
    },
    /// What credits of an earlier month left over.
    BroughtForward {
        /// Which.
        month: Month,
    },
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What for.
    #[serde(flatten)]
    pub kind: LineKind,
    /// How much; negative for credits.
    pub amount: Money,
}

/// What a tenant owes for a month. [`Invoice::total`] is the sum of its lines, exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    /// Who.
    pub tenant: TenantName,
    /// For which month.
    pub month: Month,
    /// Whether it can still change.
    pub state: InvoiceState,
    /// ISO 4217; amounts are in billionths of it.
    pub currency: String,
    /// The price book's name.
    pub book: String,
    /// Which version of it.
    pub book_effective: Month,
    /// Where it was published.
    pub book_source: String,
    /// How many records of what the service observed are behind it.
    pub records: u64,
    /// What it is made of.
    pub lines: Vec<Line>,
    /// The sum of the lines.
    pub total: Money,
}

impl Invoice {
    /// What usage costs, without credits.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn charges(&self) -> Result<Money, BillingError> {
        let charges = self.lines.iter().filter_map(|line| match line.kind {
            LineKind::Usage { .. } | LineKind::Unpriced { .. } => Some(line.amount),
            LineKind::Credit { .. } | LineKind::BroughtForward { .. } => None,
        });
        Ok(Money::sum(charges)?)
    }

    /// What is to be paid: the total, or nothing if credits exceed it.
    pub fn due(&self) -> Money {
        self.total.max(Money::ZERO)
    }
}

/// The lines of charged quantities.
pub(crate) fn usage_lines(
    book: &PriceBook,
    quantities: &BTreeMap<Meter, Totals>,
) -> Result<Vec<Line>, BillingError> {
    let mut lines = Vec::new();
    for (meter, totals) in quantities {
        let Some(price) = book.meters.get(meter) else {
            lines.push(Line {
                kind: LineKind::Unpriced {
                    meter: *meter,
                    quantity: Quantity(totals.quantity),
                },
                amount: Money::ZERO,
            });
            continue;
        };
        for part in price.rate(totals.quantity)? {
            lines.push(Line {
                kind: LineKind::Usage {
                    meter: *meter,
                    tier: part.tier,
                    quantity: Quantity(part.quantity),
                    price: part.rate,
                },
                amount: part.amount,
            });
        }
    }
    Ok(lines)
}

impl Billing {
    /// A month's invoice: the final one if the month is closed, otherwise a draft of what is owed so far.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn invoice(&self, tenant: &TenantName, month: Month) -> Result<Invoice, BillingError> {
        let (head, _) = self.tenant_head(tenant).await?;
        if head.closed.contains(&month) {
            return self.final_invoice(tenant, &head, month).await;
        }
        if head.first_open().is_some_and(|open| month < open) {
            return Err(BillingError::Unknown(format!("invoice of {tenant} for {month}")));
        }
        // The month before may be over but not closed; only when it is does its remainder come forward.
        let before = head.closed_before(month);
        let previous = match before {
            Some(before) if before.next() == month => Some(self.final_invoice(tenant, &head, before).await?),
            Some(_) | None => None,
        };
        let hours = (month.first_hour(), month.next().first_hour());
        self.compute(
            tenant,
            &head,
            month,
            hours,
            previous.as_ref(),
            InvoiceState::Draft,
        )
        .await
    }

    /// Closes a month that has been over for [`CLOSING_GRACE_HOURS`], and returns its final invoice. Repeating it returns the
    /// same.
    ///
    /// # Errors
    /// [`BillingError`]; if interrupted, repeat it.
    pub async fn close_month(&self, tenant: &TenantName, month: Month) -> Result<Invoice, BillingError> {
        let closable = month.next().first_hour().start_ms() + CLOSING_GRACE_HOURS * 3_600_000;
        if self.now_ms() < closable {
            return Err(BillingError::NotOver {
                month,
                hours: CLOSING_GRACE_HOURS,
            });
        }
        // What was received in time is charged in its month, even if nobody folded for long.
        self.fold_all().await?;
        self.env.fault_point("billing.close.before").await;
        self.change_tenant(tenant, |head, _| match head.closed.last() {
            Some(last) if *last >= month => {
                if head.closed.contains(&month) {
                    Ok(())
                } else {
                    Err(BillingError::Closed(month))
                }
            }
            Some(_) | None => {
                head.closed.push(month);
                Ok(())
            }
        })
        .await?;
        self.env.fault_point("billing.close.closed").await;
        let (head, _) = self.tenant_head(tenant).await?;
        self.final_invoice(tenant, &head, month).await
    }

    /// Closes, oldest first, the months of a tenant that are over and have used or owed anything since the last closed one;
    /// at most `limit` of them, so that one call is short. Returns the invoices. What calls it again finds the next.
    ///
    /// # Errors
    /// As [`Self::close_month`]; what was closed stays closed.
    pub async fn close_due(&self, tenant: &TenantName, limit: usize) -> Result<Vec<Invoice>, BillingError> {
        let mut made = Vec::new();
        while made.len() < limit {
            let (head, _) = self.tenant_head(tenant).await?;
            let from = head.first_open().map_or(Hour(0), Month::first_hour);
            let Some(month) = self.first_used(tenant, from).await? else {
                return Ok(made);
            };
            match self.close_month(tenant, month).await {
                Ok(invoice) => made.push(invoice),
                Err(BillingError::NotOver { .. }) => return Ok(made),
                Err(error) => return Err(error),
            }
        }
        Ok(made)
    }

    /// The first month from `from` on in which something was used or credited.
    async fn first_used(&self, tenant: &TenantName, from: Hour) -> Result<Option<Month>, BillingError> {
        // Sort keys of an hour begin with its name and a slash, so they come after the name itself.
        let page = self
            .table
            .query(&layout::hours(tenant), "", Some(&from.to_string()), 1)
            .await?;
        let used = page
            .items
            .first()
            .and_then(|item| item.key.sort.split_once('/')?.0.parse::<Hour>().ok())
            .map(Hour::month);
        let credited = self
            .granted(tenant)
            .await?
            .into_iter()
            .map(|granted| granted.month)
            .filter(|month| month.first_hour() >= from)
            .min();
        Ok(used.into_iter().chain(credited).min())
    }

    /// The final invoice of a closed month, made and stored if nobody did yet, with those before it on which it builds.
    async fn final_invoice(
        &self,
        tenant: &TenantName,
        head: &TenantHead,
        month: Month,
    ) -> Result<Invoice, BillingError> {
        // Back to the newest that is stored, then forward again.
        let mut missing = Vec::new();
        let mut previous = None;
        for closed in head.closed.iter().rev().filter(|closed| **closed <= month) {
            match self.table.get(&layout::invoice_key(tenant, *closed)).await? {
                Some(item) => {
                    previous = Some(items::decode::<Invoice>(&item)?);
                    break;
                }
                None => missing.push(*closed),
            }
        }
        for closed in missing.into_iter().rev() {
            let from = head
                .closed_before(closed)
                .map_or(Hour(0), |before| before.next().first_hour());
            let hours = (from, closed.next().first_hour());
            let invoice = self
                .compute(
                    tenant,
                    head,
                    closed,
                    hours,
                    previous.as_ref(),
                    InvoiceState::Final,
                )
                .await?;
            previous = Some(self.store_invoice(&invoice).await?);
        }
        previous
            .filter(|invoice| invoice.month == month)
            .ok_or_else(|| BillingError::Unknown(format!("invoice of {tenant} for {month}")))
    }

    /// Stores a final invoice unless there is one; returns the one that is stored.
    async fn store_invoice(&self, invoice: &Invoice) -> Result<Invoice, BillingError> {
        let key = layout::invoice_key(&invoice.tenant, invoice.month);
        let write = Write::Put {
            key: key.clone(),
            value: items::encode(invoice)?,
            condition: Condition::Absent,
        };
        match self.table.transact(vec![write]).await {
            Ok(_) => Ok(invoice.clone()),
            Err(TableError::ConditionFailed { .. }) => {
                let item = self.table.get(&key).await?;
                let item =
                    item.ok_or_else(|| BillingError::Unavailable("an invoice was being stored".into()))?;
                items::decode(&item)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn compute(
        &self,
        tenant: &TenantName,
        head: &TenantHead,
        month: Month,
        hours: (Hour, Hour),
        previous: Option<&Invoice>,
        state: InvoiceState,
    ) -> Result<Invoice, BillingError> {
        let book = self.book_in_force(head, month).await?;
        let mut quantities: BTreeMap<Meter, Totals> = BTreeMap::new();
        let mut apart = Vec::new();
        let mut sums = Entries::new();
        for (_, entries) in self.hours(tenant, hours.0, hours.1).await? {
            if firn_env::planted!("billing.round_each_hour") {
                apart.extend(usage_lines(&book, &charged(&entries)?)?);
            }
            for (key, totals) in entries {
                sums.entry(key).or_default().add(totals)?;
            }
        }
        for (meter, totals) in charged(&sums)? {
            quantities.insert(meter, totals);
        }
        let records = quantities.values().map(|totals| totals.records).sum();
        let mut lines = Vec::new();
        if let Some(previous) = previous
            && previous.total < Money::ZERO
        {
            lines.push(Line {
                kind: LineKind::BroughtForward {
                    month: previous.month,
                },
                amount: previous.total,
            });
        }
        if firn_env::planted!("billing.round_each_hour") {
            lines.append(&mut apart);
        } else {
            lines.extend(usage_lines(&book, &quantities)?);
        }
        for granted in self.granted(tenant).await? {
            // As with hours: all after the last closed month, in a final invoice.
            let is_ours = match state {
                InvoiceState::Draft => granted.month == month,
                InvoiceState::Final => {
                    granted.month <= month
                        && head
                            .closed_before(month)
                            .is_none_or(|before| granted.month > before)
                }
            };
            if is_ours {
                lines.push(Line {
                    kind: LineKind::Credit {
                        id: granted.credit.id.to_string(),
                        reason: granted.credit.reason,
                    },
                    amount: granted.credit.amount.negated()?,
                });
            }
        }
        let total = Money::sum(lines.iter().map(|line| line.amount))?;
        Ok(Invoice {
            tenant: tenant.clone(),
            month,
            state,
            currency: book.currency,
            book: book.name,
            book_effective: book.effective,
            book_source: book.source,
            records,
            lines,
            total,
        })
    }

    /// A tenant's final invoices, oldest first.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn invoices(
        &self,
        tenant: &TenantName,
        after: Option<Month>,
        limit: usize,
    ) -> Result<Vec<Invoice>, BillingError> {
        let after = after.map(|month| month.to_string());
        let page = self
            .table
            .query(
                &layout::invoices(tenant),
                "",
                after.as_deref(),
                limit.clamp(1, 100),
            )
            .await?;
        page.items.iter().map(items::decode).collect()
    }
}
