//! `firn-edge id`: who a user is on this edge, and whether a client gets an access, step by step.
//!
//! ```text
//! accounts ──▶ who: uid, gid, groups, and which table says so                                   (accounts)
//! export   ──▶ client rule, squash, read-only          [Export::admission, ClientRule::credentials]   (nfs)
//! share    ──▶ networks, users, forced user            [smb::admission]                               (smb)
//! path     ──▶ search permission of each directory, then what was asked   [rules::verdict, Vfs::check_access]   (walk)
//! ```
//!
//! Nothing is decided here: the running edge is asked over its admin socket, and asks the functions by which it serves. The first step that
//! refuses is the cause; those behind it are told as well, since whoever mends the first meets the next.

mod explanation;
mod nfs;
mod smb;
mod walk;
mod who;

pub use explanation::Answer;

use crate::{
    admin::{Client, Command, Reply, expect_end},
    commands::{Output, unexpected},
    config::EdgeConfig,
    failure::Failure,
    volumes::Volumes,
};
use firn_env::{print, println};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A port that a client's kernel uses, and nobody but its root can.
const KERNEL_PORT: u16 = 1023;

/// The command line of `firn-edge id`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A name, as DOMAIN\NAME of a domain, or a uid.
    user: String,
    /// The group that an NFS client sends with the uid; by default that of the table which names the user.
    #[arg(long)]
    gid: Option<u32>,
    /// Further groups that an NFS client sends; by default those of the table.
    #[arg(long, value_delimiter = ',', value_name = "GID,…")]
    groups: Option<Vec<u32>>,
    /// The client's address.
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// The client's port; by default one of its kernel's.
    #[arg(long, default_value_t = KERNEL_PORT, requires = "from")]
    port: u16,
    /// As clients see it, beginning with the export; with --share from the root of that.
    #[arg(long, requires = "from")]
    path: Option<String>,
    /// The share: what SMB answers, and not NFS.
    #[arg(long, requires = "from", value_name = "NAME")]
    share: Option<String>,
    /// What is to be done there.
    #[arg(long, value_enum, default_value = "read")]
    access: Access,
    /// As text or as JSON.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// What a client wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read a file, list a directory.
    Read,
    /// Write into a file, make or remove names in a directory; make a file that is not there.
    Write,
    /// Execute a file, walk through a directory.
    Execute,
    /// Remove or rename the file or directory itself.
    Delete,
}

impl Access {
    fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Delete)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
            Self::Delete => "delete",
        }
    }
}

/// What the edge is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// A name or a number.
    pub user: String,
    pub gid: Option<u32>,
    pub groups: Option<Vec<u32>>,
    /// None: only who that is.
    pub wish: Option<Wish>,
}

/// What somebody wants, and from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub from: IpAddr,
    pub port: u16,
    pub path: String,
    pub share: Option<String>,
    pub access: Access,
}

impl Arguments {
    fn question(&self) -> Result<Question, Failure> {
        let wish = match (self.from, &self.path, &self.share) {
            (None, ..) => None,
            (Some(_), None, None) => {
                return Err(Failure::usage(
                    "--from needs --path, as clients see it (/export/dir/file), or --share",
                ));
            }
            (Some(from), path, share) => Some(Wish {
                from: from.to_canonical(),
                port: self.port,
                path: path.clone().unwrap_or_else(|| "/".into()),
                share: share.clone(),
                access: self.access,
            }),
        };
        Ok(Question {
            user: self.user.clone(),
            gid: self.gid,
            groups: self.groups.clone(),
            wish,
        })
    }
}

/// `firn-edge id`.
pub async fn id(edge: &EdgeConfig, arguments: &Arguments) -> Result<(), Failure> {
    let question = arguments.question()?;
    let command = Command::Id {
        question: question.clone(),
    };
    let mut client = Client::ask_edge(edge.directory(), None, command).await?;
    let answer = match expect_end(&mut client, "looking").await? {
        Reply::Id { answer } => answer,
        other => return Err(unexpected(&other)),
    };
    match arguments.output {
        Output::Text => print!("{}", answer.text(&question)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer).map_err(Failure::new)?),
    }
    Ok(())
}

/// The running edge's answer.
///
/// # Errors
/// For people: nobody is named so, no export or share is, or the volume cannot be looked at.
pub async fn answer(volumes: &Volumes, question: &Question) -> Result<Answer, String> {
    let who = who::find(volumes, question).await?;
    let mut explanations = Vec::new();
    if let Some(wish) = &question.wish {
        if wish.share.is_none() {
            explanations.push(nfs::explain(volumes, &who, wish).await);
        }
        explanations.extend(smb::explain(volumes, &who, wish).await?);
    }
    Ok(Answer {
        accounts: who.accounts,
        notes: who.notes,
        explanations,
    })
}
