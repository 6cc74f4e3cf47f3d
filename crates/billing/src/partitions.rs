//! Enumeration of billing's partitions of the table, for backups. Streams and tenants that lie in shards are named by the records that they left in the
//! partition of all.

use crate::{Billing, BillingError, layout};
use firn_usage::TenantName;
use std::collections::BTreeSet;

/// Items read at a time.
const PAGE: usize = 1000;

impl Billing {
    /// The partitions that hold something, or may. `tenants` are those the caller knows of beside those that billing does
    /// (a tenant with a budget and no usage yet is known to the caller only).
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn partitions(&self, tenants: &[TenantName]) -> Result<Vec<String>, BillingError> {
        let mut known: BTreeSet<TenantName> = tenants.iter().cloned().collect();
        for name in self.names_in(layout::TENANTS).await? {
            known.extend(TenantName::new(&name));
        }
        let mut partitions: Vec<String> = [
            layout::STREAMS,
            layout::PENDING,
            layout::TENANTS,
            layout::BOOK_NAMES,
            layout::LAYOUT,
        ]
        .map(str::to_owned)
        .to_vec();
        if self.is_spread().await? {
            for spread in [layout::STREAMS, layout::PENDING, layout::TENANTS] {
                partitions.extend(layout::shards(spread));
            }
        }
        partitions.push(layout::audit(None));
        partitions.extend(
            self.names_in(layout::STREAMS)
                .await?
                .iter()
                .map(|name| layout::chunks(name)),
        );
        partitions.extend(
            self.names_in(layout::BOOK_NAMES)
                .await?
                .iter()
                .map(|name| layout::books(name)),
        );
        for tenant in &known {
            partitions.extend([
                layout::hours(tenant),
                layout::invoices(tenant),
                layout::credits(tenant),
                layout::budgets(tenant),
                layout::alerts(tenant),
                layout::audit(Some(tenant)),
            ]);
        }
        Ok(partitions)
    }

    async fn names_in(&self, partition: &str) -> Result<Vec<String>, BillingError> {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let page = self.table.query(partition, "", after.as_deref(), PAGE).await?;
            names.extend(page.items.into_iter().map(|item| item.key.sort));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }
}
