//! The mirror: a copy of a family's bucket in a second store, so that what one store loses can be read and repaired.
//!
//! ```text
//! put into the first ─▶ queue (bounded) ─▶ copied from the local disk, else from the first   (copier)
//! listings of both, side by side ─▶ what lacks is copied; what the first lost is a suspect   (comparison)
//!                                └▶ what the first retired is marked, and deleted D later    (expiry)
//! the store dates a nonce ─▶ ages by the earlier of both clocks                              (store_clock)
//! cold segments in groups of 32 columns ─▶ three parities, from which what both lost is computed  (parity)
//! nonce put into one, read through the other ─▶ two names of one store are refused           (alias)
//! ```
//!
//! Nothing here has keys or trusts a store: segments are copied only whole and with right checksums, and whoever reads a copy verifies it by
//! its uid. Nothing waits for the mirror: a second store that is full, read-only or away has its members wait in the queue, and
//! beyond that be found again by the next comparison. Names mean the same bytes in both stores and lie under the family's id, so families
//! are never mixed, and a bucket may be the mirror of many.

mod alias;
mod comparison;
mod copier;
mod expiry;
mod listing;
mod noting;
mod parity;
mod queue;
mod status;
mod store_clock;

pub use alias::{AliasError, check_not_an_alias};
pub use comparison::Comparison;
pub use copier::{LocalCopies, Mirror, MirrorError, MirrorOptions, NoLocalCopies};
pub use expiry::tombstone_key;
pub use noting::Noting;
pub use parity::{Copies, ExpectedMember, Grouping, HoldStatus, Parity, ParityStatus, Restoring, RowCheck};
pub use queue::Queue;
pub use status::{MirrorState, MirrorStatus};
