//! What tests of the cleaner's hosts do with an edge: leave garbage behind, and read everything back.

use crate::Tree;
use anyhow::{Result, ensure};
use firn_rig::{Client, EXPORT, Edge};

/// Generations of files that [`garbage`] writes; all but the last are overwritten.
const GENERATIONS: usize = 3;

/// Three generations of most of the files, each in the cloud: more than half of the log is garbage. Then the edge goes off.
///
/// # Errors
/// If the edge does not start, write, sync and stop as it should.
pub async fn garbage(edge: &mut Edge, tree: &mut Tree, salt: &str) -> Result<()> {
    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    for generation in 0..GENERATIONS {
        let kept = 3 * (generation + 1);
        tree.write(&mut client, "kept", kept, 200_000, "once").await?;
        let salt = format!("{salt}-{generation}");
        tree.write(&mut client, "changed", 30, 300_000, &salt).await?;
        edge.sync().await?;
    }
    drop(client);
    edge.stop().await
}

/// Another start, without a cache: every byte comes from where the cleaner left it.
///
/// # Errors
/// What is not as it was written.
pub async fn read_back(edge: &mut Edge, tree: &Tree) -> Result<()> {
    edge.wipe_cache()?;
    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    tree.is_what_is_there(&mut client).await?;
    drop(client);
    let said = edge.command("verify", &[]).await?;
    ensure!(said.starts_with("whole"), "{said}");
    edge.stop().await
}
