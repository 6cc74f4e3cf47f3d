//! The manifest of segments: what each checkpoint pays for it, and what a volume of before pays to gain it.

use crate::{
    archive::{ARCHIVES, Archive, ROUTES, SEGMENT_BYTES, TRICKLE_CHECKPOINTS, prices},
    asked::{Asked, Series},
    table::{Table, bytes, dollars, figure, requests},
    world::{self, config, simulate, with_cache},
};
use anyhow::{Result, ensure};
use firn_format::{MAX_LISTED_SEGMENTS, radix};
use firn_quantity::Money;
use firn_store::Route;
use firn_volume::{Cadence, ManifestStatus, VolumeConfig};
use std::time::Duration;

/// Entries that wait in the checkpoint before the tree takes them over (decision 0171).
const WAITING_ENTRIES: u64 = MAX_LISTED_SEGMENTS as u64;
/// Of a segment in a checkpoint: its name and what a leaf has of it.
const LISTED_BYTES: u64 = 92;
/// Segments of a checkpoint, short: entries are as long for those of 4 MiB.
const SHORT_SEGMENT_BYTES: u64 = 256 << 10;
/// No limit that would be felt.
const RATE: u64 = 1 << 30;

/// What was measured of it.
pub struct Manifest {
    /// More than without one, by checkpoints of 4 KiB.
    trickle: Series,
    /// More than without one, by checkpoints of six segments.
    busy: Series,
    /// By segments.
    gathering: Series,
}

/// More that so many checkpoints of so many bytes take with a manifest than without.
fn more(checkpoints: u64, bytes: u64) -> Result<Asked> {
    let put = |manifest| {
        simulate(move |world| async move {
            let hour = Duration::from_secs(3600);
            let config = VolumeConfig {
                segment_bytes: SHORT_SEGMENT_BYTES,
                cadence: Cadence {
                    busy: hour,
                    busy_bytes: 1 << 30,
                    trickle: hour,
                },
                ..with_cache()
            };
            let volume = world.volume(manifest, config).await?;
            let file = world::file(&volume, "file").await?;
            volume.sync().await?;
            world.until_confirmed(&volume).await?;
            let before = world.asked();
            for number in 0..checkpoints {
                world.write(&volume, file, (0, bytes), number).await?;
                volume.sync().await?;
            }
            // What is confirmed later than another is counted all the same.
            world.until_confirmed(&volume).await?;
            Ok(world.asked().since(&before))
        })
    };
    let (with, without) = (put(true)?, put(false)?);
    Ok(with.since(&without))
}

/// What a volume of before takes to gain one, of so many full segments.
fn gather(segments: u64) -> Result<Asked> {
    simulate(move |world| async move {
        let volume = world.volume(false, config()).await?;
        let file = world::file(&volume, "archive").await?;
        world
            .write(&volume, file, (0, segments * SEGMENT_BYTES), 1)
            .await?;
        volume.sync().await?;
        world.until_confirmed(&volume).await?;
        let before = world.asked();
        volume.manifest_begin(RATE).await?;
        for _ in 0..3600 {
            if !matches!(volume.manifest_status(), ManifestStatus::Gathering(_)) {
                break;
            }
            world.env.sleep(Duration::from_secs(1)).await;
        }
        ensure!(
            volume.manifest_status() == ManifestStatus::Whole,
            "{:?}",
            volume.manifest_status()
        );
        Ok(world.asked().since(&before))
    })
}

/// Levels of nodes over the leaves of an archive, and what a trickling checkpoint brings at most: a leaf and a node of each level, all of them full, once for as
/// many checkpoints as entries wait, and these entries.
fn trickle_at_most(archive: Archive, leaf_bytes: f64) -> (u8, f64) {
    // Segment `s` of writer `w` stands in leaf `w << 25 | s >> 7`; the first writer of a volume is 1 (docs/formats.md).
    let levels = radix::levels_for((1 << 25) | (archive.segments() >> 7));
    let nodes = (f64::from(levels) + 1.0) * leaf_bytes / WAITING_ENTRIES as f64;
    (levels, nodes + (WAITING_ENTRIES * LISTED_BYTES) as f64)
}

/// Measures.
///
/// # Errors
/// The engine's, and figures that cannot be extrapolated.
pub fn measure(of_test: bool) -> Result<Manifest> {
    let smallest = |full: u64, small: u64| if of_test { small } else { full };
    Ok(Manifest {
        trickle: Series::measured(
            "checkpoints of 4 KiB, more than without a manifest",
            "checkpoint",
            smallest(256, 32),
            |count| more(count, 4096),
        )?,
        busy: Series::measured(
            "checkpoints of six segments, more than without a manifest",
            "checkpoint",
            smallest(32, 8),
            |count| more(count, 6 * SHORT_SEGMENT_BYTES),
        )?,
        gathering: Series::measured(
            "gathering the manifest of a volume of before",
            "segment",
            smallest(32, 4),
            gather,
        )?,
    })
}

