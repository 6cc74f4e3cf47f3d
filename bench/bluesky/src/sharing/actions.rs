//! Figure 8 of the SCFS paper: what an office program asks of a file system when a document is opened, saved and closed (its Figure 7).
//!
//! The program keeps two lock files beside the document; in the variant (L) they lie on the client's own disk and cost nothing here.

use super::{Mode, client::Mount, client::Open, lines, mount, paper_lines, seconds};
use crate::{cells::Cells, office::Office};
use anyhow::{Context, Result};
use bytes::Bytes;
use firn_volume::VolumeConfig;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// The paper's document.
const FILE_BYTES: usize = 1_200_000;
const LOCK_FILE_BYTES: usize = 100;
const ROUNDS: u32 = 10;
/// Between two rounds: somebody writes.
const PAUSE: Duration = Duration::from_secs(60);

/// Mean seconds of each action.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Actions {
    pub open: f64,
    pub save: f64,
    pub close: f64,
}

pub fn measure(cells: &Cells, mode: &Mode, local_locks: bool) -> Result<Actions> {
    let suffix = if local_locks { "-local" } else { "" };
    cells.measured(&format!("sharing-figure8-{}{suffix}", mode.slug), || {
        let office = Office::new(mode.sharing.format())?;
        let site = Arc::new(office.site(
            mode.sharing,
            mode.durability,
            VolumeConfig::default(),
            lines(paper_lines()),
        )?);
        let mount = mount(&office, &site)?;
        office.run(async move {
            let env = site.env.clone();
            mount
                .save("minutes.odt", Bytes::from(vec![0; FILE_BYTES]))
                .await?;
            site.sync().await?;
            let program = Program {
                mount: &mount,
                local_locks,
            };
            let mut sums = Actions::default();
            for round in 0..ROUNDS {
                env.sleep(PAUSE).await;
                let began = env.now();
                program.open().await?;
                let opened = env.now();
                program.save(Bytes::from(vec![round as u8; FILE_BYTES])).await?;
                let saved = env.now();
                program.close().await?;
                sums.open += seconds(opened.since(began));
                sums.save += seconds(saved.since(opened));
                sums.close += seconds(env.now().since(saved));
            }
            let rounds = f64::from(ROUNDS);
            Ok(Actions {
                open: sums.open / rounds,
                save: sums.save / rounds,
                close: sums.close / rounds,
            })
        })
    })
}

struct Program<'m> {
    mount: &'m Mount,
    local_locks: bool,
}

impl Program<'_> {
    async fn document(&self) -> Result<Open> {
        self.mount.open("minutes.odt").await?.context("the document")
    }

    async fn write_lock(&self, name: &str) -> Result<()> {
        match self.local_locks {
            true => Ok(()),
            false => self.mount.save(name, Bytes::from(vec![1; LOCK_FILE_BYTES])).await,
        }
    }

    async fn read_lock(&self, name: &str) -> Result<()> {
        if !self.local_locks {
            self.mount.load(name).await?.context("the lock file")?;
        }
        Ok(())
    }

    async fn delete_lock(&self, name: &str) -> Result<()> {
        match self.local_locks {
            true => Ok(()),
            false => self.mount.remove(name).await,
        }
    }

    async fn read_document(&self) -> Result<()> {
        self.mount.read(&self.document().await?).await.map(drop)
    }

    async fn open(&self) -> Result<()> {
        self.read_document().await?;
        self.write_lock("lock-1").await?;
        self.read_lock("lock-1").await?;
        self.read_document().await?;
        self.read_lock("lock-1").await
    }

    async fn save(&self, content: Bytes) -> Result<()> {
        self.read_document().await?;
        self.read_lock("lock-1").await?;
        self.delete_lock("lock-1").await?;
        self.write_lock("lock-2").await?;
        self.read_lock("lock-2").await?;
        let open = self.document().await?;
        self.mount.truncate(&open.handle).await?;
        let open = self.document().await?;
        self.mount.close_written(&open.handle, content).await?;
        // open, fsync, close: nothing is dirty any more, so a client's kernel sends nothing but the open.
        self.document().await?;
        self.read_document().await?;
        self.document().await.map(drop)
    }

    async fn close(&self) -> Result<()> {
        self.read_lock("lock-2").await?;
        self.delete_lock("lock-2").await
    }
}
