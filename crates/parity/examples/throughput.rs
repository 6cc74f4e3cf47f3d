//! The throughput of the code on one core, of coding and of restoring, by the time that the kernel says this thread ran, so that it does not
//! depend on what else the machine does: `cargo run --release -p firn-parity --example throughput`.

use firn_parity::{COLUMNS, Coder, PARITIES, ROW_BYTES, restore, row_hash};

/// Long enough that the first faults are not what counts.
const FOR_NANOS: u64 = 2_000_000_000;
/// Pieces of work between two looks at the time, each of which is a read of a file.
const TIMES: usize = 64;

/// Nanoseconds that this thread ran (proc(5), schedstat).
fn ran_nanos() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts a thread's time");
    let nanos = text
        .split_whitespace()
        .next()
        .and_then(|first| first.parse().ok());
    nanos.expect("its first number is that time")
}

/// GB of members a second.
fn rate(bytes_each: usize, mut work: impl FnMut()) -> f64 {
    let began = ran_nanos();
    let mut times = 0;
    loop {
        for _ in 0..TIMES {
            work();
        }
        times += TIMES;
        let nanos = ran_nanos() - began;
        if nanos >= FOR_NANOS {
            return (times * bytes_each) as f64 / nanos as f64;
        }
    }
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
