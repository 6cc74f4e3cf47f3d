//! `firn-edge mount`: an edge in the foreground whose only client is the kernel of this machine, for a volume on a workstation.
//!
//! It is `firn-edge run` with one mount and no exports. Ctrl-C does what `firn-edge drain` does: the volume is unmounted, everything is brought to the cloud
//! (level 2), and the volume is given up, so that another machine can have it. A second Ctrl-C ends the process as a kill would: what was
//! synced is in the journal here (level 1), and the next mount brings it to the cloud.

use crate::{
    admin, commands,
    config::{EdgeConfig, MountSection},
    enrol,
    failure::Failure,
    identity::Identity,
    joined::is_joined,
    parts::Outside,
    run, serve,
};
use firn_env::{eprintln, println};
use firn_volume::FormatOptions;
use futures::future::{Either, select};
use std::{
    path::{Path, PathBuf},
    pin::pin,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is mounted, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct MountArguments {
    /// The directory, which must exist.
    directory: PathBuf,
    /// Nothing can be changed through it.
    #[arg(long)]
    read_only: bool,
    /// For all users of this machine, as modes and ACLs say; without, only for the one who runs this.
    #[arg(long)]
    allow_other: bool,
    /// Keeps the volume at the end, without waiting for the cloud: what was synced stays in the journal here until the next mount.
    #[arg(long)]
    keep: bool,
}

/// Mounts until Ctrl-C or SIGTERM.
///
/// # Errors
/// [`Failure`]; among them that not everything is in the cloud yet.
pub async fn mount(path: &Path, volume: Option<&str>, arguments: &MountArguments) -> Result<(), Failure> {
    let directory = std::path::absolute(&arguments.directory).map_err(Failure::usage)?;
    let section = MountSection {
        path: directory.clone(),
        volume: None,
        read_only: arguments.read_only,
        allow_other: arguments.allow_other,
        access_log: false,
        durability: None,
    };
    let edge = EdgeConfig::load_to_mount(path, volume, section.clone())?;
    // A volume that was opened is this edge's until it is drained, though nothing were mounted.
    serve::mount_options(edge.common(), &section, None)
        .check()
        .map_err(serve::refused)?;
    take_up_keys(&edge).await?;
    let ready = |_: &str| {
        println!("mounted on {}; Ctrl-C unmounts", directory.display());
    };
    run::run_until(&edge, None, until_drained(&edge, arguments.keep)?, ready).await
}

/// After `firn edge join` and `approve`, this is the first start.
async fn take_up_keys(edge: &EdgeConfig) -> Result<(), Failure> {
    let config = edge.common();
    if Identity::exists(&config.volume.state_directory) || !is_joined(config) {
        return Ok(());
    }
    let outside = Outside::open(config).await?;
    // A volume that is made here is its user's: nobody else is there whom the kernel would let write.
    let options = FormatOptions {
        root_owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
        ..FormatOptions::default()
    };
    match enrol::enrol(config, &outside, options).await? {
        waiting @ enrol::Enrolment::NotApproved { .. } => Err(Failure::new(waiting)),
        enrol::Enrolment::Ready { .. } => Ok(()),
    }
}

/// What ends a process politely, one after the other.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) {
        select(pin!(self.interrupt.recv()), pin!(self.terminate.recv())).await;
    }
}

/// Completes when the volume may be stopped: after a signal, and once everything is in the cloud.
fn until_drained(edge: &EdgeConfig, keep: bool) -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut signals = Signals {
        interrupt: signal(SignalKind::interrupt()).map_err(Failure::new)?,
        terminate: signal(SignalKind::terminate()).map_err(Failure::new)?,
    };
    let config = edge.common().clone();
    Ok(async move {
        signals.next().await;
        // What is followed is another's, and nothing of it is here.
        if keep || config.volume.follow.is_some() {
            return;
        }
        println!(
            "unmounting; everything is brought to the cloud (Ctrl-C once more leaves the rest in the journal)"
        );
        let drained = pin!(commands::until_done(&config, admin::Command::Drain, "draining"));
        match select(drained, pin!(signals.next())).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(failure), _)) => eprintln!("firn-edge: {failure}"),
            Either::Right(_) => {
                eprintln!(
                    "firn-edge: not everything is in the cloud yet. What was synced is safe in {}: mount again to bring it there",
                    config.volume.state_directory.display()
                );
                // As after a kill: the cloud may be away for long.
                std::process::exit(1);
            }
        }
    })
}
