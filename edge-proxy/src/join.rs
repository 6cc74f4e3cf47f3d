//! `firn-edge join`: a second state directory for a family that an edge serves already.
//!
//! A standby machine, a replacement for one that died, and whoever wants to look into a salvage clone need what the first
//! edge has: the family's keys. They come with its identity file, carried over by an administrator (or from a backup); the
//! volume is the one that the configuration names. The owner's id is drawn anew in the new directory, so that the two are
//! never taken for one edge; the key of the file handles is the same, so that clients' mounts survive a change of machines.

use crate::{config::Config, failure::Failure, identity::Identity, parts::Outside, rings::KeyRings};
use firn_env::println;
use std::path::Path;

/// Makes the identity of this state directory from the one in the file `from`.
pub async fn join(config: &Config, from: &Path) -> Result<(), Failure> {
    let directory = &config.volume.state_directory;
    if Identity::exists(directory) {
        return Err(Failure::usage(format!(
            "{} has an identity already; nothing was changed",
            directory.display()
        )));
    }
    let mut identity = Identity::load_file(from)?;
    let outside = Outside::open(config).await?;
    KeyRings::open(config, &outside, Identity::load_file(from)?).await?;
    let anchor = outside.anchor(identity.family);
    let name = &config.volume.name;
    let Some(volume) = anchor.volume_named(name).await? else {
        let known: Vec<_> = anchor
            .volumes()
            .await?
            .into_iter()
            .map(|entry| entry.tuple.name)
            .collect();
        return Err(Failure::usage(format!(
            "the family has no volume {name:?} (volume.name); it has: {}",
            known.join(", ")
        )));
    };
    identity.volume = volume;
    identity.create(directory)?;
    println!("This edge can serve the volume {name}.");
    println!(
        "If another edge has it, `firn-edge drain` there gives it up; without that edge: firn-edge takeover"
    );
    Ok(())
}
