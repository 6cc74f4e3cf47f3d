//! The confirmation of uploads: a read of each segment's end, a minute after it was put.

use crate::{
    archive::{ARCHIVES, TRICKLE_CHECKPOINTS, prices},
    asked::{Asked, Series},
    table::{Table, dollars, figure, percent, requests},
    world::{self, simulate, with_cache},
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
        let volume = world.volume(true, with_cache()).await?;
        // What was formatted is in no cache yet, and read once.
        let file = world::file(&volume, "ledger").await?;
        volume.sync().await?;
        world.until_confirmed(&volume).await?;
        let before = world.asked();
        for number in 0..writes {
            world
                .write(&volume, file, (number * bytes, bytes), number)
                .await?;
            world.env.sleep(pause).await;
        }
        world.env.sleep(Duration::from_secs(120)).await;
        let asked = world.asked().since(&before);
        world.until_confirmed(&volume).await?;
        let put = Usage {
            puts: asked.first.puts,
            ..Usage::default()
        };
        let read = asked.first.since(&Usage {
            bytes_up: asked.first.bytes_up,
            ..put
        });
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
/// The engine's.
pub fn measure(of_test: bool) -> Result<Confirmation> {
    let smallest = if of_test { 4 } else { 32 };
    let of = |what, bytes, pause| {
        let series = Series::measured(what, "write", smallest, |writes| {
            confirmed(writes, bytes, Duration::from_secs(pause))
        })?;
        anyhow::Ok(Confirmed { what, series })
    };
    Ok(Confirmation {
        of: [
            of("bulk, 8 MiB each 20 s", 8 << 20, 20)?,
            of("a trickle, 100 bytes each 40 s", 100, 40)?,
        ],
    })
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
    /// Where it takes more money than was promised.
    pub fn broken(&self) -> Vec<String> {
        let books = || ProviderPrices::all().iter().filter(|book| is_of_today(book));
        let shares = self
            .of
            .iter()
            .flat_map(|confirmed| books().map(move |book| (confirmed, book)));
        let dear = shares.filter(|(confirmed, book)| confirmed.share(book) > SHARE_MAX);
        let told = dear.map(|(confirmed, book)| {
            let share = percent(confirmed.share(book));
            format!(
                "{}: confirmation takes {share} of the PUTs' money by {}",
                confirmed.what, book.name
            )
        });
        told.collect()
    }

    /// All series.
    pub fn series(&self) -> [&Series; 2] {
        [&self.of[0].series, &self.of[1].series]
    }

    /// What confirming so many PUTs of full segments and of a month's trickle asks and costs.
    pub fn of_puts(&self, segments: u64) -> (Asked, Money) {
        let reads = |confirmed: &Confirmed, puts: u64| {
            let last = &confirmed.series.sizes[2].1;
            let second = Usage {
                gets: puts * last.second.gets / last.first.puts,
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
                    figure(last.second.gets as f64 / last.first.puts as f64),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes read back of each of 100 segments.
    fn of_bytes(bytes: u64) -> Confirmation {
        let asked = |puts: u64| {
            let mut asked = Asked::default();
            (asked.first.puts, asked.second.gets) = (puts, puts);
            asked.second.bytes_down = puts * bytes;
            (puts, asked)
        };
        let of = || Confirmed {
            what: "bulk",
            series: Series {
                what: "bulk",
                unit: "write",
                sizes: [asked(25), asked(50), asked(100)],
            },
        };
        Confirmation { of: [of(), of()] }
    }

    #[test]
    fn a_confirmation_that_is_dearer_than_a_tenth_of_the_puts_is_told() {
        assert_eq!(of_bytes(1024).broken(), Vec::<String>::new());
        let told = of_bytes(16 << 10).broken();
        assert!(
            told.iter()
                .any(|line| line.starts_with("bulk: confirmation takes")),
            "{told:?}"
        );
    }
}
