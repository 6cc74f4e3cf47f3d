//! The command line.

mod disks;
mod install;
mod mount;
mod share;

pub use disks::*;
pub use install::*;
pub use mount::*;
pub use share::*;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Roles of people.
const ROLES: [&str; 5] = ["owner", "admin", "operator", "billing", "reader"];

/// Firn: a file share and virtual disks in your own bucket.
#[derive(Debug, Parser)]
#[command(
    name = "firn",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong command line; 3 not logged in; 4 not allowed; 5 no such thing; \
                  6 conflict; 7 over quota or budget; 8 unavailable, repeat it; 9 what the service says cannot be trusted.\n\
                  Environment: FIRN_PROFILE names another profile file; NO_COLOR turns colours off."
)]
pub struct Arguments {
    /// Tables for people, JSON for programs.
    #[arg(long, global = true, value_enum, default_value = "table")]
    pub output: Output,
    /// Another profile file.
    #[arg(long, global = true, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes a tenant: a recovery phrase here, an account there.
    Signup(Signup),
    /// Logs in with an API key, read from standard input or a file; replaces the key of the same tenant.
    Login(Login),
    /// Lets an owner in again who has no key left: by the recovery phrase, and by a letter to the owner's address.
    Recover(Recover),
    /// Forgets this machine's API key; what was seen of the tenant's keys stays.
    Logout {
        /// Revokes the key too, so that nobody can use a copy of it.
        #[arg(long)]
        revoke: bool,
    },
    /// Shows who is logged in, where, in which role, and which key is pinned.
    Whoami,
    /// Volumes: file systems in a bucket.
    #[command(subcommand)]
    Volume(Volume),
    /// When snapshots are made and how long they are kept.
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Edges: the machines that serve volumes in an office.
    #[command(subcommand)]
    Edge(Edge),
    /// Grants a volume to an edge of yours that was not invited to it, or to another tenant; lists, accepts, approves and revokes grants.
    Share(Share),
    /// Makes a volume a directory of this machine until Ctrl-C: starts firn-edge, as the user who types it.
    ///
    /// The first time this machine is invited, joins and is approved, for which the recovery phrase is needed; what it keeps (keys, journal,
    /// cache) is then in the user's own directory, and every later start goes on from there, without the service if that is away.
    #[command(after_help = MOUNT_EXIT_CODES)]
    Mount(Mount),
    /// Virtual disks.
    #[command(subcommand)]
    Disk(Disk),
    /// Nodes that keep disks' data.
    #[command(subcommand)]
    Node(Node),
    /// Shows what was used in a month, by resource.
    Usage(OfMonth),
    /// Explains a month's bill on one screen: what cost most, what would lower it.
    Cost(OfMonth),
    /// Invoices.
    #[command(subcommand)]
    Invoice(Invoice),
    /// What may be spent in a month.
    #[command(subcommand)]
    Budget(Budget),
    /// API keys.
    #[command(subcommand)]
    Key(Key),
    /// Members and their roles.
    #[command(subcommand)]
    Member(Member),
    /// The hash-chained audit log, and reports of audits of volumes.
    #[command(subcommand)]
    Audit(Audit),
    /// Checks this machine's profile, the way to the service, and what the service says.
    Doctor {
        /// Writes what was found into this new file, without any secret, to be sent to support.
        #[arg(long, value_name = "FILE")]
        bundle: Option<PathBuf>,
        /// Reads the figures of an edge, an anchor, a disk node, a cleaner or a service, too, and says what is wrong there; may be repeated.
        #[arg(long, value_name = "URL")]
        metrics: Vec<String>,
    },
    /// Everything of yours on one screen, what is wrong first.
    Status,
    /// What was done, by whom, and what edges said last.
    Logs {
        /// So many entries at most, the last ones.
        #[arg(long, default_value = "40")]
        last: usize,
        /// Only of what is called so, or has this id: what was done to it or by it.
        #[arg(long, value_name = "NAME")]
        of: Option<String>,
    },
    /// Says what to look at of a thing, and where its users find it: a volume, edge, disk, node, key or member.
    Open {
        /// Its name or id.
        thing: String,
    },
    /// Shows what this machine remembers: the profile, without its secrets.
    Config {
        /// Prints the authority that the profile trusts, as PEM, for another machine.
        #[arg(long)]
        authority: bool,
    },
    /// Runs a whole Firn on this machine, to try it: starts firn-dev. See `firn dev -- --help`.
    Dev {
        /// For firn-dev.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Prints a completion script.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
        /// Puts it where the shell looks for scripts of this user, and says where; not for elvish and PowerShell.
        #[arg(long)]
        install: bool,
    },
    /// Writes manual pages into a directory.
    Man {
        /// The directory, made if need be.
        directory: PathBuf,
    },
}

