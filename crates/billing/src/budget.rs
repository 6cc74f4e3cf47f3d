//! Budgets: alerts on the way, a forecast, and a hard cap that never costs data.
//!
//! A budget is an amount a month. When charges reach one of its thresholds an alert is raised, once a month. A budget may be a
//! *hard cap*: when it is reached, new work is refused with a quota error, and nothing else:
//!
//! | operation                                        | under the cap | at the cap |
//! |--------------------------------------------------|---------------|------------|
//! | a new write of a client                          | allowed       | refused    |
//! | provisioning (volume, disk, growth, edge)        | allowed       | refused    |
//! | flushing and committing what was acknowledged    | allowed       | allowed    |
//! | read, verify, list                               | allowed       | allowed    |
//! | delete, release, shrink                          | allowed       | allowed    |
//! | export                                           | allowed       | allowed    |
//! | cleaning                                         | allowed       | allowed    |
//!
//! So what was promised to a client becomes durable, a customer can always get at the data and always get cheaper. Since the
//! allowed rows still cost, and since usage takes minutes to arrive, a month may end some way above its cap.
//!
//! The **forecast** of a month is its quantities so far times (hours of the month) / (hours gone by), rounded up, priced with
//! allowances and tiers. It assumes that the rest of the month is like the beginning, and says so by its simplicity.

use crate::{
    Billing, BillingError, Hour, Money, Month,
    hours::{Totals, charged},
    invoice::usage_lines,
    items, layout,
};
use firn_table::{Condition, ItemKey, TableError, Write};
use firn_usage::{ResourceName, TenantName};
use serde::{Deserialize, Serialize};

/// Thresholds of one budget.
const THRESHOLDS_MAX: usize = 10;
/// Budgets of one tenant.
const BUDGETS_MAX: usize = 50;

/// An amount not to be exceeded in a month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Chosen by the tenant.
    pub id: ResourceName,
    /// Charges of a month.
    pub amount: Money,
    /// In per cent of the amount; ascending.
    pub thresholds: Vec<u16>,
    /// Whether reaching the amount refuses new work.
    pub hard_cap: bool,
}

/// A threshold that was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// In which month.
    pub month: Month,
    /// Of which budget.
    pub budget: ResourceName,
    /// In per cent.
    pub threshold: u16,
    /// What was spent at that moment.
    pub spent: Money,
    /// The budget's amount.
    pub amount: Money,
    /// When it was noticed, in milliseconds since 1970.
    pub at_ms: u64,
}

/// What a month costs so far and probably will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spending {
    /// Which month.
    pub month: Month,
    /// ISO 4217.
    pub currency: String,
    /// Charges so far, credits not taken off.
    pub spent: Money,
    /// Charges of the whole month, if it goes on as it began.
    pub forecast: Money,
}

/// A budget against what was spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetState {
    /// The spending.
    pub spending: Spending,
    /// The smallest hard cap that is reached, if any: what [`decide`] goes by.
    pub reached_cap: Option<Budget>,
    /// Alerts that were raised now.
    pub raised: Vec<Alert>,
}

/// What somebody is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A client's new write.
    Write,
    /// A new volume, disk, node or edge, or growth of one.
    Provision,
    /// What makes an acknowledged write durable: flush, checkpoint, root commit.
    Flush,
    /// Reading, verifying, listing.
    Read,
    /// Deleting, releasing, shrinking.
    Delete,
    /// Getting data, usage or invoices out.
    Export,
    /// Relocation and removal of segments.
    Clean,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Write,
        Self::Provision,
        Self::Flush,
        Self::Read,
        Self::Delete,
        Self::Export,
        Self::Clean,
    ];
}

/// New work was refused because a hard cap is reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the hard cap of budget {budget} is reached ({spent} of {amount} in {month}): new writes and provisioning are refused until \
     it is raised or the month ends; stored data is safe and readable, and what was acknowledged is kept"
)]
pub struct QuotaRefusal {
    /// Which budget.
    pub budget: ResourceName,
    /// In which month.
    pub month: Month,
    /// What was spent.
    pub spent: Money,
    /// The cap.
    pub amount: Money,
}

