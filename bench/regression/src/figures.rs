//! Figures by row, and how they compare with those committed.

use crate::{calibration, process::Counts};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::Path};

/// How far above the committed figure one may be. The lowest of three rounds differs by about a twentieth from run to run.
pub const TOLERANCE: f64 = 0.15;

/// What a row measured, for one unit of its load, by the figure's name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// What the figures are for one of.
    pub unit: String,
    /// By name, with the unit in it.
    pub figures: BTreeMap<String, f64>,
}

/// All rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Processor time of the loop of known work, in milliseconds: how fast the processor was.
    calibration_ms: f64,
    rows: BTreeMap<String, Row>,
}

/// Figures that are printed and compared with nothing.
const TOLD: &[&str] = &["peak_mib", "median_us", "p99_us", "longest_us"];

/// A count below this is noise, whatever was committed: timers and the odd thread.
fn noise(name: &str) -> f64 {
    match name {
        "faults" => 200.0,
        "read_calls" | "write_calls" | "switches" => 0.5,
        "store_requests" => 0.5,
        "processor_us" => 0.5,
        _ => 0.0,
    }
}

impl Row {
    /// What happened between two looks at a process, for each of `units`.
    pub fn between(unit: &str, units: f64, before: Counts, after: Counts) -> Self {
        // Of threads, those that have ended are not counted any more.
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / units;
        let figures = BTreeMap::from([
            (
                "processor_us".to_owned(),
                (after.processor - before.processor).as_secs_f64() * 1e6 / units,
            ),
            ("faults".to_owned(), each(before.faults, after.faults)),
            ("read_calls".to_owned(), each(before.read_calls, after.read_calls)),
            (
                "write_calls".to_owned(),
                each(before.write_calls, after.write_calls),
            ),
            ("switches".to_owned(), each(before.switches, after.switches)),
            ("read_bytes".to_owned(), each(before.read_bytes, after.read_bytes)),
            (
                "written_bytes".to_owned(),
                each(before.written_bytes, after.written_bytes),
            ),
            ("peak_mib".to_owned(), (after.peak_bytes >> 20) as f64),
        ]);
        Self {
            unit: unit.to_owned(),
            figures,
        }
    }

    /// The same with one more figure.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }
}

impl Figures {
    /// Rows measured at the present speed of the processor.
    pub fn measured(rows: impl IntoIterator<Item = (&'static str, Row)>) -> Result<Self> {
        Ok(Self {
            calibration_ms: calibration::measure()?.as_secs_f64() * 1e3,
            rows: rows
                .into_iter()
                .map(|(name, row)| (name.to_owned(), row))
                .collect(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not of this program", path.display()))
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// The lower of each figure. Processor time is compared at one speed of the processor: the fastest that was seen.
    pub fn merge(&mut self, other: Self) {
        if self.calibration_ms == 0.0 {
            *self = other;
            return;
        }
        self.calibration_ms = self.calibration_ms.min(other.calibration_ms);
        for (name, row) in other.rows {
            let kept = self.rows.entry(name).or_insert_with(|| row.clone());
            for (figure, value) in row.figures {
                let lowest = kept.figures.entry(figure).or_insert(value);
                *lowest = lowest.min(value);
            }
        }
    }

    /// Takes rows over; those not in `other` stay, at the speed they were measured at.
    pub fn replace(&mut self, other: Self) {
        let speed = if self.calibration_ms > 0.0 {
            other.calibration_ms / self.calibration_ms
        } else {
            1.0
        };
        for row in self.rows.values_mut() {
            if let Some(time) = row.figures.get_mut("processor_us") {
                *time *= speed;
            }
        }
        self.calibration_ms = other.calibration_ms;
        self.rows.extend(other.rows);
    }

    /// Prints all, beside what is committed; whether nothing is worse by more than [`TOLERANCE`].
    pub fn print(&self, committed: Option<&Self>) -> bool {
        let speed = committed.map_or(1.0, |committed| self.calibration_ms / committed.calibration_ms);
        println!(
            "processor: {:.1} ms for the loop of known work, {speed:.2} of that committed",
            self.calibration_ms
        );
        let mut worse = 0;
        for (name, row) in &self.rows {
            println!("{name} (for each {})", row.unit);
            for (figure, value) in &row.figures {
                let before = committed
                    .and_then(|committed| committed.rows.get(name))
                    .and_then(|row| row.figures.get(figure));
                let Some(before) = before else {
                    println!("  {figure:16} {value:14.1}");
                    continue;
                };
                // What was committed, at the processor's present speed.
                let expected = if figure == "processor_us" {
                    before * speed
                } else {
                    *before
                };
                let limit = expected * (1.0 + TOLERANCE) + noise(figure);
                let verdict = if TOLD.contains(&figure.as_str()) {
                    ""
                } else if *value > limit {
                    worse += 1;
                    "WORSE"
                } else if *value < expected * (1.0 - TOLERANCE) - noise(figure) {
                    "better"
                } else {
                    ""
                };
                println!("  {figure:16} {value:14.1} {expected:14.1} {verdict}");
            }
        }
        match committed {
            None => {}
            Some(_) if worse == 0 => println!(
                "no figure is more than {:.0} % above what is committed",
                TOLERANCE * 100.0
            ),
            Some(_) => println!(
                "{worse} figures are more than {:.0} % above what is committed",
                TOLERANCE * 100.0
            ),
        }
        worse == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, Row};
    use std::collections::BTreeMap;

    fn figures(calibration_ms: f64, processor_us: f64, faults: f64) -> Figures {
        let row = Row {
            unit: "call".into(),
            figures: BTreeMap::from([
                ("processor_us".to_owned(), processor_us),
                ("faults".to_owned(), faults),
            ]),
        };
        Figures {
            calibration_ms,
            rows: BTreeMap::from([("row".to_owned(), row)]),
        }
    }

    #[test]
    fn what_is_a_sixth_worse_fails_and_what_is_a_tenth_worse_does_not() {
        let committed = figures(100.0, 1000.0, 100_000.0);
        assert!(figures(100.0, 1100.0, 110_000.0).print(Some(&committed)));
        assert!(!figures(100.0, 1170.0, 100_000.0).print(Some(&committed)));
        assert!(!figures(100.0, 1000.0, 117_000.0).print(Some(&committed)));
    }

    #[test]
    fn a_slower_processor_is_taken_out_of_time_but_not_of_counts() {
        let committed = figures(100.0, 1000.0, 100_000.0);
        assert!(figures(150.0, 1500.0, 100_000.0).print(Some(&committed)));
        assert!(!figures(150.0, 1800.0, 100_000.0).print(Some(&committed)));
        assert!(!figures(150.0, 1000.0, 150_000.0).print(Some(&committed)));
    }

    #[test]
    fn of_rounds_the_lowest_counts() {
        let mut all = figures(120.0, 1000.0, 10.0);
        all.merge(figures(100.0, 1200.0, 5.0));
        assert_eq!(all.calibration_ms, 100.0);
        assert_eq!(all.rows["row"].figures["processor_us"], 1000.0);
        assert_eq!(all.rows["row"].figures["faults"], 5.0);
    }
}
