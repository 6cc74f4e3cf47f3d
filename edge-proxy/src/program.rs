//! The command line of `firn-edge`.

use crate::{
    accept_rollback, admin, allocator, audit, by_inode::WrittenLeases, check, commands, config, enrol,
    failure::Failure, format, id, join, locks, manifest, members, mount, parts::Outside, recover, rekey,
    repair, run, smb, snapshots, upgrade,
};
use clap::{CommandFactory as _, Parser, Subcommand};
use firn_env::{eprintln, println};
use firn_volume::FormatOptions;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Serves a Firn volume to a branch office over NFS.
#[derive(Parser)]
#[command(name = "firn-edge", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration file.
    #[arg(long, short, global = true, default_value = "/etc/firn/firn-edge.toml")]
    config: PathBuf,
    /// Which volume, of an edge with several: its name in the configuration. To recover: which of a family, by name or number.
    #[arg(long, global = true, value_name = "NAME")]
    volume: Option<String>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, safe to try again; 2 the command line or the configuration is wrong; \
3 another edge owns the volume; 4 fenced: another edge took it over while this one served; 5 the journal failed, restart to recover; 6 the store lost or altered what it had acknowledged; 7 check: it would work, and something will hurt";

#[derive(Subcommand)]
enum Command {
    /// Makes a new volume: keys, first checkpoint, this edge's identity. Prints the recovery phrase once.
    Format {
        /// Writes the recovery phrase into this new file instead of showing it.
        #[arg(long, value_name = "FILE")]
        phrase_file: Option<PathBuf>,
        /// Mode of the root directory, in octal.
        #[arg(long, default_value = "755", value_parser = octal_mode)]
        root_mode: u32,
        /// The volume says which segments must exist, so that audits notice what is lost although nobody needs it. Cleaners, edges and services of the
        /// release before this one stop at such a volume: upgrade them first.
        #[arg(long)]
        manifest: bool,
        /// With `inode` several offices write the volume at the same moment, each what it holds by a lease: from its making on, for ever. The configuration says the same
        /// (`shared = true`, `leases = "inode"`), in each office.
        #[arg(long, value_name = "BY", value_enum)]
        leases: Option<WrittenLeases>,
    },
    /// Takes up the service's keys: after `firn edge join` into this state directory, and `firn edge approve`. Makes the volume
    /// if this is its first edge.
    Enrol {
        /// Waits until it is approved where it was invited, for two hours at most.
        #[arg(long)]
        wait: bool,
        /// Mode of the root directory, in octal, if the volume is made. Exports squash root by default: with 755 clients can then only read.
        #[arg(long, default_value = "755", value_parser = octal_mode)]
        root_mode: u32,
        /// The volume, if it is made, says which segments must exist; see `format`.
        #[arg(long)]
        manifest: bool,
    },
    /// Serves the volume until SIGTERM.
    Run {
        /// Injects the faults described in this file into the store.
        #[cfg(feature = "testing")]
        #[arg(long, value_name = "FILE")]
        fault: Option<PathBuf>,
        /// Runs with the planted bug of this name.
        #[cfg(feature = "testing")]
        #[arg(long, value_name = "BUG")]
        plant: Option<String>,
    },
    /// Serves the volume as a directory of this machine, in the foreground and to nobody else. Ctrl-C unmounts, brings everything to
    /// the cloud, and gives the volume up.
    Mount(mount::MountArguments),
    /// Checks the configuration file and says what is wrong with it.
    CheckConfig,
    /// Tells whether this machine and its way to the cloud are fit to serve what the configuration says: disk, clock, ports, firewall,
    /// network, bucket, anchor. Before the first client, or beside a running edge, which it does not disturb.
    Check(check::Options),
    /// Judges an upgrade before it is made: run it by the new program.
    Upgrade(upgrade::Options),
    /// Prepares this machine to serve a volume of a family that another edge serves: a standby, a replacement, or a look into
    /// a salvage clone. The volume is the one named in the configuration.
    Join {
        /// A copy of the other edge's identity: the file `identity` in its state directory.
        #[arg(long, value_name = "FILE")]
        identity: PathBuf,
    },
    /// Takes the volume away from the edge that owns it. What that edge acknowledged but had not committed goes into a
    /// salvage clone when it comes back.
    Takeover {
        /// Does not ask.
        #[arg(long)]
        force: bool,
    },
    /// Goes on from a table that shows an older state than the bucket has, after a restore from a backup. Shows what would be
    /// given up; changes something only with --yes.
    AcceptRollback {
        /// Does it.
        #[arg(long)]
        yes: bool,
    },
    /// Shows what the running edge does and has: cache, uncommitted data, requests, money, clients.
    Status {
        /// As a table or as JSON.
        #[arg(long, value_enum, default_value = "text")]
        output: commands::Output,
    },
    /// Shows what happens, again and again, until interrupted.
    Top {
        /// Seconds between two screens.
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// Ends after so many screens.
        #[arg(long)]
        count: Option<u64>,
    },
    /// Waits until everything acknowledged so far is in the cloud.
    Sync,
    /// Stops the running edge with everything in the cloud and the volume given up, for a planned move to another edge.
    Drain,
    /// Reads everything committed from the store and checks it while the edge serves; names each damaged file.
    Verify,
    /// Reads a random sample of what the store should have and checks it; tells with which probability damage would have been found, and
    /// what past audits found.
    Audit(audit::AuditArguments),
    /// Makes, lists, protects and deletes snapshots of the volume the edge serves.
    Snapshot {
        #[command(subcommand)]
        what: snapshots::SnapshotCommand,
    },
    /// Copies a file or a tree from a snapshot into the live volume; no byte passes a client.
    Restore {
        /// The snapshot.
        snapshot: String,
        /// The path in it, from the root of the volume.
        path: String,
        /// Where to; by default where it was.
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
        /// Replaces a file that is there (never a directory).
        #[arg(long)]
        replace: bool,
    },
    /// Makes a writable volume out of a snapshot, or of the present state. It copies nothing.
    Clone {
        /// The new volume's name.
        name: String,
        /// The snapshot; without it, the present state.
        #[arg(long)]
        snapshot: Option<String>,
    },
    /// Tells who a user is here; with --from and --path or --share also whether that client gets an access, step by step by the rules of the
    /// running edge, and what refuses it.
    Id(id::Arguments),
    /// Lists who has locked which files, through whatever protocol; breaks locks that a client will not give up.
    Locks {
        /// Only those of this file, from the root of the volume.
        path: Option<String>,
        /// Takes them away. Who holds them is not told.
        #[arg(long = "break", requires = "path")]
        take_away: bool,
        /// Only those of this client, as the list names it.
        #[arg(long, requires = "take_away", value_name = "NAME")]
        client: Option<String>,
        /// Does it; without, only shows what would be taken away.
        #[arg(long, requires = "take_away")]
        yes: bool,
        /// As a table or as JSON.
        #[arg(long, value_enum, default_value = "text")]
        output: commands::Output,
    },
    /// Lists the offices that write the volume at the same moment (`leases = "inode"`), and how each stands. Asks the anchor, so no edge has to run here. Gives up what is
    /// kept for one that never comes back.
    Members {
        /// Gives up what is kept for this member, which was broken and never comes back: what only its journal has can be put on no root any more. Asks the edge that
        /// runs here.
        #[arg(long, value_name = "NUMBER")]
        give_up: Option<u32>,
        /// Does it; without, only tells what would be given up.
        #[arg(long, requires = "give_up")]
        yes: bool,
        /// As a table or as JSON.
        #[arg(long, value_enum, default_value = "text")]
        output: commands::Output,
    },
    /// Seals what older keys open anew under the newest one, after a rotation.
    Rekey {
        #[command(subcommand)]
        what: rekey::RekeyCommand,
    },
    /// Gives a volume that was made without a manifest of segments one, for audits.
    Manifest {
        #[command(subcommand)]
        what: manifest::ManifestCommand,
    },
    /// Says who may log in over SMB.
    Smb {
        #[command(subcommand)]
        what: smb::commands::SmbCommand,
    },
    /// Gets the space of what nobody needs back: one run of the cleaner inside the running edge, now.
    Clean {
        /// Only tells what would be moved and freed, and what that costs; changes nothing.
        #[arg(long)]
        plan: bool,
    },
    /// Writes what the store has lost or altered anew, from the second store; names the files that are beyond it.
    Repair {
        /// Only tells what would be written anew; changes nothing.
        #[arg(long)]
        plan: bool,
        /// Compares both stores first, instead of going by what readers and the last comparison found.
        #[arg(long)]
        all: bool,
    },
    /// Rebuilds a volume whose table was lost, from the bucket and the recovery phrase alone. Shows what there is; changes
    /// something only with --yes.
    Recover {
        /// A file with the recovery phrase.
        #[arg(long, value_name = "FILE")]
        phrase_file: PathBuf,
        /// Which family, if the bucket has several.
        #[arg(long)]
        family: Option<String>,
        /// Which volume of the family, if it has several and the configuration too.
        #[arg(long, value_name = "ID")]
        volume_id: Option<String>,
        /// Does it, although this is a second store that has parities in place of segments: files that lie in those cannot be read.
        #[arg(long)]
        incomplete: bool,
        /// Does it.
        #[arg(long)]
        yes: bool,
    },
    #[command(flatten)]
    Manual(firn_manual::ManualCommand),
}

