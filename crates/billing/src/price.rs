//! Price books: what a month's usage costs, as dated data files.
//!
//! A book has a name, a currency, where it was published, and the month from which it holds; a later version of the same name
//! replaces it **from the first of a month on**, so a month has one price for each thing and tiers never straddle two
//! versions. A version is never changed once it is published.
//!
//! ```text
//! units 0 … free                          cost nothing
//! the next, up to tiers[0].up_to          cost tiers[0]
//! the next, up to tiers[1].up_to          cost tiers[1]
//! …                                       the last tier has no end
//! ```
//!
//! Each of these is one line of the invoice; a line is rounded once ([`Rate::of`]).

use crate::{BillingError, Money, Month, Rate};
use firn_usage::Meter;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The book that comes with Firn.
const EMBEDDED: &str = include_str!("../prices/firn-standard-2026-01.toml");
/// Longest text of a book.
const TEXT_MAX_BYTES: usize = 64 << 10;
/// Tiers of one meter.
const TIERS_MAX: usize = 16;

/// A price book that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a price book: {0}; compare it with crates/billing/prices/firn-standard-2026-01.toml")]
pub struct BookError(pub String);

/// One version of a price book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceBook {
    /// What tenants are assigned to.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// ISO 4217.
    pub currency: String,
    /// Where it was published.
    pub source: String,
    /// The first month in which it holds.
    pub effective: Month,
    /// What is charged.
    pub meters: BTreeMap<Meter, MeterPrice>,
}

/// The price of one meter's units in a month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterPrice {
    /// Units of each month that cost nothing.
    pub free: u64,
    /// From cheap quantities to large ones; the last has no end.
    pub tiers: Vec<Tier>,
}

/// A price up to some quantity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Units beyond the free ones up to which it holds; none: without end.
    pub up_to: Option<u64>,
    /// What it is.
    pub rate: Rate,
}

/// Units that cost the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatedPart {
    /// `None`: the free ones.
    pub rate: Option<Rate>,
    /// Which tier, from 1; zero: the free ones.
    pub tier: usize,
    /// How many.
    pub quantity: u128,
    /// What they cost.
    pub amount: Money,
}

impl MeterPrice {
    /// Cuts a month's quantity into the parts that cost the same; their quantities add up to it.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn rate(&self, quantity: u128) -> Result<Vec<RatedPart>, BillingError> {
        let mut parts = Vec::new();
        let free = quantity.min(u128::from(self.free));
        let mut left = quantity - free;
        if free > 0 {
            parts.push(RatedPart {
                rate: None,
                tier: 0,
                quantity: free,
                amount: Money::ZERO,
            });
        }
        let mut begins = 0_u128;
        for (index, tier) in self.tiers.iter().enumerate() {
            if left == 0 {
                break;
            }
            let room = tier.up_to.map_or(u128::MAX, |up_to| u128::from(up_to) - begins);
            let here = left.min(room);
            parts.push(RatedPart {
                rate: Some(tier.rate),
                tier: index + 1,
                quantity: here,
                amount: tier.rate.of(here)?,
            });
            left -= here;
            begins += here;
        }
        Ok(parts)
    }

    /// What a month's quantity costs.
    ///
    /// # Errors
    /// [`BillingError::Overflow`].
    pub fn price(&self, quantity: u128) -> Result<Money, BillingError> {
        let parts = self.rate(quantity)?;
        Ok(Money::sum(parts.into_iter().map(|part| part.amount))?)
    }
}

impl PriceBook {
    /// The book that comes with Firn.
    ///
    /// # Panics
    /// Never: a test reads it.
    pub fn standard() -> Self {
        Self::parse(EMBEDDED).expect("a test reads the embedded price book")
    }

    /// Reads a book from the text of a data file.
    ///
    /// # Errors
    /// [`BookError`] with the place in the text.
    pub fn parse(text: &str) -> Result<Self, BookError> {
        if text.len() > TEXT_MAX_BYTES {
            return Err(BookError(format!(
                "{} bytes, {TEXT_MAX_BYTES} are allowed",
                text.len()
            )));
        }
        let file: BookFile = toml::from_str(text).map_err(|error| BookError(error.to_string()))?;
        let effective = file
            .effective
            .strip_suffix("-01")
            .and_then(|month| month.parse().ok())
            .ok_or_else(|| {
                BookError(format!(
                    "effective = {:?} is not the first day of a month such as \"2026-01-01\"",
                    file.effective
                ))
            })?;
        let mut meters = BTreeMap::new();
        for printed in file.meters {
            let meter = Meter::named(&printed.meter)
                .ok_or_else(|| BookError(format!("{:?} is no meter", printed.meter)))?;
            let price = MeterPrice {
                free: printed.free,
                tiers: printed
                    .tiers
                    .into_iter()
                    .map(Tier::try_from)
                    .collect::<Result<_, _>>()?,
            };
            if meters.insert(meter, price).is_some() {
                return Err(BookError(format!("{meter} stands in it twice")));
            }
        }
        let book = Self {
            name: file.name,
            title: file.title,
            currency: file.currency,
            source: file.source,
            effective,
            meters,
        };
        book.check()?;
        Ok(book)
    }

