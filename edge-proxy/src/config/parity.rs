//! `[parity]`: parity groups of cold segments in the second store.

use super::SecondSection;
use firn_mirror::{Copies, Grouping};
use firn_quantity::Span;
use serde::{Deserialize, Deserializer, de::Error};
use std::time::Duration;

/// What is grouped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParitySection {
    /// How long a segment must have been in the second store.
    #[serde(default = "thirty_days")]
    pub after: Span,
    /// What becomes of the copies of what is grouped; without it, as the table says.
    #[serde(default, deserialize_with = "word")]
    pub copies: Option<Copies>,
}

fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Copies>, D::Error> {
    let word = String::deserialize(deserializer)?;
    word.parse().map(Some).map_err(D::Error::custom)
}

fn thirty_days() -> Span {
    Span(Duration::from_secs(30 * 86_400))
}

impl ParitySection {
    /// As a mirror is told.
    pub fn grouping(&self) -> Grouping {
        Grouping {
            after: self.after.0,
            copies: self.copies,
        }
    }

    pub fn check(&self, second: Option<&SecondSection>) -> Result<(), String> {
        if second.is_none() {
            return Err(
                "[parity] needs [second]: parities lie in the second store, beside what they are of".into(),
            );
        }
        let (second, ten_years) = (Duration::from_secs(1), Duration::from_secs(3660 * 86_400));
        if !(second..=ten_years).contains(&self.after.0) {
            return Err("parity.after must be between 1 s and 87840 h".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let second: SecondSection = toml::from_str("store = \"file:///mnt/second\"").unwrap();
        let read = |text: &str, second: Option<&SecondSection>| {
            let section: ParitySection = toml::from_str(text).map_err(|error| error.to_string())?;
            section.check(second).map(|()| section.after.0)
        };
        let section: ParitySection = toml::from_str("copies = \"drop\"").unwrap();
        assert_eq!(section.grouping().copies, Some(Copies::Drop));
        assert_eq!(read("", Some(&second)), Ok(Duration::from_secs(30 * 86_400)));
        assert!(read("", None).unwrap_err().contains("needs [second]"));
        for (text, why) in [
            ("after = \"0 s\"", "parity.after"),
            ("after = \"99999 h\"", "parity.after"),
            ("parities = 4", "unknown field"),
            ("copies = \"shed\"", "either \"keep\" or \"drop\""),
        ] {
            let error = read(text, Some(&second)).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
