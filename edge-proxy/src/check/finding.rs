//! Finding of the fitness check: what was looked at, how it stands, what to do.

use serde::Serialize;
use serde_json::Value;
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
