//! S3, Azure Blob and Google Cloud Storage as a [`firn_store::Store`]: a leaf crate, so that nothing waits for the cloud
//! protocols to compile.
//!
//! The protocols are those of the crate `object_store`, with its retries switched off (firn-store's own layer does them,
//! on the environment's clock and with metering below it) and with a thin HTTP layer of ours that keeps what a server said
//! when it refused, so that every refusal is sorted by status and code, not by guessing at error texts.
//!
//! What a storage account's tables need of the same credentials is [`AzureTables`]; the table itself is crate firn-table-azure.

mod azure;
mod azure_tables;
mod classify;
mod cloud;
mod open;
mod refusal;
mod request;
mod s3;
mod sessions;

pub use azure_tables::{AzureTables, TableAnswer, TableRequest, TableRequestError};
pub use open::{Credentials, OpenError, open};
pub use sessions::{Session, SessionCredential, Sessions};
