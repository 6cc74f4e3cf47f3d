//! Figure 11: storage while a client overwrites random parts of its files and a cleaner runs every half minute.
//!
//! 64 MiB in eight files; every five seconds half a mebibyte of one of them is overwritten, until 64 MiB were. The cleaner has
//! no keys and a machine of its own beside the bucket. What it costs the edge is the difference to the same run without it.

mod real;

use crate::{
    cells::Cells,
    fileset::{FileSet, Noise},
    office::{Image, Line, Office},
    plot::{Chart, Curve},
    table1,
};
use anyhow::{Context, Result, ensure};
use firn_cleaner::{Cleaner, Limits};
use firn_env::sim::Seeded;
use firn_nfs::v3::types::StableHow;
use firn_store::Usage;
use firn_volume::{FormatOptions, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::{path::Path, sync::Arc, time::Duration};

const FILES: usize = 8;
const FILE_BYTES: u64 = 8 << 20;
const WRITE_BYTES: u64 = 512 << 10;
/// A write begins at a multiple of this.
const ALIGNED_BYTES: u64 = 4 << 10;
const WRITE_EVERY: Duration = Duration::from_secs(5);
const CLEAN_EVERY: Duration = Duration::from_secs(30);
/// A segment is deleted by the second run after the one that retired it.
const GRACE: Duration = Duration::from_secs(45);
const LATENCY_MS: u64 = 12;
/// Runs after the last write, with the threshold of an idle volume: little that is free is worth it.
const LAST_RUNS: usize = 12;
const EAGER_FREE_PER_MILLE: u64 = 30;
/// While the client writes: a segment that is left alone for now has more garbage the next time.
const BUSY_FREE_PER_MILLE: u64 = 400;

/// What lies in the bucket after a run of the cleaner.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct After {
    pub at_s: f64,
    /// Segments of the edge.
    pub edge_bytes: u64,
    /// Segments of the cleaner.
    pub cleaner_bytes: u64,
    /// What it has put since the beginning.
    pub written_bytes: u64,
}

/// The whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure11 {
    /// Live data.
    pub live_bytes: u64,
    pub overwritten_bytes: u64,
    pub passes: Vec<After>,
    /// When the last write was made.
    pub writes_end_s: f64,
    /// What the cleaner put, all of it, and the part that is file data.
    pub written_bytes: u64,
    pub moved_data_bytes: u64,
    pub cleaner_requests: u64,
    /// The edge's traffic with the cleaner, and without.
    pub edge: Usage,
    pub edge_alone: Usage,
    pub merged: u64,
}

impl Figure11 {
    /// Measures it if it was not measured yet.
    pub fn measure(cells: &Cells) -> Result<()> {
        cells.measured("figure11", || {
            let office = Office::new(FormatOptions::default())?;
            let set = FileSet::make(&office, &[FILE_BYTES; FILES], 4 << 20)?;
            let image = office.image();
            let mut measured = run(&image, &set, true)?;
            measured.edge_alone = run(&image, &set, false)?.edge;
            Ok(measured)
        })?;
        Ok(())
    }

    /// Measures it in real time, on servers that run beside this program, if it was not measured yet.
    pub fn measure_in_real_time(cells: &Cells, place: &Path) -> Result<()> {
        cells.measured("real-figure11", || real::measure(&place.join("real-figure11")))?;
        Ok(())
    }
}

/// The figure as it was in real time, if it was measured.
pub fn in_real_time(cells: &Cells) -> Option<Figure11> {
    cells.get("real-figure11")
}

