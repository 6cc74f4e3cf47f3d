//! One machine's way to a [`MemoryTable`], and what goes wrong on it.

use super::{MemoryTable, TableCounts};
use crate::{Applied, Item, ItemKey, Page, Table, TableError, Write, limits};
use async_trait::async_trait;
use firn_env::Env;
use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is served.
    None,
    /// It is refused and never happens.
    Throttle,
    /// It happens, but its sender is told that the table is unavailable.
    LoseReply,
    /// Its sender is told that the table is unavailable, and it happens afterwards, once the table has served so many
    /// further requests of anybody, if its conditions still hold then. For a read: as if throttled.
    Late {
        /// Further requests until it lands, from 1.
        requests: u64,
    },
}

/// How often things go wrong by chance, per thousand requests, drawn from the machine's own randomness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRates {
    /// [`Fault::Throttle`].
    pub throttle_per_mille: u32,
    /// [`Fault::LoseReply`].
    pub lose_reply_per_mille: u32,
    /// [`Fault::Late`], landing after 1 to [`FaultRates::late_requests`] further requests.
    pub late_per_mille: u32,
    /// The longest a late write is on its way, in requests.
    pub late_requests: u64,
    /// How long a request travels, each way.
    pub delay: RangeInclusive<Duration>,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self {
            throttle_per_mille: 0,
            lose_reply_per_mille: 0,
            late_per_mille: 0,
            late_requests: 8,
            delay: Duration::ZERO..=Duration::ZERO,
        }
    }
}

/// A [`Table`] over a [`MemoryTable`]. Faults are this client's alone: another machine may see the table in good order.
pub struct MemoryTableClient {
    table: MemoryTable,
    env: Env,
    trouble: Mutex<Trouble>,
}

#[derive(Default)]
struct Trouble {
    scripted: VecDeque<Fault>,
    rates: FaultRates,
    outage: bool,
    counts: TableCounts,
}

impl MemoryTableClient {
    pub(super) fn new(table: MemoryTable, env: Env) -> Self {
        Self {
            table,
            env,
            trouble: Mutex::default(),
        }
    }

    /// Adds to the script: the first request not yet scripted meets this fault. Scripts come before chance.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.lock().scripted.extend(faults);
    }

    /// Sets what goes wrong by chance from now on.
    pub fn set_rates(&self, rates: FaultRates) {
        self.lock().rates = rates;
    }

    /// Cuts this machine off from the table, or reconnects it. While cut off nothing arrives.
    pub fn set_outage(&self, outage: bool) {
        self.lock().outage = outage;
    }

    /// Requests of this client so far, those that failed included.
    pub fn counts(&self) -> TableCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().expect("no panic under this lock")
    }

    fn count(&self, add: fn(&mut TableCounts)) {
        add(&mut self.lock().counts);
        self.table.count(add);
    }

    async fn travel(&self) {
        let delay = self.lock().rates.delay.clone();
        let longest = *delay.end();
        if longest.is_zero() {
            return;
        }
        let spread = longest.saturating_sub(*delay.start()).as_nanos();
        let extra = self
            .env
            .random_below(u64::try_from(spread).unwrap_or(u64::MAX - 1) + 1);
        self.env.sleep(*delay.start() + Duration::from_nanos(extra)).await;
    }

    fn draw_fault(&self) -> Fault {
        let mut trouble = self.lock();
        if trouble.outage {
            return Fault::Throttle;
        }
        if let Some(fault) = trouble.scripted.pop_front() {
            return fault;
        }
        let rates = &trouble.rates;
        let throttle = u64::from(rates.throttle_per_mille);
        let lose_reply = throttle + u64::from(rates.lose_reply_per_mille);
        let late = lose_reply + u64::from(rates.late_per_mille);
        if late == 0 {
            return Fault::None;
        }
        match self.env.random_below(1000) {
            drawn if drawn < throttle => Fault::Throttle,
            drawn if drawn < lose_reply => Fault::LoseReply,
            drawn if drawn < late => Fault::Late {
                requests: 1 + self.env.random_below(rates.late_requests.max(1)),
            },
            _ => Fault::None,
        }
    }

    async fn read<T>(&self, serve: impl FnOnce() -> T) -> Result<T, TableError> {
        self.travel().await;
        match self.draw_fault() {
            Fault::None => {
                let result = serve();
                self.travel().await;
                Ok(result)
            }
            Fault::Throttle | Fault::LoseReply | Fault::Late { .. } => {
                self.travel().await;
                Err(unavailable())
            }
        }
    }
}

fn unavailable() -> TableError {
    TableError::Unavailable("the simulated table does not answer".into())
}

#[async_trait]
impl Table for MemoryTableClient {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        limits::check_key(key)?;
        self.count(|counts| counts.gets += 1);
        self.read(|| self.table.get(key)).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        self.count(|counts| counts.queries += 1);
        self.read(|| self.table.query(partition, prefix, after, limit))
            .await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        limits::check_transaction(&writes)?;
        self.count(|counts| counts.transactions += 1);
        self.travel().await;
        let result = match self.draw_fault() {
            Fault::None => self.table.transact(&writes),
            Fault::Throttle => Err(unavailable()),
            Fault::LoseReply => {
                // Whether it happened or failed its conditions: nobody is told.
                let _ = self.table.transact(&writes);
                Err(unavailable())
            }
            Fault::Late { requests } => {
                self.table.delay_write(requests, writes);
                Err(unavailable())
            }
        };
        self.travel().await;
        result
    }
}
