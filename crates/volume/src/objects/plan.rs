//! Fetch planning (prefetch by price): from objects that are needed now to ranges to ask the store for.
//!
//! A band of bytes beside a needed object is worth fetching along if what it is expected to save is more than what it is
//! expected to waste:
//!
//! ```text
//! saved   = objects expected to be asked for · (price of a GET + price of the time one takes)
//! wasted  = bytes not expected to be used · price of a byte            (used ones would have been paid for later anyway)
//! ```
//!
//! The window goes out band by band to where the sum of saved − wasted is greatest. Ranges that are present already are not
//! fetched again, unless passing over them would cost more than their bytes. Needs of the same moment whose gap is cheaper
//! than a GET become one.

use super::locality::{BANDS, Chances, Expected, band_bytes};
use firn_store::{ProviderPrices, Route};
use std::ops::Range;

/// A rest of a segment that is not left for another GET: an eighth of a usual segment.
const LAST_BYTES: u32 = 512 << 10;

/// What things cost, in nano-dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchPrices {
    /// One GET, of any length.
    pub get_nanodollars: f64,
    /// One byte from the store to here.
    pub byte_nanodollars: f64,
    /// A millisecond that a reader waits.
    pub delay_nanodollars_per_ms: f64,
}

impl FetchPrices {
    /// The same price of time, with a provider's own prices.
    #[must_use]
    pub fn of_book(book: &ProviderPrices, route: Route) -> Self {
        let byte = match route {
            Route::Internet => book.down,
            Route::SameRegion => book.same_region,
        };
        Self {
            get_nanodollars: book.get.nanos_each(),
            byte_nanodollars: byte.nanos_each(),
            ..Self::default()
        }
    }
}

impl Default for FetchPrices {
    /// S3's list prices to the internet (0.40 $ a million GETs, 0.09 $ a GB), and a reader's time at 0.18 $ an hour: low,
    /// since the one who waits is mostly a program, but far above the GET itself.
    fn default() -> Self {
        Self {
            get_nanodollars: 400.0,
            byte_nanodollars: 0.09,
            delay_nanodollars_per_ms: 50.0,
        }
    }
}

/// The terms of one decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) prices: FetchPrices,
    /// How long a small GET takes.
    pub(super) latency_ms: f64,
}

impl Terms {
    /// What another GET later would cost, its delay included.
    fn later_get(&self) -> f64 {
        self.prices.get_nanodollars + self.prices.delay_nanodollars_per_ms * self.latency_ms
    }

    /// The bytes that cost as much as that.
    pub(super) fn later_get_bytes(&self) -> u32 {
        if self.prices.byte_nanodollars <= 0.0 {
            return u32::MAX;
        }
        (self.later_get() / self.prices.byte_nanodollars).min(f64::from(u32::MAX)) as u32
    }

    /// How far the window reaches.
    fn reach(&self, bands: &[Expected; BANDS]) -> u32 {
        let mut reach = 0;
        let mut best = (0.0, 0);
        let mut gain = 0.0;
        for (index, expected) in bands.iter().enumerate() {
            let saved = expected.touches * self.later_get();
            let wasted = (1.0 - expected.used) * f64::from(band_bytes(index)) * self.prices.byte_nanodollars;
            gain += saved - wasted;
            reach += band_bytes(index);
            if gain > best.0 {
                best = (gain, reach);
            }
        }
        best.1
    }

    /// Bytes that are cheaper to fetch once more than to leave out at the price of a GET.
    fn gap_bytes(&self) -> u32 {
        if self.prices.byte_nanodollars <= 0.0 {
            return u32::MAX;
        }
        (self.prices.get_nanodollars / self.prices.byte_nanodollars).min(f64::from(u32::MAX)) as u32
    }

