//! Finding of a judgement (`check`, `upgrade --check`): what was looked at, how it stands, what to do.

use crate::failure::Failure;
use firn_env::println;
use serde::Serialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// How something stands; a later one is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// This user may not look, or there is nothing to look with.
    NotSeen,
    /// It works, and somebody will notice.
    WillHurt,
    /// The edge cannot serve, or not keep what it promises.
    CannotWork,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Fine => "fine",
            Self::NotSeen => "not seen",
            Self::WillHurt => "will hurt",
            Self::CannotWork => "cannot work",
        })
    }
}

/// See the module.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub subject: &'static str,
    /// Whose, if the edge has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    pub verdict: Verdict,
    /// What was seen, with figures.
    pub said: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_do: Option<String>,
    /// The same figures for programs; names end with the unit.
    pub figures: BTreeMap<&'static str, Value>,
}

impl Finding {
    fn new(verdict: Verdict, subject: &'static str, said: impl fmt::Display) -> Self {
        Self {
            subject,
            volume: None,
            verdict,
            said: said.to_string(),
            to_do: None,
            figures: BTreeMap::new(),
        }
    }

    pub fn fine(subject: &'static str, said: impl fmt::Display) -> Self {
        Self::new(Verdict::Fine, subject, said)
    }

    pub fn not_seen(subject: &'static str, said: impl fmt::Display) -> Self {
        Self::new(Verdict::NotSeen, subject, said)
    }

    pub fn hurts(subject: &'static str, said: impl fmt::Display, to_do: impl fmt::Display) -> Self {
        Self::new(Verdict::WillHurt, subject, said).advise(to_do)
    }

    pub fn fails(subject: &'static str, said: impl fmt::Display, to_do: impl fmt::Display) -> Self {
        Self::new(Verdict::CannotWork, subject, said).advise(to_do)
    }

    /// An empty one says that the words before are enough.
    fn advise(mut self, to_do: impl fmt::Display) -> Self {
        self.to_do = Some(to_do.to_string()).filter(|text| !text.is_empty());
        self
    }

    #[must_use]
    pub fn of(mut self, volume: Option<String>) -> Self {
        self.volume = volume;
        self
    }

    #[must_use]
    pub fn figure(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.figures.insert(name, value.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:<12} {:<11} ", self.verdict, self.subject)?;
        if let Some(volume) = &self.volume {
            write!(formatter, "volume {volume}: ")?;
        }
        // One line, whatever others said.
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        formatter.write_str(line(&self.said).trim_end_matches('.'))?;
        match &self.to_do {
            Some(to_do) => write!(formatter, ". To do: {}", line(to_do)),
            None => Ok(()),
        }
    }
}

/// Of the JSON form.
const FORMAT: u32 = 1;

/// The end of a judgement whose lines were printed: the JSON form if it is wanted, with `more` beside the findings, and the worst verdict.
///
/// # Errors
/// [`Failure`] with the exit code of that verdict.
pub fn conclude(all: &[Finding], is_json: bool, more: &[(&str, Value)]) -> Result<(), Failure> {
    let count = |verdict| all.iter().filter(|found| found.verdict == verdict).count();
    let (hurting, failing) = (count(Verdict::WillHurt), count(Verdict::CannotWork));
    let worst = all
        .iter()
        .map(|found| found.verdict)
        .max()
        .unwrap_or(Verdict::Fine);
    if is_json {
        let mut whole = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "worst": worst,
            "findings": all,
        });
        for (name, value) in more {
            whole[name] = value.clone();
        }
        println!("{}", serde_json::to_string_pretty(&whole).map_err(Failure::new)?);
    }
    match worst {
        Verdict::Fine | Verdict::NotSeen => {
            if !is_json {
                println!("fit: nothing that was seen speaks against it");
            }
            Ok(())
        }
        Verdict::WillHurt => Err(Failure::hurting(format!(
            "it would work, and {hurting} of {} things looked at will hurt: see above",
            all.len()
        ))),
        Verdict::CannotWork => Err(Failure::new(format!(
            "{failing} of {} things looked at keep it from working, {hurting} will hurt: see above. Nothing was changed",
            all.len()
        ))),
    }
}
