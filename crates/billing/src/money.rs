//! Money in whole nano-units (10⁻⁹) of a book's currency, with sign, and never rounded but once for each line.
//!
//! 128 bits hold 10²⁹ dollars; every operation is checked all the same, and an overflow is an error, never a wrap.

use crate::BillingError;
use serde::{Deserialize, Serialize};
use std::fmt;

const NANOS: u128 = 1_000_000_000;

/// An amount. In JSON a text of digits, since programs that read numbers as floating point would round it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Money(pub i128);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Reads `"0.0004"`: units with at most nine decimals, not negative.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 || whole.len() > 18 {
            return None;
        }
        let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
        let whole: i128 = whole.parse().ok()?;
        Some(Self(whole.checked_mul(NANOS as i128)?.checked_add(nanos)?))
    }

    /// The sum.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn plus(self, other: Self) -> Result<Self, BillingError> {
        self.0
            .checked_add(other.0)
            .map(Self)
            .ok_or(BillingError::Overflow("a sum of money"))
    }

    /// The sum of many.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, BillingError> {
        amounts.into_iter().try_fold(Self::ZERO, Self::plus)
    }

    /// The same with the other sign.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn negated(self) -> Result<Self, BillingError> {
        self.0
            .checked_neg()
            .map(Self)
            .ok_or(BillingError::Overflow("a sum of money"))
    }
}

/// At least two decimals and as many as the amount needs: `0.27`, `-0.0000004`.
impl fmt::Display for Money {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.unsigned_abs();
        let fraction = format!("{:09}", size % NANOS);
        let needed = fraction.trim_end_matches('0').len().max(2);
        let sign = if self.0 < 0 { "-" } else { "" };
        formatter.pad(&format!("{sign}{}.{}", size / NANOS, &fraction[..needed]))
    }
}

impl TryFrom<String> for Money {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let nanos: i128 = text
            .parse()
            .map_err(|_| format!("{text:?} is no whole number of nano-units"))?;
        if nanos.to_string() == text {
            Ok(Self(nanos))
        } else {
            Err(format!("{text:?} is not the way {nanos} is written"))
        }
    }
}

impl From<Money> for String {
    fn from(money: Money) -> Self {
        money.0.to_string()
    }
}

/// A price as lists print it: `amount` for every `per` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// What `per` units cost; not negative.
    pub amount: Money,
    /// How many units that buys; not zero.
    pub per: u64,
}

impl Rate {
    /// The price of `units`, **rounded half up to the nano-unit, once**. This is the one place of the product in which a
    /// charge is rounded.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn of(&self, units: u128) -> Result<Money, BillingError> {
        let overflow = BillingError::Overflow("a price");
        let per = u128::from(self.per.max(1));
        let amount = u128::try_from(self.amount.0).unwrap_or(0);
        let rounded = units
            .checked_mul(amount)
            .and_then(|product| product.checked_add(per / 2))
            .map(|product| product / per)
            .and_then(|nanos| i128::try_from(nanos).ok());
        rounded.map(Money).ok_or(overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_print_as_people_write_them() {
        for (nanos, text) in [
            (270_000_000, "0.27"),
            (400, "0.0000004"),
            (-1, "-0.000000001"),
            (0, "0.00"),
        ] {
            assert_eq!(Money(nanos).to_string(), text);
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "1e3",
            "0.0000000001",
            "1,5",
            "9999999999999999999",
        ] {
            assert_eq!(Money::parse(text), None, "{text:?}");
        }
        assert_eq!(serde_json::to_string(&Money(-5)).unwrap(), "\"-5\"");
        for text in ["\"+5\"", "\"05\"", "\"-0\"", "5", "\"5.0\""] {
            assert!(serde_json::from_str::<Money>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn half_a_nano_goes_up_and_less_goes_down() {
        let rate = Rate {
            amount: Money(1),
            per: 1000,
        };
        assert_eq!(rate.of(499).unwrap(), Money(0));
        assert_eq!(rate.of(500).unwrap(), Money(1));
        assert_eq!(rate.of(1499).unwrap(), Money(1));
        assert_eq!(rate.of(1500).unwrap(), Money(2));
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_never_a_wrong_amount() {
        let rate = Rate {
            amount: Money(i128::from(u64::MAX)),
            per: 1,
        };
        assert!(rate.of(u128::MAX).is_err());
        assert!(Money(i128::MAX).plus(Money(1)).is_err());
        assert!(Money(i128::MIN).negated().is_err());
        assert!(Money::sum([Money(i128::MAX), Money(1), Money(-5)]).is_err());
    }

    proptest! {
        #[test]
        fn a_printed_amount_reads_back(nanos in 0..i128::from(u64::MAX)) {
            prop_assert_eq!(Money::parse(&Money(nanos).to_string()), Some(Money(nanos)));
        }

        #[test]
        fn a_price_is_within_half_a_nano_of_the_exact_one(units in any::<u64>(), nanos in any::<u32>(), per in 1..u64::MAX / 2) {
            let rate = Rate { amount: Money(i128::from(nanos)), per };
            let doubled = 2 * i128::from(units) * i128::from(nanos);
            let price = rate.of(u128::from(units)).unwrap().0;
            let difference = doubled - 2 * price * i128::from(per);
            prop_assert!(difference.abs() <= i128::from(per), "off by more than a half");
        }
    }
}
