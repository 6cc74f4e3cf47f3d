//! Object stores behind one small trait, with every request counted and priced.
//!
//! A store is built in layers, each a [`Store`] over the next: [`Retrying`] (jitter, deadlines, bounded concurrency, the
//! upload limit) over [`Metered`] (operations by class, bytes by direction: each *try* costs money, so metering is below
//! retrying) over a backend: [`DirectoryStore`], [`MemoryStore`], or a cloud's from the crate firn-store-cloud; in tests
//! with [`Faulty`] between. [`Stack`] puts them together.

mod bandwidth;
#[cfg(feature = "testing")]
pub mod conformance;
mod directory;
mod error;
#[cfg(feature = "testing")]
mod fault_config;
#[cfg(feature = "testing")]
mod faulty;
mod key;
#[cfg(feature = "testing")]
mod memory;
mod meter;
mod prices;
mod probe;
mod request_budget;
mod retry;
mod stack;
mod store;
mod url;
mod versions;

pub use bandwidth::{RuleError, UploadLimit, UploadRule, UploadSchedule};
pub use directory::DirectoryStore;
pub use error::StoreError;
#[cfg(feature = "testing")]
pub use fault_config::{FaultConfig, FaultConfigError, Faults, Outage, Phase};
#[cfg(feature = "testing")]
pub use faulty::{FaultControl, Faulty, Remembered};
pub use key::ObjectKey;
#[cfg(feature = "testing")]
pub use memory::MemoryStore;
pub use meter::{Meter, Metered, Usage};
pub use prices::{Cost, PriceError, ProviderPrices, Route};
pub use probe::{ProbeError, ProbeReport, ProbeTimes, Throughput, measure, probe};
pub use request_budget::{BackgroundPolicy, BackgroundStatistics, RequestBudget};
pub use retry::{RetryPolicy, RetryStatistics, Retrying};
pub use stack::{Stack, StackConfig};
pub use store::{LIST_PAGE_OBJECTS, ListPage, ObjectInfo, PutMode, Store, VersionPage};
pub use url::{StoreUrl, StoreUrlError};
pub use versions::erase;
