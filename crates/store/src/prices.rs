//! Prices of cloud providers: what one charges for each request, byte moved and byte kept, as dated data files.
//!
//! A book holds the figures as the provider prints them ("0.0004 dollars per 1000"), so that it can be checked against the
//! published list line by line. Monthly allowances and volume discounts are left out: a book gives the price of the next
//! request of a customer beyond the free tier, which is also what a fetch decision has to weigh.

use crate::Usage;
use firn_quantity::{Money, Rate, RateError};
use serde::Deserialize;
use std::sync::LazyLock;

/// The books that come with Firn.
const EMBEDDED: [&str; 4] = [
    include_str!("../prices/s3-us-east-1.toml"),
    include_str!("../prices/azure-hot-east-us.toml"),
    include_str!("../prices/s3-2011-09.toml"),
    include_str!("../prices/s3-2011-06.toml"),
];

static BOOKS: LazyLock<Vec<ProviderPrices>> = LazyLock::new(|| {
    EMBEDDED
        .iter()
        .map(|text| ProviderPrices::parse(text).expect("a test reads every embedded price book"))
        .collect()
});

/// A price book that cannot be read or found.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// The file is not laid out as a price book.
    #[error("not a price book: {detail}; compare it with crates/store/prices/s3-us-east-1.toml")]
    Malformed {
        /// Where and what.
        detail: String,
    },
    /// No embedded book has this name.
    #[error("there is no price book {name:?}; there are {known}, or give the path of a file of your own")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
}

/// Which way bytes leave the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To an office.
    Internet,
    /// To a machine beside the bucket.
    SameRegion,
}

/// One provider's prices at one date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPrices {
    /// What configuration files call it.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// The day the prices were valid, `YYYY-MM-DD`.
    pub as_of: String,
    /// Where they were published.
    pub source: String,
    /// A put.
    pub put: Rate,
    /// A get, ranged or whole.
    pub get: Rate,
    /// A head.
    pub head: Rate,
    /// A page of a listing.
    pub list: Rate,
    /// A delete.
    pub delete: Rate,
    /// Bytes sent to the store.
    pub up: Rate,
    /// Bytes received over the internet.
    pub down: Rate,
    /// Bytes received in the same region.
    pub same_region: Rate,
    /// Bytes kept for a month.
    pub storage_month: Rate,
}

/// What some usage costs, by what it is charged for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests of all classes.
    pub requests: Money,
    /// Bytes sent.
    pub up: Money,
    /// Bytes received.
    pub down: Money,
}

impl Cost {
    /// All of it.
    pub fn total(&self) -> Money {
        self.requests.saturating_plus(self.transfer())
    }

    /// Bytes, either way.
    pub fn transfer(&self) -> Money {
        self.up.saturating_plus(self.down)
    }
}

