//! `[second]`: the store that mirrors the volumes' own.

use firn_quantity::Span;
use firn_store::StoreUrl;
use serde::{Deserialize, Deserializer, de::Error};
use std::time::Duration;

/// Where the mirror is, and how it is kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondSection {
    #[serde(deserialize_with = "url")]
    pub store: StoreUrl,
    /// How much longer it has what was deleted from the first.
    #[serde(default = "thirty_days")]
    pub keep_deleted: Span,
    /// How often what both have is compared.
    #[serde(default = "a_day")]
    pub compare_every: Span,
    /// Whether what the first store lost is written anew without being asked.
    #[serde(default = "yes")]
    pub repair: bool,
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StoreUrl, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(D::Error::custom)
}

fn thirty_days() -> Span {
    Span(Duration::from_secs(30 * 86_400))
}

fn a_day() -> Span {
    Span(Duration::from_secs(86_400))
}

fn yes() -> bool {
    true
}

impl SecondSection {
    pub fn check(&self, first: &StoreUrl) -> Result<(), String> {
        if self.store == *first {
            return Err(
                "second.store is the volume's own store: a mirror in the bucket that it mirrors is none; name another bucket"
                    .into(),
            );
        }
        let (second, ten_years) = (Duration::from_secs(1), Duration::from_secs(3660 * 86_400));
        for (name, span) in [
            ("keep_deleted", self.keep_deleted),
            ("compare_every", self.compare_every),
        ] {
            if !(second..=ten_years).contains(&span.0) {
                return Err(format!("second.{name} must be between 1 s and 87840 h"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let first: StoreUrl = "file:///srv/store".parse().unwrap();
        let read = |text: &str| {
            let section: SecondSection = toml::from_str(text).map_err(|error| error.to_string())?;
            section.check(&first)
        };
        read("store = \"file:///mnt/second\"").unwrap();
        for (text, why) in [
            ("store = \"file:///srv/store\"", "the volume's own store"),
            ("store = \"ftp://somewhere\"", "store URL"),
            ("keep_deleted = \"1 h\"", "missing field `store`"),
            (
                "store = \"file:///mnt/s\"\nkeep_deleted = \"0 s\"",
                "second.keep_deleted",
            ),
            (
                "store = \"file:///mnt/s\"\ncompare_every = \"0 s\"",
                "second.compare_every",
            ),
            ("store = \"file:///mnt/s\"\nrepairs = true", "unknown field"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
