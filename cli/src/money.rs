//! Amounts and quantities as people read them. Amounts are whole billionths.

use firn_quantity::Money;
use std::{fmt, str::FromStr};

/// The largest amount that somebody may type: more is a slip of the hand.
const AMOUNT_MAX: Money = Money::of_nanos(9_999_999_999_999_999);

/// An amount that somebody types, such as 12.50.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Money::parse(text)
            .filter(|amount| *amount <= AMOUNT_MAX)
            .map(|amount| Self(amount.nanos()))
            .ok_or_else(|| format!("{text:?} is no amount such as 12.50"))
    }
}

/// Billionths, given as digits, with at least two decimals and as many as are needed.
pub fn exact(nanos: &str) -> String {
    Money::try_from(nanos.to_owned()).map_or_else(|_| nanos.to_owned(), |money| money.to_string())
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