impl ProviderPrices {
    /// The embedded book of this name.
    ///
    /// # Errors
    /// [`PriceError::Unknown`], which lists the names.
    pub fn named(name: &str) -> Result<&'static Self, PriceError> {
        Self::all()
            .iter()
            .find(|book| book.name == name)
            .ok_or_else(|| PriceError::Unknown {
                name: name.to_owned(),
                known: Self::all()
                    .iter()
                    .map(|book| book.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    /// All embedded books; the first is the default.
    pub fn all() -> &'static [Self] {
        &BOOKS
    }

    /// Reads a book from the text of a data file.
    ///
    /// # Errors
    /// [`PriceError::Malformed`] with the place in the text.
    pub fn parse(text: &str) -> Result<Self, PriceError> {
        let book: Book = toml::from_str(text).map_err(|error| PriceError::Malformed {
            detail: error.to_string(),
        })?;
        Ok(Self {
            name: book.name,
            title: book.title,
            as_of: book.as_of,
            source: book.source,
            put: book.requests.put.0,
            get: book.requests.get.0,
            head: book.requests.head.0,
            list: book.requests.list.0,
            delete: book.requests.delete.0,
            up: book.transfer.up.0,
            down: book.transfer.down.0,
            same_region: book.transfer.same_region.0,
            storage_month: book.storage.month.0,
        })
    }

    /// What `usage` costs when its bytes go by `route`.
    pub fn cost(&self, usage: &Usage, route: Route) -> Cost {
        let down = match route {
            Route::Internet => &self.down,
            Route::SameRegion => &self.same_region,
        };
        Cost {
            requests: [
                self.put.estimate(usage.puts),
                self.get.estimate(usage.gets.saturating_add(usage.ranged_gets)),
                self.head.estimate(usage.heads),
                self.list.estimate(usage.lists),
                self.delete.estimate(usage.deletes),
            ]
            .into_iter()
            .fold(Money::ZERO, Money::saturating_plus),
            up: self.up.estimate(usage.bytes_up),
            down: down.estimate(usage.bytes_down),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    name: String,
    title: String,
    as_of: String,
    source: String,
    requests: Requests,
    transfer: Transfer,
    storage: Storage,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requests {
    put: PrintedRate,
    get: PrintedRate,
    head: PrintedRate,
    list: PrintedRate,
    delete: PrintedRate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    up: PrintedRate,
    down: PrintedRate,
    same_region: PrintedRate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Storage {
    month: PrintedRate,
}

#[derive(Deserialize)]
#[serde(try_from = "PrintedFields")]
struct PrintedRate(Rate);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrintedFields {
    dollars: String,
    per: u64,
}

impl TryFrom<PrintedFields> for PrintedRate {
    type Error = RateError;

    fn try_from(fields: PrintedFields) -> Result<Self, RateError> {
        Rate::printed(&fields.dollars, fields.per).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_book_is_readable_dated_and_named_once() {
        let mut names: Vec<_> = ProviderPrices::all().iter().map(|book| &book.name).collect();
        assert_eq!(names.len(), EMBEDDED.len());
        names.dedup();
        assert_eq!(names.len(), EMBEDDED.len());
        for book in ProviderPrices::all() {
            let parts: Vec<_> = book.as_of.split('-').map(str::len).collect();
            assert_eq!(parts, [4, 2, 2], "{}", book.name);
            assert!(!book.source.is_empty() && !book.title.is_empty());
        }
    }

    #[test]
    fn a_million_puts_and_gets_cost_what_amazon_prints() {
        let book = ProviderPrices::named("s3-us-east-1").expect("embedded");
        let usage = Usage {
            puts: 1_000_000,
            gets: 400_000,
            ranged_gets: 600_000,
            bytes_down: 10 << 30,
            bytes_up: 1 << 40,
            deletes: 1_000_000,
            ..Usage::default()
        };
        let cost = book.cost(&usage, Route::Internet);
        assert_eq!(cost.requests.to_string(), "5.40");
        assert_eq!(cost.down.to_string(), "0.90");
        assert_eq!(cost.up, Money(0));
        assert_eq!(book.cost(&usage, Route::SameRegion).total().to_string(), "5.40");
        assert_eq!(book.storage_month.estimate(1 << 40).to_string(), "23.552");
        assert_eq!(book.get.estimate(1), Money(400));
    }

    #[test]
    fn the_2011_books_differ_in_uploads_only() {
        let (before, after) = (
            ProviderPrices::named("s3-2011-06").expect("embedded"),
            ProviderPrices::named("s3-2011-09").expect("embedded"),
        );
        assert_eq!(before.up.estimate(10 << 30).to_string(), "1.00");
        assert_eq!(after.up.estimate(10 << 30), Money(0));
        let usage = Usage {
            gets: 10_000,
            puts: 1_000,
            bytes_down: 1 << 30,
            ..Usage::default()
        };
        assert_eq!(after.cost(&usage, Route::Internet).total().to_string(), "0.14");
        assert_eq!(
            before.cost(&usage, Route::Internet),
            after.cost(&usage, Route::Internet)
        );
    }

    #[test]
    fn an_unknown_book_is_answered_with_the_known_ones() {
        let error = ProviderPrices::named("s3-mars")
            .expect_err("no such book")
            .to_string();
        assert!(
            error.contains("s3-us-east-1") && error.contains("azure-hot-east-us"),
            "{error}"
        );
    }

    #[test]
    fn a_book_with_a_wrong_figure_says_which() {
        let text = EMBEDDED[0].replace("\"0.0004\"", "\"0,0004\"");
        let error = ProviderPrices::parse(&text).expect_err("a comma").to_string();
        assert!(error.contains("0,0004"), "{error}");
        let text = EMBEDDED[0].replace("per = 1000 ", "per = 0 ");
        assert!(ProviderPrices::parse(&text).is_err());
    }
}
