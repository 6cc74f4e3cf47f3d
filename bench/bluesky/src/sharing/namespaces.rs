//! Figure 10(b) of the SCFS paper: making and copying files of which only some are shared.
//!
//! The paper's private name space is a volume of one office here, and an office has both kinds side by side: each file lies in the shared one, which answers when
//! the other offices can see it, or in the private one, which answers when the journal has it (levels 2 and 1).

use super::{PRIVATE, SHARED_CLOUD, client::Mount, lines, mount, paper_lines, seconds, table3};
use crate::{cells::Cells, office::Office};
use anyhow::Result;
use firn_volume::{FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The paper's 0, 50 and 100, and that of which its text speaks.
pub const SHARED_PERCENT: [usize; 5] = [0, 25, 50, 75, 100];

/// One row, in seconds of virtual time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub create_s: f64,
    pub copy_s: f64,
}

/// An office's two mounts, and what share of the files lies in the shared one.
struct Namespaces {
    private: Mount,
    shared: Mount,
    shared_percent: usize,
}

impl table3::Place for Namespaces {
    /// Spread evenly: of each hundred files in a row so many are shared.
    fn of(&self, number: usize) -> &Mount {
        let shared_before = |number: usize| number * self.shared_percent / 100;
        if shared_before(number + 1) > shared_before(number) {
            &self.shared
        } else {
            &self.private
        }
    }
}

pub fn measure(cells: &Cells, shared_percent: usize) -> Result<Row> {
    cells.measured(&format!("sharing-namespaces-{shared_percent}"), || {
        let of_shared = Office::new(FormatOptions::default())?;
        let of_private = of_shared.with_another_volume(FormatOptions::default())?;
        let open = |office: &Office, mode: &super::Mode| {
            let config = VolumeConfig::default();
            office
                .site(mode.sharing, mode.durability, config, lines(paper_lines()))
                .map(Arc::new)
        };
        let (shared, private) = (open(&of_shared, &SHARED_CLOUD)?, open(&of_private, &PRIVATE)?);
        let places = Namespaces {
            shared: mount(&of_shared, &shared)?,
            private: mount(&of_private, &private)?,
            shared_percent,
        };
        of_shared.run(async move {
            // It has the shared volume from here on.
            places
                .shared
                .save("first", bytes::Bytes::from_static(b"the volume is here"))
                .await?;
            shared.sync().await?;
            let env = shared.env.clone();
            let began = env.now();
            table3::create(&places, "created").await?;
            let created = env.now();
            // One does not pay for what another left.
            shared.sync().await?;
            private.sync().await?;
            let copying = env.now();
            table3::copy(&places, "created").await?;
            Ok(Row {
                create_s: seconds(created.since(began)),
                copy_s: seconds(env.now().since(copying)),
            })
        })
    })
}
