//! Configuration of a faulty store (fault injection).
//!
//! ```toml
//! seed = 7
//!
//! [faults]                     # from the start
//! latency_ms = 30
//! jitter_ms = 5
//! unavailable = 0.01
//!
//! [[phases]]                   # from the tenth second on, in place of all above
//! from_ms = 10_000
//! faults = { outage = "hang", timeout_ms = 5_000 }
//! ```
//!
//! On a command line, where faults hold for the whole run, the short form does: `latency_ms=30,unavailable=0.01,seed=7`.

use serde::{Deserialize, Serialize};
use std::{str::FromStr, time::Duration};

/// Faults from a start on, and a timetable of others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultConfig {
    /// Where all chances come from.
    pub seed: u64,
    /// What goes wrong until the first phase.
    pub faults: Faults,
    /// What goes wrong later; in order of time.
    pub phases: Vec<Phase>,
}

/// Faults that hold from a moment on, until the next phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// When it begins, after the store was opened.
    pub from_ms: u64,
    /// What goes wrong then; what is not named does not.
    #[serde(default)]
    pub faults: Faults,
}

/// Whether the store can be reached at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outage {
    /// It can.
    #[default]
    None,
    /// Every request is refused at once.
    Refuse,
    /// No request is answered; the caller learns of it after `timeout_ms`.
    Hang,
}

/// Each kind of fault and how likely it is for one request; all are off by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Round-trip time of every request.
    pub latency_ms: u64,
    /// Mean of an exponentially distributed addition to it.
    pub jitter_ms: u64,
    /// Chance that a request takes `slow_ms` longer.
    pub slow: f64,
    /// See `slow`.
    pub slow_ms: u64,
    /// Capacity of the line to the store; transfers pass it one after the other.
    pub up_bits_per_second: Option<u64>,
    /// Capacity of the line from the store.
    pub down_bits_per_second: Option<u64>,
    /// What one request moves at most in either direction, however free the line is: one connection does not fill it.
    pub connection_bits_per_second: Option<u64>,
    /// Chance of a refusal ("503 slow down"); the request is not done.
    pub unavailable: f64,
    /// Chance of a timeout of a request that is not done.
    pub lost_request: f64,
    /// Chance of a timeout of a request that is done up to `late_ms` later.
    pub late: f64,
    /// See `late`.
    pub late_ms: u64,
    /// Chance of a timeout of a request that was done.
    pub lost_reply: f64,
    /// When a request that is not answered fails.
    pub timeout_ms: u64,
    /// Chance that the connection breaks half-way through the bytes; a put is then not done.
    pub torn: f64,
    /// Chance that a new segment is acknowledged and dropped.
    pub dropped: f64,
    /// Chance that a new object cannot be seen for up to `invisible_ms`; a create-only put of the same name still fails.
    pub invisible: f64,
    /// See `invisible`.
    pub invisible_ms: u64,
    /// Chance that one bit of the bytes returned is wrong.
    pub corrupt: f64,
    /// Whether the store can be reached at all.
    pub outage: Outage,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            latency_ms: 0,
            jitter_ms: 0,
            slow: 0.0,
            slow_ms: 1000,
            up_bits_per_second: None,
            down_bits_per_second: None,
            connection_bits_per_second: None,
            unavailable: 0.0,
            lost_request: 0.0,
            late: 0.0,
            late_ms: 60_000,
            lost_reply: 0.0,
            timeout_ms: 30_000,
            torn: 0.0,
            dropped: 0.0,
            invisible: 0.0,
            invisible_ms: 5000,
            corrupt: 0.0,
            outage: Outage::None,
        }
    }
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultConfigError {
    /// It cannot be read.
    #[error("faults {text:?}: {detail}; write for example latency_ms=30,unavailable=0.01,seed=7")]
    Malformed {
        /// What was written.
        text: String,
        /// Where and what.
        detail: String,
    },
    /// A chance is not between 0 and 1.
    #[error("fault {name} = {value}: a chance is a number from 0 (never) to 1 (always)")]
    Chance {
        /// The fault.
        name: &'static str,
        /// What was set.
        value: f64,
    },
    /// A line has no capacity.
    #[error(
        "fault {name} = 0: leave it out for a line without limit, or set outage = \"hang\" for one that is cut"
    )]
    Rate {
        /// The direction.
        name: &'static str,
    },
    /// The phases are not in order of time.
    #[error("the phase from {from_ms} ms stands behind a later one; phases are listed in order of time")]
    Order {
        /// The phase.
        from_ms: u64,
    },
}

/// The short form, or the whole TOML text (which has lines).
impl FromStr for FaultConfig {
    type Err = FaultConfigError;

