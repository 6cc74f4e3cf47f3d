//! Money in whole nano-dollars, so that sums are exact and no request is too cheap to count.

use serde::{Deserialize, Serialize};
use std::{fmt, iter::Sum, ops::Add};

const NANOS_PER_DOLLAR: u64 = 1_000_000_000;

/// An amount in nano-dollars (10⁻⁹ US dollars); up to 18 billion dollars, where it stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(pub u64);

impl Money {
    /// Reads `"0.0004"`: dollars with at most nine decimals.
    pub fn parse_dollars(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
            return None;
        }
        let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
        let whole: u64 = whole.parse().ok()?;
        whole.checked_mul(NANOS_PER_DOLLAR)?.checked_add(nanos).map(Self)
    }

    /// As dollars, for reports and charts; not for sums.
    pub fn as_dollars(self) -> f64 {
        self.0 as f64 / NANOS_PER_DOLLAR as f64
    }
}

impl Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

/// Dollars with at least two decimals and as many as the amount needs: `$0.27`, `$0.0000004`.
impl fmt::Display for Money {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:09}", self.0 % NANOS_PER_DOLLAR);
        let needed = fraction.trim_end_matches('0').len().max(2);
        let text = format!("${}.{}", self.0 / NANOS_PER_DOLLAR, &fraction[..needed]);
        formatter.pad(&text)
    }
}

/// A price for a number of units, as price lists print it: `amount` for every `per` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What `per` units cost.
    pub amount: Money,
    /// How many units that buys; not zero.
    pub per: u64,
}

impl Rate {
    /// Costs nothing.
    pub const FREE: Self = Self {
        amount: Money(0),
        per: 1,
    };

    /// The price of `units`, rounded half up to the nano-dollar.
    pub fn of(&self, units: u64) -> Money {
        let per = u128::from(self.per);
        let nanos = (u128::from(units) * u128::from(self.amount.0) + per / 2) / per;
        Money(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Nano-dollars for one unit, for decisions that weigh prices; not for sums.
    pub fn nanodollars_each(&self) -> f64 {
        self.amount.0 as f64 / self.per as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_print_as_people_write_them() {
        assert_eq!(Money(270_000_000).to_string(), "$0.27");
        assert_eq!(Money(400).to_string(), "$0.0000004");
        assert_eq!(Money(12_000_000_000).to_string(), "$12.00");
    }

    #[test]
    fn what_is_no_plain_amount_is_refused() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "1e3",
            "0.0000000001",
            "1,5",
            "99999999999999",
        ] {
            assert_eq!(Money::parse_dollars(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_sum_too_large_to_hold_stays_at_the_limit() {
        let rate = Rate {
            amount: Money(u64::MAX),
            per: 1,
        };
        assert_eq!(rate.of(u64::MAX) + Money(1), Money(u64::MAX));
    }

    proptest! {
        #[test]
        fn a_printed_amount_reads_back(nanos in any::<u64>()) {
            let printed = Money(nanos).to_string();
            prop_assert_eq!(Money::parse_dollars(&printed[1..]), Some(Money(nanos)));
        }

        #[test]
        fn the_price_of_many_is_the_sum_of_prices_but_for_one_rounding(
            nanos in 0..10_000_000_000_u64, per in 1..10_000_000_u64, one in 0..1_u64 << 40, other in 0..1_u64 << 40,
        ) {
            let rate = Rate { amount: Money(nanos), per };
            let apart = rate.of(one) + rate.of(other);
            prop_assert!(apart.0.abs_diff(rate.of(one + other).0) <= 1);
        }
    }
}
