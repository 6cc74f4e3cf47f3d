//! Money in whole nano-units (10⁻⁹) of a currency, with sign, and never rounded but once for each charge.
//!
//! 128 bits hold 10²⁹ dollars. Bills use the checked operations, for which an overflow is an error and never a wrap;
//! estimates (what requests cost so far) may use the saturating ones.

use serde::{Deserialize, Serialize};
use std::fmt;

const NANOS: u128 = 1_000_000_000;
/// Whole units of a text: with nine decimals they fit 128 bits many times over.
const WHOLE_DIGITS_MAX: usize = 18;

/// A result that 128 bits do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is too large to be written down")]
pub struct Overflow(pub &'static str);

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
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 || whole.len() > WHOLE_DIGITS_MAX {
            return None;
        }
        let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
        let whole: i128 = whole.parse().ok()?;
        Some(Self(whole.checked_mul(NANOS as i128)?.checked_add(nanos)?))
    }

    /// So many nano-units, as meters count them.
    pub const fn of_nanos(nanos: u64) -> Self {
        Self(nanos as i128)
    }

    /// As meters count them: nothing if it is negative, the largest number if it is larger.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.max(0)).unwrap_or(u64::MAX)
    }

    /// In whole units, for reports and charts; not for sums.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// The sum.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn plus(self, other: Self) -> Result<Self, Overflow> {
        self.0
            .checked_add(other.0)
            .map(Self)
            .ok_or(Overflow("a sum of money"))
    }

    /// The sum, or the largest amount there is: for estimates.
    #[must_use]
    pub const fn saturating_plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The sum of many.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, Overflow> {
        amounts.into_iter().try_fold(Self::ZERO, Self::plus)
    }

    /// The same with the other sign.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn negated(self) -> Result<Self, Overflow> {
        self.0.checked_neg().map(Self).ok_or(Overflow("a sum of money"))
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

/// An amount of US dollars, for people: `$0.27`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dollars(pub Money);

impl fmt::Display for Dollars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&format!("${}", self.0))
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

/// A printed price that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not an amount of money.
    #[error("{0:?} is no amount of money such as \"0.0004\"")]
    Amount(String),
    /// For no units.
    #[error("\"per\" must be at least 1")]
    NoUnits,
}

impl Rate {
    /// A price as lists print it: `amount` such as `"0.0004"` for every `per` units.
    ///
    /// # Errors
    /// [`RateError`], which says what is wrong with it.
    pub fn printed(amount: &str, per: u64) -> Result<Self, RateError> {
        let amount = Money::parse(amount).ok_or_else(|| RateError::Amount(amount.to_owned()))?;
        if per == 0 {
            return Err(RateError::NoUnits);
        }
        Ok(Self { amount, per })
    }

    /// Costs nothing.
    pub const FREE: Self = Self {
        amount: Money::ZERO,
        per: 1,
    };

    /// The price of `units`, **rounded half up to the nano-unit, once**. This is the one place of the product in which a
    /// charge is rounded.
    ///
    /// # Errors
    /// [`Overflow`].
    pub fn of(&self, units: u128) -> Result<Money, Overflow> {
        let per = u128::from(self.per.max(1));
        let amount = u128::try_from(self.amount.0).unwrap_or(0);
        let rounded = units
            .checked_mul(amount)
            .and_then(|product| product.checked_add(per / 2))
            .map(|product| product / per)
            .and_then(|nanos| i128::try_from(nanos).ok());
        rounded.map(Money).ok_or(Overflow("a price"))
    }

    /// The price of `units`, or the largest amount there is: for estimates.
    pub fn estimate(&self, units: u64) -> Money {
        self.of(u128::from(units)).unwrap_or(Money(i128::MAX))
    }

    /// Nano-units of money for one unit, for decisions that weigh prices; not for sums.
    pub fn nanos_each(&self) -> f64 {
        self.amount.0 as f64 / self.per as f64
    }
}
