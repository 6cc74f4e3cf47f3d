//! The table of figures that the demo ends with.

use crate::megabytes;
use firn_quantity::{Dollars, Money};
use firn_rig::Counters;
use std::time::Duration;

/// One line of the table.
pub struct Row {
    pub phase: &'static str,
    pub took: Duration,
    pub bytes: u64,
    pub files: u64,
    pub counters: Counters,
    pub level: &'static str,
}

pub fn show(rows: &[Row], prices: &str) {
    println!(
        "\nphase                   seconds     MB/s  files/s   store    table      MB up    MB down         money  level"
    );
    println!("                                                 requests requests");
    let mut total = Counters::default();
    let mut took = Duration::ZERO;
    for row in rows {
        let seconds = row.took.as_secs_f64();
        let rate = |value: f64, decimals: usize| match row.files {
            0 => "-".to_owned(),
            _ => format!("{:.*}", decimals, value / seconds.max(1e-9)),
        };
        line(
            row.phase,
            seconds,
            &rate(megabytes(row.bytes), 1),
            &rate(row.files as f64, 0),
            row.counters,
            row.level,
        );
        total = total.plus(row.counters);
        took += row.took;
    }
    line("total", took.as_secs_f64(), "", "", total, "");
    println!(
        "\nMoney: what these requests would cost in a bucket, by {prices}; the directory store is free."
    );
    println!(
        "Level: where acknowledged data is: 1 in the journal on this disk, synced; 2 in the cloud as well."
    );
}

fn line(phase: &str, seconds: f64, rate: &str, files: &str, counters: Counters, level: &str) {
    println!(
        "{phase:<22}{seconds:>9.2}{rate:>9}{files:>9}{:>8}{:>9}{:>11.1}{:>11.1}{:>14}  {level}",
        counters.store_requests,
        counters.table_requests,
        megabytes(counters.bytes_up),
        megabytes(counters.bytes_down),
        Dollars(Money::of_nanos(counters.nanodollars)),
    );
}
