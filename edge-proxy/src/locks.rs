//! Locks as administrators see them: `firn-edge locks`, which lists those of all protocols by path, and breaks those of a client that will not
//! give them up.
//!
//! Neither NFS nor the kernel has words for a lock that was taken away, so its holder goes on as if it had it. That is why breaking asks for
//! `--yes`, and says so.

use crate::{
    admin::{Client, Command, Reply, expect_end},
    commands::{Output, unexpected},
    config::Config,
    failure::Failure,
};
use firn_env::{print, println};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fmt::Write as _;

/// Listed at most: a screen nobody reads to its end, and 16 MiB of replies.
pub const LINES_MAX: usize = 4096;

/// What is asked about locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockCommand {
    /// Those of a file, or all.
    List { path: Option<String> },
    /// Takes away those of a file: of a client (as the list names it), or all.
    Break { path: String, client: Option<String> },
}

/// A lock or share reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLine {
    /// From the root of the volume; `#` and the inode number of a file that has no name any more.
    pub path: String,
    pub inode: u64,
    /// `nfs`, `smb` or `local`, a mount on this machine; `office`: clients of another office of a shared volume.
    pub protocol: String,
    /// Address and name of an NFS client; the directory of a mount; the name of another office.
    pub client: String,
    /// What the client calls the process, if that can be read.
    #[serde(default)]
    pub process: Option<String>,
    /// `read`, `write`, or what a reservation denies to others: `deny none`, `deny read`, `deny write`, `deny all`.
    pub kind: String,
    pub first: u64,
    /// Absent: to the end of the file, however far it grows.
    pub last: Option<u64>,
    /// Requests that wait for locks of this file.
    pub waiting: u64,
}

impl LockLine {
    fn bytes(&self) -> String {
        match (self.first, self.last) {
            (0, None) => "all".into(),
            (first, None) => format!("{first} to the end"),
            (first, Some(last)) => format!("{first} to {last}"),
        }
    }
}

/// The table for people.
fn table(locks: &[LockLine], all: u64) -> String {
    const HEAD: [&str; 6] = ["PATH", "CLIENT", "BY", "LOCK", "BYTES", "WAITING"];
    let row = |line: &LockLine| {
        let client = match &line.process {
            Some(process) => format!("{} [{process}]", line.client),
            None => line.client.clone(),
        };
        let (path, by) = (line.path.clone(), line.protocol.clone());
        [
            path,
            client,
            by,
            line.kind.clone(),
            line.bytes(),
            line.waiting.to_string(),
        ]
    };
    let rows: Vec<[String; 6]> = std::iter::once(HEAD.map(String::from))
        .chain(locks.iter().map(row))
        .collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (field, width) in row.iter().zip(widths) {
            let _ = write!(line, "{field:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let more = all.saturating_sub(locks.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; name a path to see those of one file");
    }
    text
}

async fn list(config: &Config, path: Option<String>) -> Result<(Vec<LockLine>, u64, bool), Failure> {
    let what = LockCommand::List { path };
    let mut client = Client::ask(config, Command::Locks { what }).await?;
    match client.next().await? {
        Reply::Locks { locks, all, in_grace } => Ok((locks, all, in_grace)),
        other => Err(unexpected(&other)),
    }
}

/// `firn-edge locks [PATH]`.
pub async fn show(config: &Config, path: Option<String>, output: Output) -> Result<(), Failure> {
    let (locks, all, in_grace) = list(config, path).await?;
    match output {
        Output::Json => {
            let whole = json!({ "locks": locks, "all": all, "in_grace": in_grace });
            println!("{}", serde_json::to_string_pretty(&whole).map_err(Failure::new)?);
        }
        Output::Text if locks.is_empty() => println!("no locks"),
        Output::Text => print!("{}", table(&locks, all)),
    }
    if in_grace && output == Output::Text {
        println!("the edge has just started and waits for NFS clients to reclaim the locks they held");
    }
    Ok(())
}

/// `firn-edge locks PATH --break`: shows what would be taken away; does it with `yes`.
pub async fn take_away(
    config: &Config,
    path: String,
    client: Option<String>,
    yes: bool,
) -> Result<(), Failure> {
    if !yes {
        let (mut locks, ..) = list(config, Some(path.clone())).await?;
        locks.retain(|line| client.as_ref().is_none_or(|client| line.client == *client));
        if locks.is_empty() {
            return Err(Failure::new(format!(
                "nothing to break: no such lock is held in {path}"
            )));
        }
        print!("{}", table(&locks, locks.len() as u64));
        println!(
            "nothing was changed. With --yes these are taken away; who holds them is not told and may write on: end its program, or its mount, first"
        );
        return Ok(());
    }
    let what = LockCommand::Break { path, client };
    let mut asked = Client::ask(config, Command::Locks { what }).await?;
    match expect_end(&mut asked, "breaking").await? {
        Reply::Done { text } => println!("{text}"),
        other => return Err(unexpected(&other)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_who_has_which_bytes_and_how_many_are_not_listed() {
        let line = |first, last| LockLine {
            path: "/plans/a.ods".into(),
            inode: 7,
            protocol: "nfs".into(),
            client: "10.0.0.5 hera".into(),
            process: Some("12@hera".into()),
            kind: "write".into(),
            first,
            last,
            waiting: 1,
        };
        assert_eq!(
            table(&[line(0, None), line(10, Some(19))], 5),
            "PATH          CLIENT                   BY   LOCK   BYTES     WAITING\n\
             /plans/a.ods  10.0.0.5 hera [12@hera]  nfs  write  all       1\n\
             /plans/a.ods  10.0.0.5 hera [12@hera]  nfs  write  10 to 19  1\n\
             and 3 more; name a path to see those of one file\n"
        );
    }
}
