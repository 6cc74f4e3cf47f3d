//! Settings of a host, by variables of its environment: the one way that Lambda, Azure Functions and a shell have in common.
//!
//! Every variable that begins with [`PREFIX`] must be one of those below, so that a misspelt limit is an error and not a
//! surprise. Credentials are the providers' own variables or roles, never settings of ours.

use crate::AnchorAt;
use firn_cleaner::Limits;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_store::{ProviderPrices, StoreUrl};
use std::{collections::BTreeMap, path::PathBuf, str::FromStr, time::Duration};

/// What the names of all settings begin with.
pub const PREFIX: &str = "FIRN_CLEANER_";

const MIB: u64 = 1 << 20;
const DAY_SECONDS: u64 = 24 * 3600;
/// Lambda ends a function after 15 minutes; a run needs some of them to come to its end.
const MAX_RUN_SECONDS: u64 = 840;

/// All of it, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `FIRN_CLEANER_STORE`: the bucket, as edges name it.
    pub store: StoreUrl,
    /// `FIRN_CLEANER_ANCHOR`: the anchor service or the table, as edges name it, or the control plane's table. `FIRN_CLEANER_TABLE` is an
    /// older name. With `https://`, `FIRN_CLEANER_ANCHOR_IDENTITY` and `FIRN_CLEANER_ANCHOR_AUTHORITY` name the files of the certificate.
    pub anchor: AnchorAt,
    /// `FIRN_CLEANER_ROOTS`: where in the table roots are. An address of an anchor service says it itself.
    pub roots: RootsAt,
    /// `FIRN_CLEANER_FAMILIES`: those that a timer cleans; empty: all that are found in the bucket.
    pub families: Vec<FamilyId>,
    /// Bounds of one run of one family.
    pub limits: Limits,
    /// `FIRN_CLEANER_PRICES`: by which prices money is shown.
    pub prices: &'static ProviderPrices,
}

/// Where roots are in the table, and with that how the bucket is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootsAt {
    /// `table`: in the edges' own table.
    Table,
    /// `service`: the table is the service's, and the bucket is one that it manages: `<tenant>/<volume>/<family>/…`.
    Service,
    /// `TENANT/VOLUME`: the table is the service's, and the store is the place of this volume alone.
    Volume(TenantVolume),
}

impl FromStr for RootsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "table" => Ok(Self::Table),
            "service" => Ok(Self::Service),
            volume => volume
                .parse()
                .map(Self::Volume)
                .map_err(|error| format!("{error}; or write table, or service")),
        }
    }
}

/// Why the environment holds no usable settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// One that has no default is not there.
    #[error("{name} is not set; it is {meaning}")]
    Missing {
        /// The variable.
        name: String,
        /// What it is for.
        meaning: &'static str,
    },
    /// One cannot be what it is.
    #[error("{name}={given:?}: {why}")]
    Value {
        /// The variable.
        name: String,
        /// What it holds, shortened.
        given: String,
        /// What is wrong and what would be right.
        why: String,
    },
    /// One that is not known.
    #[error("{name} is no setting of the cleaner; known are {known}")]
    Unknown {
        /// The variable.
        name: String,
        /// Those there are.
        known: String,
    },
}

/// The settings and how they are called behind the prefix.
const KNOWN: [&str; 18] = [
    "STORE",
    "ANCHOR",
    "ANCHOR_IDENTITY",
    "ANCHOR_AUTHORITY",
    "TABLE",
    "ROOTS",
    "FAMILIES",
    "PRICES",
    "RUN_SECONDS",
    "GRACE_SECONDS",
    "LEASE_SECONDS",
    "FREE_PER_MILLE",
    "COLD_FREE_PER_MILLE",
    "COLD_AFTER_SECONDS",
    "BATCH_MIB",
    "CACHE_MIB",
    "JUDGED_SEGMENTS",
    "DELETES",
];

struct Variables(BTreeMap<String, String>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &'static str,
        meaning: &'static str,
    ) -> Result<T, SettingsError> {
        let given = self.get(name).ok_or_else(|| SettingsError::Missing {
            name: format!("{PREFIX}{name}"),
            meaning,
        })?;
        given
            .parse()
            .map_err(|error: T::Err| wrong(name, given, error.to_string()))
    }

    fn number(&self, name: &'static str, least: u64, most: u64, default: u64) -> Result<u64, SettingsError> {
        let Some(given) = self.get(name) else {
            return Ok(default);
        };
        let number = given
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            wrong(
                name,
                given,
                format!("a whole number from {least} to {most} is needed"),
            )
        })
    }
}