/// Whether an operation is allowed. The whole policy of hard caps is this function.
///
/// # Errors
/// [`QuotaRefusal`].
pub fn decide(state: &BudgetState, operation: Operation) -> Result<(), QuotaRefusal> {
    match (operation, &state.reached_cap) {
        (Operation::Write | Operation::Provision, Some(cap)) => Err(QuotaRefusal {
            budget: cap.id.clone(),
            month: state.spending.month,
            spent: state.spending.spent,
            amount: cap.amount,
        }),
        (Operation::Write | Operation::Provision, None)
        | (
            Operation::Flush | Operation::Read | Operation::Delete | Operation::Export | Operation::Clean,
            _,
        ) => Ok(()),
    }
}

impl Budget {
    fn check(&self) -> Result<(), BillingError> {
        let ascending = self.thresholds.windows(2).all(|two| two[0] < two[1]);
        let sensible = self
            .thresholds
            .iter()
            .all(|threshold| (1..=1000).contains(threshold));
        if self.amount <= Money::ZERO || !ascending || !sensible || self.thresholds.len() > THRESHOLDS_MAX {
            return Err(BillingError::Invalid(format!(
                "a budget has an amount above zero and up to {THRESHOLDS_MAX} ascending thresholds of 1 to 1000 per cent"
            )));
        }
        Ok(())
    }
}

/// `amount` times `numerator` / `denominator`, rounded up.
fn scaled(quantity: u128, numerator: u128, denominator: u128) -> Result<u128, BillingError> {
    quantity
        .checked_mul(numerator)
        .map(|product| product.div_ceil(denominator.max(1)))
        .ok_or(BillingError::Overflow("a forecast"))
}