    fn from_str(text: &str) -> Result<Self, FaultConfigError> {
        let malformed = |detail: String| FaultConfigError::Malformed {
            text: text.to_owned(),
            detail,
        };
        let config: Self = if text.contains('\n') {
            toml::from_str(text).map_err(|error| malformed(error.message().to_owned()))?
        } else {
            let (mut seed, mut faults) = (String::new(), String::from("[faults]\n"));
            for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let Some((name, value)) = part.split_once('=') else {
                    return Err(malformed(format!("{part:?} has no value")));
                };
                // Only numbers and the words of an outage can follow; words are strings in TOML.
                let quote = if value.starts_with(|first: char| first.is_ascii_alphabetic()) {
                    "\""
                } else {
                    ""
                };
                let lines = if name == "seed" { &mut seed } else { &mut faults };
                lines.push_str(&format!("{name}={quote}{value}{quote}\n"));
            }
            toml::from_str(&(seed + &faults)).map_err(|error| malformed(error.message().to_owned()))?
        };
        config.check()?;
        Ok(config)
    }
}

impl FaultConfig {
    pub(crate) fn check(&self) -> Result<(), FaultConfigError> {
        self.faults.check()?;
        let mut last_ms = 0;
        for phase in &self.phases {
            if phase.from_ms < last_ms {
                return Err(FaultConfigError::Order {
                    from_ms: phase.from_ms,
                });
            }
            last_ms = phase.from_ms;
            phase.faults.check()?;
        }
        Ok(())
    }

    /// What goes wrong at this time after the start.
    pub(crate) fn at(&self, elapsed: Duration) -> &Faults {
        self.phases
            .iter()
            .rev()
            .find(|phase| Duration::from_millis(phase.from_ms) <= elapsed)
            .map_or(&self.faults, |phase| &phase.faults)
    }
}

impl Faults {
    pub(crate) fn check(&self) -> Result<(), FaultConfigError> {
        for (name, value) in [
            ("slow", self.slow),
            ("unavailable", self.unavailable),
            ("lost_request", self.lost_request),
            ("late", self.late),
            ("lost_reply", self.lost_reply),
            ("torn", self.torn),
            ("dropped", self.dropped),
            ("invisible", self.invisible),
            ("corrupt", self.corrupt),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultConfigError::Chance { name, value });
            }
        }
        for (name, value) in [
            ("up_bits_per_second", self.up_bits_per_second),
            ("down_bits_per_second", self.down_bits_per_second),
            ("connection_bits_per_second", self.connection_bits_per_second),
        ] {
            if value == Some(0) {
                return Err(FaultConfigError::Rate { name });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
        seed = 7
        [faults]
        latency_ms = 30
        unavailable = 0.01
        [[phases]]
        from_ms = 10_000
        faults = { outage = "hang", timeout_ms = 5_000 }
        [[phases]]
        from_ms = 20_000
    "#;

    #[test]
    fn the_timetable_replaces_all_faults_at_each_phase() {
        let config: FaultConfig = toml::from_str(EXAMPLE).expect("valid");
        config.check().expect("sensible");
        assert_eq!(config.at(Duration::from_millis(9_999)).latency_ms, 30);
        let second = config.at(Duration::from_millis(10_000));
        assert_eq!((second.outage, second.latency_ms), (Outage::Hang, 0));
        assert_eq!(config.at(Duration::from_secs(3600)), &Faults::default());
    }

    #[test]
    fn the_short_form_is_for_command_lines() {
        let config: FaultConfig = "latency_ms=30, unavailable=0.01,outage=hang,seed=7"
            .parse()
            .expect("valid");
        assert_eq!((config.seed, config.faults.latency_ms), (7, 30));
        assert_eq!(
            (config.faults.unavailable, config.faults.outage),
            (0.01, Outage::Hang)
        );
        assert_eq!(EXAMPLE.parse::<FaultConfig>().expect("valid").phases.len(), 2);
        assert_eq!("".parse::<FaultConfig>(), Ok(FaultConfig::default()));
        for (text, problem) in [
            ("latency=3", "unknown field"),
            ("latency_ms", "has no value"),
            ("latency_ms=soon", "expected u64"),
            ("torn=7", "from 0 (never)"),
            ("outage=maybe", "unknown variant"),
            ("seed=1\nfaults=2", "invalid type"),
        ] {
            let error = text.parse::<FaultConfig>().expect_err(text).to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn figures_that_make_no_sense_are_refused_by_name() {
        let check = |text: &str| toml::from_str::<FaultConfig>(text).expect("well formed").check();
        assert_eq!(
            check("[faults]\ntorn = 1.5"),
            Err(FaultConfigError::Chance {
                name: "torn",
                value: 1.5
            })
        );
        assert!(check("[faults]\nlate = nan").is_err());
        assert!(check("[faults]\nup_bits_per_second = 0").is_err());
        assert_eq!(
            check("[[phases]]\nfrom_ms = 2\n[[phases]]\nfrom_ms = 1"),
            Err(FaultConfigError::Order { from_ms: 1 })
        );
        assert!(
            toml::from_str::<FaultConfig>("[faults]\nlatency = 3").is_err(),
            "unknown names are refused"
        );
    }
}
