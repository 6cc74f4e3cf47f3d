//! The edge, as `firn-edge enrol` and `firn-edge run` have it, and the cleaner of its family, as `firn-cleaner run --every` does.
//!
//! ```text
//! nobody joined ─ firn edge join ─▶ joined ─ firn edge approve ─▶ enrolled ─▶ serves until the end
//! ```

use crate::{
    Arguments,
    layout::{Layout, write_whole},
};
use anyhow::{Context as _, Result};
use firn_anchor::{Anchor, AnchorRole};
use firn_cleaner::{Cleaner, CleaningNotes, Limits};
use firn_edge::{Config, Enrolment, Failure, FormatOptions, Outside, Place, enrol, serve_until};
use firn_env::Env;
use firn_identity::TenantVolume;
use firn_store::{Stack, StackConfig, StoreUrl};
use firn_store_cloud::Credentials;
use firn_table::Table;
use serde_json::json;
use std::{io::Write as _, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// What clients mount.
pub const EXPORT: &str = "/export";
/// Between two looks whether somebody joined or approved.
const LOOK: Duration = Duration::from_millis(50);
/// A production cleaner waits longer before it deletes what it retired; nobody here has it open for so long.
const GRACE: Duration = Duration::from_secs(2);

/// How far the edge is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Serving(String),
    Ended(String),
}

/// An edge in this process.
pub struct Edge {
    progress: watch::Receiver<Progress>,
    task: JoinHandle<()>,
}

/// Starts to wait for an edge to join, and then to serve. `table` is the API's, where the anchor's tuples are: the cleaner's way to them.
pub fn start(
    env: &Env,
    layout: &Layout,
    table: Arc<dyn Table>,
    arguments: &Arguments,
    stopping: watch::Receiver<bool>,
) -> Result<Edge> {
    let path = layout.path("firn-edge.toml");
    write_whole(&path, configuration(layout, arguments.nfs).as_bytes(), 0o600)?;
    let config = Config::load(&path).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let (report, progress) = watch::channel(Progress::Waiting);
    let (env, layout, clean_every) = (env.clone(), layout.clone(), arguments.clean_every);
    let task = tokio::spawn(async move {
        let cleaning = Cleaning {
            env,
            layout: layout.clone(),
            table,
            every: Duration::from_secs(clean_every),
        };
        let why = match life(&layout, &config, &cleaning, stopping, &report).await {
            Ok(()) => "it was told to".to_owned(),
            Err(failure) => failure.to_string(),
        };
        tracing::info!(why, "the edge ended");
        report.send_replace(Progress::Ended(why));
    });
    Ok(Edge { progress, task })
}

fn configuration(layout: &Layout, nfs: SocketAddr) -> String {
    format!(
        r#"# Made by firn-dev anew at every start. `firn-edge --config THIS status|sync|verify|snapshot|restore` ask the running edge.
[volume]
name = "main"
edge_name = "dev"
store = "file://{bucket}"
anchor = "service"
state_directory = "{state}"

[limits]
disk_cache = "1 GiB"
journal = "1 GiB"
# A checkpoint to a directory costs nothing.
checkpoint_busy = "1 s"
checkpoint_trickle = "2 s"

[nfs]
listen = "{host}"
nfs_port = {port}
portmap = false
grace_seconds = 1

[[export]]
path = "{EXPORT}"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
"#,
        bucket = layout.text("bucket"),
        state = layout.text("edge"),
        host = nfs.ip(),
        port = nfs.port(),
    )
}

