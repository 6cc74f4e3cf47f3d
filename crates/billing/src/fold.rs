//! The fold: chunks into hours.
//!
//! A chunk that was received has a marker. A step takes markers, adds their records to the hours of their tenants, and removes the markers, all
//! in one transaction whose conditions are the versions of the markers and of the hours: two folds at once, or one that was killed and started
//! again, count nothing twice and leave nothing out.
//!
//! A chunk may name more tenants and hours than a transaction has items. Then it is taken tenant by tenant, in order of their
//! names, and the marker says how far: all tenants before `tenant` are done, and of that one the first `records`. The hour
//! to which a record goes may change between two steps (a month is closed); which records are done does not depend on it.
//!
//! **Side by side.** A pass goes over the partitions of markers in rounds, and nothing is remembered from one round to the next but which
//! partitions may hold more:
//!
//! ```text
//! partitions ──query──▶ oldest markers of each ──get──▶ chunks ──parted──▶ disjoint groups ──heads, hours, transaction──▶ what is left: the next round
//!             at once                          at once          groups.rs                   at once
//! ```
//!
//! Within a process no two groups name one tenant, whichever partitions its chunks lie in, so transactions do not meet and a tenant's hour is
//! written once a round. Between processes conditions decide, and who lost looks again, after a pause ([`ATTEMPTS`](crate::ATTEMPTS) rounds in which nothing
//! succeeds end the pass; the next one goes on). Requests in flight are bounded ([`SIDE_BY_SIDE`]), and so are the records of a round.

mod groups;
mod plan;
mod work;

use crate::{Billing, BillingError, layout};
use firn_table::{Condition, Item, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OPERATIONS, TableError, Write};
use firn_usage::{BATCH_MAX_RECORDS, TenantName};
use futures::{StreamExt as _, stream};
use groups::Group;
use plan::{Heads, Plan};
use std::{collections::BTreeSet, pin::pin};
pub(crate) use work::Progress;
use work::Work;

/// An observation that ends later than its receipt by more is reported: the sender's clock is wrong.
pub const CLOCK_TOLERANCE_MS: u64 = 5 * 60_000;
/// Requests to the table that a fold has in flight at most. 33 partitions of markers are five round trips then, and what a thousand tenants
/// report in two seconds is folded in a fifth of a second at 5 ms a request; requests of the same process's callers go beside them.
pub(crate) const SIDE_BY_SIDE: usize = 8;
/// Records of the chunks of one round: as many as one transaction's, so that rounds take no more memory than transactions.
const ROUND_RECORDS: usize = layout::FOLD_CHUNKS * BATCH_MAX_RECORDS;
/// Bytes of a step's writes: the table's limit, less what keys and events take.
const STEP_BYTES: usize = MAX_TRANSACTION_BYTES - (512 << 10);

/// What one pass knows from one round to the next.
struct Pass {
    /// Partitions that may hold markers.
    partitions: BTreeSet<String>,
    /// Items of a transaction. Halved when hours turn out larger than a transaction.
    room: usize,
    /// Tenants whose items cannot be read. The others do not wait for them.
    unreadable: BTreeSet<TenantName>,
    /// Why something was left out.
    failure: Option<BillingError>,
    /// The table did not answer: what was asked for is left to the next pass, for whoever asks again at once makes it worse.
    unavailable: Option<BillingError>,
    records: u64,
}

impl Pass {
    fn lacks(&mut self, error: BillingError) {
        match error {
            BillingError::Unavailable(_) => self.unavailable = Some(error),
            unreadable => _ = self.failure.get_or_insert(unreadable),
        }
    }
}

/// Why a step added nothing.
enum Stopped {
    /// Another fold was faster, a month was closed, or it happened and the reply was lost: look again.
    Lost,
    /// The hours are larger than a transaction.
    TooLarge,
    /// The table does not answer: the next pass goes on.
    Unavailable(BillingError),
    /// Items of these tenants cannot be read, or the table refuses theirs.
    Unreadable(BTreeSet<TenantName>, BillingError),
}

impl Stopped {
    fn by(tenants: &BTreeSet<TenantName>, error: BillingError) -> Self {
        match error {
            unavailable @ BillingError::Unavailable(_) => Self::Unavailable(unavailable),
            other => Self::Unreadable(tenants.clone(), other),
        }
    }

    fn of(tenant: TenantName, error: BillingError) -> Self {
        Self::by(&BTreeSet::from([tenant]), error)
    }
}

/// What a step did.
struct Folded {
    records: u64,
    /// Partitions in which it left something.
    open: Vec<String>,
    stopped: Option<Stopped>,
}

