//! Desired and observed state: what the service wants of an edge, and what the edge says of itself. Pure; both sides of the one report that
//! carries them have their words from here (decision 0121).
//!
//! ```text
//! service ── DesiredState, signed, of a generation ──▶ edge     keeps it over restarts, obeys the newest it could read
//! service ◀── ObservedState ─────────────────────── edge     what is in force, what was refused and why, how it stands
//! ```

mod desired;
mod observed;
mod rekey;

pub use desired::{
    DOCUMENT_BYTES_MAX, DesiredContent, DesiredState, DesiredVolume, FORMAT, NewWrites, Refusal,
    SnapshotTiers, VOLUMES_MAX,
};
pub use observed::{ObservedState, ObservedVolume, RefusedState, SnapshotSource, TEXT_BYTES_MAX, shortened};
pub use rekey::{DesiredRekey, NAMED_SNAPSHOTS_MAX, ObservedRekey};
