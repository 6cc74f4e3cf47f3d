//! Credit lines: the only way in which what was charged is corrected.

use crate::{ATTEMPTS, Billing, BillingError, Money, Month, items, layout};
use firn_table::{Condition, ItemKey, TableError, Write};
use firn_usage::{ResourceName, TenantName};
use serde::{Deserialize, Serialize};

/// Longest reason.
const REASON_MAX_BYTES: usize = 500;

/// A credit, as somebody grants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// Chosen by the granter, once for each tenant: granting it again changes nothing.
    pub id: ResourceName,
    /// How much is owed less; more than zero.
    pub amount: Money,
    /// Why, as the invoice prints it.
    pub reason: String,
    /// Who granted it.
    pub granted_by: String,
}

/// A credit with the month of whose invoice it is a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// What was granted.
    pub credit: Credit,
    /// Of which month's invoice it is a line.
    pub month: Month,
}

impl Billing {
    /// Grants a credit, which becomes a line of the current month's invoice; returns that month.
    ///
    /// # Errors
    /// [`BillingError::Conflict`] if the id stands for another credit.
    pub async fn grant_credit(&self, tenant: &TenantName, credit: &Credit) -> Result<Month, BillingError> {
        let printable = |text: &str| {
            !text.is_empty() && text.len() <= REASON_MAX_BYTES && !text.chars().any(char::is_control)
        };
        if credit.amount <= Money::ZERO || !printable(&credit.reason) || !printable(&credit.granted_by) {
            return Err(BillingError::Invalid(
                "a credit has an amount above zero, and a reason and a granter of one line each".into(),
            ));
        }
        let id = if firn_env::planted!("billing.credits_repeat") {
            format!("{}{}", credit.id, self.env.random_u64())
        } else {
            credit.id.to_string()
        };
        let key = ItemKey::new(layout::credits(tenant), id);
        let mut why = String::new();
        for attempt in 0..ATTEMPTS {
            self.pause(attempt).await;
            if let Some(item) = self.table.get(&key).await? {
                let granted: Granted = items::decode(&item)?;
                if granted.credit == *credit {
                    return Ok(granted.month);
                }
                return Err(BillingError::Conflict(format!("credit {}", credit.id)));
            }
            let (head, place) = self.tenant_head(tenant).await?;
            let current = Month::of_ms(self.now_ms());
            let month = head.first_open().map_or(current, |open| open.max(current));
            let granted = Granted {
                credit: credit.clone(),
                month,
            };
            let mut writes = self.check_tenant_head(tenant, &head, place)?;
            writes.push(Write::Put {
                key: key.clone(),
                value: items::encode(&granted)?,
                condition: Condition::Absent,
            });
            match self.table.transact(writes).await {
                Ok(_) => return Ok(month),
                Err(TableError::ConditionFailed { .. }) => why = "others change the same tenant".into(),
                Err(TableError::Unavailable(error)) => why = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(BillingError::Unavailable(why))
    }

    /// All credits of a tenant, by id.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn granted(&self, tenant: &TenantName) -> Result<Vec<Granted>, BillingError> {
        let mut credits = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .table
                .query(&layout::credits(tenant), "", after.as_deref(), 1000)
                .await?;
            for item in &page.items {
                credits.push(items::decode(item)?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(credits),
            }
        }
    }
}
