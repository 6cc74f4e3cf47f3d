//! Billing head of a tenant: its closed months, and the price book that holds in each.

use crate::heads::Place;
use crate::{Billing, BillingError, Month, items, layout};
use firn_table::Write;
use firn_usage::TenantName;
use serde::{Deserialize, Serialize};

/// The book of tenants to whom no other was assigned.
pub(crate) const STANDARD_BOOK: &str = "firn-standard";

/// A tenant's state. The fold checks its version with all it adds to the tenant's hours, so that closing a month and adding
/// to it exclude each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TenantHead {
    /// Oldest first. Usage of these months, or of any before the last of them, is charged later.
    pub(crate) closed: Vec<Month>,
    /// From which month on which book holds; oldest first.
    pub(crate) books: Vec<(Month, String)>,
}

impl TenantHead {
    /// The first month to which usage can still be added; none: all.
    pub(crate) fn first_open(&self) -> Option<Month> {
        self.closed.last().map(|month| month.next())
    }

    /// The closed month before `month`.
    pub(crate) fn closed_before(&self, month: Month) -> Option<Month> {
        self.closed.iter().copied().rfind(|closed| *closed < month)
    }

    pub(crate) fn book(&self, month: Month) -> &str {
        self.books
            .iter()
            .rfind(|(from, _)| *from <= month)
            .map_or(STANDARD_BOOK, |(_, name)| name)
    }
}

impl Billing {
    pub(crate) async fn tenant_head(&self, tenant: &TenantName) -> Result<(TenantHead, Place), BillingError> {
        let (item, place) = self.head(&layout::tenant_key(tenant)).await?;
        let head = item.map_or(Ok(TenantHead::default()), |item| items::decode(&item))?;
        Ok((head, place))
    }

    /// Nobody changed the head since it was found, or nothing of the transaction happens.
    pub(crate) fn check_tenant_head(
        &self,
        tenant: &TenantName,
        head: &TenantHead,
        place: Place,
    ) -> Result<Vec<Write>, BillingError> {
        self.check_head(&layout::tenant_key(tenant), place, || items::encode(head))
    }

    /// Lets another price book hold for a tenant from a month on that has not begun, or, for a tenant of whom nothing is
    /// known yet, from any month.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn assign_book(
        &self,
        tenant: &TenantName,
        name: &str,
        from: Month,
    ) -> Result<(), BillingError> {
        if self.versions_of(name).await?.is_empty() {
            return Err(BillingError::Unknown(format!("price book {name:?}")));
        }
        let earliest = Month::of_ms(self.now_ms()).next();
        let used = self.table.query(&layout::hours(tenant), "", None, 1).await?;
        let is_used = !used.items.is_empty();
        let wanted = (from, name.to_owned());
        self.change_tenant(tenant, |head, is_new| {
            // It may have happened, and the reply was lost.
            if head.books.last() == Some(&wanted) {
                return Ok(());
            }
            if from < earliest && (!is_new || is_used) {
                return Err(BillingError::BookTooEarly {
                    effective: from,
                    earliest,
                });
            }
            head.books.retain(|(month, _)| *month < from);
            head.books.push(wanted.clone());
            Ok(())
        })
        .await
    }

    /// Changes a tenant's state under the condition that nobody else did meanwhile.
    pub(crate) async fn change_tenant(
        &self,
        tenant: &TenantName,
        mut change: impl FnMut(&mut TenantHead, bool) -> Result<(), BillingError>,
    ) -> Result<(), BillingError> {
        let mut last = None;
        for attempt in 0..crate::ATTEMPTS {
            self.pause(attempt).await;
            let (before, place) = self.tenant_head(tenant).await?;
            let mut head = before.clone();
            change(&mut head, place == Place::Nowhere)?;
            if head == before && place != Place::Nowhere {
                return Ok(());
            }
            let writes = self.put_head(&layout::tenant_key(tenant), place, items::encode(&head)?);
            match self.table.transact(writes).await {
                Ok(_) => return Ok(()),
                Err(error) => match BillingError::from(error) {
                    unavailable @ BillingError::Unavailable(_) => last = Some(unavailable),
                    other => return Err(other),
                },
            }
        }
        Err(last.unwrap_or_else(|| BillingError::Unavailable("no try was made".into())))
    }
}