impl Billing {
    /// Sets a budget, or changes the one of that id.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn set_budget(&self, tenant: &TenantName, budget: &Budget) -> Result<(), BillingError> {
        budget.check()?;
        let known = self.budgets(tenant).await?;
        if known.len() >= BUDGETS_MAX && known.iter().all(|other| other.id != budget.id) {
            return Err(BillingError::Invalid(format!(
                "a tenant has at most {BUDGETS_MAX} budgets"
            )));
        }
        let key = ItemKey::new(layout::budgets(tenant), budget.id.as_str());
        self.replace(key, items::encode(budget)?).await
    }

    /// Removes a budget; one that is not there is fine.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn remove_budget(&self, tenant: &TenantName, id: &ResourceName) -> Result<(), BillingError> {
        let key = ItemKey::new(layout::budgets(tenant), id.as_str());
        let mut last = None;
        for attempt in 0..crate::ATTEMPTS {
            self.pause(attempt).await;
            let Some(item) = self.table.get(&key).await? else {
                return Ok(());
            };
            let delete = Write::Delete {
                key: key.clone(),
                version: item.version,
            };
            match self.table.transact(vec![delete]).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(BillingError::from(error)),
            }
        }
        Err(last.unwrap_or_else(|| BillingError::Unavailable("no try was made".into())))
    }

    /// A tenant's budgets.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn budgets(&self, tenant: &TenantName) -> Result<Vec<Budget>, BillingError> {
        let page = self
            .table
            .query(&layout::budgets(tenant), "", None, BUDGETS_MAX + 1)
            .await?;
        page.items.iter().map(items::decode).collect()
    }

    /// What the current month costs so far and probably will.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn spending(&self, tenant: &TenantName) -> Result<Spending, BillingError> {
        let now = Hour::of_ms(self.now_ms());
        let month = now.month();
        let (head, _) = self.tenant_head(tenant).await?;
        let book = self.book_in_force(&head, month).await?;
        let begins = month.first_hour();
        let totals = self.totals(tenant, begins, month.next().first_hour()).await?;
        let quantities = charged(&totals)?;
        let so_far = usage_lines(&book, &quantities)?;
        // The hour that runs counts as gone by: its usage is partly there, and a month's first hour has no other.
        let gone_by = u128::from(now.0 - begins.0 + 1);
        let mut expected = quantities;
        for totals in expected.values_mut() {
            *totals = Totals {
                quantity: scaled(totals.quantity, u128::from(month.hours()), gone_by)?,
                ..*totals
            };
        }
        let forecast = usage_lines(&book, &expected)?;
        Ok(Spending {
            month,
            currency: book.currency.clone(),
            spent: Money::sum(so_far.iter().map(|line| line.amount))?,
            forecast: Money::sum(forecast.iter().map(|line| line.amount))?,
        })
    }

    /// Holds a tenant's budgets against its spending: raises alerts that are due, each once a month, and says whether a hard
    /// cap is reached.
    ///
    /// # Errors
    /// [`BillingError`]; repeat it.
    pub async fn check_budgets(&self, tenant: &TenantName) -> Result<BudgetState, BillingError> {
        let spending = self.spending(tenant).await?;
        let mut state = BudgetState {
            spending,
            reached_cap: None,
            raised: Vec::new(),
        };
        for budget in self.budgets(tenant).await? {
            let spent = state.spending.spent;
            for threshold in &budget.thresholds {
                let reached = spent
                    .0
                    .checked_mul(100)
                    .zip(budget.amount.0.checked_mul(i128::from(*threshold)))
                    .is_none_or(|(spent, limit)| spent >= limit);
                if !reached {
                    break;
                }
                let alert = Alert {
                    month: state.spending.month,
                    budget: budget.id.clone(),
                    threshold: *threshold,
                    spent,
                    amount: budget.amount,
                    at_ms: self.now_ms(),
                };
                if self.raise(tenant, &alert).await? {
                    state.raised.push(alert);
                }
            }
            let is_reached = budget.hard_cap && spent >= budget.amount;
            let is_smaller = state
                .reached_cap
                .as_ref()
                .is_none_or(|other| budget.amount < other.amount);
            if is_reached && is_smaller {
                state.reached_cap = Some(budget);
            }
        }
        Ok(state)
    }

    /// Stores an alert; false if it was raised before.
    async fn raise(&self, tenant: &TenantName, alert: &Alert) -> Result<bool, BillingError> {
        let sort = format!("{}|{}|{:04}", alert.month, alert.budget, alert.threshold);
        let write = Write::Put {
            key: ItemKey::new(layout::alerts(tenant), sort),
            value: items::encode(alert)?,
            condition: Condition::Absent,
        };
        match self.table.transact(vec![write]).await {
            Ok(_) => Ok(true),
            Err(TableError::ConditionFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Alerts that were raised for a tenant in a month.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn alerts(&self, tenant: &TenantName, month: Month) -> Result<Vec<Alert>, BillingError> {
        let page = self
            .table
            .query(&layout::alerts(tenant), &format!("{month}|"), None, 1000)
            .await?;
        page.items.iter().map(items::decode).collect()
    }

    /// Puts an item over whatever is there.
    async fn replace(&self, key: ItemKey, value: bytes::Bytes) -> Result<(), BillingError> {
        let mut last = None;
        for attempt in 0..crate::ATTEMPTS {
            self.pause(attempt).await;
            let condition = match self.table.get(&key).await? {
                Some(item) if item.value == value => return Ok(()),
                Some(item) => Condition::Version(item.version),
                None => Condition::Absent,
            };
            let put = Write::Put {
                key: key.clone(),
                value: value.clone(),
                condition,
            };
            match self.table.transact(vec![put]).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(BillingError::from(error)),
            }
        }
        Err(last.unwrap_or_else(|| BillingError::Unavailable("no try was made".into())))
    }
}
