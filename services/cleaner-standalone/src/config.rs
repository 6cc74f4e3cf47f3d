//! The configuration file. `firn-cleaner.example.toml` explains every key; a test holds the two together.

use firn_cleaner::Limits;
use firn_cleaner_host::{AnchorAt, RootsAt, Second, Settings, Target};
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_mirror::{Copies, Grouping, MirrorOptions};
use firn_quantity::Span;
use firn_store::{ProviderPrices, StoreUrl};
use serde::{Deserialize, Deserializer, de::Error};
use std::{
    fmt::Display,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(deserialize_with = "from_text")]
    pub family: FamilyId,
    #[serde(deserialize_with = "from_text")]
    pub store: StoreUrl,
    /// The anchor service or the table; `table` is the older name.
    #[serde(alias = "table")]
    pub anchor: String,
    /// With an `https://` anchor: the cleaner's key and certificate.
    #[serde(default)]
    pub anchor_identity: Option<PathBuf>,
    /// With an `https://` anchor: the authority of its certificate.
    #[serde(default)]
    pub anchor_authority: Option<PathBuf>,
    /// Whose roots the table keeps under the service's own names; without it, the table is the edges'.
    #[serde(default, deserialize_with = "some_from_text")]
    pub roots: Option<TenantVolume>,
    #[serde(default)]
    pub price_book: Option<String>,
    /// Where `run --every` serves `/metrics` and `/healthz`, over plain HTTP.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    #[serde(default)]
    pub limits: LimitsSection,
    /// The store that mirrors the bucket.
    #[serde(default)]
    pub second: Option<SecondSection>,
    /// Parity groups of cold segments in it.
    #[serde(default)]
    pub parity: Option<ParitySection>,
}

/// How parity groups are kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParitySection {
    /// How long a segment must have been in the second store.
    #[serde(default = "thirty_days")]
    after: Span,
    /// What becomes of members' copies; without it, as the table says.
    #[serde(default, deserialize_with = "some_from_text")]
    copies: Option<Copies>,
}

/// Where the mirror is, and how it is kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondSection {
    #[serde(deserialize_with = "from_text")]
    store: StoreUrl,
    /// How much longer it has what was deleted from the first.
    #[serde(default = "thirty_days")]
    keep_deleted: Span,
    /// How often `run --every` compares both.
    #[serde(default = "an_hour")]
    compare_every: Span,
    #[serde(default = "yes")]
    repair: bool,
}

fn thirty_days() -> Span {
    Span(Duration::from_secs(30 * 86_400))
}

fn an_hour() -> Span {
    Span(Duration::from_secs(3600))
}

fn yes() -> bool {
    true
}

impl SecondSection {
    fn second(&self, parity: Option<&ParitySection>) -> Second {
        Second {
            store: self.store.clone(),
            options: MirrorOptions {
                keep_deleted: self.keep_deleted.0,
                compare_every: self.compare_every.0,
            },
            repairs: self.repair,
            grouping: parity.map(|parity| Grouping {
                after: parity.after.0,
                copies: parity.copies,
            }),
        }
    }

    fn check(&self, first: &StoreUrl) -> Result<(), String> {
        if self.store == *first {
            return Err(
                "second.store is the bucket itself: a mirror in what it mirrors is none; name another bucket"
                    .into(),
            );
        }
        check_span("second.keep_deleted", self.keep_deleted)?;
        check_span("second.compare_every", self.compare_every)
    }
}

fn check_span(name: &str, span: Span) -> Result<(), String> {
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3660 * 86_400));
    match (least..=most).contains(&span.0) {
        true => Ok(()),
        false => Err(format!("{name} must be between 1 s and 87840 h")),
    }
}