impl Manifest {
    /// All series.
    pub fn series(&self) -> [&Series; 3] {
        [&self.trickle, &self.busy, &self.gathering]
    }

    /// What an archive pays in a month, with a trickle: requests more, and bytes that are kept for the month. Of the trickle as many bytes as nodes
    /// that are all full would make it.
    pub fn upkeep(&self, archive: Archive, leaf_bytes: f64) -> (Asked, Money) {
        // Six segments make a checkpoint of 24 MiB.
        let busy = self.busy.at(archive.segments_a_month().div_ceil(6));
        let mut trickle = self.trickle.at(TRICKLE_CHECKPOINTS);
        let most = (trickle_at_most(archive, leaf_bytes).1 * TRICKLE_CHECKPOINTS as f64) as u64;
        trickle.first.bytes_up = trickle.first.bytes_up.max(most);
        let asked = trickle.plus(&busy);
        let kept = prices().storage_month.estimate(asked.first.bytes_up);
        (asked, kept)
    }

    /// What that costs.
    pub fn upkeep_money(&self, archive: Archive, leaf_bytes: f64) -> Money {
        let (asked, kept) = self.upkeep(archive, leaf_bytes);
        let bill = asked.bill(prices(), (Route::Internet, Route::Internet));
        bill.total().saturating_plus(kept)
    }

    /// What an archive takes once to gain one.
    pub fn gathered(&self, segments: u64) -> Asked {
        self.gathering.at(segments)
    }

    /// The section of the page.
    pub fn page(&self, leaf_bytes: f64) -> String {
        let mut text = format!(
            "### Upkeep\n\nA checkpoint on a trickle brings {trickle} bytes, {puts} PUTs and {gets} GETs more than without a manifest, one of six full segments (24 MiB) {busy} bytes, {busy_puts} PUTs and {busy_gets} GETs. \
             Its nodes go into a segment that the checkpoint makes anyhow.\n\n",
            trickle = figure(self.trickle.each("bytes sent")),
            busy = figure(self.busy.each("bytes sent")),
            puts = figure(self.trickle.each("PUTs")),
            gets = figure(self.trickle.each("GETs")),
            busy_puts = figure(self.busy.each("PUTs")),
            busy_gets = figure(self.busy.each("GETs")),
        );
        let mut table = Table::new(&[
            "archive",
            "segments",
            "leaves",
            "levels of nodes above",
            "bytes a trickling checkpoint, at most",
            "a month: bytes, bulk and a trickle at most",
            "requests",
            "cost a month",
        ]);
        for archive in ARCHIVES {
            let (levels, most) = trickle_at_most(archive, leaf_bytes);
            let (asked, _) = self.upkeep(archive, leaf_bytes);
            table.row([
                format!("{} TiB", archive.tib),
                crate::table::grouped(archive.segments()),
                crate::table::grouped(archive.segments().div_ceil(u64::from(radix::FANOUT))),
                levels.to_string(),
                figure(most),
                bytes(asked.first.bytes_up),
                requests(&asked),
                dollars(self.upkeep_money(archive, leaf_bytes)),
            ]);
        }
        text += table.text();
        text += &format!(
            "\nThe tree's depth does not follow the archive but the writer's number, which stands in the upper bits of a leaf's place: so the levels are the same from the first segment on, and \
             only nodes get fuller. *At most* is a leaf and a node of each level, all as full as a leaf with {} entries ({leaf} bytes), once for {WAITING_ENTRIES} checkpoints, and {WAITING_ENTRIES} entries in the checkpoint itself: \
             computed. The cost has the bytes kept for the whole month, as if no cleaner took away what is rewritten.\n\n### Gathering, once\n\n",
            radix::FANOUT,
            leaf = figure(leaf_bytes),
        );
        let mut table = Table::new(&["archive", "from", "requests", "received", "cost, once"]);
        for archive in ARCHIVES {
            for (route, from) in ROUTES {
                let asked = self.gathered(archive.segments());
                table.row([
                    format!("{} TiB", archive.tib),
                    from.to_owned(),
                    requests(&asked),
                    bytes(asked.first.bytes_down),
                    dollars(asked.bill(prices(), (route, route)).total()),
                ]);
            }
        }
        text + table.text()
    }
}