async fn life(
    layout: &Layout,
    config: &Config,
    cleaning: &Cleaning,
    mut stopping: watch::Receiver<bool>,
    report: &watch::Sender<Progress>,
) -> Result<(), Failure> {
    let Some((outside, place)) = joined(layout, config, stopping.clone()).await else {
        return Ok(());
    };
    let cleaner = tokio::spawn(cleaning.clone().run(place));
    let told = async move {
        // A sender that is gone stops us too.
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    let ready = |address: &str| {
        report.send_replace(Progress::Serving(address.to_owned()));
    };
    let served = serve_until(config, &outside, told, ready).await;
    cleaner.abort();
    served
}

/// Waits until an edge has joined and was approved; nothing if everything stops before.
async fn joined(
    layout: &Layout,
    config: &Config,
    stopping: watch::Receiver<bool>,
) -> Option<(Outside, Place)> {
    let mut outside = None;
    loop {
        if *stopping.borrow() {
            return None;
        }
        // The state directory is made by `firn edge join`, not before it: opening would be in its way.
        if layout.has_edge() {
            match take_up(config, &mut outside).await {
                Ok(Some(place)) => return outside.map(|outside| (outside, place)),
                Ok(None) => {}
                // The API of this process may be a moment behind.
                Err(failure) => tracing::warn!(%failure, "not enrolled yet"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes the keys up; nothing if the edge was not approved yet.
async fn take_up(config: &Config, outside: &mut Option<Outside>) -> Result<Option<Place>, Failure> {
    let outside = match outside {
        Some(opened) => opened,
        None => outside.insert(Outside::for_serving(config, None).await?),
    };
    // The export squashes nobody: root is the owner of the root directory.
    match enrol(config, outside, FormatOptions::default()).await? {
        Enrolment::Ready { place, .. } => Ok(Some(place)),
        Enrolment::NotApproved { .. } => Ok(None),
    }
}

impl Edge {
    /// Waits until clients can mount; gives the address.
    pub async fn ready(&self) -> Result<String> {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|progress| *progress != Progress::Waiting).await;
        match reached.map(|progress| progress.clone()) {
            Ok(Progress::Serving(address)) => Ok(address),
            Ok(Progress::Ended(why)) => anyhow::bail!("the edge does not serve: {why}"),
            Ok(Progress::Waiting) | Err(_) => anyhow::bail!("the edge panicked; see the log"),
        }
    }

    /// Completes when the edge ended by itself, with the reason.
    pub async fn failed(&self) -> String {
        let mut progress = self.progress.clone();
        let reached = progress
            .wait_for(|progress| matches!(progress, Progress::Ended(_)))
            .await;
        match reached.map(|progress| progress.clone()) {
            Ok(Progress::Ended(why)) => why,
            Ok(Progress::Waiting | Progress::Serving(_)) | Err(_) => "it panicked".into(),
        }
    }

    pub async fn ended(self) {
        // A panic is in the log already.
        let _ = self.task.await;
    }
}

/// What the cleaner needs.
#[derive(Clone)]
struct Cleaning {
    env: Env,
    layout: Layout,
    table: Arc<dyn Table>,
    every: Duration,
}

impl Cleaning {
    /// Cleans for ever; each run's report, and what was noted of it for the bill, is a line of `cleaner.log`.
    async fn run(self, place: Place) {
        loop {
            tokio::time::sleep(self.every).await;
            if let Err(error) = self.rounds(place).await {
                tracing::warn!(%error, "the cleaner starts anew");
            }
        }
    }

    async fn rounds(&self, place: Place) -> Result<()> {
        let url = format!("file://{}", self.layout.text("bucket")).parse::<StoreUrl>()?;
        let backend = firn_store_cloud::open(&self.env, &url, &Credentials::Environment).await?;
        let Stack { store, meter, .. } = Stack::new(&self.env, backend, StackConfig::default());
        let Place {
            tenant,
            volume,
            family,
        } = place;
        let kept = TenantVolume { tenant, volume }.roots_partition();
        let (table, env) = (self.table.clone(), self.env.clone());
        let anchor = Anchor::within(table, env, family, kept, AnchorRole::Cleaner);
        let limits = Limits {
            grace: GRACE,
            ..Limits::default()
        };
        let mut cleaner = Cleaner::new(&self.env, store, &anchor, limits);
        let mut notes = CleaningNotes::new(meter);
        let mut log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.layout.path("cleaner.log"))
            .context("cleaner.log")?;
        loop {
            let ran = cleaner.run().await;
            let listing = ran.as_ref().ok().and_then(|report| report.listing);
            let noted = notes.note(&self.env, &anchor, listing).await?;
            let line = json!({ "noted": noted, "report": ran? });
            // In one write: a kill leaves no part of a line.
            log.write_all(format!("{line}\n").as_bytes())?;
            tokio::time::sleep(self.every).await;
        }
    }
}