/// Which service.
#[derive(Debug, Args)]
pub struct Server {
    /// Its address, such as https://api.example.org. Plain http only to this machine.
    #[arg(long)]
    pub server: String,
    /// A PEM file with the authority to trust instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub authority: Option<PathBuf>,
    /// The authority itself, DER in base64: what `firn edge create` prints, so that no file has to be carried.
    #[arg(long, value_name = "BASE64", conflicts_with = "authority")]
    pub authority_der: Option<String>,
}

#[derive(Debug, Args)]
pub struct Signup {
    #[command(flatten)]
    pub server: Server,
    /// Where the confirmation goes.
    #[arg(long)]
    pub email: String,
    /// What the tenant is called.
    #[arg(long)]
    pub name: String,
    /// Writes the recovery phrase into this new file instead of showing it and asking for words of it.
    #[arg(long, value_name = "FILE")]
    pub phrase_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Login {
    #[command(flatten)]
    pub server: Server,
    /// The tenant's id.
    #[arg(long)]
    pub tenant: String,
    /// The tenant's public key, as an owner tells it by another way. Without it the first one seen is pinned.
    #[arg(long, value_name = "HEX")]
    pub tenant_key: Option<String>,
    /// Reads the API key from this file; otherwise from standard input.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Recover {
    #[command(flatten)]
    pub server: Server,
    /// The owner's address; a letter goes there.
    #[arg(long)]
    pub email: String,
    /// The tenant's id; needed only for a tenant that the service does not find by the phrase.
    #[arg(long)]
    pub tenant: Option<String>,
    #[command(flatten)]
    pub phrase: Phrase,
}

/// The recovery phrase, for what has to be signed.
#[derive(Debug, Args)]
pub struct Phrase {
    /// Reads the recovery phrase from this file; otherwise it is asked for.
    #[arg(long, value_name = "FILE")]
    pub phrase_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Lists volumes.
    List,
    /// Makes a volume and its first key ring, signed with the recovery phrase.
    Create {
        /// What it is called.
        name: String,
        /// In a bucket of the service's in this region.
        #[arg(long, required_unless_present = "bucket")]
        region: Option<String>,
        /// In your own bucket: s3://bucket/prefix or azure://account/container/prefix.
        #[arg(long, conflicts_with = "region", requires = "role")]
        bucket: Option<String>,
        /// The role to assume there; it must demand your external id (firn whoami).
        #[arg(long)]
        role: Option<String>,
        /// By what its offices keep each other from changing the same, for ever. With `volume` one office has all of it at a time; with `inode` offices write at the same
        /// moment, each the files and directories that it holds (docs/sharing.md says what such a volume cannot have yet).
        #[arg(long, value_name = "BY", default_value = "volume", value_parser = ["volume", "inode"])]
        leases: String,
        #[command(flatten)]
        phrase: Phrase,
    },
    /// Lists the offices that write a volume of `--leases inode`, and how each stands.
    Members { volume: String },
    /// Shows a volume, and who its keys are wrapped to.
    Show { volume: String },
    /// Starts a new key epoch: what edges write after their next start is sealed with another key. What is there stays readable.
    Rotate {
        volume: String,
        #[command(flatten)]
        phrase: Phrase,
    },
    /// Has the edge that serves a volume seal everything anew under its newest key, in the background. Clients see nothing of it.
    Rekey {
        volume: String,
        /// Shows how far it is, and what still needs older keys; asks for nothing.
        #[arg(long, conflicts_with_all = ["stop", "rate"])]
        status: bool,
        /// Ends it; what it has done stays done.
        #[arg(long, conflicts_with = "rate")]
        stop: bool,
        /// Bytes read and written a second, at most. Ask again to change it.
        #[arg(long, value_name = "SIZE", default_value = "4 MiB")]
        rate: String,
    },
    /// Gives a volume another name.
    Rename { volume: String, name: String },
    /// Deletes a volume; it can be undeleted.
    Delete {
        volume: String,
        #[command(flatten)]
        sure: Sure,
    },
    /// Takes a deletion back.
    Undelete { volume: String },
    /// Shows the service that a bucket you bring is yours: the role must demand your external id and reach the bucket.
    Prove { volume: String },
    /// Erases the keys of a deleted volume. There is no way back.
    Erase {
        volume: String,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Debug, Args)]
pub struct Sure {
    /// Does not ask.
    #[arg(long)]
    pub yes: bool,
}

/// Waiting for work of several steps.
#[derive(Debug, Args)]
pub struct Wait {
    /// Waits until it is done or undone, and says how far it is.
    #[arg(long)]
    pub wait: bool,
    /// Stops waiting after so many seconds; the work goes on.
    #[arg(long, default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Shows a volume's policy.
    Show { volume: String },
    /// Changes it; what is not given stays.
    Policy {
        volume: String,
        /// The last so many versions.
        #[arg(long)]
        last: Option<u16>,
        /// One an hour, for so many hours.
        #[arg(long)]
        hourly: Option<u16>,
        /// One a day, for so many days.
        #[arg(long)]
        daily: Option<u16>,
        /// One a week, for so many weeks.
        #[arg(long)]
        weekly: Option<u16>,
        /// One a month, for so many months.
        #[arg(long)]
        monthly: Option<u16>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Edge {
    /// Lists edges.
    List,
    /// Invites an edge: prints one command to run there, and the secret to give it.
    Create {
        /// What it is called.
        name: String,
        /// A volume that it will serve; may be given several times. None, for an edge that is to open only what is granted to it (firn share).
        #[arg(long = "volume")]
        volumes: Vec<String>,
        /// Writes the join secret into this new file instead of showing it.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// Prints all that is typed on the machine that becomes an edge, as a script without a secret: packages, configuration, a check, join,
    /// service, and what its clients mount. Invites the edge unless it is invited already.
    Install(Install),
    /// Joins as an edge, on the machine that becomes one; the secret is read from standard input or a file.
    Join {
        #[command(flatten)]
        server: Server,
        /// The tenant's id.
        #[arg(long)]
        tenant: String,
        /// A new directory for what only this edge may read.
        #[arg(long, value_name = "DIRECTORY")]
        state: PathBuf,
        /// Reads the join secret from this file; otherwise from standard input.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// Wraps the volumes' keys to an edge that joined, after checking that its keys are its own.
    Approve {
        edge: String,
        #[command(flatten)]
        phrase: Phrase,
    },
    /// Shows an edge.
    Show { edge: String },
    /// Removes an edge: refused at once, and left out of every key from now on.
    Remove {
        edge: String,
        #[command(flatten)]
        phrase: Phrase,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Debug, Args)]
pub struct OfMonth {
    /// Such as 2026-11; the current one by default (UTC).
    #[arg(long)]
    pub month: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Invoice {
    /// Lists final invoices.
    List,
    /// Shows a month's invoice, or the draft of one that is not over.
    Show(OfMonth),
    /// Writes a month's invoice as CSV or JSON to standard output.
    Export {
        #[command(flatten)]
        month: OfMonth,
        #[arg(long, value_enum, default_value = "csv")]
        format: InvoiceFormat,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InvoiceFormat {
    Csv,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Budget {
    /// Shows what may be spent in a month.
    Show,
    /// Raises the hard cap; the alert stays.
    Raise {
        /// The new hard cap, such as 80.00.
        hard_cap: crate::money::Amount,
    },
    /// Sets it; what is not given is taken away.
    Set {
        /// Mail owners and billing members from here on, such as 50.00.
        #[arg(long)]
        alert: Option<crate::money::Amount>,
        /// Provision nothing new and refuse new writes from here on; reads, deletes and what was acknowledged go on.
        #[arg(long)]
        hard_cap: Option<crate::money::Amount>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// Lists API keys.
    List,
    /// Makes an API key; its secret is shown once.
    Create {
        /// What it is called.
        name: String,
        /// What it may do; no more than your own role.
        #[arg(long, value_parser = ROLES)]
        role: String,
        /// Limits it to this right, such as volume:read; may be given several times.
        #[arg(long = "scope")]
        scopes: Vec<String>,
        /// For how many days it holds.
        #[arg(long, default_value = "90", value_parser = clap::value_parser!(u64).range(1..=366))]
        days: u64,
        /// Writes the secret into this new file instead of showing it.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// Revokes an API key: it and its tokens are refused at once.
    Revoke { key: String },
}

#[derive(Debug, Subcommand)]
pub enum Member {
    /// Lists members.
    List,
    /// Invites somebody by mail.
    Invite {
        email: String,
        /// What they may do.
        #[arg(long, value_parser = ROLES)]
        role: String,
    },
    /// Accepts an invitation; the mail's code is read from standard input.
    Confirm {
        #[command(flatten)]
        server: Server,
        /// The tenant's id, as the mail says.
        #[arg(long)]
        tenant: String,
        /// The member's id, as the mail says.
        #[arg(long)]
        member: String,
        /// The tenant's public key, as an owner tells it by another way.
        #[arg(long, value_name = "HEX")]
        tenant_key: Option<String>,
    },
    /// Gives a member another role.
    Role {
        member: String,
        /// What they may do.
        #[arg(value_parser = ROLES)]
        role: String,
    },
    /// Removes a member, and ends their keys and tokens.
    Remove {
        member: String,
        #[command(flatten)]
        sure: Sure,
    },
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Lists the log, oldest first; of a volume, the signed reports of what audits found its bucket to have, newest first, and checks them.
    List {
        /// Reports of audits of this volume.
        volume: Option<String>,
    },
    /// Fetches the whole log and checks the chain, the signed head, and what was seen before.
    Verify,
}
