//! The command line of `firn-blockd`.

use crate::{
    cluster, config, dev, disks, failure::Failure, journal, node, security, snapshots, status, tenant,
    tenant_snapshots,
};
use clap::{CommandFactory as _, Parser, Subcommand};
use firn_env::{eprintln, println};
use firn_quantity::Size;
use firn_table::TableUrl;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Serves physical disks to a cluster, and virtual disks from it over NBD.
#[derive(Parser)]
#[command(name = "firn-blockd", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration file.
    #[arg(long, short, global = true, default_value = "/etc/firn/firn-blockd.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, safe to try again; 2 the command line or the configuration is wrong; \
3 somebody else has the disk; 4 fenced: somebody else took over";

#[derive(Subcommand)]
enum Command {
    /// Makes the secret of a new cluster.
    Secret {
        /// The new file.
        file: PathBuf,
    },
    /// Sets a new cluster up in the table.
    Init {
        /// Rows of each locator table, for ever: about the square of the nodes there will be.
        #[arg(long, default_value_t = 1024)]
        rows: u32,
    },
    /// Moves a cluster out of a table that it shares with other things, into the one that the configuration names. Stop its nodes,
    /// its clients and the service first.
    MoveTable {
        /// The table it is in, such as dynamodb://firn?region=eu-central-1.
        #[arg(long, value_name = "TABLE")]
        from: TableUrl,
    },
    /// Serves this machine's disk until SIGTERM. One process for each physical disk.
    Node,
    /// Runs a whole cluster and one disk in this process, on a directory.
    Dev(dev::Dev),
    /// Creates a disk.
    Create(disks::Create),
    /// Lists the tenant's disks.
    List,
    /// Attaches a disk and serves it over NBD until SIGTERM or `detach`.
    Attach {
        /// The disk's name.
        name: String,
        #[command(flatten)]
        how: disks::AttachHow,
    },
    /// Attaches a tenant's disk by the ticket on standard input. `firn disk attach` starts it.
    #[command(hide = true)]
    AttachByTicket(tenant::ByTicket),
    /// Snapshots of a tenant's disk. `firn disk snapshot` and `firn disk restore` start it.
    #[command(hide = true, subcommand)]
    TenantSnapshot(tenant_snapshots::TenantSnapshot),
    /// Ends an attach on this machine, with everything durable.
    Detach {
        /// The disk's name.
        name: String,
    },
    /// Makes a disk larger, also while it is in use.
    Grow {
        /// The disk's name.
        name: String,
        /// Its new size, such as 20GiB.
        #[arg(required_unless_present = "old_size")]
        size: Option<Size>,
        /// As earlier versions wanted it.
        #[arg(
            long = "size",
            id = "old_size",
            hide = true,
            conflicts_with = "size",
            value_name = "SIZE"
        )]
        old_size: Option<Size>,
    },
    /// Deletes a disk that nobody has attached.
    Delete {
        /// The disk's name.
        name: String,
    },
    /// Takes a snapshot of a disk, also while it is in use; only what changed since earlier ones is stored.
    Snapshot(snapshots::SnapshotArguments),
    /// The same as `snapshot list`.
    #[command(hide = true)]
    Snapshots(snapshots::Of),
    /// Makes a new disk from a snapshot.
    Restore(snapshots::Restore),
    /// What local journals hold, of attaches with --journal: shows, exports or applies it.
    Journal {
        #[command(subcommand)]
        what: journal::JournalCommand,
    },
    /// Waits until rows are whole and their load is level; nodes that came or went are dealt with by themselves.
    Rebalance {
        /// Only says how things stand.
        #[arg(long)]
        dry_run: bool,
    },
    /// Empties a node, so that it can be taken away.
    Drain {
        /// The node, as `status` shows it.
        node: String,
        /// Lets it take part again instead.
        #[arg(long)]
        undo: bool,
    },
    /// Shows the cluster and the disks attached on this machine.
    Status {
        /// As tables or as JSON.
        #[arg(long, value_enum, default_value = "text")]
        output: status::Output,
    },
    /// Shows what the disks attached on this machine do, again and again.
    Top {
        /// Seconds between two tables.
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// Ends after so many tables.
        #[arg(long)]
        count: Option<u64>,
    },
    #[command(flatten)]
    Manual(firn_manual::ManualCommand),
}

/// Runs the program: reads the command line, does what it says.
pub fn program() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("FIRN_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        .with_ansi(firn_env::terminal::log_has_colours())
        .init();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let executed = match runtime {
        Ok(runtime) => runtime.block_on(execute(arguments)),
        Err(error) => Err(Failure::new(format!("cannot start threads: {error}"))),
    };
    match executed {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("firn-blockd: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

async fn execute(arguments: Arguments) -> Result<(), Failure> {
    let config = || config::Config::load(&arguments.config);
    match arguments.command {
        Command::Secret { file } => {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            let env = cluster::environment(directory.unwrap_or(std::path::Path::new(".")))?;
            security::Secret::create(&env, &file)?;
            println!(
                "{} is the cluster's secret; nodes and clients need it, nobody else",
                file.display()
            );
            Ok(())
        }
        Command::Init { rows } => {
            let config = config()?;
            let outside = cluster::Outside::open(&config, config.directory()?).await?;
            outside.placement.initialise([rows; 3]).await?;
            println!("cluster {} is set up with {rows} rows", config.cluster.name);
            Ok(())
        }
        Command::MoveTable { from } => cluster::move_table(&config()?, &from).await,
        Command::Node => node::run(&config()?).await,
        Command::Dev(wanted) => dev::run(&wanted).await,
        Command::Create(wanted) => disks::create(&config()?, &wanted).await,
        Command::List => disks::list(&config()?).await,
        Command::Attach { name, how } => disks::attach_disk(&config()?, &name, &how).await,
        Command::AttachByTicket(wanted) => tenant::attach_by_ticket(&wanted).await,
        Command::TenantSnapshot(wanted) => tenant_snapshots::run(&wanted).await,
        Command::Detach { name } => disks::detach(&config()?, &name).await,
        Command::Grow { name, size, old_size } => {
            let size = size
                .or(old_size)
                .ok_or_else(|| Failure::usage("name the new size, such as 20GiB"))?;
            disks::grow(&config()?, &name, size).await
        }
        Command::Delete { name } => disks::delete(&config()?, &name).await,
        Command::Snapshot(wanted) => snapshots::snapshot(&config()?, wanted).await,
        Command::Snapshots(of) => snapshots::list(&config()?, &of).await,
        Command::Restore(wanted) => snapshots::restore_disk(&config()?, &wanted).await,
        Command::Journal { what } => journal::journal(&config()?, &what).await,
        Command::Rebalance { dry_run } => status::rebalance(&config()?, dry_run).await,
        Command::Drain { node, undo } => status::drain(&config()?, &node, undo).await,
        Command::Status { output } => status::status(&config()?, output).await,
        Command::Top { interval, count } => {
            status::top(&config()?, Duration::from_secs(interval), count).await
        }
        Command::Manual(manual) => manual.run(Arguments::command()).map_err(Failure::new),
    }
}
