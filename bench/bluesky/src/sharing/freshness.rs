//! Figure 10(a) of the SCFS paper: what the time costs for which metadata are believed; here `freshness`.
//!
//! The office that has the volume believes itself, so creating and copying ask nobody; what depends on it are reads of an office that follows.

use super::{client::Mount, lines, mount, paper_lines, seconds, table3};
use crate::{
    cells::Cells,
    office::{Office, Sharing},
};
use anyhow::{Context, Result};
use firn_vfs::Durability;
use firn_volume::{FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// The paper's, and twice the last one.
pub const FRESHNESS_MS: [u64; 4] = [0, 250, 500, 1000];
const OPENS: usize = 200;

/// One row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub create_s: f64,
    pub copy_s: f64,
    pub opens_s: f64,
    pub opens_table_reads: u64,
}

pub fn measure(cells: &Cells, freshness_ms: u64) -> Result<Row> {
    cells.measured(&format!("sharing-figure10-{freshness_ms}"), || {
        let office = Office::new(FormatOptions::default())?;
        let sharing = Sharing::Shared {
            freshness: Duration::from_millis(freshness_ms),
        };
        let open = || {
            office
                .site(
                    sharing,
                    Durability::Journal,
                    VolumeConfig::default(),
                    lines(paper_lines()),
                )
                .map(Arc::new)
        };
        let (a, b) = (open()?, open()?);
        let (mount_a, mount_b) = (mount(&office, &a)?, mount(&office, &b)?);
        office.run(async move {
            let env = a.env.clone();
            mount_a
                .save("first", bytes::Bytes::from_static(b"the volume is here"))
                .await?;
            a.sync().await?;
            let began = env.now();
            table3::create(&mount_a, "created").await?;
            let created = env.now();
            table3::copy(&mount_a, "created").await?;
            let copied = env.now();
            a.sync().await?;
            // Once, so that everything is in the caches of that office.
            opens(&mount_b).await?;
            let (before, asked) = (b.spent(), env.now());
            opens(&mount_b).await?;
            Ok(Row {
                create_s: seconds(created.since(began)),
                copy_s: seconds(copied.since(created)),
                opens_s: seconds(env.now().since(asked)),
                opens_table_reads: b.spent().since(&before).table_reads,
            })
        })
    })
}

/// open, read, close of each of the files.
async fn opens(mount: &Mount) -> Result<()> {
    for number in 0..OPENS {
        mount
            .load(&format!("created-{number}"))
            .await?
            .context("created before")?;
    }
    Ok(())
}