    /// Widens `need` by what is likely to follow and by what is likely to be wanted before it.
    pub(super) fn widen(
        &self,
        need: &Range<u32>,
        chances: &Chances,
        present: &[Range<u32>],
        segment_end: u32,
    ) -> Range<u32> {
        let mut end = need.end.saturating_add(self.reach(&chances.forward));
        // What reaches so near the end that nothing worth a GET would be left takes the rest.
        if end > need.end && segment_end.saturating_sub(end) <= LAST_BYTES {
            end = segment_end;
        }
        let end = end.min(segment_end).max(need.end);
        let start = need.start.saturating_sub(self.reach(&chances.backward));
        let gap = self.gap_bytes();
        let long = |held: &&Range<u32>| held.end - held.start > gap;
        // A present range that is long stops the window; one at its border is cut off in any case.
        let mut window = start..end;
        if let Some(stop) = present.iter().filter(long).find(|held| held.end > need.end) {
            window.end = window.end.min(stop.start.max(need.end));
        }
        if let Some(stop) = present
            .iter()
            .rev()
            .filter(long)
            .find(|held| held.start < need.start)
        {
            window.start = window.start.max(stop.end.min(need.start));
        }
        for held in present {
            if held.start > need.end && held.end >= window.end {
                window.end = window.end.min(held.start);
            }
            if held.end < need.start && held.start <= window.start {
                window.start = window.start.max(held.end);
            }
        }
        window
    }

    /// Joins ranges that overlap or nearly touch.
    pub(super) fn join(&self, mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
        ranges.sort_by_key(|range| (range.start, range.end));
        let gap = self.gap_bytes();
        let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end.saturating_add(gap) => {
                    last.end = last.end.max(range.end)
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::{Chances, Expected, FetchPrices, ProviderPrices, Route, Terms, band_bytes};

    fn terms() -> Terms {
        Terms {
            prices: FetchPrices::default(),
            latency_ms: 20.0,
        }
    }

    /// Every byte is used with this chance; objects are this long.
    fn all(used: f64, object_bytes: f64) -> Chances {
        let bands = std::array::from_fn(|index| Expected {
            used,
            touches: used * f64::from(band_bytes(index)) / object_bytes,
        });
        Chances {
            forward: bands,
            backward: bands,
        }
    }

    #[test]
    fn what_is_surely_used_is_fetched_whole_and_what_surely_is_not_exactly() {
        let need = 1_000_000..1_016_384;
        let whole = terms().widen(&need, &all(1.0, 16384.0), &[], 2_000_000);
        assert_eq!(whole, 0..2_000_000);
        assert_eq!(terms().widen(&need, &all(0.02, 16384.0), &[], 2_000_000), need);
    }

    #[test]
    fn a_price_book_gives_the_prices_of_one_request_and_one_byte() {
        let book = ProviderPrices::named("s3-us-east-1").expect("a known book");
        let far = FetchPrices::of_book(book, Route::Internet);
        assert!((far.get_nanodollars - 400.0).abs() < 1.0, "{far:?}");
        assert!((0.05..0.15).contains(&far.byte_nanodollars), "{far:?}");
        let near = FetchPrices::of_book(book, Route::SameRegion);
        assert!(near.byte_nanodollars < far.byte_nanodollars, "{near:?}");
    }

    #[test]
    fn free_bytes_are_worth_a_small_chance() {
        let near_the_bucket = Terms {
            prices: FetchPrices {
                byte_nanodollars: 0.0,
                ..FetchPrices::default()
            },
            ..terms()
        };
        assert_eq!(
            near_the_bucket.widen(&(0..1000), &all(0.02, 16384.0), &[], 1 << 20),
            0..1 << 20
        );
    }

    #[test]
    fn many_small_objects_are_worth_a_smaller_chance_than_few_large_ones() {
        let window = |object_bytes| terms().widen(&(0..300), &all(0.1, object_bytes), &[], 4 << 20);
        assert_eq!(window(300.0).end, 4 << 20);
        assert_eq!(window(32_768.0), 0..300);
    }

    #[test]
    fn long_present_ranges_stop_a_window_and_short_ones_do_not() {
        let need = 500_000..510_000;
        let long = [100_000..200_000, 800_000..900_000];
        assert_eq!(
            terms().widen(&need, &all(1.0, 16384.0), &long, 2_000_000),
            200_000..800_000
        );
        let short = [400_000..401_000, 600_000..601_000];
        assert_eq!(
            terms().widen(&need, &all(1.0, 16384.0), &short, 2_000_000),
            0..2_000_000
        );
    }

    #[test]
    fn needs_closer_than_the_price_of_a_request_become_one() {
        let joined = terms().join(vec![10_000..11_000, 0..8000, 100_000..100_500, 7000..9000]);
        assert_eq!(joined, vec![0..11_000, 100_000..100_500]);
    }
}
