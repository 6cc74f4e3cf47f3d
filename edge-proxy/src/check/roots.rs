//! Fitness of what keeps the roots: the table's schema or the service's answer, what a request takes, and whether the volume is free to serve.
//!
//! Nothing is made: a table that `create=true` would make, or the file of one, is only said to be missing.

use super::Subject;
use crate::finding::Finding;
use crate::{
    anchor::{AnchorAt, Roots},
    config::Config,
    identity::Identity,
    joined::{Joined, is_joined},
};
use firn_anchor::AnchorError;
use firn_table::{AzureTableUrl, DynamoDbUrl, TableError, TableUrl};
use std::{path::Path, time::Duration};

const SUBJECT: &str = "anchor";
/// Requests that are timed.
const TIMES: usize = 5;
/// A commit waits for two.
const SLOW: Duration = Duration::from_millis(500);

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for config in &subject.edge.volumes {
        let asked = subject.in_time(of_volume(subject, config)).await;
        let finding = asked.unwrap_or_else(|why| {
            Finding::fails(
                SUBJECT,
                format!("{}: {why}", config.volume.anchor),
                "check route and firewalls towards it",
            )
        });
        found.push(finding.of(subject.name(config)));
    }
    found
}

async fn of_volume(subject: &Subject<'_>, config: &Config) -> Finding {
    let at = &config.volume.anchor;
    let began = subject.env.now();
    let roots = match at {
        AnchorAt::Table(url) => match table(subject, url).await {
            Ok(roots) => roots,
            Err(finding) => return *finding,
        },
        AnchorAt::Url(url) => match Roots::at(config, url) {
            Ok(roots) => roots,
            Err(failure) => return Finding::fails(SUBJECT, failure, ""),
        },
        AnchorAt::Service => {
            if !is_joined(config) {
                return not_set_up(at, "firn edge join, then firn-edge enrol");
            }
            match Joined::load(config).and_then(|_| Roots::of_joined(config)) {
                Ok(roots) => roots,
                Err(failure) => return Finding::fails(SUBJECT, failure, ""),
            }
        }
    };
    let opening = subject.env.now().since(began);
    let directory = &config.volume.state_directory;
    if !Identity::exists(directory) {
        return not_set_up(at, "firn-edge format, join or enrol makes it one of a volume")
            .figure("opened_us", opening.as_micros() as u64);
    }
    let identity = match Identity::load(directory) {
        Ok(identity) => identity,
        Err(failure) => return Finding::fails(SUBJECT, failure, ""),
    };
    timed(subject, config, &roots, &identity).await
}

fn not_set_up(at: &AnchorAt, next: &str) -> Finding {
    Finding::fine(
        SUBJECT,
        format!("{at}: nothing speaks against it; this edge is not set up yet ({next})"),
    )
}

/// Asks for the volume's root some times.
async fn timed(subject: &Subject<'_>, config: &Config, roots: &Roots, identity: &Identity) -> Finding {
    let at = &config.volume.anchor;
    let anchor = roots.anchor(subject.env, identity.family);
    let mut took = Vec::with_capacity(TIMES);
    let mut owner = None;
    for _ in 0..TIMES {
        let began = subject.env.now();
        match anchor.load(identity.volume).await {
            Ok((tuple, _)) => owner = tuple.owner,
            Err(error @ (AnchorError::NoSuchVolume { .. } | AnchorError::NoSuchFamily { .. })) => {
                return Finding::fails(
                    SUBJECT,
                    format!("{at}: {error}"),
                    "name the table that this volume was made with; if it is lost: firn-edge recover",
                );
            }
            Err(error) => {
                return Finding::fails(
                    SUBJECT,
                    format!("{at}: {error}"),
                    "check its address and the credentials",
                );
            }
        }
        took.push(subject.env.now().since(began));
    }
    took.sort_unstable();
    let median = took[TIMES / 2];
    let name = owner.map_or("nobody".to_owned(), |owner| owner.name);
    let said = format!(
        "{at}: a root within {:.1} ms; the volume is owned by {name}",
        median.as_secs_f64() * 1e3
    );
    let takes_turns = config.volume.has_other_writers();
    let is_elsewhere = name != "nobody" && name != config.volume.edge_name && !takes_turns;
    let finding = if is_elsewhere {
        Finding::fails(
            SUBJECT,
            format!("{said}, and this edge is {}", config.volume.edge_name),
            "firn-edge drain there, or, if that edge is lost, firn-edge takeover here",
        )
    } else if median > SLOW {
        Finding::hurts(
            SUBJECT,
            format!("{said}: each commit waits as long twice"),
            "use the bucket's region for the table",
        )
    } else {
        Finding::fine(SUBJECT, said)
    };
    finding.figure("load_us", median.as_micros() as u64)
}

async fn table(subject: &Subject<'_>, url: &TableUrl) -> Result<Roots, Box<Finding>> {
    let url = match url {
        TableUrl::Redb { path } => {
            in_a_file(subject, path)?;
            url.clone()
        }
        TableUrl::DynamoDb(given) => {
            to_be_made(subject, url, given.create).await?;
            TableUrl::DynamoDb(DynamoDbUrl {
                create: false,
                ..given.clone()
            })
        }
        TableUrl::AzureTable(given) => {
            to_be_made(subject, url, given.create).await?;
            TableUrl::AzureTable(AzureTableUrl {
                create: false,
                ..given.clone()
            })
        }
    };
    match firn_table_cloud::open(subject.env, &url).await {
        Ok((table, prices)) => Ok(Roots::over(table, prices)),
        Err(error) => Err(Box::new(refused(&url, &error))),
    }
}

/// Nothing can be asked of a table that the first `firn-edge format` makes.
async fn to_be_made(subject: &Subject<'_>, url: &TableUrl, create: bool) -> Result<(), Box<Finding>> {
    let service = match url {
        TableUrl::AzureTable(_) => "Azure Table Storage",
        TableUrl::DynamoDb(_) | TableUrl::Redb { .. } => "DynamoDB",
    };
    match firn_table_cloud::exists(subject.env, url).await {
        Ok(Some(false)) if create => Err(Box::new(Finding::fine(
            SUBJECT,
            format!("{url}: {service} answers; firn-edge format makes the table (create=true)"),
        ))),
        Ok(_) => Ok(()),
        Err(error) => Err(Box::new(refused(url, &error))),
    }
}

fn refused(url: &TableUrl, error: &TableError) -> Finding {
    let to_do = match error {
        TableError::Unavailable(_) => {
            "check its address, the route and the firewalls on the way; then check again"
        }
        _ => "",
    };
    Finding::fails(SUBJECT, format!("{url}: {error}"), to_do)
}

/// What can be said of a table in a file before it is opened, which takes its lock and would make it.
fn in_a_file(subject: &Subject<'_>, path: &Path) -> Result<(), Box<Finding>> {
    let shown = path.display();
    if subject.is_running {
        return Err(Box::new(Finding::fine(
            SUBJECT,
            format!("redb:{shown}: the running edge has it open"),
        )));
    }
    if path.is_file() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    Err(Box::new(match parent.is_dir() {
        true => Finding::fine(SUBJECT, format!("redb:{shown}: firn-edge format makes it")),
        false => Finding::fails(
            SUBJECT,
            format!("redb:{shown}: its directory is not there"),
            format!("mount its disk, or mkdir -p {}", parent.display()),
        ),
    }))
}
