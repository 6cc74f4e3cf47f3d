//! Amounts and quantities as people read them. All arithmetic is on whole billionths.

use std::{fmt, str::FromStr};

const NANOS: i128 = 1_000_000_000;

/// An amount that somebody types, such as 12.50.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no amount such as 12.50");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 || whole.len() > 7 {
            return Err(wrong());
        }
        let nanos: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        Ok(Self(whole * NANOS as u64 + nanos))
    }
}

/// Billionths, given as digits, with at least two decimals and as many as are needed.
pub fn exact(nanos: &str) -> String {
    let Ok(value) = nanos.parse::<i128>() else {
        return nanos.to_owned();
    };
    let size = value.unsigned_abs();
    let fraction = format!("{:09}", size % NANOS as u128);
    let needed = fraction.trim_end_matches('0').len().max(2);
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}.{}", size / NANOS as u128, &fraction[..needed])
}

/// Digits in groups of three.
pub struct Grouped<'a>(pub &'a str);

impl fmt::Display for Grouped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return formatter.write_str(digits);
        }
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        formatter.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_and_print_to_the_billionth() {
        assert_eq!("12.5".parse(), Ok(Amount(12_500_000_000)));
        assert_eq!("0.000000001".parse(), Ok(Amount(1)));
        for wrong in ["", "-1", "1e3", "1.", ".5", "1,5", "0.0000000001", "99999999"] {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
        for (nanos, text) in [
            ("50000004000", "50.000004"),
            ("-1", "-0.000000001"),
            ("0", "0.00"),
            ("x", "x"),
        ] {
            assert_eq!(exact(nanos), text);
        }
        assert_eq!(Grouped("12100001").to_string(), "12,100,001");
        assert_eq!(Grouped("100").to_string(), "100");
    }
}
