//! Ingestion: a batch is received exactly once, whatever is sent twice, late or while this process dies.
//!
//! One transaction puts the stream's new state (under the condition that nobody changed it since it was read), the new
//! records as a chunk, and a marker that the chunk is not in the hours yet. So a record is kept if and only if its number is
//! noted as received. Senders never contend: each has a stream of its own. The sums are made later, from the chunks
//! (`fold.rs`).
//!
//! | what comes                               | what happens                                                       |
//! |------------------------------------------|--------------------------------------------------------------------|
//! | the next records                         | kept                                                               |
//! | records received before, the same        | nothing; the sender is told that they are received                 |
//! | records received before, but different   | the first stay; an audit event tells of the first difference       |
//! | some of both                             | the new ones are kept                                              |
//! | records after a gap                      | kept; the gap is remembered, and reported if it stays              |
//! | a new incarnation of a known source      | kept; an audit event                                               |
//! | a batch under another source's name      | refused; an audit event                                            |
//! | the table did not answer                 | unknown: the sender sends it again, and one of the above follows   |

use crate::{
    AuditEvent, Billing, BillingError, Finding, Reporter, chunk, items, layout,
    stream::{HOLES_MAX, Range, StreamHead},
};
use async_trait::async_trait;
use firn_table::{Condition, TableError, Write};
use firn_usage::{BATCH_MAX_RECORDS, Observation, SinkError, UsageBatch, UsageSink};
use std::sync::Arc;

/// Tries of one transaction. Only a copy of the same sender, or its own late request, can be in the way.
const ATTEMPTS: u32 = 8;
/// New chunks in one transaction: two items each. More than one is rare.
const PARTS_MAX: usize = 40;

/// What became of a batch that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Records kept now.
    pub kept: u64,
    /// Records that were there before.
    pub duplicates: u64,
}

impl Billing {
    /// Receives a batch from an authenticated sender. On success each of its records counts once, whether from now or from
    /// before.
    ///
    /// # Errors
    /// [`BillingError`]; after [`BillingError::Unavailable`] it may have been received: send it again.
    pub async fn accept(&self, reporter: &Reporter, batch: &UsageBatch) -> Result<Receipt, BillingError> {
        if batch.source() != reporter.identity() && !firn_env::planted!("billing.any_source") {
            return self.refuse_source(reporter, batch).await;
        }
        let mut receipt = Receipt::default();
        let mut from = batch.first_sequence();
        // Each round settles at least one record; as a rule all.
        while from < batch.next_sequence() {
            from = self.accept_some(reporter, batch, from, &mut receipt).await?;
        }
        Ok(receipt)
    }

