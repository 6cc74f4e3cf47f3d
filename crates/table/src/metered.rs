//! Counts what a table costs: requests, capacity units and money.
//!
//! Units follow DynamoDB's on-demand rules: a strongly consistent read takes one unit for each 4 KiB begun, a write one
//! for each KiB begun, and twice that inside a transaction of several operations, where a check counts as a write. A put
//! whose condition failed is charged like one that held. A single check is served as a read.
//!
//! Sizes are those the caller sees. The old value that a put replaces, that a delete removes or that a check looks at is
//! charged by DynamoDB if it is the larger one; it is not known here, so deletes and checks count one unit. Requests that
//! ended as unavailable are counted but not charged: throttled and undelivered ones are free, and only the bill knows about
//! the rest.

use crate::{Applied, Item, ItemKey, Page, Table, TableError, Write};
use async_trait::async_trait;
use std::sync::{Arc, Mutex, MutexGuard};

/// DynamoDB counts attribute names (25 bytes here) and the version's digits (up to 11) beside key and value.
const ATTRIBUTE_BYTES: usize = 36;
/// One read unit buys this much of an item, or of a page.
const READ_UNIT_BYTES: usize = 4 << 10;
/// One write unit buys this much of an item.
const WRITE_UNIT_BYTES: usize = 1 << 10;
/// A transaction prepares and commits each item.
const TRANSACTION_FACTOR: u64 = 2;

/// What units cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePrices {
    /// A read unit, in billionths of a dollar.
    pub read_unit_nano_dollars: u64,
    /// A write unit, in billionths of a dollar.
    pub write_unit_nano_dollars: u64,
    /// Any request, whatever its size, in billionths of a dollar.
    pub request_nano_dollars: u64,
}

impl TablePrices {
    /// DynamoDB on demand, us-east-1, list price since 2024-11: $0.125 a million read units, $0.625 a million write units.
    pub const DYNAMODB_ON_DEMAND: Self = Self {
        read_unit_nano_dollars: 125,
        write_unit_nano_dollars: 625,
        request_nano_dollars: 0,
    };
    /// The embedded table.
    pub const FREE: Self = Self {
        read_unit_nano_dollars: 0,
        write_unit_nano_dollars: 0,
        request_nano_dollars: 0,
    };
    /// Azure Table Storage, locally redundant, list price: $0.00036 for ten thousand requests, whatever they ask for. A call here is one
    /// request, and one more for each condition on a version that its engine has not seen.
    pub const AZURE_TABLE: Self = Self {
        read_unit_nano_dollars: 0,
        write_unit_nano_dollars: 0,
        request_nano_dollars: 36,
    };
}

/// What was used since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Single reads.
    pub gets: u64,
    /// Pages of queries.
    pub queries: u64,
    /// Transactions, those of one operation included.
    pub transactions: u64,
    /// Of the transactions: those whose condition did not hold.
    pub condition_failures: u64,
    /// Of all requests: those that ended as unavailable.
    pub unavailable: u64,
    /// Read units.
    pub read_units: u64,
    /// Write units.
    pub write_units: u64,
    /// Money, in billionths of a dollar.
    pub nano_dollars: u64,
}

impl TableUsage {
    /// All requests together.
    pub fn requests(&self) -> u64 {
        self.gets + self.queries + self.transactions
    }
}

/// A table that counts what goes to the one below.
pub struct Metered {
    inner: Arc<dyn Table>,
    prices: TablePrices,
    usage: Mutex<TableUsage>,
}

impl Metered {
    /// Counts what goes to `inner` at these prices.
    pub fn new(inner: Arc<dyn Table>, prices: TablePrices) -> Self {
        Self {
            inner,
            prices,
            usage: Mutex::default(),
        }
    }

