//! Calendar time in whole seconds, as tokens and certificates carry it.

use firn_env::WallTime;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// The second that `wall` lies in; times before 1970 count as 1970.
    pub fn from_wall(wall: WallTime) -> Self {
        Self(u64::try_from(wall.0 / 1_000_000_000).unwrap_or(0))
    }

    /// `seconds` later; the end of time if there is no such second.
    #[must_use]
    pub fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// `seconds` earlier; 1970 if there is no such second.
    #[must_use]
    pub fn minus(self, seconds: u64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} s after 1970", self.0)
    }
}
