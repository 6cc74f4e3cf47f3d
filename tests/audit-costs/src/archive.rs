//! The archives whose costs are told, and everything that is assumed of them.

use firn_quantity::Money;
use firn_store::{ProviderPrices, Route};

/// A segment as edges close them by default.
pub const SEGMENT_BYTES: u64 = 4 << 20;
/// A block as volumes are formatted by default.
pub const BLOCK_BYTES: u64 = 32 << 10;
/// What is written in a month, in thousandths of the archive.
pub const WRITTEN_PER_MILLE: u64 = 10;
/// Days of a month.
pub const MONTH_DAYS: u64 = 30;
/// Checkpoints of a month of an edge on which something trickles all the time: one each 30 s, the slowest cadence.
pub const TRICKLE_CHECKPOINTS: u64 = MONTH_DAYS * 86_400 / 30;
/// What may be spent on audits in a month.
pub const BUDGET: Money = Money::of_nanos(1_000_000_000);

/// An archive of so many TiB.
#[derive(Clone, Copy, Debug)]
pub struct Archive {
    /// 2⁴⁰ bytes each.
    pub tib: u64,
}

/// Those of the page.
pub const ARCHIVES: [Archive; 3] = [Archive { tib: 1 }, Archive { tib: 10 }, Archive { tib: 100 }];

impl Archive {
    /// Its bytes.
    pub const fn bytes(self) -> u64 {
        self.tib << 40
    }

    /// Its segments.
    pub const fn segments(self) -> u64 {
        self.bytes() / SEGMENT_BYTES
    }

    /// Its blocks.
    pub const fn blocks(self) -> u64 {
        self.bytes() / BLOCK_BYTES
    }

    /// Segments written in a month.
    pub const fn segments_a_month(self) -> u64 {
        self.segments() * WRITTEN_PER_MILLE / 1000
    }
}

/// The book that all money is by.
pub fn prices() -> &'static ProviderPrices {
    ProviderPrices::named("s3-us-east-1").expect("an embedded book")
}

/// From an office, and from beside the bucket.
pub const ROUTES: [(Route, &str); 2] = [
    (Route::Internet, "office, over the internet"),
    (Route::SameRegion, "beside the bucket"),
];

/// What is assumed, as a list in Markdown.
pub fn assumptions() -> String {
    let prices = prices();
    let table = firn_table::TablePrices::DYNAMODB_ON_DEMAND;
    format!(
        "- **Prices:** {title} as of {as_of} (`crates/store/prices/{name}.toml`), without allowances and discounts, for both stores; the table is DynamoDB on demand \
         (`TablePrices::DYNAMODB_ON_DEMAND`): {read} nanodollars a read unit, {write} a write unit.\n\
         - **An archive** of 1 TiB is 2⁴⁰ bytes of data that cannot be compressed, all of them live, in blocks of {block} KiB and segments of {segment} MiB: {segments} segments, {blocks} blocks, a few large files, no snapshots.\n\
         - **A month** has {days} days; in it {written} of the archive is written in full segments, and nothing is deleted. The *trickle* is an edge on which something changes all the time: a checkpoint each 30 s, {checkpoints} a month.\n\
         - **Where from:** an edge's requests bring bytes over the internet, those of `firn-cleaner` from beside the bucket, which costs nothing in its region.\n\
         - **Extrapolated:** requests were counted at N, 2 N and 4 N units; what the first two foretell of the third is printed beside what was counted, and a run in which they are more than {deviation} and two requests apart fails. Archives are on the line through the last two.\n\
         - Requests of the table are in the money. The archive's own storage and PUTs, the edge's line and the hosts of programs are left out.",
        title = prices.title,
        as_of = prices.as_of,
        name = prices.name,
        read = table.read_unit_nano_dollars,
        write = table.write_unit_nano_dollars,
        block = BLOCK_BYTES >> 10,
        segment = SEGMENT_BYTES >> 20,
        segments = crate::table::grouped(ARCHIVES[0].segments()),
        blocks = crate::table::grouped(ARCHIVES[0].blocks()),
        days = MONTH_DAYS,
        deviation = crate::table::percent(crate::asked::DEVIATION_MAX),
        written = crate::table::percent(WRITTEN_PER_MILLE as f64 / 1000.0),
        checkpoints = crate::table::grouped(TRICKLE_CHECKPOINTS),
    )
}