fn wrong(name: &str, given: &str, why: String) -> SettingsError {
    SettingsError::Value {
        name: format!("{PREFIX}{name}"),
        given: given.chars().take(200).collect(),
        why,
    }
}

impl Settings {
    /// Reads the settings of this process.
    ///
    /// # Errors
    /// As [`Settings::from_variables`].
    pub fn from_environment() -> Result<Self, SettingsError> {
        // What is not Unicode stays visible, and is refused where it is one of ours.
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::from_variables(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// Reads the settings out of all variables of an environment; those without [`PREFIX`] are passed over.
    ///
    /// # Errors
    /// [`SettingsError`], which names the variable and what is wrong with it.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let mut ours = BTreeMap::new();
        for (name, value) in variables {
            let Some(short) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if !KNOWN.contains(&short) {
                return Err(SettingsError::Unknown {
                    known: KNOWN.map(|known| format!("{PREFIX}{known}")).join(", "),
                    name,
                });
            }
            ours.insert(short.to_owned(), value);
        }
        let given = Variables(ours);
        let anchor = anchor(&given)?;
        let roots = match (given.get("ROOTS"), &anchor) {
            (None, AnchorAt::Table(_)) => RootsAt::Table,
            (None, AnchorAt::Service { url, .. }) => RootsAt::Volume(url.volume()),
            (Some(text), AnchorAt::Service { .. }) => {
                let why = "the anchor's address names the volume: leave it out";
                return Err(wrong("ROOTS", text, why.to_owned()));
            }
            (Some(text), AnchorAt::Table(_)) => text.parse().map_err(|why| wrong("ROOTS", text, why))?,
        };
        let families = families(given.get("FAMILIES").unwrap_or_default())?;
        let fits = match roots {
            RootsAt::Table => Ok(()),
            RootsAt::Service if families.is_empty() => Ok(()),
            RootsAt::Service => Err("a bucket of the service is searched for all its volumes: leave it out"),
            RootsAt::Volume(_) if families.len() == 1 => Ok(()),
            RootsAt::Volume(_) => Err("one volume has one family, and firn volume show tells it"),
        };
        if let Err(why) = fits {
            let shown = given.get("FAMILIES").unwrap_or_default();
            return Err(wrong("FAMILIES", shown, why.to_owned()));
        }
        let defaults = Limits::default();
        let mib = |bytes: u64| bytes / MIB;
        let run_seconds = given.number("RUN_SECONDS", 1, MAX_RUN_SECONDS, 50)?;
        let lease_seconds =
            given.number("LEASE_SECONDS", 2, DAY_SECONDS, defaults.cleaner_lease.as_secs())?;
        if lease_seconds <= run_seconds {
            let why = format!(
                "a cleaner would be taken for dead while it runs; more than {PREFIX}RUN_SECONDS={run_seconds} is needed"
            );
            return Err(wrong("LEASE_SECONDS", &lease_seconds.to_string(), why));
        }
        let limits = Limits {
            time: Duration::from_secs(run_seconds),
            cleaner_lease: Duration::from_secs(lease_seconds),
            grace: Duration::from_secs(given.number(
                "GRACE_SECONDS",
                0,
                365 * DAY_SECONDS,
                defaults.grace.as_secs(),
            )?),
            free_per_mille: given.number("FREE_PER_MILLE", 1, 1000, defaults.free_per_mille)?,
            cold_free_per_mille: given.number(
                "COLD_FREE_PER_MILLE",
                1,
                1000,
                defaults.cold_free_per_mille,
            )?,
            cold_after: Duration::from_secs(given.number(
                "COLD_AFTER_SECONDS",
                0,
                365 * DAY_SECONDS,
                defaults.cold_after.as_secs(),
            )?),
            batch_bytes: given.number("BATCH_MIB", 1, 1024, mib(defaults.batch_bytes))? * MIB,
            cache_bytes: (given.number("CACHE_MIB", 1, 4096, mib(defaults.cache_bytes as u64))? * MIB)
                as usize,
            judged_segments: given.number("JUDGED_SEGMENTS", 1, 100_000, defaults.judged_segments as u64)?
                as usize,
            deletes: given.number("DELETES", 1, 100_000, defaults.deletes as u64)? as usize,
            ..defaults
        };
        Ok(Self {
            store: given.parsed("STORE", "the bucket, such as s3://BUCKET/PREFIX?region=REGION")?,
            anchor,
            roots,
            families,
            limits,
            prices: match given.get("PRICES") {
                None => &ProviderPrices::all()[0],
                Some(name) => {
                    ProviderPrices::named(name).map_err(|error| wrong("PRICES", name, error.to_string()))?
                }
            },
        })
    }
}

/// The anchor, by its name or by its older one.
fn anchor(given: &Variables) -> Result<AnchorAt, SettingsError> {
    let (name, text) = match (given.get("ANCHOR"), given.get("TABLE")) {
        (Some(text), None) => ("ANCHOR", text),
        (None, Some(text)) => ("TABLE", text),
        (Some(_), Some(text)) => {
            let why = format!("this is the older name of {PREFIX}ANCHOR, which is set, too");
            return Err(wrong("TABLE", text, why));
        }
        (None, None) => {
            return Err(SettingsError::Missing {
                name: format!("{PREFIX}ANCHOR"),
                meaning: "the anchor service or the table, such as dynamodb://TABLE?region=REGION or azure-table://TABLE?account=ACCOUNT",
            });
        }
    };
    let path = |name| given.get(name).map(PathBuf::from);
    let certificate = (path("ANCHOR_IDENTITY"), path("ANCHOR_AUTHORITY"));
    AnchorAt::read(text, certificate).map_err(|why| wrong(name, text, why))
}

/// `all` or nothing: those in the bucket. Otherwise ids with commas between them.
fn families(given: &str) -> Result<Vec<FamilyId>, SettingsError> {
    let given = given.trim();
    if given.is_empty() || given == "all" {
        return Ok(Vec::new());
    }
    given
        .split(',')
        .map(|one| {
            one.trim().parse().map_err(|error: firn_format::ParseIdError| {
                wrong("FAMILIES", one, format!("{error}; or write all"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    const PLACES: [(&str, &str); 2] = [
        ("FIRN_CLEANER_STORE", "s3://bucket/prefix?region=eu-central-1"),
        ("FIRN_CLEANER_TABLE", "dynamodb://roots?region=eu-central-1"),
    ];

    #[test]
    fn two_places_are_enough_and_other_variables_are_nobodys_business() {
        let mut given = PLACES.to_vec();
        given.push(("PATH", "/bin"));
        let settings = read(&given).expect("settings");
        assert!(settings.families.is_empty());
        assert_eq!(settings.limits.time, Duration::from_secs(50));
        assert_eq!(settings.limits.grace, Limits::default().grace);
        assert_eq!(settings.prices.name, ProviderPrices::all()[0].name);
    }

    const VOLUME: &str = "ten_01010101010101010101010101010101/vol_02020202020202020202020202020202";

    #[test]
    fn roots_that_the_service_keeps_are_named_with_as_many_families_as_there_can_be() {
        let family = "00112233445566778899aabbccddeeff";
        let two = format!("{family},ffeeddccbbaa99887766554433221100");
        for (roots, families, expected) in [
            ("table", "all", Ok(RootsAt::Table)),
            ("service", "all", Ok(RootsAt::Service)),
            ("service", family, Err("searched for all its volumes")),
            (
                VOLUME,
                family,
                Ok(RootsAt::Volume(VOLUME.parse().expect("a volume"))),
            ),
            (VOLUME, "all", Err("firn volume show")),
            (VOLUME, &two, Err("one volume has one family")),
            ("vol_1", family, Err("or write table, or service")),
        ] {
            let mut given = PLACES.to_vec();
            given.push(("FIRN_CLEANER_ROOTS", roots));
            given.push(("FIRN_CLEANER_FAMILIES", families));
            match (read(&given), expected) {
                (Ok(settings), Ok(expected)) => assert_eq!(settings.roots, expected),
                (Err(error), Err(said)) => assert!(error.to_string().contains(said), "{error}"),
                (read, _) => panic!("{roots} {families}: {read:?}"),
            }
        }
    }

    #[test]
    fn every_limit_arrives_in_its_unit() {
        let mut given = PLACES.to_vec();
        given.extend([
            (
                "FIRN_CLEANER_FAMILIES",
                "00112233445566778899aabbccddeeff, ffeeddccbbaa99887766554433221100",
            ),
            ("FIRN_CLEANER_RUN_SECONDS", "20"),
            ("FIRN_CLEANER_GRACE_SECONDS", "0"),
            ("FIRN_CLEANER_LEASE_SECONDS", "30"),
            ("FIRN_CLEANER_FREE_PER_MILLE", "300"),
            ("FIRN_CLEANER_COLD_FREE_PER_MILLE", "30"),
            ("FIRN_CLEANER_COLD_AFTER_SECONDS", "60"),
            ("FIRN_CLEANER_BATCH_MIB", "16"),
            ("FIRN_CLEANER_CACHE_MIB", "32"),
            ("FIRN_CLEANER_JUDGED_SEGMENTS", "100"),
            ("FIRN_CLEANER_DELETES", "10"),
            ("FIRN_CLEANER_PRICES", "azure-hot-east-us"),
        ]);
        let settings = read(&given).expect("settings");
        assert_eq!(settings.families.len(), 2);
        let limits = settings.limits;
        assert_eq!(limits.time, Duration::from_secs(20));
        assert_eq!(limits.grace, Duration::ZERO);
        assert_eq!(limits.cleaner_lease, Duration::from_secs(30));
        assert_eq!((limits.free_per_mille, limits.deletes), (300, 10));
        assert_eq!(
            (limits.cold_free_per_mille, limits.cold_after),
            (30, Duration::from_secs(60))
        );
        assert_eq!((limits.batch_bytes, limits.cache_bytes), (16 << 20, 32 << 20));
        assert_eq!(limits.judged_segments, 100);
        assert_eq!(settings.prices.name, "azure-hot-east-us");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_variable() {
        for (name, value, said) in [
            ("FIRN_CLEANER_STORE", "bucket", "FIRN_CLEANER_STORE=\"bucket\""),
            ("FIRN_CLEANER_TABLE", "postgres://x", "FIRN_CLEANER_TABLE"),
            ("FIRN_CLEANER_FAMILIES", "main", "32 hexadecimal digits"),
            ("FIRN_CLEANER_RUN_SECONDS", "0", "from 1 to 840"),
            ("FIRN_CLEANER_RUN_SECONDS", "1 min", "from 1 to 840"),
            ("FIRN_CLEANER_FREE_PER_MILLE", "1001", "from 1 to 1000"),
            ("FIRN_CLEANER_BATCH_MIB", "99999999999999999999", "from 1 to 1024"),
            ("FIRN_CLEANER_LEASE_SECONDS", "50", "taken for dead"),
            ("FIRN_CLEANER_PRICES", "free", "s3-us-east-1"),
            ("FIRN_CLEANER_GRACE", "3600", "is no setting of the cleaner"),
        ] {
            let mut given = PLACES.to_vec();
            given.retain(|(known, _)| *known != name);
            given.push((name, value));
            let error = read(&given).expect_err(name).to_string();
            assert!(error.contains(said), "{error}");
        }
        let error = read(&PLACES[..1]).expect_err("no table").to_string();
        assert!(error.contains("FIRN_CLEANER_ANCHOR is not set"), "{error}");
    }

    #[test]
    fn an_anchor_service_is_for_the_one_volume_that_its_address_names() {
        let url = format!("lambda://abc/{VOLUME}?region=eu-central-1");
        let family = ("FIRN_CLEANER_FAMILIES", "00112233445566778899aabbccddeeff");
        let given = [PLACES[0], ("FIRN_CLEANER_ANCHOR", &url), family];
        let settings = read(&given).expect("settings");
        assert_eq!(settings.roots, RootsAt::Volume(VOLUME.parse().expect("a volume")));
        assert!(matches!(settings.anchor, AnchorAt::Service { .. }));
        for (more, said) in [
            (("FIRN_CLEANER_ROOTS", VOLUME), "leave it out"),
            (PLACES[1], "the older name"),
            (
                ("FIRN_CLEANER_ANCHOR_IDENTITY", "/srv/cleaner.pem"),
                "not with a certificate",
            ),
        ] {
            let given = [&given[..], &[more]].concat();
            let error = read(&given).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        let error = read(&given[..2]).expect_err("no family").to_string();
        assert!(error.contains("one volume has one family"), "{error}");
    }
}