impl Billing {
    /// Moves received records into the hours, by at most so many transactions; returns how many records. The next call goes on where this one ended.
    ///
    /// May be dropped at any moment, and called by any number of processes at once.
    ///
    /// # Errors
    /// [`BillingError`]; whatever it is, nothing counts twice when it is called again.
    pub async fn fold(&self, transactions: usize) -> Result<u64, BillingError> {
        // Not by each of those that go side by side.
        self.note_spread().await?;
        let mut pass = Pass {
            partitions: self.pending_partitions().await?.into_iter().collect(),
            room: layout::FOLD_ITEMS,
            unreadable: BTreeSet::new(),
            failure: None,
            unavailable: None,
            records: 0,
        };
        let (mut left, mut lost) = (transactions, 0);
        while left > 0 && !pass.partitions.is_empty() {
            self.pause(lost).await;
            let steps = self.fold_round(&mut pass, left).await;
            if let Some(unavailable) = pass.unavailable.take() {
                return Err(unavailable);
            }
            left = left.saturating_sub(steps);
            lost = if steps == 0 { lost + 1 } else { 0 };
            if lost == crate::ATTEMPTS {
                let why = || BillingError::Unavailable("others fold the same records".into());
                return Err(pass.failure.unwrap_or_else(why));
            }
        }
        pass.failure.map_or(Ok(pass.records), Err)
    }

    /// Folds all that was received before; returns how many records were added.
    ///
    /// # Errors
    /// As [`Self::fold`].
    pub async fn fold_all(&self) -> Result<u64, BillingError> {
        self.fold(usize::MAX).await
    }

    /// One transaction of each of at most `most` disjoint groups; gives how many got on.
    async fn fold_round(&self, pass: &mut Pass, most: usize) -> usize {
        let mut open = BTreeSet::new();
        let works = self.read_round(pass, &mut open).await;
        let parted = groups::parted(works, &pass.unreadable, self.side_by_side, most);
        open.extend(parted.waiting.iter().map(|work| work.partition().to_owned()));
        // What one group does at once, so that all together do no more than `side_by_side`.
        let at_once = (self.side_by_side / parted.groups.len().max(1)).max(1);
        let room = pass.room;
        let steps = parted
            .groups
            .into_iter()
            .map(|group| self.fold_group(group, room, at_once));
        let mut steps = pin!(stream::iter(steps).buffer_unordered(self.side_by_side));
        let mut got_on = 0;
        while let Some(folded) = steps.next().await {
            pass.records += folded.records;
            open.extend(folded.open);
            match folded.stopped {
                None => got_on += 1,
                Some(Stopped::Lost) => {}
                Some(Stopped::TooLarge) => {
                    got_on += 1;
                    pass.room = room / 2;
                }
                Some(Stopped::Unavailable(why)) => pass.lacks(why),
                Some(Stopped::Unreadable(tenants, why)) => {
                    got_on += 1;
                    pass.unreadable.extend(tenants);
                    pass.lacks(why);
                }
            }
        }
        pass.partitions = open;
        got_on
    }

    /// The oldest chunks of each partition, as many as a round takes; `open` gets the partitions that hold more.
    async fn read_round(&self, pass: &mut Pass, open: &mut BTreeSet<String>) -> Vec<Work> {
        let partitions = std::mem::take(&mut pass.partitions);
        let queries = partitions.into_iter().map(|partition| async move {
            let page = self.table.query(&partition, "", None, layout::FOLD_CHUNKS).await;
            (partition, page)
        });
        let mut pages = pin!(stream::iter(queries).buffered(self.side_by_side));
        let mut markers: Vec<(usize, Item)> = Vec::new();
        while let Some((partition, page)) = pages.next().await {
            match page {
                Ok(page) => {
                    markers.extend(page.items.into_iter().enumerate());
                    if page.next.is_some() {
                        open.insert(partition);
                    }
                }
                Err(error) => pass.lacks(error.into()),
            }
        }
        // The oldest of each partition, then the next of each: a partition in which much waits does not keep the others waiting.
        markers.sort_by(|(at, one), (other_at, other)| (at, &one.key.sort).cmp(&(other_at, &other.key.sort)));
        let partitions: Vec<String> = markers
            .iter()
            .map(|(_, marker)| marker.key.partition.clone())
            .collect();
        let reads = markers.into_iter().map(|(_, marker)| self.work(marker));
        let mut reads = pin!(stream::iter(reads).buffered(self.side_by_side));
        let (mut works, mut records, mut read) = (Vec::new(), 0, 0);
        while records < ROUND_RECORDS
            && let Some(work) = reads.next().await
        {
            read += 1;
            match work {
                Ok(work) => {
                    records += work.records();
                    works.push(work);
                }
                // The others do not wait for it.
                Err(error) => pass.lacks(error),
            }
        }
        open.extend(partitions.into_iter().skip(read));
        works
    }

