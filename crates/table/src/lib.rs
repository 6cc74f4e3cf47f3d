//! The one consistency primitive of Firn: a table with conditional transactions.
//!
//! Get, paginated query, and a transaction of puts, deletes and checks under the conditions "absent" and "version is v".
//! The limits are DynamoDB's own, and every engine enforces them, so that what works on a laptop works on the service.

mod table;

pub use table::{
    Condition, Item, ItemKey, MAX_ITEM_BYTES, MAX_PAGE_BYTES, MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS, Page, Table, TableError, Write,
};
