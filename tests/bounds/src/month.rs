//! Monthly cost of a client that appends 4 KiB every second, such as a log: the worst load for a log-structured volume, which has
//! something to upload all the time and never much.
//!
//! The engine runs in simulated time and its requests are counted; the price books turn them into money. The data repeat
//! themselves, so that a month fits into memory: requests do not depend on that, and the bytes kept are counted as if nothing
//! could be compressed.

use crate::{
    report::Report,
    simulated::{self, SimulatedEdge},
    world::Asked,
};
use anyhow::{Context, Result};
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route};
use firn_volume::VolumeConfig;
use std::time::Duration;

const APPEND_BYTES: u64 = 4096;
const DAY_SECONDS: u64 = 86_400;
const MONTH_DAYS: u64 = 30;
const BOUND: Money = Money::of_nanos(1_000_000_000);

/// Measures.
pub fn measure(small: bool) -> Result<Report> {
    // An hour is 120 checkpoints of the slowest cadence: enough to take the month as a multiple of it.
    let seconds = if small { 3600 } else { MONTH_DAYS * DAY_SECONDS };
    let times = MONTH_DAYS * DAY_SECONDS / seconds;
    let (asked, kept) = append(seconds)?;
    let mut report = Report::new(
        "month",
        "A client that appends 4 KiB a second for a month costs at most $1.",
        format!(
            "{seconds} s of simulated time, one stable append a second to one file; requests counted where they are sent{}. \
             Kept: what the month added, all written data taken as incompressible, for half the month on average; nothing is \
             cleaned.",
            if times > 1 {
                format!(" and taken {times} times")
            } else {
                String::new()
            }
        ),
    );
    let usage = asked.store;
    for (class, count) in [
        ("PUT", usage.puts),
        ("GET, whole", usage.gets),
        ("GET, range", usage.ranged_gets),
        ("HEAD", usage.heads),
        ("LIST", usage.lists),
        ("DELETE", usage.deletes),
    ] {
        report.told(&format!("store: {class}"), format!("{}", count * times));
    }
    report.told(
        "table: transactions",
        format!("{}", asked.table.transactions * times),
    );
    report.told(
        "table: gets and queries",
        format!("{}", (asked.table.gets + asked.table.queries) * times),
    );
    report.told(
        "table: write units",
        format!("{}", asked.table.write_units * times),
    );
    report.told("table: read units", format!("{}", asked.table.read_units * times));
    let table = Money::of_nanos(asked.table.nano_dollars * times);
    report.told(
        "kept after the month",
        format!("{:.2} GB", (kept * times) as f64 / 1e9),
    );
    for name in ["s3-us-east-1", "azure-hot-east-us"] {
        let book = ProviderPrices::named(name)?;
        let requests = Money(book.cost(&usage, Route::Internet).total().0 * i128::from(times));
        let storage = book.storage_month.estimate(kept * times / 2);
        let total = requests.saturating_plus(table).saturating_plus(storage);
        report.bounded(
            &format!("money, {} of {}", book.title, book.as_of),
            format!(
                "{} store + {} table + {} kept = {}",
                cents(requests),
                cents(table),
                cents(storage),
                cents(total)
            ),
            "$1.00",
            total <= BOUND,
        );
    }
    Ok(report)
}

/// What is asked while a client appends, and how many bytes the store then keeps more.
fn append(seconds: u64) -> Result<(Asked, u64)> {
    let config = VolumeConfig {
        // The simulated disk is memory.
        disk_cache_bytes: 256 << 20,
        ..VolumeConfig::default()
    };
    let edge = SimulatedEdge::new(1, config);
    edge.without_power_cuts();
    let env = edge.env();
    let world = edge.world.clone();
    let asked = edge.run(async move {
        world.format(&env).await?;
        let volume = world.open(&env).await?;
        let file = simulated::file(&volume, "log").await?;
        volume.sync().await?;
        let before = world.asked();
        for second in 0..seconds {
            env.sleep(Duration::from_secs(1)).await;
            let data = [second as u8; APPEND_BYTES as usize];
            let written = simulated::write(&volume, file, second * APPEND_BYTES, &data).await;
            written.with_context(|| format!("second {second}"))?;
            if second % DAY_SECONDS == DAY_SECONDS - 1 {
                println!("bounds: day {} of {MONTH_DAYS}", second / DAY_SECONDS + 1);
            }
        }
        volume.sync().await?;
        let after = world.asked();
        let mut table = after.table;
        table.gets -= before.table.gets;
        table.queries -= before.table.queries;
        table.transactions -= before.table.transactions;
        table.read_units -= before.table.read_units;
        table.write_units -= before.table.write_units;
        table.nano_dollars -= before.table.nano_dollars;
        Ok(Asked {
            store: after.store.since(&before.store),
            table,
        })
    })?;
    // Compressed data are so few bytes that they may count twice.
    let kept = edge.bucket.stored_bytes() + seconds * APPEND_BYTES;
    Ok((asked, kept))
}

fn cents(money: Money) -> String {
    format!("${:.3}", money.as_f64())
}
