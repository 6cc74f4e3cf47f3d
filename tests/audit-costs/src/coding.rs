//! What a core encodes: bytes of members by its own time, as the kernel counts it, not by the clock on the wall.

use anyhow::{Context, Result};
use firn_parity::{COLUMNS, Coder, PARITIES, ROW_BYTES, restore};
use std::fs;

/// CPU time of one measurement: long enough that the first faults are not what counts.
const FOR_NANOS: u64 = 2_000_000_000;

/// Bytes of members a second of CPU time.
pub struct Coding {
    /// All columns of a row together.
    pub all: f64,
    /// One column by itself.
    pub one: f64,
    /// Lost bytes restored, of one lost column and of three.
    pub restored: (f64, f64),
}

/// Nanoseconds that this thread ran (proc(5), schedstat).
fn ran() -> Result<u64> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let nanos = text
        .split_whitespace()
        .next()
        .and_then(|first| first.parse().ok());
    nanos.with_context(|| format!("{path} has no time: {text:?}"))
}

fn rate(bytes_each: usize, mut work: impl FnMut()) -> Result<f64> {
    let began = ran()?;
    let mut times = 0;
    loop {
        work();
        times += 1;
        let nanos = ran()? - began;
        if nanos >= FOR_NANOS {
            return Ok((times * bytes_each) as f64 / nanos as f64 * 1e9);
        }
    }
}

/// Measures.
///
/// # Errors
/// If the kernel does not say how long a thread ran.
pub fn measure() -> Result<Coding> {
    let columns: Vec<Vec<u8>> = (0..COLUMNS)
        .map(|column| (0..ROW_BYTES).map(|at| (at * 31 + column * 7) as u8).collect())
        .collect();
    let given: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().collect();
    let mut parities = [(); PARITIES].map(|()| vec![0; ROW_BYTES]);
    let mut coder = Coder::new(ROW_BYTES);
    let all = rate(COLUMNS * ROW_BYTES, || {
        coder.add(&given, parities.each_mut().map(Vec::as_mut_slice))
    })?;
    let one = rate(ROW_BYTES, || {
        coder.add(&given[..1], parities.each_mut().map(Vec::as_mut_slice))
    })?;
    let mut parities = [(); PARITIES].map(|()| vec![0; ROW_BYTES]);
    coder.add(&given, parities.each_mut().map(Vec::as_mut_slice));
    let parities: Vec<_> = parities.iter().map(Vec::as_slice).enumerate().collect();
    let restored = |lost: usize| {
        rate(lost * ROW_BYTES, || {
            let restored =
                restore(&given[lost..], &parities).expect("no more are lost than there are parities");
            assert!(restored[0].1 == columns[0]);
        })
    };
    Ok(Coding {
        all,
        one,
        restored: (restored(1)?, restored(PARITIES)?),
    })
}

impl Coding {
    /// The section of the page.
    pub fn page(&self) -> String {
        let mut table = crate::table::Table::new(&["work of one core, by its CPU time", "members a second"]);
        let rate = |rate: f64| match rate >= 1e8 {
            true => format!("{:.2} GB", rate / 1e9),
            false => format!("{:.0} MB", rate / 1e6),
        };
        for (what, measured) in [
            (
                "three parities encoded, all 32 columns of a row together",
                self.all,
            ),
            ("the same of one column that joins alone", self.one),
            ("one lost column restored", self.restored.0),
            ("three lost columns restored", self.restored.1),
        ] {
            table.row([what.to_owned(), rate(measured)]);
        }
        table.text().to_owned()
    }
}
