//! Wire types of the API, apart from how things are stored and done. Bodies are strict: a field nobody reads is refused, so
//! that a misspelt option does not pass for a default. Replies may gain fields; clients ignore those they do not know.

mod attachments;
mod audits;
mod billing;
mod disks;
mod edges;
mod grants;
mod limits;
mod shared_costs;
mod tenants;
mod volumes;

pub use attachments::*;
pub use audits::*;
pub use billing::*;
pub use disks::*;
pub use edges::*;
pub use grants::*;
pub use limits::*;
pub use shared_costs::*;
pub use tenants::*;
pub use volumes::*;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An empty body, for operations that take none but must not be sent anything else.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Listing<T> {
    /// The things on this page.
    pub items: Vec<T>,
    /// Give it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