    /// Receives the records from `from` on, as many as one transaction takes; returns where to go on.
    async fn accept_some(
        &self,
        reporter: &Reporter,
        batch: &UsageBatch,
        from: u64,
        receipt: &mut Receipt,
    ) -> Result<u64, BillingError> {
        let stream = layout::stream(batch.source(), batch.incarnation());
        let key = layout::stream_key(batch.source(), batch.incarnation());
        let mut why = String::new();
        for attempt in 0..ATTEMPTS {
            self.pause(attempt).await;
            let now_ms = self.now_ms();
            let (item, place) = self.head(&key).await?;
            let mut head = match &item {
                Some(item) => items::decode(item)?,
                None => StreamHead::new(),
            };
            let (known, mut new) = head.split((from, batch.next_sequence()));
            let mut until = batch.next_sequence();
            if new.len() > PARTS_MAX {
                new.truncate(PARTS_MAX);
                until = new[PARTS_MAX - 1].1;
            }
            let known: Vec<Range> = known.into_iter().filter(|range| range.0 < until).collect();
            let mut events = Vec::new();
            if let Some(event) = self.contradiction(&stream, batch, &known).await? {
                events.push(event);
            }
            if item.is_none() {
                events.extend(self.new_incarnation(batch, now_ms).await?);
            }
            let mut writes = Vec::new();
            for range in &new {
                head.receive(*range, now_ms);
                let part = batch.part(range.0, range.1);
                writes.push(Write::Put {
                    key: layout::chunk_key(&stream, range.0),
                    value: chunk::encode(reporter, now_ms, &part)?,
                    condition: Condition::Absent,
                });
                writes.push(Write::Put {
                    key: layout::pending_key(self.spreads, now_ms, &stream, range.0),
                    value: items::encode(&crate::fold::Progress::default())?,
                    condition: Condition::Absent,
                });
            }
            if head.holes.len() > HOLES_MAX {
                return Err(BillingError::TooManyGaps {
                    source_name: batch.source().to_string(),
                    holes: head.holes.len(),
                });
            }
            if !new.is_empty() {
                writes.extend(self.put_head(&key, place, items::encode(&head)?));
            }
            writes.extend(self.new_events(events).await?);
            if !writes.is_empty() {
                if firn_env::planted!("billing.acknowledge_first") {
                    let table = self.table.clone();
                    self.env.spawn("acknowledged already", async move {
                        let _ = table.transact(writes).await;
                    });
                    return Ok(until);
                }
                self.env.fault_point("billing.ingest.before_transact").await;
                match self.table.transact(writes).await {
                    Ok(_) => {}
                    Err(TableError::ConditionFailed { .. }) => {
                        why = "others report as the same source at the same time".into();
                        continue;
                    }
                    Err(TableError::Unavailable(_)) if firn_env::planted!("billing.doubt_is_success") => {}
                    // It may have happened. The next look at the stream tells.
                    Err(TableError::Unavailable(error)) => {
                        why = error;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
                self.env.fault_point("billing.ingest.after_transact").await;
            }
            receipt.kept += new.iter().map(|range| range.1 - range.0).sum::<u64>();
            receipt.duplicates += known
                .iter()
                .map(|range| range.1.min(until) - range.0)
                .sum::<u64>();
            return Ok(until);
        }
        Err(BillingError::Unavailable(why))
    }

    /// Compares records that were received before with those kept.
    async fn contradiction(
        &self,
        stream: &str,
        batch: &UsageBatch,
        known: &[Range],
    ) -> Result<Option<AuditEvent>, BillingError> {
        if firn_env::planted!("billing.nothing_contradicts") {
            return Ok(None);
        }
        for range in known {
            // A chunk that reaches into the range begins no earlier than this.
            let earliest = range.0.saturating_sub(BATCH_MAX_RECORDS as u64);
            let mut after = Some(layout::sequence(earliest));
            while let Some(start) = after.take() {
                let page = self
                    .table
                    .query(&layout::chunks(stream), "", Some(start.as_str()), 64)
                    .await?;
                for item in &page.items {
                    let kept = chunk::decode(item)?;
                    if kept.batch.first_sequence() >= range.1 {
                        break;
                    }
                    if let Some(event) = difference(batch, &kept, *range) {
                        return Ok(Some(event));
                    }
                }
                let beyond = |next: &String| *next < layout::sequence(range.1);
                after = page.next.filter(beyond);
            }
        }
        Ok(None)
    }

    async fn new_incarnation(
        &self,
        batch: &UsageBatch,
        now_ms: u64,
    ) -> Result<Option<AuditEvent>, BillingError> {
        let prefix = format!("{}|", batch.source());
        // Those that are in their shard have left a record here as well.
        let page = self.table.query(layout::STREAMS, &prefix, None, 1000).await?;
        let before = page
            .items
            .last()
            .map(|item| item.key.sort[prefix.len()..].to_owned());
        Ok(before.map(|before| AuditEvent {
            tenant: None,
            at_ms: now_ms,
            finding: Finding::NewIncarnation {
                source: batch.source().clone(),
                incarnation: batch.incarnation(),
                before,
            },
        }))
    }

    async fn refuse_source(&self, reporter: &Reporter, batch: &UsageBatch) -> Result<Receipt, BillingError> {
        // One event an hour is enough for somebody who keeps trying.
        let hour = crate::Hour::of_ms(self.now_ms());
        self.record_events(vec![AuditEvent {
            tenant: reporter.tenant().cloned(),
            at_ms: hour.start_ms(),
            finding: Finding::WrongSource {
                identity: reporter.identity().clone(),
                claimed: batch.source().clone(),
            },
        }])
        .await?;
        Err(BillingError::NotYourSource {
            identity: reporter.identity().to_string(),
            source_name: batch.source().to_string(),
        })
    }
}

/// The first record of `range` that is not what was kept.
fn difference(batch: &UsageBatch, kept: &chunk::Chunk, range: Range) -> Option<AuditEvent> {
    let first = range.0.max(kept.batch.first_sequence());
    let next = range.1.min(kept.batch.next_sequence());
    let at = |batch: &UsageBatch, sequence: u64| -> Observation {
        batch.observations()[(sequence - batch.first_sequence()) as usize].clone()
    };
    let sequence = (first..next).find(|sequence| at(batch, *sequence) != at(&kept.batch, *sequence))?;
    let (was, is) = (at(&kept.batch, sequence), at(batch, sequence));
    let words = |observation: &Observation| {
        format!(
            "{} {} of {} by {} from {} ms for {} ms",
            observation.quantity,
            observation.meter,
            observation.resource,
            observation.tenant,
            observation.from_ms,
            observation.duration_ms
        )
    };
    Some(AuditEvent {
        tenant: kept.bound.clone(),
        at_ms: kept.received_ms,
        finding: Finding::Contradiction {
            source: batch.source().clone(),
            incarnation: batch.incarnation(),
            sequence,
            kept: words(&was),
            came: words(&is),
        },
    })
}

/// The door for a component in the same process: its spool delivers straight into the ledger.
pub struct BillingSink {
    billing: Arc<Billing>,
    reporter: Reporter,
}

impl BillingSink {
    /// For this sender.
    pub fn new(billing: Arc<Billing>, reporter: Reporter) -> Self {
        Self { billing, reporter }
    }
}

#[async_trait]
impl UsageSink for BillingSink {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        match self.billing.accept(&self.reporter, batch).await {
            Ok(_) => Ok(()),
            Err(error @ (BillingError::NotYourSource { .. } | BillingError::Batch(_))) => {
                Err(SinkError::Refused(error.to_string()))
            }
            Err(error) => Err(SinkError::Unavailable(error.to_string())),
        }
    }
}
