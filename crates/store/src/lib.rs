//! Object stores behind one small trait, with every request counted and priced.
//!
//! A store is built in layers, each a [`Store`] over the next: [`Retrying`] (jitter, deadlines, bounded concurrency, the
//! upload limit) over [`Metered`] (operations by class, bytes by direction: each *try* costs money, so metering is below
//! retrying) over a backend: [`DirectoryStore`], [`MemoryStore`], or a cloud's from the crate firn-store-cloud.

mod bandwidth;
mod directory;
mod error;
mod key;
mod memory;
mod meter;
mod money;
mod prices;
mod retry;
mod store;

pub use bandwidth::{RuleError, UploadLimit, UploadRule, UploadSchedule};
pub use directory::DirectoryStore;
pub use error::StoreError;
pub use key::ObjectKey;
pub use memory::MemoryStore;
pub use meter::{Meter, Metered, Usage};
pub use money::{Money, Rate};
pub use prices::{Cost, PriceBook, PriceError, Route};
pub use retry::{RetryPolicy, RetryStatistics, Retrying};
pub use store::{LIST_PAGE_OBJECTS, ListPage, ObjectInfo, PutMode, Store};
