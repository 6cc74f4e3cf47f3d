//! The confirmation of uploads: a read of each segment's end, a minute after it was put.

use crate::{
    archive::{ARCHIVES, TRICKLE_CHECKPOINTS, prices},
    asked::{Asked, Series},
    table::{Table, dollars, figure, percent, requests},
    world::{self, config, simulate},
};
use anyhow::{Result, ensure};
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route, Usage};
use std::time::Duration;

/// Money of the confirmation at most, as a share of that of the PUTs.
const SHARE_MAX: f64 = 0.10;

/// What was put, and what was read back of it: both in one, the reads in place of the second store's.
struct Confirmed {
    what: &'static str,
    series: Series,
}

/// What was measured of it.
pub struct Confirmation {
    of: [Confirmed; 2],
}

/// So many writes of so many bytes each; PUTs stand with the first store, all else with the second.
fn confirmed(writes: u64, bytes: u64, pause: Duration) -> Result<Asked> {
    simulate(move |world| async move {
        let volume = world.volume(true, config()).await?;
        world.until_confirmed(&volume).await?;
        let file = world::file(&volume, "ledger").await?;
        let before = world.asked();
        for number in 0..writes {
            world::write(&volume, file, (number * bytes, bytes), number).await?;
            world.env.sleep(pause).await;
        }
        world.env.sleep(Duration::from_secs(120)).await;
        let asked = world.asked().since(&before);
        world.until_confirmed(&volume).await?;
        let put = Usage {
            puts: asked.first.puts,
            bytes_up: asked.first.bytes_up,
            ..Usage::default()
        };
        let read = asked.first.since(&put);
        ensure!(
            read.requests() == put.puts,
            "one read for each put, and nothing else: {read:?} for {put:?}"
        );
        Ok(Asked {
            first: put,
            second: read,
            ..Asked::default()
        })
    })
}

/// Measures.
///
/// # Errors
/// The engine's; figures that cannot be extrapolated; more money than was promised.
pub fn measure(of_test: bool) -> Result<Confirmation> {
    let smallest = if of_test { 8 } else { 32 };
    let of = |what, bytes, pause| {
        let series = Series::measured(what, "write", smallest, |writes| {
            confirmed(writes, bytes, Duration::from_secs(pause))
        })?;
        anyhow::Ok(Confirmed { what, series })
    };
    let confirmation = Confirmation {
        of: [
            of("bulk, 8 MiB each 20 s", 8 << 20, 20)?,
            of("a trickle, 100 bytes each 40 s", 100, 40)?,
        ],
    };
    for confirmed in &confirmation.of {
        for book in ProviderPrices::all().iter().filter(|book| is_of_today(book)) {
            let share = confirmed.share(book);
            ensure!(
                share <= SHARE_MAX,
                "{}: confirmation takes {} of the PUTs' money by {}",
                confirmed.what,
                percent(share),
                book.name
            );
        }
    }
    Ok(confirmation)
}

/// Not one of those that a paper is held against.
fn is_of_today(book: &ProviderPrices) -> bool {
    !book.as_of.starts_with("2011")
}

impl Confirmed {
    /// Money of what was read back for the money of what was put.
    fn share(&self, book: &ProviderPrices) -> f64 {
        let bill = self.series.sizes[2]
            .1
            .bill(book, (Route::Internet, Route::Internet));
        bill.second.total().as_f64() / bill.first.total().as_f64()
    }
}

impl Confirmation {
    /// All series.
    pub fn series(&self) -> [&Series; 2] {
        [&self.of[0].series, &self.of[1].series]
    }

    /// What confirming so many PUTs of full segments and of a month's trickle asks and costs.
    pub fn of_puts(&self, segments: u64) -> (Asked, Money) {
        let reads = |confirmed: &Confirmed, puts: u64| {
            let last = &confirmed.series.sizes[2].1;
            let second = Usage {
                ranged_gets: puts * last.second.ranged_gets / last.first.puts,
                bytes_down: puts * last.second.bytes_down / last.first.puts,
                ..Usage::default()
            };
            Asked {
                first: second,
                ..Asked::default()
            }
        };
        let asked = reads(&self.of[0], segments).plus(&reads(&self.of[1], TRICKLE_CHECKPOINTS));
        let bill = asked.bill(prices(), (Route::Internet, Route::Internet));
        (asked, bill.total())
    }

    /// The section of the page.
    pub fn page(&self) -> String {
        let books: Vec<_> = ProviderPrices::all()
            .iter()
            .filter(|book| is_of_today(book))
            .collect();
        let mut table = Table::new(&[
            "uploads",
            "GETs a PUT",
            "bytes a PUT",
            "of the PUTs' money, by",
            "share",
            "promised",
        ]);
        for confirmed in &self.of {
            let last = &confirmed.series.sizes[2].1;
            for book in &books {
                table.row([
                    format!("{}: {} PUTs", confirmed.what, last.first.puts),
                    figure(last.second.ranged_gets as f64 / last.first.puts as f64),
                    figure(last.second.bytes_down as f64 / last.first.puts as f64),
                    book.title.clone(),
                    percent(confirmed.share(book)),
                    format!("{} at most", percent(SHARE_MAX)),
                ]);
            }
        }
        let mut text = table.text().to_owned();
        text += "\nA run in which a share is larger than promised fails. A month's confirmation, of the bulk and of a trickle:\n\n";
        let mut table = Table::new(&["archive", "PUTs confirmed", "requests", "cost a month"]);
        for archive in ARCHIVES {
            let (asked, money) = self.of_puts(archive.segments_a_month());
            table.row([
                format!("{} TiB", archive.tib),
                crate::table::grouped(archive.segments_a_month() + TRICKLE_CHECKPOINTS),
                requests(&asked),
                dollars(money),
            ]);
        }
        text + table.text()
    }
}
