//! The key rings of a family, as an edge takes them: from the bucket, from the service it joined, and from its own memory of
//! the newest one it has seen.
//!
//! ```text
//! kept (state directory) ─┐
//! bucket, ≥ kept ─────────┼─ each signed by the tenant, of this family, no older than the one before, not forked ─▶ the newest
//! service, if joined ─────┘                                                                                            │
//!                           in the bucket? (else put there) ─▶ kept ─▶ opened ─▶ new data is sealed under its newest epoch
//! ```
//!
//! Nothing is sealed under an epoch whose ring is not in the bucket: bucket and recovery phrase must stay enough to read
//! everything. What in the bucket is no ring of the tenant's is passed over, with a warning that names it: whoever can put
//! objects there must not be able to keep edges from starting.

mod bucket;
mod follow;
mod kept;

pub use bucket::{keep, newest_in};
pub use follow::{KeyRings, KeysSection};
pub use kept::{open_kept, save};

use firn_format::FamilyId;
use firn_seal::TenantPublic;

/// Whose rings are taken.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Whose keys they hold.
    pub family: FamilyId,
    /// Who must have signed them.
    pub tenant: TenantPublic,
}
