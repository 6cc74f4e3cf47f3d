//! The evaluation of the SCFS paper (ATC 2014, section 4) over again: offices that share a volume, in virtual time.
//!
//! The offices' edges, their NFS servers and the handovers between them are the product's; bucket, table, lines, disks and clock are simulated
//! ([`crate::office`]). Seconds are virtual time: waiting for store, table, disk and network, without what programs compute.

mod actions;
mod client;
mod commit;
mod contention;
mod freshness;
mod latency;
mod money;
mod namespaces;
mod page;
mod paper;
mod table3;

use crate::{
    cells::Cells,
    office::{Line, Office, Sharing, Site, SiteLines},
};
use anyhow::Result;
use client::Mount;
use firn_vfs::Durability;
use latency::Way;
use std::{path::Path, time::Duration};

/// A way to serve a volume, and what it is to the paper's.
pub struct Mode {
    slug: &'static str,
    name: &'static str,
    /// The paper's column of the same promise.
    paper: &'static str,
    sharing: Sharing,
    durability: Durability,
}

/// As `firn-edge` has it if nobody says otherwise.
const FRESHNESS: Duration = Duration::from_millis(500);
const SHARED: Sharing = Sharing::Shared { freshness: FRESHNESS };

const PRIVATE: Mode = Mode {
    slug: "private",
    name: "private",
    paper: "AWS-NS",
    sharing: Sharing::Private,
    durability: Durability::Journal,
};
const SHARED_JOURNAL: Mode = Mode {
    slug: "shared-journal",
    name: "shared, journal",
    paper: "AWS-NB",
    sharing: SHARED,
    durability: Durability::Journal,
};
const SHARED_CLOUD: Mode = Mode {
    slug: "shared-cloud",
    name: "shared, cloud",
    paper: "AWS-B",
    sharing: SHARED,
    durability: Durability::Cloud,
};
static MODES: [Mode; 3] = [PRIVATE, SHARED_JOURNAL, SHARED_CLOUD];

/// Offices that write at the same moment, which the paper has not.
static BY_INODE: [Mode; 2] = [
    Mode {
        slug: "inode-journal",
        name: "by inode, journal",
        paper: "",
        sharing: Sharing::ByInode { freshness: FRESHNESS },
        durability: Durability::Journal,
    },
    Mode {
        slug: "inode-cloud",
        name: "by inode, cloud",
        paper: "",
        sharing: Sharing::ByInode { freshness: FRESHNESS },
        durability: Durability::Cloud,
    },
];

/// Ways of sharing that Figure 9 has beside each other: slug, name.
static WAYS: [(&str, &str, Way); 7] = [
    ("cloud", "shared, cloud", Way::Volume(&MODES[2], None)),
    ("journal", "shared, journal", Way::Volume(&MODES[1], None)),
    (
        "journal-1s",
        "shared, journal, committed within 1 s",
        Way::Volume(&MODES[1], Some(Duration::from_secs(1))),
    ),
    ("inode-cloud", "by inode, cloud", Way::Volume(&BY_INODE[1], None)),
    (
        "inode-journal",
        "by inode, journal",
        Way::Volume(&BY_INODE[0], None),
    ),
    (
        "inode-journal-1s",
        "by inode, journal, committed within 1 s",
        Way::Volume(&BY_INODE[0], Some(Duration::from_secs(1))),
    ),
    ("polled", "uploaded and polled", Way::Polled),
];

/// Round trips to bucket and table in milliseconds: an ocean to S3 and the middle of what the paper's coordination service took for an access.
const PAPER_LINES_MS: (u64, u64) = (100, 80);
/// A region of the same continent.
const NEAR_LINES_MS: (u64, u64) = (30, 30);

fn paper_lines() -> (u64, u64) {
    PAPER_LINES_MS
}

fn lines((store_ms, table_ms): (u64, u64)) -> SiteLines {
    SiteLines {
        store: Line::of_latency(store_ms),
        table: Duration::from_millis(table_ms),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// A client that mounts this edge.
fn mount(office: &Office, site: &Site) -> Result<Mount> {
    let (env, address) = (office.machine("client").env(), site.address());
    office.run(async move { Mount::new(&env, &address).await })
}

/// Measures what was not measured yet, and writes the page.
pub fn write(cells: &Cells, page: &Path) -> Result<()> {
    let text = page::text(cells)?;
    std::fs::write(page, text)?;
    Ok(())
}
