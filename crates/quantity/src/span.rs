//! Lengths of time.

use crate::{ParseQuantityError, units::Units};
use serde::{Deserialize, Deserializer};
use std::{str::FromStr, time::Duration};

static UNITS: Units = Units {
    units: &[("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)],
    example: "30 s",
    expected: "a length of time in quotes with its unit, such as \"30 s\"",
};

/// A length of time, to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        UNITS.parse(text).map(|ms| Self(Duration::from_millis(ms)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        UNITS
            .deserialize(deserializer)
            .map(|ms| Self(Duration::from_millis(ms)))
    }
}
