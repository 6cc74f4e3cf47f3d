//! Counted requests of two stores and of the table, what they would be of more, and what they cost.
//!
//! Requests are counted of the real programs at three sizes, N, 2 N and 4 N. A straight line through the first two says what the third
//! should be: that is how well it can be extrapolated, and it is printed. The line through the last two gives an archive's.

use anyhow::Result;
use firn_quantity::Money;
use firn_store::{Cost, ProviderPrices, Route, Usage};
use firn_table::{TablePrices, TableUsage};

/// How far the third measurement may be from what the first two foretell, of each class of requests.
pub const DEVIATION_MAX: f64 = 0.10;

/// Counted requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Of the first store.
    pub first: Usage,
    /// Of the second.
    pub second: Usage,
    /// Of the table. Its money is reckoned from its units, not kept.
    pub table: TableUsage,
}

/// Classes of what is counted.
const CLASSES: usize = 18;

/// Their names, in the order of [`Asked::counts`].
pub const CLASS_NAMES: [&str; CLASSES] = [
    "PUTs",
    "GETs",
    "HEADs",
    "LISTs",
    "DELETEs",
    "bytes sent",
    "bytes received",
    "PUTs, second store",
    "GETs, second store",
    "HEADs, second store",
    "LISTs, second store",
    "DELETEs, second store",
    "bytes sent, second store",
    "bytes received, second store",
    "table: reads",
    "table: transactions",
    "table: read units",
    "table: write units",
];

impl Asked {
    /// By class; whole and ranged GETs together, since they are charged alike.
    pub fn counts(&self) -> [u64; CLASSES] {
        let store = |usage: &Usage| {
            [
                usage.puts,
                usage.gets + usage.ranged_gets,
                usage.heads,
                usage.lists,
                usage.deletes,
                usage.bytes_up,
                usage.bytes_down,
            ]
        };
        let mut counts = [0; CLASSES];
        counts[..7].copy_from_slice(&store(&self.first));
        counts[7..14].copy_from_slice(&store(&self.second));
        counts[14..].copy_from_slice(&[
            self.table.gets + self.table.queries,
            self.table.transactions,
            self.table.read_units,
            self.table.write_units,
        ]);
        counts
    }

    /// From counts by class.
    pub fn of_counts(counts: [u64; CLASSES]) -> Self {
        let store = |at: usize| Usage {
            puts: counts[at],
            gets: counts[at + 1],
            heads: counts[at + 2],
            lists: counts[at + 3],
            deletes: counts[at + 4],
            bytes_up: counts[at + 5],
            bytes_down: counts[at + 6],
            ..Usage::default()
        };
        Self {
            first: store(0),
            second: store(7),
            table: TableUsage {
                gets: counts[14],
                transactions: counts[15],
                read_units: counts[16],
                write_units: counts[17],
                ..TableUsage::default()
            },
        }
    }

    fn zip(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let (ours, theirs) = (self.counts(), other.counts());
        Self::of_counts(std::array::from_fn(|class| with(ours[class], theirs[class])))
    }

    /// What was asked since `earlier`, or beyond `other`.
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// So many times.
    pub fn times(&self, count: u64) -> Self {
        Self::of_counts(self.counts().map(|each| each.saturating_mul(count)))
    }

    /// What it costs when bytes leave the first store by one route and the second by another.
    pub fn bill(&self, prices: &ProviderPrices, (first, second): (Route, Route)) -> Bill {
        let table = TablePrices::DYNAMODB_ON_DEMAND;
        Bill {
            first: prices.cost(&self.first, first),
            second: prices.cost(&self.second, second),
            table: Money::of_nanos(
                self.table.read_units * table.read_unit_nano_dollars
                    + self.table.write_units * table.write_unit_nano_dollars,
            ),
        }
    }
}

/// Money, by who charges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// The first store.
    pub first: Cost,
    /// The second.
    pub second: Cost,
    /// The table.
    pub table: Money,
}

impl Bill {
    /// All of it.
    pub fn total(&self) -> Money {
        let stores = self.first.total().saturating_plus(self.second.total());
        stores.saturating_plus(self.table)
    }
}

/// One kind of work, measured at three sizes.
#[derive(Clone, Debug)]
pub struct Series {
    /// What was done.
    pub what: &'static str,
    /// What its size is counted in, singular.
    pub unit: &'static str,
    /// N, 2 N and 4 N units, and what they took.
    pub sizes: [(u64, Asked); 3],
}

impl Series {
    /// Measures at N, 2 N and 4 N.
    ///
    /// # Errors
    /// A measurement's own.
    pub fn measured(
        what: &'static str,
        unit: &'static str,
        smallest: u64,
        mut measure: impl FnMut(u64) -> Result<Asked>,
    ) -> Result<Self> {
        eprintln!("audit-costs: {what}");
        let mut sizes = [(0, Asked::default()); 3];
        for (size, measured) in [smallest, 2 * smallest, 4 * smallest].into_iter().zip(&mut sizes) {
            *measured = (size, measure(size)?);
        }
        let series = Self { what, unit, sizes };
        series
            .bent()
            .iter()
            .for_each(|told| eprintln!("audit-costs: {told}"));
        Ok(series)
    }