    /// The counters.
    pub fn usage(&self) -> TableUsage {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, TableUsage> {
        self.usage.lock().expect("no panic under this lock")
    }

    fn record<T>(&self, units: Units, result: &Result<T, TableError>, count: fn(&mut TableUsage)) {
        let mut usage = self.lock();
        match result {
            // Never sent, or refused at the door.
            Err(TableError::Limit(_)) => return,
            Err(TableError::Refused(_)) => return count(&mut usage),
            Err(TableError::Unavailable(_) | TableError::InvalidAnswer(_)) => {
                usage.unavailable += 1;
                return count(&mut usage);
            }
            Err(TableError::ConditionFailed { .. }) => usage.condition_failures += 1,
            Ok(_) => {}
        }
        count(&mut usage);
        usage.read_units += units.read;
        usage.write_units += units.write;
        usage.nano_dollars += units.read * self.prices.read_unit_nano_dollars
            + units.write * self.prices.write_unit_nano_dollars
            + self.prices.request_nano_dollars;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Units {
    read: u64,
    write: u64,
}

fn stored_bytes(key: &ItemKey, value_bytes: usize) -> usize {
    key.partition.len() + key.sort.len() + value_bytes + ATTRIBUTE_BYTES
}

fn units(bytes: usize, unit_bytes: usize) -> u64 {
    bytes.div_ceil(unit_bytes).max(1) as u64
}

fn read_units(items: &[Item]) -> Units {
    let bytes = items
        .iter()
        .map(|item| stored_bytes(&item.key, item.value.len()))
        .sum();
    Units {
        read: units(bytes, READ_UNIT_BYTES),
        write: 0,
    }
}

fn transaction_units(writes: &[Write]) -> Units {
    if let [Write::Check { .. }] = writes {
        return Units { read: 1, write: 0 };
    }
    let once: u64 = writes
        .iter()
        .map(|write| match write {
            Write::Put { key, value, .. } => units(stored_bytes(key, value.len()), WRITE_UNIT_BYTES),
            Write::Delete { .. } | Write::Check { .. } => 1,
        })
        .sum();
    Units {
        read: 0,
        write: if writes.len() == 1 {
            once
        } else {
            once * TRANSACTION_FACTOR
        },
    }
}

#[async_trait]
impl Table for Metered {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        let result = self.inner.get(key).await;
        let units = match &result {
            Ok(Some(item)) => read_units(std::slice::from_ref(item)),
            _ => read_units(&[]),
        };
        self.record(units, &result, |usage| usage.gets += 1);
        result
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        let result = self.inner.query(partition, prefix, after, limit).await;
        let units = read_units(result.as_ref().map_or(&[], |page| &page.items));
        self.record(units, &result, |usage| usage.queries += 1);
        result
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        let units = transaction_units(&writes);
        let result = self.inner.transact(writes).await;
        self.record(units, &result, |usage| usage.transactions += 1);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condition, ItemVersion};
    use bytes::Bytes;

    fn put(value_bytes: usize) -> Write {
        Write::Put {
            key: ItemKey::new("p", "s"),
            value: Bytes::from(vec![0; value_bytes]),
            condition: Condition::Absent,
        }
    }

    #[test]
    fn a_write_costs_one_unit_for_each_kibibyte_begun() {
        let key_and_names = 2 + ATTRIBUTE_BYTES;
        assert_eq!(transaction_units(&[put(1024 - key_and_names)]).write, 1);
        assert_eq!(transaction_units(&[put(1025 - key_and_names)]).write, 2);
    }

    #[test]
    fn a_transaction_of_several_costs_twice_and_its_checks_are_writes() {
        let check = Write::Check {
            key: ItemKey::new("p", "t"),
            condition: Condition::Version(ItemVersion(1)),
        };
        assert_eq!(
            transaction_units(&[put(0), check.clone()]),
            Units { read: 0, write: 4 }
        );
        assert_eq!(transaction_units(&[check]), Units { read: 1, write: 0 });
    }

    #[test]
    fn a_read_costs_one_unit_for_each_four_kibibytes_begun_and_one_for_nothing() {
        let item = |bytes| Item {
            key: ItemKey::new("p", "s"),
            version: ItemVersion(1),
            value: Bytes::from(vec![0; bytes]),
        };
        assert_eq!(read_units(&[]).read, 1);
        assert_eq!(read_units(&[item(4096 - 38)]).read, 1);
        assert_eq!(read_units(&[item(4097 - 38)]).read, 2);
        assert_eq!(
            read_units(&[item(2048), item(2048 - 38 * 2)]).read,
            1,
            "a page is charged by its sum"
        );
    }
}
