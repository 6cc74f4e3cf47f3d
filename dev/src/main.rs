//! `firn-dev`: everything of Firn in one process, on a directory. `firn dev` starts it.
//!
//! ```text
//!            firn (you) ──HTTPS──▶ API ──▶ api.redb                       what a service would keep
//!                                  ▲  ▲ tickets, rows
//!   NBD ──▶ firn disk attach (you) │──┴──▶ three disk nodes               node-0 … node-2, cluster.redb
//!                ┌─────────────────┘ roots
//! mount ──NFS──▶ edge ──▶ journal, cache ──▶ bucket/                      what a customer's cloud would keep
//!                                               ▲
//!                            cleaner ───────────┘
//! ```
//!
//! It is the code of the programs themselves, not a copy: the API's server, the edge's `run`, the nodes of `firn-blockd`, the
//! cleaner's runs. Only what lets one process in at a time (the embedded tables) is shared instead of reached over a network.
//! Killed at any moment, it goes on from its directory.
#![recursion_limit = "256"]
#![allow(
    clippy::disallowed_methods,
    reason = "a program for people: real time, real processes, real files"
)]

mod background;
mod blocks;
mod certificate;
mod control;
mod customer;
mod edge;
mod layout;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use firn_api::Recorder;
use firn_env::{Env, eprintln, println};
use firn_table::{RedbTable, Table};
use futures::future::{Either, select};
use layout::Layout;
use std::{
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Runs a whole Firn on this machine: API, disk nodes, cleaner, and an edge that serves NFS.
#[derive(Parser)]
#[command(name = "firn-dev", version)]
pub struct Arguments {
    /// Where everything is kept. What is there is used again.
    #[arg(long, default_value = "firn-dev")]
    directory: PathBuf,
    /// Where the API listens; disk nodes listen at the same address, on ports of their own.
    #[arg(long, default_value = "127.0.0.1:7400", value_name = "ADDRESS:PORT")]
    api: SocketAddr,
    /// Where the edge serves NFS.
    #[arg(long, default_value = "127.0.0.1:20490", value_name = "ADDRESS:PORT")]
    nfs: SocketAddr,
    /// Signs nobody up: you do it yourself. The edge starts when one has joined in `edge/` of the directory.
    #[arg(long)]
    empty: bool,
    /// Seconds between two runs of the cleaner.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    clean_every: u64,
    /// Appends every request that the API receives to this file, so that you see what it learns. It holds credentials.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Returns when everything is ready and leaves it running.
    #[arg(long)]
    detach: bool,
    /// Stops what runs in the directory, with everything durable.
    #[arg(long, conflicts_with = "detach")]
    stop: bool,
}

/// Tasks may take this long to end well before the process does; what is acknowledged is durable in any case.
const LAST_WORD: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = if arguments.stop {
        background::stop(&arguments.directory)
    } else if arguments.detach {
        background::detach(&arguments)
    } else {
        tokio::runtime::Runtime::new()
            .context("cannot start threads")
            .and_then(|runtime| {
                let outcome = runtime.block_on(run(&arguments));
                runtime.shutdown_timeout(Duration::from_secs(1));
                outcome
            })
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firn-dev: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Opens an embedded table.
async fn table(env: &Env, layout: &Layout, name: &str) -> Result<Arc<dyn Table>> {
    let path = layout.path(name);
    let table = RedbTable::open(env, &path)
        .await
        .with_context(|| path.display().to_string())?;
    Ok(Arc::new(table))
}

async fn run(arguments: &Arguments) -> Result<()> {
    let began = Instant::now();
    let layout = Layout::make(&arguments.directory)?;
    let env = firn_env::real(&layout.root)?;
    let _lock = env.disk().lock("lock").await.with_context(|| {
        format!(
            "something runs in {} already; firn dev --stop ends it",
            layout.root.display()
        )
    })?;
    layout.start_log()?;
    layout.note_process()?;
    // The API goes after those who ask it.
    let (stopping, _) = tokio::sync::watch::channel(false);
    let (stopping_api, _) = tokio::sync::watch::channel(false);
    let master = layout.master_secret(&env)?;
    certificate::renew_if_over(&env, &layout, &master)?;
    let (records, rows) = futures::try_join!(
        table(&env, &layout, "api.redb"),
        table(&env, &layout, "cluster.redb")
    )?;
    let cluster = blocks::start(&env, &layout, &master, rows, arguments.api.ip()).await?;
    let recorder = match &arguments.record {
        Some(path) => Some(Recorder::open(path).with_context(|| path.display().to_string())?),
        None => None,
    };
    let api = control::start(
        &layout,
        master,
        records.clone(),
        cluster.placement.clone(),
        arguments.api,
        recorder,
        stopping_api.subscribe(),
    )
    .await?;
    let meters = cluster.meters(&records).await?;
    let edge = edge::start(&env, &layout, records, arguments, stopping.subscribe())?;
    let typed = if arguments.empty {
        Vec::new()
    } else {
        customer::sign_up(&layout, &api.url).await?
    };
    let mounted = if arguments.empty && !layout.has_edge() {
        None
    } else {
        Some(edge.ready().await?)
    };
    cluster.ready().await?;
    report(&layout, arguments, &api.url, &typed, mounted, began.elapsed());

    let outcome = {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let signalled = pin!(async {
            select(pin!(tokio::signal::ctrl_c()), pin!(terminate.recv())).await;
        });
        let (failed, counting) = (pin!(edge.failed()), pin!(cluster.keep_counting(&meters)));
        match select(select(signalled, failed), counting).await {
            Either::Left((Either::Left(((), _)), _)) => Ok(()),
            Either::Left((Either::Right((why, _)), _)) => Err(why),
            Either::Right(((), _)) => Err("the disk nodes' meters ended".to_owned()),
        }
    };
    tracing::info!("stopping");
    stopping.send_replace(true);
    let ended = async {
        edge.ended().await;
        stopping_api.send_replace(true);
        api.ended().await;
        cluster.stop(meters).await;
    };
    if tokio::time::timeout(LAST_WORD, ended).await.is_err() {
        tracing::warn!("not everything ended in time; the next start goes on from the directory");
    }
    layout.forget_process();
    if let Err(why) = outcome {
        bail!(
            "the edge ended: {why}; see {}",
            layout.path("firn-dev.log").display()
        );
    }
    Ok(())
}

/// Says what runs, and what to type next.
fn report(
    layout: &Layout,
    arguments: &Arguments,
    api: &str,
    typed: &[String],
    mounted: Option<String>,
    took: Duration,
) {
    let root = arguments.directory.display();
    println!(
        "Firn runs in {root}: API at {api}, {} disk nodes, a cleaner, an edge. Ready in {:.1} s.",
        blocks::NODES,
        took.as_secs_f64()
    );
    if !typed.is_empty() {
        println!("\nWhat was typed for you (the recovery phrase is in {root}/recovery-phrase):\n");
        for line in typed {
            println!("  {line}");
        }
    }
    println!("\nNext:\n");
    if mounted.is_some() {
        println!("  {}", mount_command(arguments.nfs));
        println!("  export FIRN_PROFILE={root}/profile.json");
        println!("  firn disk create data 64MiB --wait");
        let socket = layout.text("data.sock");
        println!("  firn disk attach data --nbd unix:{socket} &");
        println!("  qemu-io -f raw -c 'write -P 7 0 1M' 'nbd+unix:///?socket={socket}'");
        println!("  firn cost");
        println!("  firn-edge --config {root}/firn-edge.toml status");
    } else {
        let authority = format!("--authority {root}/authority.pem");
        println!("  firn signup --server {api} {authority} --email you@example.org --name Example");
        println!("    (letters are in {root}/api/mail)");
        println!("  firn volume create files --region local");
        println!("  firn edge create office --volume files");
        println!("  firn edge join --server {api} {authority} --tenant TENANT --state {root}/edge");
        println!("  firn edge approve office");
        println!("  {}", mount_command(arguments.nfs));
    }
    println!(
        "\nThe log is {}. Stop it with: firn dev --stop",
        layout.path("firn-dev.log").display()
    );
}

/// The line that mounts the share, as root, with Linux's own client.
fn mount_command(nfs: SocketAddr) -> String {
    let port = nfs.port();
    format!(
        "sudo mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port},mountproto=tcp {}:{} /mnt",
        nfs.ip(),
        edge::EXPORT
    )
}
