//! Judgement of an upgrade: whether this build can serve what is here, and whether the build before could go on afterwards.
//!
//! ```text
//! what served here last (the record, else the release before this one)  ──writes──▶  does this build read it?
//! this build                                                            ──writes──▶  does that one read it? (going back)
//! what is here: identity, journal files, root                           ──read──▶    by this build, now
//! ```
//!
//! To be run with the new program before it takes the old one's place; nothing is changed.

use crate::{
    config::{Config, EdgeConfig},
    failure::Failure,
    finding::{self, Finding},
    formats::{self, FormatSet, ServedBy},
    identity::Identity,
    parts::Outside,
    readable,
    report::size,
};
use firn_env::println;
use firn_format::{JOURNAL_HEADER_BYTES, JournalFileHeader};
use std::{io::Read, path::Path};

/// Where the journal's files are, below a state directory.
const JOURNAL: &str = "journal";
/// What a package takes while it is unpacked: the old program, the new one, and what is in between.
const PROGRAMS: u64 = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Options {
    /// Says whether this build can serve the state and the volumes here, and whether going back is possible.
    #[arg(long)]
    check: bool,
    /// Asks neither table nor service.
    #[arg(long, requires = "check")]
    offline: bool,
    /// One JSON object instead of lines.
    #[arg(long, requires = "check")]
    json: bool,
    /// Prints the formats that this build reads and writes, as JSON: for the release after it.
    #[arg(long, conflicts_with = "check")]
    formats: bool,
}

/// `firn-edge upgrade --formats`, which needs no configuration.
///
/// # Errors
/// None that is expected.
pub fn formats(options: Options) -> Option<Result<(), Failure>> {
    options.formats.then(|| {
        let text = serde_json::to_string_pretty(&FormatSet::of_this_build()).map_err(Failure::new)?;
        println!("{text}");
        Ok(())
    })
}

/// `firn-edge upgrade --check`.
///
/// # Errors
/// [`Failure`] with the exit code of the worst verdict, after everything was printed.
pub async fn upgrade(edge: &EdgeConfig, options: Options) -> Result<(), Failure> {
    let mut all = vec![program_disk()];
    all.extend(builds(edge.directory()));
    for config in &edge.volumes {
        let name = edge.has_names().then(|| config.volume.name.clone());
        let found = state(config).into_iter().chain(root(config, options).await);
        all.extend(found.map(|finding| finding.of(name.clone())));
    }
    if !options.json {
        for finding in &all {
            println!("{finding}");
        }
    }
    finding::conclude(&all, options.json, &[])
}

fn program_disk() -> Finding {
    const SUBJECT: &str = "program";
    let Ok(own) = std::env::current_exe() else {
        return Finding::not_seen(SUBJECT, "this program does not know where it lies");
    };
    let directory = own.parent().unwrap_or(Path::new("/"));
    let own_bytes = std::fs::metadata(&own).map_or(0, |found| found.len());
    let free = match rustix::fs::statvfs(directory) {
        Ok(status) => status.f_bavail * status.f_frsize,
        Err(error) => return Finding::not_seen(SUBJECT, format!("{}: {error}", directory.display())),
    };
    let needed = own_bytes * PROGRAMS;
    let said = format!(
        "{}: {} free, and an upgrade takes {}",
        directory.display(),
        size(free),
        size(needed)
    );
    let finding = match free < needed {
        true => Finding::hurts(
            SUBJECT,
            said,
            "free space first; if dpkg ran out of it already: free space, then dpkg --configure -a",
        ),
        false => Finding::fine(SUBJECT, said),
    };
    finding.figure("free_bytes", free).figure("needed_bytes", needed)
}