    /// One transaction.
    async fn fold_group(&self, mut group: Group, room: usize, at_once: usize) -> Folded {
        let stopped = self.fold_step(&mut group, room, at_once).await.err();
        let is_done = |work: &Work| stopped.is_none() && work.left.is_empty();
        let works = || group.works.iter();
        Folded {
            records: works().filter(|_| stopped.is_none()).map(|work| work.taken).sum(),
            open: works()
                .filter(|work| !is_done(work))
                .map(|work| work.partition().to_owned())
                .collect(),
            stopped,
        }
    }

    async fn fold_step(&self, group: &mut Group, room: usize, at_once: usize) -> Result<(), Stopped> {
        let heads = self.heads_of(&group.tenants, at_once).await?;
        let plan = Plan::of(&mut group.works, &heads, room, |place| self.head_writes(place))
            .map_err(|(tenant, error)| Stopped::of(tenant, error))?;
        let writes = self.writes(&group.works, plan, &heads, at_once).await?;
        let bytes: usize = writes.iter().map(write_bytes).sum();
        if (writes.len() > MAX_TRANSACTION_OPERATIONS || bytes > STEP_BYTES) && room > 4 {
            return Err(Stopped::TooLarge);
        }
        let writes = self.broken(writes).await?;
        self.env.fault_point("billing.fold.before_transact").await;
        match self.table.transact(writes).await {
            Ok(_) => {
                self.env.fault_point("billing.fold.after_transact").await;
                Ok(())
            }
            Err(TableError::ConditionFailed { .. } | TableError::Unavailable(_)) => Err(Stopped::Lost),
            Err(error) => Err(Stopped::by(&group.tenants, error.into())),
        }
    }

    /// The writes of a step as they are, unless one of its guards is taken out.
    async fn broken(&self, mut writes: Vec<Write>) -> Result<Vec<Write>, Stopped> {
        // Sums are put over whatever is there by now.
        if firn_env::planted!("billing.hours_are_not_compared") {
            for write in &mut writes {
                if let Write::Put { key, condition, .. } = write
                    && key.partition.starts_with(layout::HOURS)
                {
                    let item = self.table.get(key).await.map_err(|_| Stopped::Lost)?;
                    *condition = item.map_or(Condition::Absent, |item| Condition::Version(item.version));
                }
            }
        }
        // Chunks are done before they are in the hours.
        if firn_env::planted!("billing.markers_go_first") {
            let is_marker = |write: &Write| write.key().partition.starts_with(layout::PENDING);
            let (markers, others) = writes.into_iter().partition(is_marker);
            self.table.transact(markers).await.map_err(|_| Stopped::Lost)?;
            writes = others;
        }
        Ok(writes)
    }

    async fn heads_of(&self, tenants: &BTreeSet<TenantName>, at_once: usize) -> Result<Heads, Stopped> {
        let reads = tenants.iter().cloned().map(|tenant| async move {
            let head = self.tenant_head(&tenant).await;
            (tenant, head)
        });
        let mut reads = pin!(stream::iter(reads).buffered(at_once));
        let mut heads = Heads::new();
        while let Some((tenant, head)) = reads.next().await {
            let head = head.map_err(|error| Stopped::of(tenant.clone(), error))?;
            heads.insert(tenant, head);
        }
        Ok(heads)
    }

    async fn writes(
        &self,
        works: &[Work],
        mut plan: Plan,
        heads: &Heads,
        at_once: usize,
    ) -> Result<Vec<Write>, Stopped> {
        let mut writes = plan::markers(works).map_err(|error| Stopped::by(&plan.tenants, error))?;
        if firn_env::planted!("billing.marker_stays") {
            writes.retain(|_| self.env.random_below(4) != 0);
        }
        for tenant in &plan.tenants {
            if !firn_env::planted!("billing.close_is_not_checked") {
                let (head, place) = &heads[tenant];
                let checks = self.check_tenant_head(tenant, head, *place);
                writes.extend(checks.map_err(|error| Stopped::of(tenant.clone(), error))?);
            }
        }
        let events = plan.take_events();
        let hours = plan
            .hours
            .into_iter()
            .map(|((tenant, hour), entries)| async move {
                let added = self.add_to_hour(&tenant, hour, &entries).await;
                added.map_err(|error| Stopped::of(tenant, error))
            });
        let mut hours = pin!(stream::iter(hours).buffered(at_once));
        while let Some(added) = hours.next().await {
            writes.extend(added?);
        }
        let room = MAX_TRANSACTION_OPERATIONS.saturating_sub(writes.len());
        let mut events = self
            .new_events(events)
            .await
            .map_err(|error| Stopped::by(&plan.tenants, error))?;
        events.truncate(room);
        writes.append(&mut events);
        Ok(writes)
    }
}

fn write_bytes(write: &Write) -> usize {
    let value = match write {
        Write::Put { value, .. } => value.len(),
        Write::Delete { .. } | Write::Check { .. } => 0,
    };
    firn_table::limits::item_bytes(write.key(), value)
}