/// Bounds of one run; what is left out is as in [`Limits`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsSection {
    time_seconds: Option<u64>,
    grace_seconds: Option<u64>,
    free_percent: Option<u64>,
    cold_free_percent: Option<u64>,
    cold_after_seconds: Option<u64>,
    batch_mebibytes: Option<u64>,
    cache_mebibytes: Option<usize>,
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let config: Self = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        config.price_book()?;
        config.anchor_at()?;
        if let Some(second) = &config.second {
            second.check(&config.store)?;
        }
        config.check_parity()?;
        Ok(config)
    }

    fn check_parity(&self) -> Result<(), String> {
        match (&self.parity, &self.second) {
            (None, _) => Ok(()),
            (Some(_), None) => Err("[parity] needs [second]: parities lie in the second store".into()),
            (Some(parity), Some(_)) => check_span("parity.after", parity.after),
        }
    }

    /// What a host of the cleaner needs of the second store, if there is one.
    pub fn second(&self) -> Option<Second> {
        let section = self.second.as_ref()?;
        Some(section.second(self.parity.as_ref()))
    }

    /// The prices that reports are shown with.
    ///
    /// # Errors
    /// If there is no such book.
    pub fn price_book(&self) -> Result<&'static ProviderPrices, String> {
        match &self.price_book {
            Some(name) => ProviderPrices::named(name).map_err(|error| error.to_string()),
            None => Ok(&ProviderPrices::all()[0]),
        }
    }

    /// Where the roots are.
    fn anchor_at(&self) -> Result<AnchorAt, String> {
        let certificate = (self.anchor_identity.clone(), self.anchor_authority.clone());
        let anchor = AnchorAt::read(&self.anchor, certificate).map_err(|why| format!("anchor: {why}"))?;
        match (&anchor, self.roots) {
            (AnchorAt::Service { .. }, Some(_)) => {
                Err("roots: the anchor's address names the volume: leave it out".into())
            }
            (AnchorAt::Service { .. } | AnchorAt::Table(_), _) => Ok(anchor),
        }
    }

    /// Whose roots are asked for, where it is said.
    fn volume(anchor: &AnchorAt, roots: Option<TenantVolume>) -> Option<TenantVolume> {
        match anchor {
            AnchorAt::Service { url, .. } => Some(url.volume()),
            AnchorAt::Table(_) => roots,
        }
    }

    /// What a host of the cleaner needs of it.
    ///
    /// # Errors
    /// What is wrong with the anchor's address.
    pub fn settings(&self, prices: &'static ProviderPrices) -> Result<Settings, String> {
        let anchor = self.anchor_at()?;
        Ok(Settings {
            store: self.store.clone(),
            roots: Self::volume(&anchor, self.roots).map_or(RootsAt::Table, RootsAt::Volume),
            anchor,
            families: vec![self.family],
            limits: self.limits(),
            prices,
        })
    }

    /// What is cleaned.
    ///
    /// # Errors
    /// As of [`Config::settings`].
    pub fn target(&self) -> Result<Target, String> {
        Ok(Target {
            volume: Self::volume(&self.anchor_at()?, self.roots),
            family: self.family,
        })
    }

    /// The bounds of one run.
    pub fn limits(&self) -> Limits {
        let section = &self.limits;
        let mut limits = Limits::default();
        let seconds = |field: &mut Duration, value: Option<u64>| {
            if let Some(value) = value {
                *field = Duration::from_secs(value);
            }
        };
        seconds(&mut limits.time, section.time_seconds);
        seconds(&mut limits.grace, section.grace_seconds);
        seconds(&mut limits.cold_after, section.cold_after_seconds);
        if let Some(percent) = section.free_percent {
            limits.free_per_mille = percent.min(100) * 10;
        }
        if let Some(percent) = section.cold_free_percent {
            limits.cold_free_per_mille = percent.min(100) * 10;
        }
        if let Some(mebibytes) = section.batch_mebibytes {
            limits.batch_bytes = mebibytes.clamp(1, 1 << 20) << 20;
        }
        if let Some(mebibytes) = section.cache_mebibytes {
            limits.cache_bytes = mebibytes.clamp(1, 1 << 20) << 20;
        }
        limits
    }
}

fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

fn some_from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    from_text(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../firn-cleaner.example.toml");

    #[test]
    fn the_example_is_read_and_shows_the_defaults() {
        let config: Config = toml::from_str(EXAMPLE).expect("the example is right");
        let shown: Config = toml::from_str(&EXAMPLE.replace("\n# ", "\n")).expect("commented keys are right");
        let defaults = format!("{:?}", config.limits());
        assert_eq!(defaults, format!("{:?}", Limits::default()));
        assert_eq!(format!("{:?}", shown.limits()), defaults);
        assert_eq!(config.roots, None);
        assert!(shown.roots.is_some() && shown.metrics.is_some());
        assert!(config.second.is_none());
        let second = shown.second.as_ref().expect("shown");
        second.check(&shown.store).expect("another bucket");
        assert_eq!(second.keep_deleted, thirty_days());
        assert_eq!((second.compare_every, second.repair), (an_hour(), yes()));
        let parity = shown.parity.as_ref().expect("shown");
        assert_eq!((parity.after, parity.copies), (thirty_days(), Some(Copies::Keep)));
        assert!(config.parity.is_none());
    }

    #[test]
    fn a_second_store_that_cannot_be_meant_is_refused() {
        let first: StoreUrl = "file:///srv/store".parse().expect("an address");
        for (text, why) in [
            ("store = \"file:///srv/store\"", "the bucket itself"),
            (
                "store = \"file:///m\"\nkeep_deleted = \"0 s\"",
                "second.keep_deleted",
            ),
            (
                "store = \"file:///m\"\ncompare_every = \"0 s\"",
                "second.compare_every",
            ),
        ] {
            let section: SecondSection = toml::from_str(text).expect(text);
            let error = section.check(&first).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn parities_that_cannot_be_meant_are_refused() {
        let second = "[second]\nstore = \"file:///m\"\n";
        for (text, why) in [
            ("[parity]\n".to_owned(), "needs [second]"),
            (format!("{second}[parity]\nafter = \"0 s\"\n"), "parity.after"),
            (
                format!("{second}[parity]\ncopies = \"shed\"\n"),
                "either \"keep\" or \"drop\"",
            ),
        ] {
            let read = toml::from_str::<Config>(&format!("{EXAMPLE}\n{text}"));
            let error = read.map_err(|error| error.to_string());
            let error = error.and_then(|config| config.check_parity()).expect_err(&text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_that_is_not_known_is_refused() {
        let wrong = format!("{EXAMPLE}\nhaste = 1\n");
        let error = toml::from_str::<Config>(&wrong).expect_err("unknown").to_string();
        assert!(error.contains("haste"), "{error}");
    }
}
