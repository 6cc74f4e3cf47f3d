//! An office that goes home: an edge that leaves garbage in the cloud and goes off, and comes back to what a cleaner left.

use crate::Tree;
use anyhow::{Context as _, Result, ensure};
use firn_rig::{Client, EXPORT, Edge, Settings};
use std::path::Path;

/// An edge and what was written through it.
pub struct Office {
    edge: Edge,
    tree: Tree,
    /// The family of its volume, as the program names it.
    pub family: String,
}

impl Office {
    /// Formats a volume by an edge that has its state below `place`.
    pub async fn open(place: &Path, settings: Settings) -> Result<Self> {
        let edge = Edge::configure(Edge::binary()?, &place.join("edge"), settings)?;
        let phrase = place.join("phrase");
        let said = edge
            .command("format", &["--phrase-file", &phrase.to_string_lossy()])
            .await?;
        let family = said
            .split_once("of family ")
            .and_then(|(_, rest)| rest.split(' ').next())
            .context("the family's id")?;
        Ok(Self {
            edge,
            tree: Tree::default(),
            family: family.to_owned(),
        })
    }

    /// Three generations of most of the files, each in the cloud: more than half of the log is garbage. Then the edge goes off.
    pub async fn garbage(&mut self, salt: &str) -> Result<()> {
        let Self { edge, tree, .. } = self;
        edge.start().await?;
        let mut client = Client::mount(edge.address, EXPORT).await?;
        for generation in 0..3 {
            tree.write(&mut client, "kept", 3 * (generation + 1), 200_000, "once")
                .await?;
            let content = format!("{salt}-{generation}");
            tree.write(&mut client, "changed", 30, 300_000, &content).await?;
            edge.sync().await?;
        }
        drop(client);
        edge.stop().await
    }

    /// Another start, without a cache: every byte comes from where the cleaner left it.
    pub async fn read_back(&mut self) -> Result<()> {
        let Self { edge, tree, .. } = self;
        edge.wipe_cache()?;
        edge.start().await?;
        let mut client = Client::mount(edge.address, EXPORT).await?;
        tree.is_what_is_there(&mut client).await?;
        drop(client);
        let said = edge.command("verify", &[]).await?;
        ensure!(said.starts_with("whole"), "{said}");
        edge.stop().await
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.tree.files()
    }
}