/// This build beside the one that served here last.
fn builds(directory: &Path) -> Vec<Finding> {
    const FORWARD: &str = "formats";
    const BACK: &str = "going back";
    let ours = FormatSet::of_this_build();
    let without_record = (
        FormatSet::of_previous_release(),
        "the release before this one (no other build left a record here)",
    );
    let (other, how) = match ServedBy::load(directory) {
        Err(failure) => return vec![Finding::fails(FORWARD, failure, "")],
        Ok(None) => without_record,
        Ok(Some(known)) if known.served == ours => match known.before {
            Some(before) => (before, "which served here before this build"),
            None => without_record,
        },
        Ok(Some(known)) => (known.served, "which served here last"),
    };
    let unread = ours.unread_of(&other);
    let forward = match unread.is_empty() {
        true => Finding::fine(
            FORWARD,
            format!(
                "this build ({}) reads all {} formats of {}, {how}",
                ours.version,
                other.formats.len(),
                other.version
            ),
        ),
        false => Finding::fails(
            FORWARD,
            formats::refusal(directory, &ours, &other, &unread),
            format!(
                "stay with {} or a newer one; older data: upgrade by the versions in between",
                other.version
            ),
        ),
    };
    let unread = other.unread_of(&ours);
    let back = match &unread[..] {
        [] => Finding::fine(
            BACK,
            format!(
                "{} reads all that this build writes: it may be installed again at any time",
                other.version
            ),
        ),
        // A journal that is empty leaves nothing to read.
        [only] if only.format == "journal file" => Finding::hurts(
            BACK,
            format!("{} does not read the journal of this build", other.version),
            "to go back: firn-edge drain first, which leaves nothing in it",
        ),
        _ => Finding::hurts(
            BACK,
            format!(
                "not possible once this build has committed: {} does not read {}",
                other.version,
                formats::list(&unread)
            ),
            "firn-edge snapshot create before, and try this build on a clone or a standby first; nothing that is committed is lost by going on",
        ),
    };
    vec![forward, back]
}

/// What lies in the state directory.
fn state(config: &Config) -> Vec<Finding> {
    const SUBJECT: &str = "state";
    let directory = &config.volume.state_directory;
    let shown = directory.display();
    if !Identity::exists(directory) {
        return vec![Finding::fine(
            SUBJECT,
            format!("{shown}: no volume was set up here"),
        )];
    }
    if let Err(failure) = readable::volume(directory).and_then(|()| readable::edge(directory)) {
        let cure = "serve with the version that wrote it, firn-edge drain, then upgrade";
        return vec![Finding::fails(SUBJECT, failure, cure)];
    }
    if let Err(failure) = Identity::load(directory) {
        return vec![Finding::fails(SUBJECT, failure, "")];
    }
    let mut files = 0;
    // A directory for each tenure, in which the files are.
    let tenures = std::fs::read_dir(directory.join(JOURNAL));
    let entries = tenures
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|tenure| std::fs::read_dir(tenure.path()).into_iter().flatten().flatten());
    for entry in entries {
        let mut header = [0; JOURNAL_HEADER_BYTES];
        let opened = std::fs::File::open(entry.path()).and_then(|mut file| file.read_exact(&mut header));
        // One that was never written whole holds nothing.
        if opened.is_err() || header.iter().all(|byte| *byte == 0) {
            continue;
        }
        if let Err(error) = JournalFileHeader::decode(&header) {
            return vec![Finding::fails(
                SUBJECT,
                format!("{}: {error}", entry.path().display()),
                "serve with the version that wrote it, firn-edge drain, then upgrade",
            )];
        }
        files += 1;
    }
    vec![Finding::fine(
        SUBJECT,
        format!("{shown}: identity and {files} journal files are read by this build"),
    )]
}

/// The volume's root, as the table or the service has it.
async fn root(config: &Config, options: Options) -> Option<Finding> {
    const SUBJECT: &str = "volume";
    let directory = &config.volume.state_directory;
    if !Identity::exists(directory) {
        return None;
    }
    let at = &config.volume.anchor;
    if options.offline {
        return Some(Finding::not_seen(
            SUBJECT,
            format!("{at} is not asked (--offline)"),
        ));
    }
    let asked = async {
        let identity = Identity::load(directory)?;
        let outside = Outside::open(config).await?;
        let anchor = outside.anchor(identity.family);
        Ok::<_, Failure>(anchor.load(identity.volume).await?.0)
    };
    Some(match asked.await {
        Ok(tuple) => match tuple.root {
            Some(root) => Finding::fine(
                SUBJECT,
                format!("{at}: this build reads the root, at version {}", root.version),
            ),
            None => Finding::fine(
                SUBJECT,
                format!("{at}: this build reads what it has; nothing was committed yet"),
            ),
        },
        Err(failure) => Finding::not_seen(
            SUBJECT,
            format!(
                "{at}: {failure} (a table in a file is open in the running edge; credentials are in the unit's environment)"
            ),
        ),
    })
}
