//! The mirror in a second store: the first copy, the daily comparison, and what is copied behind each upload.

use crate::{
    archive::{ARCHIVES, Archive, MONTH_DAYS, ROUTES, SEGMENT_BYTES, prices},
    asked::{Asked, Series},
    second::{OnDisk, Stores, simulate},
    table::{Table, bytes, dollars, requests},
};
use anyhow::{Result, ensure};
use firn_quantity::Money;
use firn_store::Route;

/// As short as a segment may be: requests do not depend on it.
pub const SHORT_BYTES: u64 = 600;

/// What was measured of it.
pub struct Mirroring {
    /// Copied from store to store.
    from_store: Series,
    /// Copied from the disk of the edge that put it.
    from_disk: Series,
    /// A comparison that finds nothing.
    comparison: Series,
}

async fn filled(stores: &Stores, segments: u64) -> Result<()> {
    for sequence in 0..segments {
        stores.put(sequence, SHORT_BYTES).await?;
    }
    Ok(())
}

fn copy(segments: u64, has_disk: bool) -> Result<Asked> {
    simulate(None, move |stores| async move {
        filled(&stores, segments).await?;
        let before = stores.asked();
        match has_disk {
            true => drop(stores.mirror.compare(&OnDisk { bytes: SHORT_BYTES }).await?),
            false => stores.compare().await?,
        }
        let asked = stores.asked().since(&before);
        ensure!(asked.second.puts >= segments, "all were copied: {asked:?}");
        Ok(asked)
    })
}

fn compared(segments: u64) -> Result<Asked> {
    simulate(None, move |stores| async move {
        filled(&stores, segments).await?;
        stores.compare().await?;
        let before = stores.asked();
        stores.compare().await?;
        Ok(stores.asked().since(&before))
    })
}

/// Measures.
///
/// # Errors
/// The mirror's, and figures that cannot be extrapolated.
pub fn measure(of_test: bool) -> Result<Mirroring> {
    let smallest = if of_test { 1000 } else { 4000 };
    Ok(Mirroring {
        from_store: Series::measured("a copy from the first store", "segment", smallest, |count| {
            copy(count, false)
        })?,
        from_disk: Series::measured("a copy from the edge's disk", "segment", smallest, |count| {
            copy(count, true)
        })?,
        comparison: Series::measured("a comparison of both listings", "segment", smallest, compared)?,
    })
}

/// The same requests, with the bytes of full segments: a segment's bytes are read and written once, whatever its length, which counted bytes say.
fn with_full_segments(mut asked: Asked, series: &Series, segments: u64) -> Asked {
    let last = series.sizes[2].1;
    let of = |short: u64| {
        (u128::from(short) * u128::from(segments) * u128::from(SEGMENT_BYTES)
            / u128::from(last.second.bytes_up.max(1))) as u64
    };
    asked.first.bytes_down = of(last.first.bytes_down);
    asked.second.bytes_up = of(last.second.bytes_up);
    asked
}

impl Mirroring {
    /// All series.
    pub fn series(&self) -> [&Series; 3] {
        [&self.from_store, &self.from_disk, &self.comparison]
    }

    /// The first copy of an archive.
    fn first_copy(&self, archive: Archive) -> Asked {
        with_full_segments(
            self.from_store.at(archive.segments()),
            &self.from_store,
            archive.segments(),
        )
    }

    /// A month of an archive: what is written in it copied from the disk, and a comparison a day.
    pub fn month(&self, archive: Archive) -> Asked {
        let written = archive.segments_a_month();
        // The listings of the copy are those of the comparisons.
        let (last, size) = (self.from_disk.sizes[2].1, self.from_disk.sizes[2].0);
        let mut copied = Asked::default();
        copied.second.puts = written * last.second.puts / size;
        let copied = with_full_segments(copied, &self.from_disk, written);
        copied.plus(&self.comparison.at(archive.segments()).times(MONTH_DAYS))
    }

    /// A month's storage of the copy.
    pub fn storage(archive: Archive) -> Money {
        prices().storage_month.estimate(archive.bytes())
    }

    /// The section of the page.
    pub fn page(&self) -> String {
        let mut text = "### The first copy\n\n".to_owned();
        let mut table = Table::new(&[
            "archive",
            "copied by",
            "requests",
            "leaves the first store",
            "cost of requests",
            "of traffic",
            "once",
        ]);
        for archive in ARCHIVES {
            for (route, from) in ROUTES {
                let asked = self.first_copy(archive);
                let bill = asked.bill(prices(), (route, Route::Internet));
                table.row([
                    format!("{} TiB", archive.tib),
                    from.to_owned(),
                    requests(&asked),
                    bytes(asked.first.bytes_down),
                    dollars(bill.first.requests.saturating_plus(bill.second.requests)),
                    dollars(bill.first.down.saturating_plus(bill.second.up)),
                    dollars(bill.total()),
                ]);
            }
        }
        text += table.text();
        text += "\n*Beside the bucket*: the second store is in the same region. To another region or provider the bytes leave the first for money, which the book has as traffic of the internet: the rows above it.\n\n### A month\n\n";
        let mut table = Table::new(&[
            "archive",
            "requests",
            "sent to the second store",
            "cost of requests",
            "storage of the copy",
            "a month",
        ]);
        for archive in ARCHIVES {
            let asked = self.month(archive);
            let bill = asked.bill(prices(), (Route::Internet, Route::Internet)).total();
            table.row([
                format!("{} TiB", archive.tib),
                requests(&asked),
                bytes(asked.second.bytes_up),
                dollars(bill),
                dollars(Self::storage(archive)),
                dollars(bill.saturating_plus(Self::storage(archive))),
            ]);
        }
        text += table.text();
        text += "\nWhat an edge puts it copies from its disk: no GET and no traffic that is charged. The daily comparison is both listings.\n";
        text
    }
}
