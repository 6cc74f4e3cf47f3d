//! Sizes in bytes.

use crate::{ParseQuantityError, units::Units};
use serde::{Deserialize, Deserializer};
use std::{fmt, str::FromStr};

static UNITS: Units = Units {
    units: &[
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("PiB", 1 << 50),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ],
    example: "10 GiB",
    expected: "a size in quotes with its unit, such as \"4 GiB\"",
};
/// The first of the units: those in which sizes are printed.
const PRINTED: usize = 6;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// As [`str::parse`], and a number without a unit is one of bytes: for command lines that always took it so.
    ///
    /// # Errors
    /// [`ParseQuantityError`].
    pub fn parse_or_bytes(text: &str) -> Result<Self, ParseQuantityError> {
        match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("{text}B").parse(),
            false => text.parse(),
        }
    }
}

impl FromStr for Size {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        UNITS.parse(text).map(Self)
    }
}

/// In the largest unit of which there is one, with one decimal where that is not exact: `10 GiB`, `1.5 KiB`.
impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, scale) = UNITS.units[..PRINTED]
            .iter()
            .rev()
            .find(|(_, scale)| self.0 >= *scale)
            .copied()
            .unwrap_or(("B", 1));
        let text = if self.0.is_multiple_of(scale) {
            format!("{} {name}", self.0 / scale)
        } else {
            format!("{:.1} {name}", self.0 as f64 / scale as f64)
        };
        formatter.pad(&text)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        UNITS.deserialize(deserializer).map(Self)
    }
}
