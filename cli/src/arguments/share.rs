//! The command line of grants: `firn share`.

use super::{Phrase, Sure};
use clap::{Args, Subcommand};

/// `firn share`.
#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true
)]
pub struct Share {
    #[command(flatten)]
    pub offer: Offer,
    #[command(subcommand)]
    pub command: Option<ShareCommand>,
}

/// What is granted.
#[derive(Debug, Args)]
pub struct Offer {
    /// Name or id of the volume.
    #[arg(required = true)]
    pub volume: Option<String>,
    /// Whom: an edge of yours, by name or id, that was not invited to the volume; or another tenant, by its id.
    #[arg(long, value_name = "EDGE|TENANT", required = true)]
    pub with: Option<String>,
    /// Of another tenant its public key, which `firn whoami` shows there. Have it told by its people: the service is not believed about it.
    #[arg(long, value_name = "HEX")]
    pub key: Option<String>,
    /// To be followed: read, and not changed.
    #[arg(long, required_unless_present = "write")]
    pub read: bool,
    /// To be changed too, by turns with your offices: each of them has `shared = true`.
    #[arg(long, conflicts_with = "read")]
    pub write: bool,
    #[command(flatten)]
    pub phrase: Phrase,
}

#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// Lists whom volumes are granted to, and what other tenants granted to you.
    List {
        /// Only of this volume.
        volume: Option<String>,
    },
    /// Accepts what another tenant granted, for edges of yours, and prints what their configuration says of it.
    Accept {
        /// TENANT/VOLUME, as the owner tells it.
        grant: String,
        /// The owner's public key, as the owner tells it.
        #[arg(long, value_name = "HEX")]
        key: String,
        /// That it may be changed too, as the owner granted it.
        #[arg(long)]
        write: bool,
        /// An edge that is to open the volume; may be given several times. Give all of them each time.
        #[arg(long = "edge", required = true)]
        edges: Vec<String>,
        #[command(flatten)]
        phrase: Phrase,
    },
    /// Declines what another tenant offered; it sees that in its list.
    Decline {
        /// TENANT/VOLUME, as the owner tells it.
        grant: String,
    },
    /// Leaves a volume that another tenant granted: your edges are refused at once, and their clients get errors.
    Leave {
        /// The volume, by the name or the id that `firn share list` shows.
        volume: String,
        #[command(flatten)]
        sure: Sure,
    },
    /// Wraps a volume's keys to the edges that another tenant accepted with, after checking that it named them, and lets them in.
    Approve {
        /// Name or id of the volume.
        volume: String,
        /// The other tenant.
        #[arg(long, value_name = "TENANT")]
        with: String,
        /// Its public key; needed only where the volume was not shared with this profile.
        #[arg(long, value_name = "HEX")]
        key: Option<String>,
        #[command(flatten)]
        phrase: Phrase,
    },
    /// Revokes a grant: refused at once, and left out of every key from now on: a new key epoch begins, so what is written from then on is not
    /// to be read with the keys that were granted.
    Revoke {
        /// Name or id of the volume.
        volume: String,
        /// Whose grant.
        #[arg(long, value_name = "EDGE|TENANT")]
        with: String,
        /// Seals what was written before anew as well, in the background, as `firn volume rekey` does.
        #[arg(long)]
        rekey: bool,
        #[command(flatten)]
        phrase: Phrase,
        #[command(flatten)]
        sure: Sure,
    },
}
