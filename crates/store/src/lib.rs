//! Object stores behind one small trait, with every request counted and priced.
//!
//! A store is built in layers, each a [`Store`] over the next: `Retrying` (jitter, deadlines, bounded concurrency) over
//! `Metered` (operations by class, bytes by direction: each *try* costs money, so metering is below retrying) over a
//! backend (local directory, memory, cloud), with `Faulty` in between for tests.

mod error;
mod key;
mod store;

pub use error::StoreError;
pub use key::ObjectKey;
pub use store::{ListPage, ObjectInfo, PutMode, Store};
