//! The throughput of the code on one core, of coding and of restoring: `cargo run --release -p firn-parity --example throughput`.

use firn_parity::{COLUMNS, Coder, PARITIES, ROW_BYTES, restore, row_hash};
use std::time::{Duration, Instant};

/// Long enough that the clock and the first faults are not what counts.
const FOR: Duration = Duration::from_secs(2);

/// GB of members a second.
#[allow(clippy::disallowed_methods, reason = "a real core's time is what is measured")]
fn rate(bytes_each: usize, mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut times = 0;
    while began.elapsed() < FOR {
        work();
        times += 1;
    }
    (times * bytes_each) as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let columns: Vec<Vec<u8>> = (0..COLUMNS)
        .map(|column| (0..ROW_BYTES).map(|at| (at * 31 + column * 7) as u8).collect())
        .collect();
    let given: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().collect();
    let mut parities = [(); PARITIES].map(|()| vec![0; ROW_BYTES]);
    let mut coder = Coder::new(ROW_BYTES);
    let all = rate(COLUMNS * ROW_BYTES, || {
        coder.add(&given, parities.each_mut().map(Vec::as_mut_slice));
    });
    let one = rate(ROW_BYTES, || {
        coder.add(&given[..1], parities.each_mut().map(Vec::as_mut_slice));
    });
    let hashing = rate(ROW_BYTES, || {
        std::hint::black_box(row_hash(&columns[0]));
    });
    println!("all columns of a row:     {all:.2} GB/s a core");
    println!("one column of a row:      {one:.2} GB/s a core");
    println!("hashes:                   {hashing:.2} GB/s a core");
    let mut parities = [(); PARITIES].map(|()| vec![0; ROW_BYTES]);
    coder.add(&given, parities.each_mut().map(Vec::as_mut_slice));
    let parities: Vec<_> = parities.iter().map(Vec::as_slice).enumerate().collect();
    for lost in 1..=PARITIES {
        let restored = rate(lost * ROW_BYTES, || {
            let restored = restore(&given[lost..], &parities).expect("at most three are lost");
            assert!(restored[0].1 == columns[0]);
        });
        println!("{lost} lost columns restored:  {:.0} MB/s a core", restored * 1e3);
    }
}
