//! The limits every engine enforces: DynamoDB's own, so that what works on a laptop works on the service.
//!
//! They are checked in one place, before an engine does anything, and the measures below are never smaller than what
//! DynamoDB itself counts: a request that passes here is not refused there.
//!
//! ```text
//! item         = partition + sort + value + 100 bytes   (DynamoDB: attribute names, number, and its index overhead)
//! transaction  = the items put, and the keys of items deleted or checked, each with its 100 bytes
//! ```

use crate::{ItemKey, TableError, Write};
use std::collections::BTreeSet;

/// Operations in one transaction (DynamoDB's limit).
pub const MAX_TRANSACTION_OPERATIONS: usize = 100;
/// Bytes of keys and values in one transaction (DynamoDB's limit).
pub const MAX_TRANSACTION_BYTES: usize = 4 << 20;
/// Bytes of one item: its key, its value and [`ITEM_OVERHEAD_BYTES`] (DynamoDB's limit).
pub const MAX_ITEM_BYTES: usize = 400 << 10;
/// Counted for each item beside its key and value: more than the attribute names and the version take.
pub const ITEM_OVERHEAD_BYTES: usize = 100;
/// Bytes of items in one page of a query (DynamoDB's limit); the item that crosses it is still in the page.
pub const MAX_PAGE_BYTES: usize = 1 << 20;
/// Bytes of either half of a key (DynamoDB allows a longer partition key; one limit for both is easier to keep).
pub const MAX_KEY_BYTES: usize = 1024;

/// Bytes that an item with this key and value counts against the limits.
pub fn item_bytes(key: &ItemKey, value_bytes: usize) -> usize {
    key.partition.len() + key.sort.len() + value_bytes + ITEM_OVERHEAD_BYTES
}

/// Checks a key.
///
/// # Errors
/// [`TableError::Limit`] if either half is empty or too long.
pub fn check_key(key: &ItemKey) -> Result<(), TableError> {
    check_half("partition", &key.partition)?;
    check_half("sort", &key.sort)
}

/// Checks what a query asks for.
///
/// # Errors
/// [`TableError::Limit`] if the partition is no key, the prefix is too long, or nothing is asked for.
pub fn check_query(
    partition: &str,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<(), TableError> {
    check_half("partition", partition)?;
    if let Some(after) = after
        && after.len() > MAX_KEY_BYTES
    {
        return Err(limit_error(format!(
            "a start of {} bytes, {MAX_KEY_BYTES} are allowed",
            after.len()
        )));
    }
    if prefix.len() > MAX_KEY_BYTES {
        return Err(limit_error(format!(
            "a prefix of {} bytes, {MAX_KEY_BYTES} are allowed",
            prefix.len()
        )));
    }
    if limit == 0 {
        return Err(limit_error("a query for no items".into()));
    }
    Ok(())
}

/// Checks a transaction.
///
/// # Errors
/// [`TableError::Limit`] naming the limit that is broken.
pub fn check_transaction(writes: &[Write]) -> Result<(), TableError> {
    if writes.is_empty() {
        return Err(limit_error("a transaction without operations".into()));
    }
    if writes.len() > MAX_TRANSACTION_OPERATIONS {
        return Err(limit_error(format!(
            "{} operations in one transaction, {MAX_TRANSACTION_OPERATIONS} are allowed",
            writes.len()
        )));
    }
    let mut named = BTreeSet::new();
    let mut total_bytes = 0;
    for write in writes {
        let key = write.key();
        check_key(key)?;
        if !named.insert(key) {
            return Err(limit_error(format!(
                "{}/{} is named twice",
                key.partition, key.sort
            )));
        }
        let bytes = match write {
            Write::Put { value, .. } => item_bytes(key, value.len()),
            Write::Delete { .. } | Write::Check { .. } => item_bytes(key, 0),
        };
        if bytes > MAX_ITEM_BYTES {
            return Err(limit_error(format!(
                "{}/{} takes {bytes} bytes, {MAX_ITEM_BYTES} are allowed",
                key.partition, key.sort
            )));
        }
        total_bytes += bytes;
    }
    if total_bytes > MAX_TRANSACTION_BYTES {
        return Err(limit_error(format!(
            "the transaction takes {total_bytes} bytes, {MAX_TRANSACTION_BYTES} are allowed"
        )));
    }
    Ok(())
}

fn check_half(which: &str, half: &str) -> Result<(), TableError> {
    if half.is_empty() || half.len() > MAX_KEY_BYTES {
        return Err(limit_error(format!(
            "a {which} key of {} bytes, 1 to {MAX_KEY_BYTES} are allowed",
            half.len()
        )));
    }
    Ok(())
}

fn limit_error(what: String) -> TableError {
    TableError::Limit(what)
}
