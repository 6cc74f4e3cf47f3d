//! Fitness check of this machine and of its way to the cloud, before the first client: `firn-edge check`.
//!
//! It begins where `check-config` ends: the file is one that `run` takes ([`crate::validation`] is part of reading it), and what it
//! names is now tried. Each subject is a file below and gives [`Finding`]s: a verdict, figures, and what to do.
//!
//! ```text
//! machine   memory, open files, FUSE, Samba            state disk   space, kind, what a sync takes and whether it can be believed
//! port      each that is served, and who has it        firewall     what drops newcomers, as far as it can be seen
//! network   names, IPv4, IPv6, MTU                     clock        against the Date of every server that the edge will ask
//! bucket    a probe object and its times, throughput   anchor       the table or the service that keeps the roots, and who owns
//! second store   whether it takes and gives, and is another than the first
//! junction       who may use an export, and not what is shown in it
//! ```
//!
//! It works beside an edge that serves, or before one was ever set up: it takes no lock, creates no table, and what it writes on the
//! disk has no name. In the bucket it leaves nothing, unless the credentials may not delete.

mod bucket;
mod clock;
mod files;
mod firewall;
mod hosts;
mod junctions;
mod machine;
mod network;
mod ports;
mod roots;
mod second;
mod state_disk;

use crate::{
    admin,
    config::{Config, EdgeConfig},
    failure::Failure,
    finding::{self, Finding},
};
use firn_env::{Env, println};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// How long anything outside is waited for: a large object over 1 Mbit/s.
const PATIENT: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// One JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Measures the throughput even where the credentials may not delete: an object of limits.segment then stays in the bucket.
    #[arg(long)]
    leave_behind: bool,
}

/// What all subjects look at.
struct Subject<'a> {
    env: &'a Env,
    edge: &'a EdgeConfig,
    /// Whether an edge serves from this directory now.
    is_running: bool,
    options: Options,
}

/// `firn-edge check`.
///
/// # Errors
/// [`Failure`] with the exit code of the worst verdict, after everything was printed.
pub async fn check(edge: &EdgeConfig, options: Options) -> Result<(), Failure> {
    let directory = there(edge.directory());
    let env = firn_env::real(&directory).map_err(Failure::new)?;
    let subject = Subject {
        env: &env,
        edge,
        is_running: tokio::net::UnixStream::connect(admin::socket(edge.directory()))
            .await
            .is_ok(),
        options,
    };
    let mut all = Vec::new();
    let mut take = |found: Vec<Finding>| {
        for finding in found {
            if !options.json {
                println!("{finding}");
            }
            all.push(finding);
        }
    };
    take(machine::look(&subject));
    take(junctions::look(&subject));
    take(state_disk::look(&subject).await);
    take(ports::look(&subject).await);
    take(firewall::look(&subject).await);
    take(network::look(&subject).await);
    take(clock::look(&subject).await);
    take(bucket::look(&subject).await);
    take(second::look(&subject).await);
    take(roots::look(&subject).await);
    finding::conclude(&all, options.json, &[("running", subject.is_running.into())])
}

/// The directory, or the nearest above it that is there.
fn there(directory: &Path) -> PathBuf {
    directory
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

impl Subject<'_> {
    /// Whose volume a finding is, where there are several.
    fn name(&self, config: &Config) -> Option<String> {
        self.edge.has_names().then(|| config.volume.name.clone())
    }

    /// What takes too long is said in words.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        let ended = self.env.timeout(PATIENT, work).await;
        ended.map_err(|_| format!("no answer within {} s", PATIENT.as_secs()))
    }
}
