//! A usage record: one observation with its name.
//!
//! Quantities are whole numbers without sign: a negative one cannot be written down, and corrections are credit lines of
//! the invoice, never records. Times are whole milliseconds of UTC, from 1970 to the end of the year 9999.

use crate::{Meter, ResourceName, SourceId, TenantName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The last millisecond of the year 9999: later ones are nonsense that would only make date arithmetic unsafe.
pub const LATEST_MS: u64 = 253_402_300_799_999;

/// One life of a spool: drawn at random when the spool is made, and kept as long as it lives.
///
/// Sequence numbers begin at 1 in each incarnation. A spool that was lost and made anew is thereby another one, and cannot be
/// mistaken for the continuation of the old. A copy of a disk is not: its numbers are given again, which the receiver notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// Who used how much of what, and when.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// Who pays.
    pub tenant: TenantName,
    /// What was used.
    pub resource: ResourceName,
    /// What was counted.
    pub meter: Meter,
    /// How many units.
    pub quantity: u64,
    /// The observed interval's beginning, in milliseconds since 1970 (UTC).
    pub from_ms: u64,
    /// Its length: at most 49 days, and zero for a single moment.
    pub duration_ms: u32,
}

/// What makes an observation impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObservationError {
    /// The interval ends after the year 9999.
    #[error("an observed interval that ends {end_ms} ms after 1970 is no time")]
    Time {
        /// Its end.
        end_ms: u64,
    },
}

impl Observation {
    /// The end of the observed interval, by which the hour of the bill is chosen: usage is charged when it is complete.
    pub fn until_ms(&self) -> u64 {
        self.from_ms.saturating_add(u64::from(self.duration_ms))
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`ObservationError`] saying what is impossible.
    pub fn check(&self) -> Result<(), ObservationError> {
        let end_ms = self.until_ms();
        if end_ms > LATEST_MS {
            return Err(ObservationError::Time { end_ms });
        }
        Ok(())
    }
}

/// An observation under its name, (source, incarnation, sequence).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageRecord {
    /// Who observed.
    pub source: SourceId,
    /// In which life of its spool.
    pub incarnation: Incarnation,
    /// The record's sequence number in that life, from 1.
    pub sequence: u64,
    /// What was observed.
    pub observation: Observation,
}
