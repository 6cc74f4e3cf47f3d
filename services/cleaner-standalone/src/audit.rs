//! `firn-cleaner audit`: a random sample of what the bucket should have, read by somebody who has no keys.

use crate::{Failure, config::Config, failed, failure};
use firn_cleaner::{AuditPlace, AuditReport, AuditRequest, CleanError, DEFAULT_CHALLENGES, MAX_CHALLENGES};
use firn_cleaner_host::{Host, HostError, Target};
use firn_env::{eprintln, println};
use firn_format::VolumeId;
use firn_quantity::{Dollars, Money};
use firn_store::{ProviderPrices, Route};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fmt::Display,
    fs::File,
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

/// A hundred bytes for each volume.
const PLACES_BYTES_MAX: u64 = 1 << 20;

/// How much is asked, and from where.
#[derive(clap::Args)]
pub struct AuditArguments {
    /// Bytes that are drawn at random in each volume; each takes one request. 688 find 1 % of damage with 99.9 %.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_CHALLENGES,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHALLENGES)))]
    challenges: u32,
    /// What the store may charge for it, in dollars. What it is not enough for is left out, and that is said.
    #[arg(long, value_name = "DOLLARS", default_value = "1", value_parser = dollars)]
    budget: Money,
    /// The program is not in the bucket's region: bytes cost what the internet does.
    #[arg(long)]
    over_internet: bool,
    /// Draws by this seed, as a report has it, instead of at random: the same of the same roots.
    #[arg(long, value_name = "64 HEX DIGITS", value_parser = seed)]
    seed: Option<[u8; 32]>,
    /// Leaves out the second store, if the configuration has one.
    #[arg(long)]
    first_store_alone: bool,
    /// A file that tells where an audit was cut off that the budget was not enough for: this one begins there, and writes where the next one
    /// does. A file that is not there yet means the beginning.
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    continue_by: Option<PathBuf>,
}

fn seed(text: &str) -> Result<[u8; 32], String> {
    firn_ids::parse_hex(text).ok_or_else(|| "a seed has 64 lower-case hexadecimal digits".to_owned())
}

fn dollars(text: &str) -> Result<Money, String> {
    Money::parse(text).ok_or_else(|| format!("{text:?} is no amount of dollars such as 0.25"))
}

/// Prints the report as one line of JSON; fails if something is damaged (6) or not everything was asked (1).
pub async fn audit(
    host: &Host,
    target: Target,
    prices: &ProviderPrices,
    config: &Config,
    arguments: &AuditArguments,
) -> Result<(), Failure> {
    let route = match arguments.over_internet {
        true => Route::Internet,
        false => Route::SameRegion,
    };
    let second = match config.second().filter(|_| !arguments.first_store_alone) {
        Some(second) => Some(host.second_to_audit(&second, route).await.map_err(failure)?),
        None => None,
    };
    let request = AuditRequest {
        volume: None,
        challenges: arguments.challenges,
        budget: arguments.budget,
        prices: prices.clone(),
        route,
        seed: arguments.seed,
        second,
        from: arguments
            .continue_by
            .as_deref()
            .map(places)
            .transpose()?
            .unwrap_or_default(),
    };
    eprintln!(
        "firn-cleaner: {} challenges in each volume, for {} at most by {}",
        request.challenges,
        Dollars(request.budget),
        prices.name
    );
    let report = match host.audit(target, &request).await {
        Ok(report) => report,
        Err(HostError::Clean { error, .. }) if matches!(*error, CleanError::Damaged(_)) => {
            return Err(damaged(format!("a root itself is lost or damaged: {error}")));
        }
        Err(error) => return Err(failure(error)),
    };
    let kept = arguments.continue_by.as_deref();
    let kept = kept.map_or(Ok(()), |path| keep_places(path, &report));
    println!(
        "{}",
        json!({
            "audit": report,
            "prices": prices.name,
            "cost": Dollars(report.cost).to_string(),
        })
    );
    // What was found is told, also where the place cannot be kept.
    verdict(&report)?;
    kept
}

/// Where audits of volumes go on.
fn places(path: &Path) -> Result<BTreeMap<VolumeId, AuditPlace>, Failure> {
    let wrong = |why: &dyn Display| {
        failed(format!(
            "{} does not tell where audits go on: {why}. Nothing was audited. Without the file the next audit begins at the beginning",
            path.display()
        ))
    };
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(PLACES_BYTES_MAX).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(wrong(&error)),
        Ok(_) => {}
    }
    let by_name: BTreeMap<String, AuditPlace> =
        serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    let by_id = by_name.into_iter().map(|(volume, place)| {
        let volume = volume.parse().map_err(|error| wrong(&error))?;
        Ok((volume, place))
    });
    by_id.collect()
}

fn keep_places(path: &Path, report: &AuditReport) -> Result<(), Failure> {
    let places: BTreeMap<&str, AuditPlace> = report
        .volumes
        .iter()
        .filter_map(|volume| Some((&*volume.volume, volume.goes_on_at?)))
        .collect();
    let written = serde_json::to_vec(&places).map_err(std::io::Error::other);
    // A file that was cut off is refused by the next audit.
    written
        .and_then(|bytes| std::fs::write(path, bytes))
        .map_err(|error| {
            failed(format!(
                "{}: {error}: the next audit cannot go on",
                path.display()
            ))
        })
}

fn damaged(message: String) -> Failure {
    Failure { message, code: 6 }
}

fn verdict(report: &AuditReport) -> Result<(), Failure> {
    let volumes = || report.volumes.iter();
    let manifests = || volumes().filter_map(|volume| volume.manifest.as_ref());
    let lost = volumes()
        .flat_map(|volume| &volume.lost_segments)
        .map(|segment| format!("segment {segment} is lost"));
    let altered = manifests()
        .flat_map(|manifest| &manifest.altered_segments)
        .map(|segment| format!("segment {segment} is not as it was put"));
    let files = volumes()
        .flat_map(|volume| &volume.damaged)
        .map(|file| file.detail.clone());
    let damage: Vec<String> = files.chain(lost).chain(altered).collect();
    let seconds = || volumes().filter_map(|volume| volume.second.as_ref());
    if report.is_first_intact() && !report.is_intact() {
        let named: Vec<String> = seconds()
            .flat_map(|second| &second.named)
            .map(|damage| format!("{}: {}", damage.key, damage.detail))
            .collect();
        return Err(damaged(format!(
            "in the second store: {}. The first has everything that was asked of it. Delete what is altered from the second store, by its name and \
             with credentials that may, and run `firn-cleaner mirror`: it copies that and what is missing",
            named.join("; ")
        )));
    }
    if !report.is_intact() {
        return Err(damaged(format!("lost or damaged: {}", damage.join("; "))));
    }
    if let Some(error) = seconds().find_map(|second| second.error.as_ref()) {
        return Err(failed(format!(
            "nothing wrong was found, but the second store could not be audited: {error}"
        )));
    }
    if !report.has_come_to_the_end() {
        return Err(failed(
            "nothing wrong was found, but not everything was asked by this audit: the budget was not enough (--continue-by goes over everything \
             by and by), nothing was committed yet, or the volume went on too fast",
        ));
    }
    Ok(())
}
