//! The command line of a volume that is mounted on this machine.

use super::{Credentials, Phrase};
use clap::Args;
use firn_quantity::Size;
use std::path::PathBuf;

pub(super) const MOUNT_EXIT_CODES: &str = "Exit codes once firn-edge runs (before, those of firn): 0 unmounted, everything is in the cloud; 1 failed, or not \
everything is in the cloud yet: it is safe here, mount again; 2 something on this machine is wrong; 3 another edge owns the volume; 4 fenced: another edge took it \
over; 5 the journal failed, start again; 6 the store lost or altered something.";

/// `firn mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// Name or id of the volume.
    pub volume: String,
    /// Where: a directory of yours.
    pub directory: PathBuf,
    /// Nothing can be changed through it.
    #[arg(long)]
    pub read_only: bool,
    /// For all users of this machine, as modes and ACLs say; without, only for you. Unless you are root it needs the line
    /// `user_allow_other` in /etc/fuse.conf.
    #[arg(long)]
    pub allow_other: bool,
    /// Keeps the volume at the end, without waiting for the cloud: what was synced stays in the journal here until the next mount.
    #[arg(long)]
    pub keep: bool,
    /// What this machine is called as an edge, the first time; by default the user's and the machine's name with that of the volume.
    #[arg(long, value_name = "NAME")]
    pub edge: Option<String>,
    /// Where the volume lies, as volume.store of an edge, if the service does not keep it. Remembered.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Whose credentials open the store: the service's, or this process's own. By default the service's for what it keeps, and your own
    /// for --store. Remembered.
    #[arg(long, value_enum)]
    pub credentials: Option<Credentials>,
    /// Of the local disk, for what was read and written.
    #[arg(long, value_name = "SIZE", default_value = "10 GiB")]
    pub cache: Size,
    #[command(flatten)]
    pub phrase: Phrase,
}