/// Threads for calls that wait for the disk and for sealing, a processor. By default there may be 512, and a burst of cache
/// writes makes them all; each has a stack and memory of the allocator for itself.
const BLOCKING_THREADS_A_CORE: usize = 4;

/// How long such a thread waits for more to do. What it allocated and others freed is only given back when it ends or goes on.
const IDLE_THREAD: Duration = Duration::from_secs(1);

/// Runs the program: reads the command line, does what it says.
pub fn program() -> ExitCode {
    allocator::keep_little();
    let arguments = Arguments::parse();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // A journal sync never waits behind more than this many short calls.
        .max_blocking_threads((cores * BLOCKING_THREADS_A_CORE).clamp(8, 64))
        .thread_keep_alive(IDLE_THREAD)
        .build();
    let executed = match runtime {
        Ok(runtime) => runtime.block_on(execute(arguments)),
        Err(error) => Err(Failure::new(format!("cannot start threads: {error}"))),
    };
    match executed {
        Ok(()) => match firn_env::terminal::output_failure() {
            None => ExitCode::SUCCESS,
            Some(error) => {
                eprintln!("firn-edge: it is done, but the output cannot be written: {error}");
                ExitCode::FAILURE
            }
        },
        Err(failure) => {
            eprintln!("firn-edge: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn octal_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "no octal mode".to_owned())
}

async fn execute(arguments: Arguments) -> Result<(), Failure> {
    // Packages are built where there is no configuration.
    if let Command::Manual(manual) = arguments.command {
        return manual.run(Arguments::command()).map_err(Failure::new);
    }
    if let Command::Upgrade(options) = arguments.command
        && let Some(printed) = upgrade::formats(options)
    {
        return printed;
    }
    if let Command::Audit(arguments) = &arguments.command
        && let Some(done) = arguments.run_without_configuration()
    {
        return done;
    }
    if let Command::Mount(how) = &arguments.command {
        return mount::mount(&arguments.config, arguments.volume.as_deref(), how).await;
    }
    let edge = config::EdgeConfig::load(&arguments.config)?;
    let volume = arguments.volume.as_deref();
    // These are of all volumes, if none is named.
    match &arguments.command {
        Command::CheckConfig => {
            println!("{}: fine", arguments.config.display());
            if let Some(why) = edge.volumes.iter().find_map(smb::unserved) {
                eprintln!("firn-edge: SMB would not be served at present: {why}");
            }
            return Ok(());
        }
        Command::Check(options) => return check::check(&edge, *options).await,
        Command::Upgrade(options) => return upgrade::upgrade(&edge, *options).await,
        #[cfg(feature = "testing")]
        Command::Run { fault, plant } => {
            if let Some(bug) = plant {
                firn_env::mutants::plant_everywhere(bug);
            }
            return run::run(&edge, fault.as_deref()).await;
        }
        #[cfg(not(feature = "testing"))]
        Command::Run {} => return run::run(&edge, None).await,
        Command::Status { output } => return commands::status(&edge, volume, *output).await,
        Command::Top { interval, count } => {
            return commands::top(&edge, volume, Duration::from_secs(*interval), *count).await;
        }
        Command::Id(asked) => return id::id(&edge, asked).await,
        Command::Smb { what } => {
            // Users are those of the one volume that is shared.
            let sharing = edge.volumes.iter().find(|config| config.smb.is_some());
            let config = sharing.unwrap_or_else(|| edge.common());
            return smb::commands::execute(config, what.clone()).await;
        }
        Command::Recover {
            phrase_file,
            family,
            volume_id,
            incomplete,
            yes,
        } => {
            // Of one volume, the name has always been that of the family's volume.
            let config = edge.one(volume.filter(|_| edge.has_names()))?;
            let of_family = volume_id.as_deref().or(volume.filter(|_| !edge.has_names()));
            let consent = recover::Consent {
                yes: *yes,
                incomplete: *incomplete,
            };
            return recover::recover(config, phrase_file, family.as_deref(), of_family, consent).await;
        }
        _ => {}
    }
    let config = edge.one(volume)?.clone();
    match arguments.command {
        Command::Format {
            phrase_file,
            root_mode,
            manifest,
            leases,
        } => {
            let options = FormatOptions {
                root_mode,
                manifest,
                by_inode: leases == Some(WrittenLeases::Inode),
                ..FormatOptions::default()
            };
            format::format(&config, phrase_file.as_deref(), options).await
        }
        Command::Enrol {
            wait,
            root_mode,
            manifest,
        } => {
            let outside = Outside::open(&config).await?;
            let options = FormatOptions {
                root_mode,
                manifest,
                ..FormatOptions::default()
            };
            let enrolled = match wait {
                true => enrol::enrol_once_approved(&config, &outside, options).await?,
                false => enrol::enrol(&config, &outside, options).await?,
            };
            match enrolled {
                waiting @ enrol::Enrolment::NotApproved { .. } => Err(Failure::new(waiting)),
                ready @ enrol::Enrolment::Ready { .. } => {
                    println!("{ready}");
                    Ok(())
                }
            }
        }
        Command::Takeover { force } => format::takeover(&config, force).await,
        Command::AcceptRollback { yes } => accept_rollback::accept_rollback(&config, yes).await,
        Command::Join { identity } => join::join(&config, &identity).await,
        Command::Sync => commands::until_done(&config, admin::Command::Sync, "syncing").await,
        Command::Drain => commands::until_done(&config, admin::Command::Drain, "draining").await,
        Command::Verify => commands::verify(&config).await,
        Command::Audit(arguments) => audit::run(&config, arguments).await,
        Command::Snapshot { what } => snapshots::snapshot(&config, what).await,
        Command::Restore {
            snapshot,
            path,
            to,
            replace,
        } => {
            let request = admin::Command::Restore {
                to: to.unwrap_or_else(|| path.clone()),
                snapshot,
                path,
                replace,
            };
            snapshots::ask(&config, request, "restoring").await
        }
        Command::Clone { name, snapshot } => {
            snapshots::ask(&config, admin::Command::Clone { snapshot, name }, "cloning").await
        }
        Command::Locks {
            path: Some(path),
            take_away: true,
            client,
            yes,
            ..
        } => locks::take_away(&config, path, client, yes).await,
        Command::Locks { path, output, .. } => locks::show(&config, path, output).await,
        Command::Members {
            give_up: Some(number),
            yes,
            ..
        } => {
            let command = admin::Command::GiveUp { member: number, yes };
            commands::until_done(&config, command, "giving up").await
        }
        Command::Members { output, .. } => members::show(&config, output).await,
        Command::Rekey { what } => rekey::rekey(&config, what).await,
        Command::Manifest { what } => manifest::manifest(&config, what).await,
        Command::Clean { plan } => {
            commands::until_done(&config, admin::Command::Clean { plan }, "cleaning").await
        }
        Command::Repair { plan, all } => repair::repair(&config, plan, all).await,
        Command::Manual(_) | Command::Mount(_) => unreachable!("done before the configuration was read"),
        Command::CheckConfig
        | Command::Check(_)
        | Command::Upgrade(_)
        | Command::Run { .. }
        | Command::Status { .. }
        | Command::Top { .. }
        | Command::Id(_)
        | Command::Smb { .. }
        | Command::Recover { .. } => unreachable!("done above"),
    }
}
