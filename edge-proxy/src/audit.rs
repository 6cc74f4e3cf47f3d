//! `firn-edge audit`: a random sample of what the store should have, read from it, and with which probability damage would have been found;
//! and what past ones found.

mod listing;
mod reports;

use crate::{
    admin::{Client, Command, Reply, expect_end},
    auditor::AuditPart,
    commands::Output,
    config::Config,
    failure::Failure,
    report::{size, span},
    snapshots::utc,
};
use firn_cleaner::{
    AuditReport, DEFAULT_CHALLENGES, Detection, MAX_CHALLENGES, ManifestAudit, SecondAudit, VolumeAudit,
};
use firn_env::{eprintln, print, println};
use firn_quantity::{Dollars, Money};
use std::{fmt::Write, path::PathBuf};

/// What is asked about audits.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuditArguments {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    #[command(flatten)]
    asked: AskedArguments,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum AuditCommand {
    /// Past audits and what they found, oldest first: those by the calendar and those that were asked for, of all edges that had the volume.
    /// Checks signatures and that no report is missing. The edge need not run.
    List {
        /// Only what this machine has; the bucket is not asked.
        #[arg(long)]
        here: bool,
        /// For people or as JSON, with the whole reports.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// One report with all that it says.
    Show {
        /// Its number, as the list has it.
        #[arg(value_name = "REPORT")]
        sequence: u64,
        /// For people, or as the signed file: what to give to somebody who verifies it.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Checks reports against public keys, and that they follow each other. Needs no edge, no configuration and no bucket.
    Verify {
        /// Files, as `show --output json` prints them.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A key of the volume's owner, as `show` prints it: learn it from the owner, not from where the report comes from. May be given
        /// several times: an edge has a new key after each start.
        #[arg(long = "key", required = true, value_name = "64 HEX DIGITS", value_parser = key)]
        keys: Vec<[u8; 32]>,
    },
}

/// How much is asked.
#[derive(Clone, Debug, clap::Args)]
struct AskedArguments {
    /// Bytes that are drawn at random; each takes one request. 688 find 1 % of damage with 99.9 %.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_CHALLENGES,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHALLENGES)))]
    challenges: u32,
    /// What the store may charge for it, in dollars. What it is not enough for is left out, and that is said.
    #[arg(long, value_name = "DOLLARS", default_value = "1", value_parser = dollars)]
    budget: Money,
    /// Draws by this seed, as a report has it, instead of at random: the same of the same roots.
    #[arg(long, value_name = "64 HEX DIGITS", value_parser = seed)]
    seed: Option<[u8; 32]>,
    /// Leaves out the second store, if there is one.
    #[arg(long)]
    first_store_alone: bool,
    /// Begins where the last one was cut off that the budget was not enough for, as those by the calendar do.
    #[arg(long = "continue", conflicts_with = "seed")]
    goes_on: bool,
    /// For people or as JSON.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

fn seed(text: &str) -> Result<[u8; 32], String> {
    firn_ids::parse_hex(text).ok_or_else(|| "a seed has 64 lower-case hexadecimal digits".to_owned())
}

fn dollars(text: &str) -> Result<Money, String> {
    Money::parse(text).ok_or_else(|| format!("{text:?} is no amount of dollars such as 0.25"))
}

fn key(text: &str) -> Result<[u8; 32], String> {
    firn_ids::parse_hex(text).ok_or_else(|| "a key has 64 lower-case hexadecimal digits".to_owned())
}

impl AuditArguments {
    /// Does what needs no configuration; `None` if it needs one.
    pub fn run_without_configuration(&self) -> Option<Result<(), Failure>> {
        match &self.command {
            Some(AuditCommand::Verify { files, keys }) => Some(reports::verify(files, keys)),
            None | Some(AuditCommand::List { .. } | AuditCommand::Show { .. }) => None,
        }
    }
}

/// `firn-edge audit` and what belongs to it.
pub async fn run(config: &Config, arguments: AuditArguments) -> Result<(), Failure> {
    match arguments.command {
        None => audit(config, arguments.asked).await,
        Some(AuditCommand::List { here, output }) => reports::list(config, here, output).await,
        Some(AuditCommand::Show { sequence, output }) => reports::show(config, sequence, output).await,
        Some(AuditCommand::Verify { files, keys }) => reports::verify(&files, &keys),
    }
}

/// Rounded down: never more than is true.
fn percent(probability: f64) -> String {
    format!("{:.2} %", (probability * 10_000.0).floor() / 100.0)
}

/// What `status` tells; nothing if no audit was ever made or is to be.
pub fn line(audits: &AuditPart) -> Option<String> {
    let when = match (audits.is_running, audits.every_ms) {
        (true, _) => "one is under way".into(),
        (false, Some(every)) => format!("every {}", span(every)),
        (false, None) => "when asked for".into(),
    };
    let Some(last) = &audits.last else {
        audits.every_ms?;
        return Some(format!("{when}; none was made yet"));
    };
    let mut text = format!(
        "{when}; the last, {}: {}",
        utc(last.ended_at_ms),
        last.outcome.name()
    );
    if last.challenges > 0 {
        let found = percent(last.one_percent_found);
        let cost = Dollars(Money::of_nanos(last.nanodollars));
        let _ = write!(
            text,
            ", 1 % of damage would have been found with {found}, for {cost}"
        );
    }
    if let Some(second) = &last.second {
        let found = percent(second.one_percent_found);
        let _ = write!(text, "; in the second store with {found}");
    }
    if let Some(detail) = &last.detail {
        let _ = write!(text, "; {detail}");
    }
    if let Some(open) = &audits.rounds.open {
        let (began, audits) = (utc(open.began_at_ms), open.audits);
        let _ = write!(
            text,
            "; a round over several audits since {began}, {audits} of it so far"
        );
    }
    if let Some(last) = &audits.rounds.last {
        let (began, ended, audits) = (utc(last.began_at_ms), utc(last.ended_at_ms), last.audits);
        let _ = write!(
            text,
            "; everything was gone through over {audits} audits, {began} to {ended}"
        );
    }
    if audits.is_overdue {
        text.push_str("; OVERDUE: for three periods none found everything right (firn-edge audit list)");
    }
    if let Some(error) = &audits.not_kept {
        let _ = write!(text, "; it could not be kept: {error}");
    }
    Some(text)
}

/// Asks the running edge, and fails if something is damaged (6) or neither this audit nor those that it went on with asked for everything (1).
async fn audit(config: &Config, arguments: AskedArguments) -> Result<(), Failure> {
    let AskedArguments {
        challenges,
        budget,
        seed,
        first_store_alone,
        goes_on,
        output,
    } = arguments;
    eprintln!(
        "auditing: {challenges} challenges, for {} at most by the edge's price book",
        Dollars(budget)
    );
    let command = Command::Audit {
        challenges,
        budget,
        seed,
        second: !first_store_alone,
        goes_on,
    };
    let mut client = Client::ask(config, command).await?;
    let (report, not_signed) = match expect_end(&mut client, "auditing").await? {
        Reply::Audited { report, not_signed } => (report, not_signed),
        Reply::Damage { detail, .. } => {
            return Err(Failure::damaged(format!(
                "the volume's root itself is lost or damaged: {detail}"
            )));
        }
        other => {
            return Err(Failure::new(format!(
                "the edge answered something else than it was asked: {other:?}"
            )));
        }
    };
    match output {
        Output::Text => print!("{}", text(&report)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::new)?),
    }
    if let Some(why) = &not_signed {
        eprintln!("{why}");
    }
    if report.is_first_intact() && !report.is_intact() {
        return Err(Failure::damaged(
            "what is named above is missing or altered in the second store. The first store has everything that was asked of it, and clients are \
             served. Delete what is altered from the second store, by its name and with credentials that may; its mirror copies that and what is \
             missing from the first store at the next comparison (firn-cleaner mirror, a start of the edge, or after second.compare_every)",
        ));
    }
    if !report.is_intact() {
        return Err(Failure::damaged(
            "what is named above is lost or damaged. `firn-edge verify` names all files that this concerns; bring the store's objects \
             back from its versions, or the files from a snapshot or a backup",
        ));
    }
    if !report.has_come_to_the_end() {
        return Err(Failure::new(
            "nothing wrong was found, but not everything was asked; the figures above are of what was. Go on with --continue, or ask again with \
             a larger --budget",
        ));
    }
    Ok(())
}

/// The report for people.
fn text(report: &AuditReport) -> String {
    let mut text = String::new();
    for volume in &report.volumes {
        volume_lines(&mut text, volume);
    }
    if report.volumes.is_empty() {
        text.push_str("nothing was committed yet: there is nothing to ask the store for\n");
    }
    let usage = &report.usage;
    let _ = writeln!(
        text,
        "it took {} requests and {}, for {} by {}",
        usage.requests(),
        size(usage.bytes_down),
        Dollars(report.cost),
        report.prices
    );
    text
}

fn volume_lines(text: &mut String, volume: &VolumeAudit) {
    let _ = writeln!(
        text,
        "volume {}: version {} of {}, root {}",
        volume.name,
        volume.version,
        utc(volume.committed_at_ms),
        volume.root
    );
    let _ = writeln!(
        text,
        "  trees: {} nodes and inodes ({}) of the head and of {} of {} snapshots and other retained roots read, {} lost or damaged",
        volume.read_objects,
        size(volume.read_bytes),
        volume.walked_roots,
        volume.retained_roots,
        volume.damaged_nodes
    );
    let _ = writeln!(
        text,
        "  data: {} of {} challenges among {} objects ({}) answered: {} intact, {} lost or damaged",
        volume.answered(),
        volume.asked,
        volume.data_objects,
        size(volume.data_bytes),
        volume.intact,
        volume.damaged_draws
    );
    if volume.released > 0 {
        let _ = writeln!(
            text,
            "  {} challenges were of what the volume gave up meanwhile, and do not count",
            volume.released
        );
    }
    if volume.data_bytes > 0 {
        let _ = writeln!(text, "  drawn by seed {}: {}", volume.seed, volume.drawn);
        let found: Vec<String> = volume.detections.iter().map(detection).collect();
        let _ = writeln!(
            text,
            "  would have been found, if so much of the data were damaged: {}",
            found.join("; ")
        );
    }
    match &volume.manifest {
        Some(manifest) => manifest_lines(text, manifest),
        None => text
            .push_str("  manifest: none, so what no tree needs was not audited (firn-edge manifest begin)\n"),
    }
    match (volume.began_at.is_some(), volume.ends_a_round()) {
        (false, _) => {}
        (true, false) => text.push_str("  it began where an audit before was cut off, and looked at nothing before that\n"),
        (true, true) => text.push_str(
            "  it began where an audit before was cut off, and came to the end: with those before it everything was gone through\n",
        ),
    }
    if volume.goes_on_at.is_some() {
        text.push_str(
            "  the budget ended before everything was gone through; the next one can go on there\n",
        );
    }
    for segment in &volume.lost_segments {
        let _ = writeln!(text, "  lost: segment {segment}");
    }
    for file in &volume.damaged {
        let _ = writeln!(text, "  damaged: inode {}: {}", file.inode, file.detail);
    }
    if let Some(second) = &volume.second {
        second_lines(text, second);
    }
}

fn second_lines(text: &mut String, second: &SecondAudit) {
    match second.has_manifest {
        true => {
            let _ = writeln!(
                text,
                "  second store: of {} segments that must exist {} are copied, {} are in parity groups without a copy, {} wait, {} are missing; {} \
                 groups",
                second.segments,
                second.copies,
                second.in_groups,
                second.waiting,
                second.missing,
                second.groups
            );
        }
        false => text.push_str(
            "  second store: what the data's challenges drew, read from there; what no tree needs was not, since no manifest is whole\n",
        ),
    }
    let found: Vec<String> = second.detections.iter().map(detection).collect();
    let _ = writeln!(
        text,
        "  second store: {} of {} challenges answered: {} intact, {} missing or altered{}; would have been found, if so much of it were damaged: {}",
        second.answered(),
        second.asked,
        second.intact,
        second.damaged,
        match second.has_manifest {
            true => format!(", among {}", size(second.bytes)),
            false => String::new(),
        },
        found.join("; ")
    );
    if second.released > 0 {
        let _ = writeln!(
            text,
            "  second store: {} challenges were of what was given up, copied or written anew meanwhile, and do not count",
            second.released
        );
    }
    if second.unreadable_groups > 0 {
        let _ = writeln!(
            text,
            "  second store: {} parity groups have objects that cannot be read; the log names them",
            second.unreadable_groups
        );
    }
    for damage in &second.named {
        let _ = writeln!(text, "  in the second store: {}: {}", damage.key, damage.detail);
    }
    if let Some(error) = &second.error {
        let _ = writeln!(text, "  second store: it could not be audited: {error}");
    }
}

fn manifest_lines(text: &mut String, manifest: &ManifestAudit) {
    let _ = writeln!(
        text,
        "  manifest: {} segments ({}) must exist, {} of them are listed with their length; {} of {} challenges found them as they were put; {} \
         are lost, {} altered{}",
        manifest.segments,
        size(manifest.bytes),
        manifest.shown,
        manifest.intact,
        manifest.asked,
        manifest.lost,
        manifest.altered,
        match manifest.is_complete {
            true => "",
            false => "; not all of it was gone through",
        }
    );
    let _ = writeln!(text, "  coverage: the manifest {}", manifest.coverage_text());
    for segment in &manifest.altered_segments {
        let _ = writeln!(text, "  altered: segment {segment}");
    }
}

fn detection(detection: &Detection) -> String {
    format!(
        "{} % with {}",
        detection.share * 100.0,
        percent(detection.probability)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_never_rounded_up() {
        let shown = |share, probability| detection(&Detection { share, probability });
        assert_eq!(shown(0.01, 0.999_999), "1 % with 99.99 %");
        assert_eq!(shown(0.0001, 0.066_49), "0.01 % with 6.64 %");
    }
}
