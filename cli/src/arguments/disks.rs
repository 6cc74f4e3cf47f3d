//! The command line of disks and of the nodes that keep them.

use super::{Sure, Wait};
use clap::{Args, Subcommand};
use firn_quantity::Size;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum Disk {
    /// Lists disks.
    List,
    /// Makes a disk.
    Create {
        /// What it is called.
        name: String,
        /// Its size, such as 10GiB.
        #[arg(value_parser = Size::parse_or_bytes)]
        size: Size,
        /// Copies of its data, each on a node that fails alone.
        #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(1..=3))]
        replicas: u8,
        #[command(flatten)]
        wait: Wait,
    },
    /// Shows a disk.
    Show { disk: String },
    /// Makes a disk larger.
    Grow {
        disk: String,
        /// Its new size.
        #[arg(value_parser = Size::parse_or_bytes)]
        size: Size,
        #[command(flatten)]
        wait: Wait,
    },
    /// Attaches a disk to this machine and serves it over NBD until Ctrl-C: starts firn-blockd.
    #[command(after_help = ATTACH_EXIT_CODES)]
    Attach(AttachDisk),
    /// Has a disk given back by the machine that has it, wherever that is.
    Detach(DetachDisk),
    /// Snapshots of a disk, in a store of yours.
    #[command(subcommand)]
    Snapshot(DiskSnapshot),
    /// Makes a new disk of a snapshot, with a key of its own.
    Restore(RestoreDisk),
    /// Removes a disk and all on it.
    Delete {
        disk: String,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        wait: Wait,
    },
}

const ATTACH_EXIT_CODES: &str = "Exit codes once the disk is being attached (before, those of firn): 0 detached, everything is durable; \
1 failed, safe to try again; 2 something on this machine is wrong, nothing was attached; 3 another machine has the disk; 4 fenced: \
another machine took the disk, or it was detached by force.";

#[derive(Debug, Args)]
pub struct AttachDisk {
    pub disk: String,
    /// Where NBD clients connect: unix:/path or tcp:host:port; by default a socket beside the profile.
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<String>,
    /// The kernel's device that is to have the disk, such as /dev/nbd0: needs root and the module nbd.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,
    /// The file with the disk's key, which the service never has; by default beside the profile, and made when the disk is attached
    /// for the first time. Without it nobody reads the disk.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// write-through, write-back or flush-epoch: when writes and flushes are answered. By default the disk's own.
    #[arg(long)]
    pub mode: Option<String>,
    /// Where the service is reached with a certificate, if elsewhere than with a token: a gateway passes no certificates on.
    #[arg(long, value_name = "URL")]
    pub service: Option<String>,
    /// A directory for what is written while nodes are away.
    #[arg(long, value_name = "DIRECTORY")]
    pub journal: Option<PathBuf>,
    /// What the journal may hold.
    #[arg(long, requires = "journal", value_parser = Size::parse_or_bytes)]
    pub journal_size: Option<Size>,
    /// Takes the disk from the machine that has it, which can do nothing more with it.
    #[arg(long)]
    pub force: bool,
}

/// Where a disk's snapshots are, and what opens them.
#[derive(Debug, Args)]
pub struct SnapshotsOf {
    /// The store: s3://bucket/prefix, azure://container/prefix, gs://bucket/prefix or file:///directory, opened with what this
    /// machine's environment has. It is remembered beside the profile.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// The file with the disk's key; by default the one beside the profile.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum DiskSnapshot {
    /// Takes a snapshot, also while the disk is in use on this machine. What an earlier one stored is not stored again.
    Create {
        disk: String,
        /// The snapshot's name: letters, digits, - _ and .
        snapshot: String,
        #[command(flatten)]
        of: SnapshotsOf,
        /// Where the service is reached with a certificate, if elsewhere than with a token.
        #[arg(long, value_name = "URL")]
        service: Option<String>,
    },
    /// Lists a disk's snapshots, the newest first; of a disk that is gone by its id.
    List {
        disk: String,
        #[command(flatten)]
        of: SnapshotsOf,
    },
    /// Deletes a snapshot, and what no other snapshot of the disk needs.
    Delete {
        disk: String,
        snapshot: String,
        #[command(flatten)]
        of: SnapshotsOf,
        #[command(flatten)]
        sure: Sure,
    },
}

#[derive(Debug, Args)]
pub struct RestoreDisk {
    /// The disk that the snapshot is of; one that is gone by its id.
    pub disk: String,
    /// The snapshot's name.
    pub snapshot: String,
    /// What the new disk is called. A restore that was interrupted goes on with it.
    #[arg(long, value_name = "NAME")]
    pub into: String,
    /// The new disk's size, such as 20GiB; by default the snapshot's.
    #[arg(long, value_parser = Size::parse_or_bytes)]
    pub size: Option<Size>,
    /// Copies of its data, each on a node that fails alone.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub replicas: u8,
    #[command(flatten)]
    pub of: SnapshotsOf,
    /// The file with the new disk's key, made if it is not there; by default beside the profile.
    #[arg(long, value_name = "FILE")]
    pub new_key: Option<PathBuf>,
    /// Where the service is reached with a certificate, if elsewhere than with a token.
    #[arg(long, value_name = "URL")]
    pub service: Option<String>,
}

#[derive(Debug, Args)]
pub struct DetachDisk {
    pub disk: String,
    /// At once, without asking the machine that has it: what it did not make durable is lost.
    #[arg(long)]
    pub force: bool,
    /// How many seconds the machine is waited for.
    #[arg(long, default_value = "120", value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Debug, Subcommand)]
pub enum Node {
    /// Lists nodes.
    List,
    /// Invites a node; its secret is shown once.
    Create {
        /// What it is called.
        name: String,
        /// What fails together with it, such as a rack.
        #[arg(long)]
        failure_domain: String,
        /// Writes the join secret into this new file instead of showing it.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// Shows a node.
    Show { node: String },
    /// Empties a node: it takes nothing new.
    Drain {
        node: String,
        #[command(flatten)]
        sure: Sure,
    },
}
