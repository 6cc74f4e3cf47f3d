//! `firn-edge members`: the offices that write a volume at the same moment, as the anchor has them. It asks the anchor itself, so it works where no edge runs.

use crate::{commands::Output, config::Config, failure::Failure, identity::Identity, parts::Outside};
use firn_anchor::{MemberEntry, MemberState, OwnerId, VolumeTuple};
use firn_env::{print, println};
use firn_volume::Volume;
use serde::Serialize;
use std::fmt::Write as _;

/// A member as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    /// For ever; its home are the inode numbers from this times 2^32 on.
    number: u32,
    edge: String,
    state: MemberState,
    /// The version of its last commit since it started.
    last_commit: Option<u64>,
    /// Whether the volume keeps a root by which its journal is judged.
    retained: bool,
    /// Whether it is this edge's.
    here: bool,
}

fn lines(tuple: &VolumeTuple, members: &[MemberEntry], own: Option<OwnerId>) -> Vec<Line> {
    members
        .iter()
        .map(|entry| Line {
            number: entry.member.0,
            edge: entry.tuple.name.clone(),
            state: entry.tuple.record.state(),
            last_commit: entry.tuple.record.last_commit.map(|commit| commit.version.0),
            retained: tuple.retained_for_member(entry.member).is_some(),
            here: Some(entry.tuple.edge) == own,
        })
        .collect()
}

/// The table for people.
fn table(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.edge.chars().count()).max();
    let width = width.unwrap_or(0).max("EDGE".len());
    let mut text = format!(
        "{:<10}  {:<width$}  {:<11}  LAST COMMIT\n",
        "MEMBER", "EDGE", "STATE"
    );
    for line in lines {
        let commit = match line.last_commit {
            Some(version) => format!("version {version}"),
            None => "none since it started".into(),
        };
        let here = if line.here { "  (this edge)" } else { "" };
        let (state, edge) = (line.state.to_string(), &line.edge);
        let _ = writeln!(
            text,
            "{:<10}  {edge:<width$}  {state:<11}  {commit}{here}",
            line.number
        );
    }
    if lines.iter().any(|line| line.state == MemberState::Broken) {
        text.push_str(
            "broken: it was not heard for a minute while others waited for it. Start it again: what stands on others' changes goes into a salvage clone, all else on\n",
        );
    }
    if lines.iter().any(|line| line.state == MemberState::GivenUp) {
        text.push_str(
            "given up: what its journal has and the volume has not can be put on no root any more\n",
        );
    }
    text
}

/// Shows them.
///
/// # Errors
/// [`Failure`]: the volume is not written by members, or the anchor does not answer.
pub async fn show(config: &Config, output: Output) -> Result<(), Failure> {
    let identity = Identity::load(&config.volume.state_directory)?;
    let outside = Outside::open(config).await?;
    let anchor = outside.anchor(identity.family);
    let (tuple, _) = anchor.load(identity.volume).await?;
    if !tuple.by_inode {
        return Err(Failure::usage(format!(
            "volume {} has no members: one edge at a time writes it. Which one: firn-edge status",
            tuple.name
        )));
    }
    let members = anchor.members(identity.volume).await?;
    let own = Volume::edge_identity(&outside.env).await?;
    let lines = lines(&tuple, &members, own);
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&lines).map_err(Failure::new)?),
        Output::Text if lines.is_empty() => println!("no office has joined yet"),
        Output::Text => print!("{}", table(&lines)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_who_writes_and_what_a_broken_office_needs() {
        let line = |number, edge: &str, state, here| Line {
            number,
            edge: edge.into(),
            state,
            last_commit: Some(number.into()),
            retained: false,
            here,
        };
        let shown = table(&[
            line(3, "harbour", MemberState::Present, true),
            line(12, "hill", MemberState::Broken, false),
        ]);
        let expected = "MEMBER      EDGE     STATE        LAST COMMIT\n\
                        3           harbour  present      version 3  (this edge)\n\
                        12          hill     broken       version 12\n";
        assert!(shown.starts_with(expected), "{shown}");
        assert!(shown.contains("Start it again"), "{shown}");
    }
}
