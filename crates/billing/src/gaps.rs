//! Gaps that stay: records that a source numbered and that never came.

use crate::{ATTEMPTS, AuditEvent, Billing, BillingError, Finding, items, layout, stream::StreamHead};
use firn_table::{Condition, Item, TableError, Write};
use firn_usage::{Incarnation, SourceId};
use std::time::Duration;

/// A gap younger than that may yet be a batch on its way: the longest pause of a delivery, a few times over.
pub const GAP_GRACE: Duration = Duration::from_secs(600);
/// Gaps of one stream reported in one transaction.
const REPORTS_MAX: usize = 50;

impl Billing {
    /// Looks at every stream and reports each gap older than [`GAP_GRACE`], once. Returns how many were reported.
    ///
    /// # Errors
    /// [`BillingError`]; repeat it.
    pub async fn report_gaps(&self) -> Result<usize, BillingError> {
        let mut reported = 0;
        // The partition of all first: what moves out of it meanwhile is met in its shard.
        let mut partitions = vec![layout::STREAMS.to_owned()];
        if self.is_spread().await? {
            partitions.extend(layout::shards(layout::STREAMS));
        }
        for partition in partitions {
            let mut after = None;
            loop {
                let page = self.table.query(&partition, "", after.as_deref(), 1000).await?;
                for item in page.items {
                    reported += self.report_gaps_of(item).await?;
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(reported)
    }

    async fn report_gaps_of(&self, item: Item) -> Result<usize, BillingError> {
        let mut item = item;
        for attempt in 0..ATTEMPTS {
            self.pause(attempt).await;
            if items::is_forwarding(&item) {
                return Ok(0);
            }
            let now_ms = self.now_ms();
            let grace_ms = u64::try_from(GAP_GRACE.as_millis()).unwrap_or(u64::MAX);
            let mut head: StreamHead = items::decode(&item)?;
            let name = item.key.sort.split_once('|').and_then(|(source, incarnation)| {
                let incarnation = u64::from_str_radix(incarnation, 16).ok()?;
                Some((SourceId::new(source).ok()?, Incarnation(incarnation)))
            });
            let Some((source, incarnation)) = name else {
                return Err(BillingError::Item {
                    key: item.key.sort,
                    what: "its name is no stream".into(),
                });
            };
            let mut events = Vec::new();
            for hole in head.holes.iter_mut().filter(|hole| !hole.reported) {
                if hole.since_ms.saturating_add(grace_ms) > now_ms
                    || events.len() >= REPORTS_MAX
                    || firn_env::planted!("billing.gaps_are_forgotten")
                {
                    continue;
                }
                hole.reported = true;
                events.push(AuditEvent {
                    tenant: None,
                    at_ms: hole.since_ms,
                    finding: Finding::Gap {
                        source: source.clone(),
                        incarnation,
                        first: hole.first,
                        next: hole.next,
                    },
                });
            }
            if events.is_empty() {
                return Ok(0);
            }
            let count = events.len();
            let mut writes = self.new_events(events).await?;
            writes.push(Write::Put {
                key: item.key.clone(),
                value: items::encode(&head)?,
                condition: Condition::Version(item.version),
            });
            match self.table.transact(writes).await {
                Ok(_) => return Ok(count),
                Err(TableError::ConditionFailed { .. } | TableError::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
            match self.table.get(&item.key).await? {
                Some(again) => item = again,
                None => return Ok(0),
            }
        }
        Err(BillingError::Unavailable(
            "a busy stream's gaps are reported later".into(),
        ))
    }
}
