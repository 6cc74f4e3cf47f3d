//! Sizes and durations as people write them: `10 GiB`, `30 s`.

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use std::{fmt, time::Duration};

const SIZES: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const DURATIONS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)];

fn parse(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let wrong = || format!("{text:?} has no unit that is known here; write for example \"{example}\"");
    let scale = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| *scale)
        .ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(scale)
        .ok_or_else(|| format!("{text:?} is too large"))
}

/// What a key of a quantity takes; what it is given instead is named beside it.
struct Quantity {
    expected: &'static str,
    units: &'static [(&'static str, u64)],
    example: &'static str,
}

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        parse(text, self.units, self.example).map_err(E::custom)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Quantity {
                expected: "a size in quotes with its unit, such as \"4 GiB\"",
                units: &SIZES,
                example: "10 GiB",
            })
            .map(Self)
    }
}

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Quantity {
                expected: "a length of time in quotes with its unit, such as \"30 s\"",
                units: &DURATIONS,
                example: "30 s",
            })
            .map(|ms| Self(Duration::from_millis(ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_need_a_unit_and_fit_64_bits() {
        assert_eq!(parse("10 GiB", &SIZES, ""), Ok(10 << 30));
        assert_eq!(parse("4096B", &SIZES, ""), Ok(4096));
        assert_eq!(parse("30 s", &DURATIONS, ""), Ok(30_000));
        assert!(parse("10", &SIZES, "10 GiB").unwrap_err().contains("10 GiB"));
        assert!(
            parse("99999999 PiB", &SIZES, "")
                .unwrap_err()
                .contains("too large")
        );
        assert!(parse("GiB", &SIZES, "").is_err());
    }
}
