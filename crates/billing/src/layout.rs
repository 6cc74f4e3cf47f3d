//! Key layout of billing in the table: partitions, sort keys, items.
//!
//! ```text
//! partition                          sort                                        item
//! billing/streams                    <source>|<incarnation>                      what was received of a stream
//! billing/chunks/<source>|<inc>      <first sequence>                            up to 4096 records, as received
//! billing/pending                    <received ms>|<source>|<inc>|<first>        a chunk not yet in the hours
//! billing/hours/<tenant>             <hour>/<part>                               sums of one hour
//! billing/tenants                    <tenant>                                    which months are closed, which prices hold
//! billing/{streams,pending,tenants}/<shard>                                      of a ledger that is spread: the same, 1/32 of them in each
//! billing/layout                     spread                                      that something may lie in a shard
//! billing/invoices/<tenant>          <month>                                     a closed month's invoice
//! billing/credits/<tenant>           <id>                                        a credit line
//! billing/books/<name>               <month>                                     a version of a price book
//! billing/book-names                 <name>                                      that there is a book of this name
//! billing/budgets/<tenant>           <id>                                        a budget
//! billing/alerts/<tenant>            <month>|<budget>|<threshold>                an alert that was raised
//! billing/audit/<tenant or ->        <ms>|<digest>                               an audit event
//! ```
//!
//! Numbers are padded, so that items lie in order. Names hold neither `|` nor anything below `-`, so `<x>|` is a prefix of
//! nothing else. All items but chunks and hours are JSON with a version `v`; a build reads its own and the one before. Where a head
//! has moved to its shard a forwarding record stays (`heads.rs`), so `billing/streams` and `billing/tenants` name all of them.
//!
//! **Sizes.** A batch of 4096 ordinary records takes ~50 KiB as a chunk: one transaction of 3 items receives it, so one
//! fsync of the embedded table, or one request to DynamoDB, carries thousands of records. A transaction that moves chunks
//! into the hours carries at most [`FOLD_CHUNKS`] chunks (98,000 records) and 100 items. An hour of a tenant takes ~50 bytes
//! for each resource and meter; at [`HOUR_PART_BYTES`] another part is begun.

use crate::{Hour, Month, heads::HeadKey};
use firn_table::ItemKey;
use firn_usage::{Incarnation, SourceId, TenantName};

/// Chunks in one transaction of the fold at most: their markers take a quarter of its items.
pub(crate) const FOLD_CHUNKS: usize = 24;
/// Items in one transaction of the fold at most: the table's limit, less room for audit events.
pub(crate) const FOLD_ITEMS: usize = 92;
/// An hour's part at this size is left alone and another begun: four thousand resources and meters, half of an item's limit.
pub(crate) const HOUR_PART_BYTES: usize = 200 << 10;

pub(crate) const STREAMS: &str = "billing/streams";
pub(crate) const PENDING: &str = "billing/pending";
pub(crate) const TENANTS: &str = "billing/tenants";
/// Of each tenant's hours the beginning.
pub(crate) const HOURS: &str = "billing/hours/";
/// The ledger's layout.
pub(crate) const LAYOUT: &str = "billing/layout";
/// Partitions of each kind in a ledger that is spread. A partition key takes 1,000 write units a second in DynamoDB, so 32 of them some 300,000 offices of
/// a batch each half a minute; an idle fold looks at each every two seconds, which is five dollars a month.
pub(crate) const SHARDS: u8 = 32;

/// The shard of `partition` in which what belongs to `name` lies.
pub(crate) fn shard(partition: &str, name: &str) -> String {
    let number = blake3::hash(name.as_bytes()).as_bytes()[0] % SHARDS;
    format!("{partition}/{number:02}")
}

/// All shards of `partition`.
pub(crate) fn shards(partition: &str) -> impl Iterator<Item = String> {
    (0..SHARDS).map(move |number| format!("{partition}/{number:02}"))
}

pub(crate) fn spread_key() -> ItemKey {
    ItemKey::new(LAYOUT, "spread")
}

/// A stream's name in keys.
pub(crate) fn stream(source: &SourceId, incarnation: Incarnation) -> String {
    format!("{source}|{incarnation}")
}

/// All streams of one source lie in one shard.
pub(crate) fn stream_key(source: &SourceId, incarnation: Incarnation) -> HeadKey {
    let stream = stream(source, incarnation);
    HeadKey {
        sharded: ItemKey::new(shard(STREAMS, source.as_str()), stream.clone()),
        shared: ItemKey::new(STREAMS, stream),
    }
}

pub(crate) fn chunks(stream: &str) -> String {
    format!("billing/chunks/{stream}")
}

pub(crate) fn sequence(sequence: u64) -> String {
    format!("{sequence:020}")
}

pub(crate) fn chunk_key(stream: &str, first: u64) -> ItemKey {
    ItemKey::new(chunks(stream), sequence(first))
}

pub(crate) fn pending_key(spreads: bool, received_ms: u64, stream: &str, first: u64) -> ItemKey {
    let partition = if spreads {
        shard(PENDING, stream)
    } else {
        PENDING.to_owned()
    };
    ItemKey::new(partition, format!("{received_ms:020}|{stream}|{first:020}"))
}

/// The chunk that a marker stands for.
pub(crate) fn chunk_of(pending: &ItemKey) -> Option<ItemKey> {
    let (_, rest) = pending.sort.split_once('|')?;
    let (stream, first) = rest.rsplit_once('|')?;
    Some(ItemKey::new(chunks(stream), first))
}

pub(crate) fn hours(tenant: &TenantName) -> String {
    format!("{HOURS}{tenant}")
}

pub(crate) fn hour_prefix(hour: Hour) -> String {
    format!("{hour}/")
}

pub(crate) fn hour_key(tenant: &TenantName, hour: Hour, part: usize) -> ItemKey {
    ItemKey::new(hours(tenant), format!("{hour}/{part:04}"))
}

pub(crate) fn tenant_key(tenant: &TenantName) -> HeadKey {
    HeadKey {
        sharded: ItemKey::new(shard(TENANTS, tenant.as_str()), tenant.as_str()),
        shared: ItemKey::new(TENANTS, tenant.as_str()),
    }
}

pub(crate) fn invoices(tenant: &TenantName) -> String {
    format!("billing/invoices/{tenant}")
}

pub(crate) fn invoice_key(tenant: &TenantName, month: Month) -> ItemKey {
    ItemKey::new(invoices(tenant), month.to_string())
}

pub(crate) fn credits(tenant: &TenantName) -> String {
    format!("billing/credits/{tenant}")
}

pub(crate) fn books(name: &str) -> String {
    format!("billing/books/{name}")
}

/// The list of the names of published books.
pub(crate) const BOOK_NAMES: &str = "billing/book-names";

pub(crate) fn book_name_key(name: &str) -> ItemKey {
    ItemKey::new(BOOK_NAMES, name)
}

pub(crate) fn budgets(tenant: &TenantName) -> String {
    format!("billing/budgets/{tenant}")
}

pub(crate) fn alerts(tenant: &TenantName) -> String {
    format!("billing/alerts/{tenant}")
}

pub(crate) fn audit(tenant: Option<&TenantName>) -> String {
    format!("billing/audit/{}", tenant.map_or("-", |tenant| tenant.as_str()))
}