    /// In which classes the third measurement is not what the first two foretell, so that nothing can be extrapolated.
    pub fn bent(&self) -> Vec<String> {
        let foretold = self.foretold();
        let counted = CLASS_NAMES.iter().zip(foretold).zip(self.sizes[2].1.counts());
        // Whole requests: a page or a node more or less is no deviation.
        let bends = counted.filter(|((_, foretold), found)| {
            foretold.abs_diff(*found) > 2 && deviation(*foretold, *found) > DEVIATION_MAX
        });
        let told = bends.map(|((name, foretold), found)| {
            let (what, unit, size) = (self.what, self.unit, self.sizes[2].0);
            format!("{what}: {found} {name} at {size} {unit}s, where {foretold} were foretold")
        });
        told.collect()
    }

    /// What the first two sizes say of the third.
    pub fn foretold(&self) -> [u64; CLASSES] {
        line((&self.sizes[0], &self.sizes[1]), self.sizes[2].0).counts()
    }

    /// What so many units would take, by the last two sizes.
    pub fn at(&self, units: u64) -> Asked {
        line((&self.sizes[1], &self.sizes[2]), units)
    }

    /// What one unit more takes, of a class by its name.
    ///
    /// # Panics
    /// If no class has this name.
    pub fn each(&self, class: &str) -> f64 {
        let class = CLASS_NAMES.iter().position(|name| *name == class);
        let class = class.expect("a class");
        let [_, (fewer, less), (more, most)] = &self.sizes;
        (most.counts()[class] as f64 - less.counts()[class] as f64) / (*more - *fewer) as f64
    }
}

/// On the straight line through two measurements, rounded up; never less than nothing.
fn line(((fewer, less), (more, most)): (&(u64, Asked), &(u64, Asked)), units: u64) -> Asked {
    let run = i128::from(*more) - i128::from(*fewer);
    let (less, most) = (less.counts(), most.counts());
    Asked::of_counts(std::array::from_fn(|class| {
        let rise = i128::from(most[class]) - i128::from(less[class]);
        let beyond = rise * (i128::from(units) - i128::from(*more));
        let at = i128::from(most[class]) + beyond.div_euclid(run) + i128::from(beyond.rem_euclid(run) != 0);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }))
}

/// How far a figure is from what was foretold, as a share.
pub fn deviation(foretold: u64, found: u64) -> f64 {
    foretold.abs_diff(found) as f64 / found.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gets(count: u64) -> Asked {
        let mut asked = Asked::default();
        asked.first.gets = count;
        asked
    }

    #[test]
    fn a_straight_line_goes_on_and_what_bends_is_refused() {
        let series =
            Series::measured("reads", "segment", 10, |size| Ok(gets(7 + 3 * size))).expect("straight");
        assert_eq!(series.at(1_000_000), gets(3_000_007));
        assert_eq!(series.at(0), gets(7));
        assert_eq!(series.each("GETs"), 3.0);
        assert_eq!(series.bent(), Vec::<String>::new());
        let bent = Series::measured("reads", "segment", 10, |size| Ok(gets(size * size))).expect("counted");
        let told = ["reads: 1600 GETs at 40 segments, where 1000 were foretold"];
        assert_eq!(bent.bent(), told);
    }

    #[test]
    fn half_a_request_is_a_request() {
        let sizes = [(2, gets(1)), (4, gets(2)), (8, gets(4))];
        let series = Series {
            what: "lists",
            unit: "name",
            sizes,
        };
        assert_eq!(series.at(9), gets(5));
        assert_eq!(series.at(7), gets(4));
    }

    /// Each class by itself against the printed rates of the one book, so that none is left out or charged twice.
    #[test]
    fn money_is_the_sum_of_requests_times_prices() {
        let prices = ProviderPrices::named("s3-us-east-1").expect("embedded");
        let table = TablePrices::DYNAMODB_ON_DEMAND;
        let counts: [u64; CLASSES] = std::array::from_fn(|class| 1_000_000 * (class as u64 + 1) + 1000);
        let asked = Asked::of_counts(counts);
        assert_eq!(asked.counts(), counts);
        for (route, down) in [
            (Route::Internet, &prices.down),
            (Route::SameRegion, &prices.same_region),
        ] {
            let store = [
                &prices.put,
                &prices.get,
                &prices.head,
                &prices.list,
                &prices.delete,
                &prices.up,
                down,
            ];
            let mut sum: f64 = store
                .iter()
                .chain(&store)
                .zip(counts)
                .map(|(rate, count)| rate.nanos_each() * count as f64)
                .sum();
            sum += (counts[16] * table.read_unit_nano_dollars + counts[17] * table.write_unit_nano_dollars)
                as f64;
            let bill = asked.bill(prices, (route, route));
            let difference = bill.total().0 as f64 - sum;
            // Each charge is rounded once to a nanodollar.
            assert!(difference.abs() <= 14.0, "{difference} nanodollars at {route:?}");
            let each: i128 = bill.first.total().0 + bill.second.total().0 + bill.table.0;
            assert_eq!(bill.total().0, each);
        }
    }
}
