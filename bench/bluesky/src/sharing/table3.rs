//! Table 3 of the SCFS paper: its six micro-benchmarks, in each of our modes, by one client of one office.
//!
//! Every read and write is a call of the edge over the office's network, one after the other: what the client's own memory would spare is not
//! measured. As in the paper, the first four have no open, sync or close in them.

use super::{Mode, client::Mount, lines, mount, paper_lines, seconds};
use crate::{cells::Cells, office::Office};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use firn_env::sim::Seeded;
use firn_nfs::v3::types::StableHow;
use firn_volume::VolumeConfig;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// The paper's programs, in its order.
pub const PROGRAMS: [&str; 6] = [
    "sequential read",
    "sequential write",
    "random 4 KB read",
    "random 4 KB write",
    "create files",
    "copy files",
];
const FILE_BYTES: usize = 4 << 20;
const IO_BYTES: usize = 4 << 10;
const SEQUENTIAL_BYTES: usize = 128 << 10;
pub const RANDOM_OPERATIONS: u64 = 256 << 10;
const CREATED: usize = 200;
const COPIED: usize = 100;
const SMALL_FILE_BYTES: usize = 16 << 10;

/// Seconds of virtual time, by program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Column {
    pub seconds: BTreeMap<String, f64>,
}

pub fn measure(cells: &Cells, mode: &Mode) -> Result<Column> {
    cells.measured(&format!("sharing-table3-{}", mode.slug), || {
        let office = Office::new(mode.sharing.format())?;
        let site = Arc::new(office.site(
            mode.sharing,
            mode.durability,
            VolumeConfig::default(),
            lines(paper_lines()),
        )?);
        let mount = mount(&office, &site)?;
        office.run(async move {
            // It has the volume from here on.
            mount.save("file", Bytes::from(vec![7; FILE_BYTES])).await?;
            site.sync().await?;
            let env = site.env.clone();
            let mut seconds_by_program = BTreeMap::new();
            for program in PROGRAMS {
                let began = env.now();
                run(&mount, program).await.context(program)?;
                seconds_by_program.insert(program.to_owned(), seconds(env.now().since(began)));
                // One does not pay for what another left.
                site.sync().await?;
            }
            Ok(Column {
                seconds: seconds_by_program,
            })
        })
    })
}

async fn run(mount: &Mount, program: &str) -> Result<()> {
    let file = mount.open("file").await?.context("the file")?;
    let mut random = Seeded::new(3, 0);
    let mut place = || random.below((FILE_BYTES / IO_BYTES) as u64) * IO_BYTES as u64;
    match program {
        "sequential read" => {
            mount.forget();
            ensure!(mount.read(&file).await?.len() == FILE_BYTES, "all of it");
        }
        "sequential write" => {
            for offset in (0..FILE_BYTES).step_by(SEQUENTIAL_BYTES) {
                let data = Bytes::from(vec![8; SEQUENTIAL_BYTES]);
                mount
                    .write_at(&file.handle, offset as u64, data, StableHow::Unstable)
                    .await?;
            }
        }
        "random 4 KB read" => {
            for _ in 0..RANDOM_OPERATIONS {
                mount.read_at(&file.handle, place(), IO_BYTES as u32).await?;
            }
        }
        "random 4 KB write" => {
            let data = Bytes::from(vec![9; IO_BYTES]);
            for _ in 0..RANDOM_OPERATIONS {
                mount
                    .write_at(&file.handle, place(), data.clone(), StableHow::Unstable)
                    .await?;
            }
        }
        "create files" => create(mount, "created").await?,
        "copy files" => copy(mount, "created").await?,
        other => anyhow::bail!("no program {other}"),
    }
    Ok(())
}

/// Where files lie.
pub trait Place {
    /// The mount that has the file of this number.
    fn of(&self, number: usize) -> &Mount;
}

impl Place for Mount {
    fn of(&self, _number: usize) -> &Mount {
        self
    }
}

/// 200 files of 16 KB.
pub async fn create(place: &impl Place, prefix: &str) -> Result<()> {
    for number in 0..CREATED {
        let content = Bytes::from(vec![number as u8; SMALL_FILE_BYTES]);
        place
            .of(number)
            .save(&format!("{prefix}-{number}"), content)
            .await?;
    }
    Ok(())
}

/// 100 of them read and written under another name, beside themselves.
pub async fn copy(place: &impl Place, prefix: &str) -> Result<()> {
    for number in 0..COPIED {
        let mount = place.of(number);
        let content = mount
            .load(&format!("{prefix}-{number}"))
            .await?
            .context("created before")?;
        mount.save(&format!("{prefix}-{number}-copy"), content).await?;
    }
    Ok(())
}
