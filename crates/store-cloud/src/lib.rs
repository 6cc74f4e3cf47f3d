//! S3, Azure Blob and Google Cloud Storage as a [`firn_store::Store`]: a leaf crate, so that nothing waits for the cloud
//! protocols to compile.
//!
//! The protocols are those of the crate `object_store`, with its retries switched off (firn-store's own layer does them,
//! on the environment's clock and with metering below it) and with a thin HTTP layer of ours that keeps what a server said
//! when it refused, so that every refusal is sorted by status and code, not by guessing at error texts.

mod azure;
mod classify;
mod cloud;
mod open;
mod refusal;
mod request;
mod s3;
mod sessions;

pub use open::{Credentials, OpenError, open};
pub use sessions::{Session, SessionCredential, Sessions};
