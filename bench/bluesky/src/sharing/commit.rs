//! The wait of a COMMIT in blocking mode, beside the requests that it cannot do without: a PUT of a segment, and a write of the table.

use super::{Mode, latency::percentile, lines, mount, seconds};
use crate::{cells::Cells, office::Office};
use anyhow::Result;
use bytes::Bytes;
use firn_nfs::v3::types::StableHow;
use firn_store::{ObjectKey, PutMode};
use firn_table::{Condition, ItemKey, Table, Write};
use firn_volume::{FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

const RUNS: usize = 30;
const WRITE_BYTES: usize = 64 << 10;
const PAUSE: Duration = Duration::from_secs(3);

/// Medians, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Commit {
    pub commit: f64,
    pub put: f64,
    pub table: f64,
}

pub fn measure(cells: &Cells, mode: &Mode, lines_ms: (u64, u64)) -> Result<Commit> {
    cells.measured(&format!("sharing-commit-{}-{}", lines_ms.0, lines_ms.1), || {
        let office = Office::new(FormatOptions::default())?;
        let site = Arc::new(office.site(
            mode.sharing,
            mode.durability,
            VolumeConfig::default(),
            lines(lines_ms),
        )?);
        let mount = mount(&office, &site)?;
        office.run(async move {
            let env = site.env.clone();
            let file = mount.create("file").await?;
            let (mut commits, mut puts, mut writes) = (Vec::new(), Vec::new(), Vec::new());
            for run in 0..RUNS {
                env.sleep(PAUSE).await;
                let data = Bytes::from(vec![run as u8; WRITE_BYTES]);
                mount
                    .write_at(&file, 0, data.clone(), StableHow::Unstable)
                    .await?;
                let began = env.now();
                mount.commit(&file).await?;
                let committed = env.now();
                site.store
                    .put(
                        &ObjectKey::new(&format!("probe/{run}")),
                        vec![data],
                        PutMode::Create,
                    )
                    .await?;
                let put = env.now();
                let probe = Write::Put {
                    key: ItemKey::new("probe", format!("{run}")),
                    value: Bytes::from_static(b"probe"),
                    condition: Condition::Absent,
                };
                site.table.transact(vec![probe]).await?;
                commits.push(seconds(committed.since(began)));
                puts.push(seconds(put.since(committed)));
                writes.push(seconds(env.now().since(put)));
            }
            let median = |list: &mut Vec<f64>| {
                list.sort_by(f64::total_cmp);
                percentile(list, 50)
            };
            Ok(Commit {
                commit: median(&mut commits),
                put: median(&mut puts),
                table: median(&mut writes),
            })
        })
    })
}