/// The figure, if it was measured.
pub fn of(cells: &Cells) -> Option<Figure11> {
    cells.get("figure11")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Figure11 {
    /// Storage over time.
    pub fn chart(&self, title: &str) -> Chart {
        let curve = |name: &str, dashed: bool, value: &dyn Fn(&After) -> f64| Curve {
            name: name.into(),
            points: self
                .passes
                .iter()
                .map(|after| (after.at_s, value(after)))
                .collect(),
            dashed,
        };
        Chart {
            title: title.into(),
            x: "seconds".into(),
            y: "MiB in the bucket".into(),
            curves: vec![
                curve("all", false, &|after| mib(after.edge_bytes + after.cleaner_bytes)),
                curve("written by the cleaner", false, &|after| mib(after.cleaner_bytes)),
                curve("live data", true, &|_| mib(self.live_bytes)),
            ],
        }
    }

    /// The section of the page.
    pub fn text(&self) -> String {
        let up = self.edge.bytes_up.saturating_sub(self.edge_alone.bytes_up);
        let down = self.edge.bytes_down.saturating_sub(self.edge_alone.bytes_down);
        let most = self
            .passes
            .iter()
            .map(|after| after.edge_bytes + after.cleaner_bytes)
            .max()
            .unwrap_or(0);
        let last = self
            .passes
            .last()
            .map_or(0, |after| after.edge_bytes + after.cleaner_bytes);
        let verdict = |held: bool| if held { "met" } else { "missed" };
        format!(
            "{FILES} files of {:.0} MiB; {:.1} MiB at a random place of one of them is overwritten every {} s until {:.0} MiB were; the\n\
             cleaner runs every {} s and deletes what was retired {} s ago. Virtual time; content does not compress. What the cleaner\n\
             costs the edge is the difference to the same run without it. While the client writes, segments with {} % of garbage are\n\
             moved out of; after the last write those with {} %, as for a volume that has become idle.\n\n\
             ![Figure 11](figures/cleaner-figure11.svg)\n\n\
             | measured | Firn | the paper | goal |\n|---|---|---|---|\n\
             | overwritten by the client | {:.1} MiB | 64 MB | |\n\
             | written by the cleaner | {:.1} MiB ({:.1} MiB of it file data) | 224 MB | at most 160: {} |\n\
             | more uploaded by the edge | {:.0} KiB | 750 KB | at most 375: {} |\n\
             | more fetched by the edge | {:.0} KiB | 270 KB | at most 135: {} |\n\
             | both together | {:.0} KiB | 1020 KB | at most 510: {} |\n\
             | requests of the cleaner | {} | | |\n\
             | proposals merged by the edge | {} | | |\n\
             | most that was stored | {:.1} MiB | | |\n\
             | stored at the end, {:.0} MiB of it live data | {:.1} MiB | no waste | |\n",
            mib(FILE_BYTES),
            mib(WRITE_BYTES),
            WRITE_EVERY.as_secs(),
            mib(self.overwritten_bytes),
            CLEAN_EVERY.as_secs(),
            GRACE.as_secs(),
            BUSY_FREE_PER_MILLE / 10,
            EAGER_FREE_PER_MILLE / 10,
            mib(self.overwritten_bytes),
            mib(self.written_bytes),
            mib(self.moved_data_bytes),
            verdict(mib(self.written_bytes) <= 160.0),
            up as f64 / 1024.0,
            verdict(up <= 375 << 10),
            down as f64 / 1024.0,
            verdict(down <= 135 << 10),
            (up + down) as f64 / 1024.0,
            verdict(up + down <= 510_000),
            self.cleaner_requests,
            self.merged,
            mib(most),
            mib(self.live_bytes),
            mib(last),
        )
    }
}

impl Figure11 {
    /// Before the first of so many writes.
    fn of_writes(writes: u64) -> Result<Self> {
        Ok(Self {
            live_bytes: FILES as u64 * FILE_BYTES,
            overwritten_bytes: writes * WRITE_BYTES,
            passes: Vec::new(),
            writes_end_s: (WRITE_EVERY * u32::try_from(writes)?).as_secs_f64(),
            written_bytes: 0,
            moved_data_bytes: 0,
            cleaner_requests: 0,
            edge: Usage::default(),
            edge_alone: Usage::default(),
            merged: 0,
        })
    }

    /// What came out in real time, beside this (virtual) one.
    pub fn beside_real_time(&self, real: &Self) -> String {
        let end = |figure: &Self| {
            figure
                .passes
                .last()
                .map_or(0, |after| after.edge_bytes + after.cleaner_bytes)
        };
        let most = |figure: &Self| {
            let stored = figure
                .passes
                .iter()
                .map(|after| after.edge_bytes + after.cleaner_bytes);
            stored.max().unwrap_or(0)
        };
        let mut text = String::from(
            "| measured | virtual time | real time | the paper | goal |\n|---|---|---|---|---|\n",
        );
        let mut row = |what: &str, of: &dyn Fn(&Self) -> String, paper: &str, goal: &str| {
            text.push_str(&format!(
                "| {what} | {} | {} | {paper} | {goal} |\n",
                of(self),
                of(real)
            ));
        };
        let in_mib = |bytes: u64| format!("{:.1} MiB", mib(bytes));
        row(
            "overwritten by the client",
            &|figure| in_mib(figure.overwritten_bytes),
            "64 MB",
            "",
        );
        row(
            "written by the cleaner",
            &|figure| in_mib(figure.written_bytes),
            "224 MB",
            "at most 160",
        );
        row(
            "of it file data",
            &|figure| in_mib(figure.moved_data_bytes),
            "",
            "",
        );
        row(
            "uploaded by the edge in all",
            &|figure| in_mib(figure.edge.bytes_up),
            "",
            "",
        );
        row(
            "fetched by the edge in all",
            &|figure| format!("{:.0} KiB", figure.edge.bytes_down as f64 / 1024.0),
            "",
            "",
        );
        row(
            "requests of the cleaner",
            &|figure| figure.cleaner_requests.to_string(),
            "",
            "",
        );
        row(
            "proposals merged by the edge",
            &|figure| figure.merged.to_string(),
            "",
            "",
        );
        row("most that was stored", &|figure| in_mib(most(figure)), "", "");
        row("stored at the end", &|figure| in_mib(end(figure)), "no waste", "");
        text
    }
}

fn run(image: &Image, set: &FileSet, cleaned: bool) -> Result<Figure11> {
    let office = Arc::new(Office::of_image(image)?);
    let edge = office.edge(VolumeConfig::default(), Line::of_latency(LATENCY_MS))?;
    let mount = Arc::new(table1::mount(&office, &edge)?);
    let (env, files, volume) = (edge.env.clone(), set.files.clone(), edge.volume.clone());
    let before = edge.stack.meter.usage();
    let writes = u64::from(u32::try_from(FILES).context("few files")?) * FILE_BYTES / WRITE_BYTES;
    let (bucket, beside) = (office.clone(), office.machine("cleaner"));
    let (cleaner_env, cleaner_store, anchor) = office.cleaner(&beside);
    let figure = office.run(async move {
        let started = env.now();
        let writing = {
            let env = env.clone();
            env.clone().spawn("writer", async move {
                let (noise, mut random) = (Noise::new(5), Seeded::new(31, 1));
                for number in 0..writes {
                    env.sleep(WRITE_EVERY).await;
                    let file = random.pick(&files).handle.clone();
                    let places = (FILE_BYTES - WRITE_BYTES) / ALIGNED_BYTES + 1;
                    let offset = random.below(places) * ALIGNED_BYTES;
                    let data = noise.bytes(number, WRITE_BYTES as usize);
                    mount.write(&file, offset, data, StableHow::FileSync).await?;
                }
                anyhow::Ok(())
            })
        };
        let mut figure = Figure11::of_writes(writes)?;
        let limits = Limits {
            grace: GRACE,
            free_per_mille: BUSY_FREE_PER_MILLE,
            ..Limits::default()
        };
        let eager = Limits {
            free_per_mille: EAGER_FREE_PER_MILLE,
            ..limits.clone()
        };
        let busy_runs = (WRITE_EVERY * u32::try_from(writes)?).as_secs() / CLEAN_EVERY.as_secs() + 1;
        let mut cleaner = Cleaner::new(&cleaner_env, cleaner_store.clone(), &anchor, limits);
        for pass in 0..busy_runs as usize + LAST_RUNS {
            if pass as u64 == busy_runs {
                cleaner = Cleaner::new(&cleaner_env, cleaner_store.clone(), &anchor, eager.clone());
            }
            env.sleep(CLEAN_EVERY).await;
            if cleaned {
                let report = cleaner.run().await?;
                ensure!(report.damaged.is_empty(), "damaged: {:?}", report.damaged);
                figure.written_bytes += report.written_bytes;
                figure.moved_data_bytes += report.moved_data_bytes;
                figure.cleaner_requests += report.usage.requests();
            }
            let (edge_bytes, cleaner_bytes) = bucket.log_bytes(&anchor).await?;
            figure.passes.push(After {
                at_s: env.now().since(started).as_secs_f64(),
                edge_bytes,
                cleaner_bytes,
                written_bytes: figure.written_bytes,
            });
        }
        writing.await.context("the writer was dropped")??;
        figure.merged = volume.status().merging.merged;
        Ok(figure)
    })?;
    let mut figure = figure;
    figure.edge = edge.stack.meter.usage().since(&before);
    office.close(edge)?;
    Ok(figure)
}
