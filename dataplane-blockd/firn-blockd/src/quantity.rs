//! Sizes as people write them: `10GiB`.

use serde::{Deserialize, Deserializer, de::Error};
use std::str::FromStr;

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let wrong = || format!("{text:?} is no size; write for example \"10GiB\"");
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(wrong)?
            .1;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number
            .checked_mul(scale)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// A size for people.
pub fn show(bytes: u64) -> String {
    let (name, scale) = UNITS[..4]
        .iter()
        .rev()
        .find(|(_, scale)| bytes >= *scale)
        .copied()
        .unwrap_or(("B", 1));
    if bytes.is_multiple_of(scale) {
        format!("{} {name}", bytes / scale)
    } else {
        format!("{:.1} {name}", bytes as f64 / scale as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit_and_fit_64_bits() {
        assert_eq!("10GiB".parse(), Ok(Size(10 << 30)));
        assert_eq!("10 GB".parse(), Ok(Size(10_000_000_000)));
        assert!("10".parse::<Size>().is_err() && "GiB".parse::<Size>().is_err());
        assert!(
            "99999999999 TiB"
                .parse::<Size>()
                .unwrap_err()
                .contains("too large")
        );
        assert_eq!(
            (show(3 << 20), show(1536), show(5)),
            ("3 MiB".into(), "1.5 KiB".into(), "5 B".into())
        );
    }
}