    /// Checks what must hold of any book, wherever it came from.
    ///
    /// # Errors
    /// [`BookError`] saying what does not.
    pub fn check(&self) -> Result<(), BookError> {
        let plain = |text: &str| {
            (1..=64).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !plain(&self.name) {
            return Err(BookError(format!(
                "{:?} is no name: letters, digits and '-'",
                self.name
            )));
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(BookError(format!(
                "{:?} is no currency such as USD",
                self.currency
            )));
        }
        if self.source.is_empty() || self.title.is_empty() || self.source.len() + self.title.len() > 2048 {
            return Err(BookError(
                "it says neither what it is nor where it was published".into(),
            ));
        }
        for (meter, price) in &self.meters {
            let wrong = |what: &str| Err(BookError(format!("{meter}: {what}")));
            let Some((last, before)) = price.tiers.split_last() else {
                return wrong("no tier");
            };
            if before.len() >= TIERS_MAX {
                return wrong("too many tiers");
            }
            if last.up_to.is_some() {
                return wrong("the last tier must have no end");
            }
            let mut begins = 0;
            for tier in before {
                match tier.up_to {
                    Some(up_to) if up_to > begins => begins = up_to,
                    Some(_) | None => return wrong("each tier but the last ends after the one before it"),
                }
            }
            if price
                .tiers
                .iter()
                .any(|tier| tier.rate.per == 0 || tier.rate.amount < Money::ZERO)
            {
                return wrong("a price is negative, or for no units");
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BookFile {
    name: String,
    title: String,
    currency: String,
    source: String,
    effective: String,
    meters: Vec<PrintedMeter>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrintedMeter {
    meter: String,
    #[serde(default)]
    free: u64,
    tiers: Vec<PrintedTier>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrintedTier {
    up_to: Option<u64>,
    price: String,
    per: u64,
}

impl TryFrom<PrintedTier> for Tier {
    type Error = BookError;

    fn try_from(printed: PrintedTier) -> Result<Self, BookError> {
        let rate = Rate::printed(&printed.price, printed.per);
        Ok(Self {
            up_to: printed.up_to,
            rate: rate.map_err(|error| BookError(error.to_string()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_embedded_book_prices_what_the_service_observes() {
        let book = PriceBook::standard();
        for meter in [
            Meter::ROOT_COMMITS,
            Meter::STORED_BYTE_HOURS,
            Meter::DISK_BYTE_HOURS,
            Meter::NODE_OPERATIONS,
        ] {
            assert!(book.meters.contains_key(&meter), "{meter}");
        }
        for advisory in [
            Meter::EDGE_OPERATIONS,
            Meter::EDGE_REQUESTS,
            Meter::EDGE_BYTES_UP,
            Meter::EDGE_BYTES_DOWN,
        ] {
            assert!(!book.meters.contains_key(&advisory), "{advisory}");
        }
    }

    #[test]
    fn free_units_and_tiers_follow_each_other() {
        let rate = |nanos| Rate {
            amount: Money(nanos),
            per: 1,
        };
        let price = MeterPrice {
            free: 100,
            tiers: vec![
                Tier {
                    up_to: Some(1000),
                    rate: rate(5),
                },
                Tier {
                    up_to: None,
                    rate: rate(3),
                },
            ],
        };
        for (quantity, nanos) in [
            (0, 0),
            (100, 0),
            (101, 5),
            (1100, 5000),
            (1101, 5003),
            (2100, 8000),
        ] {
            assert_eq!(price.price(quantity).unwrap(), Money(nanos), "{quantity}");
        }
    }

    #[test]
    fn a_book_with_a_mistake_says_where() {
        let cases = [
            (
                "effective = \"2026-01-01\"",
                "effective = \"2026-01-15\"",
                "2026-01-15",
            ),
            ("currency = \"USD\"", "currency = \"dollars\"", "dollars"),
            ("per = 1_000_000", "per = 0", "per"),
            ("\"root-commits\"", "\"free-lunch\"", "free-lunch"),
            ("price = \"5.00\"", "price = \"-5.00\"", "-5.00"),
            ("up_to = 10_000_000", "upto = 10_000_000", "upto"),
            ("up_to = 10_000_000", "up_to = 0", "root-commits"),
        ];
        for (from, to, named) in cases {
            let text = EMBEDDED.replacen(from, to, 1);
            assert_ne!(text, EMBEDDED, "{from}");
            let error = PriceBook::parse(&text).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parts_add_up_and_more_never_costs_less(quantity in any::<u64>(), more in any::<u32>()) {
            let book = PriceBook::standard();
            for price in book.meters.values() {
                let parts = price.rate(u128::from(quantity)).unwrap();
                prop_assert_eq!(parts.iter().map(|part| part.quantity).sum::<u128>(), u128::from(quantity));
                let less = price.price(u128::from(quantity)).unwrap();
                prop_assert!(price.price(u128::from(quantity) + u128::from(more)).unwrap() >= less);
            }
        }
    }
}
