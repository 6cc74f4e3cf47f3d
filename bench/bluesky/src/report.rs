//! The page: our tables beside the paper's, what was missed as it is, and the charts.

use crate::{
    cells::Cells,
    figure7, figure8, figure11,
    office::{CONNECTION_BITS_PER_SECOND, LINE_BITS_PER_SECOND},
    plot::{Chart, Curve},
    table1::{self, Step},
    table2::{self, CONFIGURATIONS, FILE_SIZES, MIX, Mixed, TRANSFERS},
};
use anyhow::{Context, Result};
use firn_store::{Cost as Money, ProviderPrices, Route};
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

/// Goals of the adaptive policy: how much longer than the best fixed one, and how much dearer than the cheapest.
const TIME_GOAL: f64 = 1.5;
const MONEY_GOAL: f64 = 1.2;

/// Minutes and seconds of the paper's Table 1: local NFS server with a warm cache, then per region warm, exact, full.
const PAPER_LOCAL: [(&str, &str); 3] = [("unpack", "10:50"), ("check", "0:26"), ("build", "4:23")];
const PAPER_TABLE1: [(u64, &str, [&str; 3]); 6] = [
    (12, "unpack", ["5:10", "", ""]),
    (12, "check", ["0:33", "26:12", "1:49"]),
    (12, "build", ["5:50", "7:10", "6:45"]),
    (30, "unpack", ["5:08", "", ""]),
    (30, "check", ["0:35", "57:26", "3:50"]),
    (30, "build", ["5:53", "8:35", "8:07"]),
];

/// The paper's Table 2: down, operations, total, and what uploads cost before July 2011.
const PAPER_TABLE2: [(&str, [&str; 4]); 4] = [
    ("baseline", ["0.18", "0.09", "0.27", "0.56"]),
    ("4k", ["0.09", "0.07", "0.16", "0.47"]),
    ("full", ["25.11", "0.09", "25.20", "1.00"]),
    ("noseg", ["0.17", "2.91", "3.08", "0.56"]),
];

/// Writes the page and its charts.
pub struct Report<'a> {
    cells: &'a Cells,
    text: String,
}

/// Seconds as minutes and seconds, with tenths below ten minutes.
fn clock(seconds: f64) -> String {
    let minutes = (seconds / 60.0).floor();
    let rest = seconds - minutes * 60.0;
    if seconds < 60.0 {
        format!("0:{rest:04.1}")
    } else {
        format!("{minutes:.0}:{:02.0}", rest.min(59.0))
    }
}

impl<'a> Report<'a> {
    /// Puts the page together from the cells that there are.
    pub fn new(cells: &'a Cells, scale: &str) -> Result<Self> {
        let mut report = Self {
            cells,
            text: String::new(),
        };
        report.introduction(scale, &cells.builds()?);
        report.table1();
        report.table2()?;
        report.figure7();
        report.figure8();
        report.figure11();
        Ok(report)
    }

    /// Writes `page`, and the charts into `figures` beside it.
    pub fn write(&self, page: &Path, figures: &Path) -> Result<()> {
        fs::create_dir_all(figures).with_context(|| format!("cannot make {}", figures.display()))?;
        fs::write(page, &self.text).with_context(|| format!("cannot write {}", page.display()))?;
        fs::write(figures.join("bluesky-figure7.svg"), self.chart7().svg())?;
        fs::write(figures.join("bluesky-figure8.svg"), self.chart8().svg())?;
        Ok(())
    }

    /// The page's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn say(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn introduction(&mut self, scale: &str, builds: &BTreeMap<String, usize>) {
        let (line, connection) = (
            LINE_BITS_PER_SECOND / 1_000_000,
            CONNECTION_BITS_PER_SECOND / 1_000_000,
        );
        self.say("# BlueSky's tables over again");
        self.say("");
        self.say(format!(
            "Written by `make bench-full` ({scale}; each section says what it measured). The tables and figures are those of *BlueSky: A Cloud-Backed File System for the\n\
             Enterprise* (FAST 2012), sections 6.3 to 6.7; the paper's figures stand beside ours. All writes are acknowledged at level 1\n\
             (journal)."
        ));
        self.say("");
        let builds: Vec<String> = builds
            .iter()
            .map(|(build, cells)| format!("{cells} by build {build}"))
            .collect();
        self.say(format!("Cells measured: {}.", builds.join(", ")));
        self.say("");
        self.say(format!(
            "**What runs.** The production engine (`crates/volume`) behind the production NFS server (`crates/nfs`), called over RPC by\n\
             a client that makes the calls of a Linux client in their order (`bench/bluesky/src/mount.rs`). The bucket lies behind the\n\
             fault store: 12 or 30 ms round trip, {line} Mbit/s for all and {connection} Mbit/s for one connection.\n\
             \n\
             **What is simulated.** The network (0.2 ms round trip in the office), the edge's disk (a sync up to 2 ms) and the clock.\n\
             Time is virtual and passes only while everybody waits, which is what these tables are about; the same run gives the same\n\
             waiting on any machine. What the programs compute is measured beside it as CPU time of the one thread that runs client,\n\
             server, engine and simulator. A cell shows the sum, as if computing and waiting never overlapped, and the waiting alone in\n\
             parentheses. Ratios between columns are what to read."
        ));
        self.say("");
    }

    fn step(&self, name: &str) -> Option<Step> {
        self.cells.get(&format!("table1-{name}"))
    }

    fn table1(&mut self) {
        self.say("## Table 1: unpack, check, build");
        self.say("");
        let Some(any) = self.step("unpack-12").or_else(|| self.step("unpack-30")) else {
            self.say("Not measured yet.\n");
            return;
        };
        self.say(format!(
            "Unpack: {} files, {:.0} MB of Debian's linux-source, one after the other as tar does. Check: every directory listed, every\n\
             file read and its checksum compared. Build: the smallest configuration of that kernel, `make -j4`: what the compiler and\n\
             make asked of the file system when it was really built is asked again in the same order, with the CPU time they took in\n\
             between ([how](../bench/bluesky/record-build)). Its longest chain of jobs that wait for each other sets the least time.\n\
             *Local*: unpack and check on this machine's own disk without a server, in real time; build: its computing alone.\n\
             *Warm*: everything on the edge's disk, 12 ms. *Cold*: an edge with an empty disk.",
            any.files,
            any.bytes as f64 / 1e6
        ));
        self.say("");
        self.say("| step | RTT | local | warm | cold, exact ranges | cold, full segments | cold, adaptive | adaptive / best fixed |");
        self.say("|---|---|---|---|---|---|---|---|");
        let mut misses = Vec::new();
        let mut details = String::new();
        for latency_ms in table1::LATENCIES_MS {
            for step in ["unpack", "check", "build"] {
                let show = |found: Option<&Step>| {
                    found.map_or_else(
                        || "–".to_owned(),
                        |step| format!("{} ({})", clock(step.cost.seconds()), clock(step.cost.waited_s)),
                    )
                };
                let local = self
                    .step(&format!("local-{step}"))
                    .map_or_else(|| "–".to_owned(), |step| clock(step.cost.seconds()));
                if step == "unpack" {
                    let unpack = self.step(&format!("unpack-{latency_ms}"));
                    self.say(format!(
                        "| unpack | {latency_ms} ms | {local} | {} | writes only | writes only | writes only | |",
                        show(unpack.as_ref())
                    ));
                    continue;
                }
                let warm = self.step(&format!("{step}-warm"));
                let columns: Vec<Option<Step>> = table1::POLICIES
                    .iter()
                    .map(|(column, _)| self.step(&format!("{step}-{column}-{latency_ms}")))
                    .collect();
                let ratio = match &columns[..] {
                    [Some(exact), Some(full), Some(adaptive)] => {
                        let best = exact.cost.seconds().min(full.cost.seconds());
                        let best_waited = exact.cost.waited_s.min(full.cost.waited_s);
                        let ratio = adaptive.cost.seconds() / best.max(1e-9);
                        let waited = adaptive.cost.waited_s / best_waited.max(1e-9);
                        if ratio.max(waited) > TIME_GOAL {
                            misses.push(format!(
                                "{step} at {latency_ms} ms ({ratio:.2}, waiting {waited:.2})"
                            ));
                        }
                        format!("{ratio:.2} ({waited:.2})")
                    }
                    _ => "–".to_owned(),
                };
                self.say(format!(
                    "| {step} | {latency_ms} ms | {local} | {} | {} | {} | {} | {ratio} |",
                    show(warm.as_ref()),
                    show(columns[0].as_ref()),
                    show(columns[1].as_ref()),
                    show(columns[2].as_ref())
                ));
                for (column, found) in table1::POLICIES.iter().zip(&columns) {
                    if let Some(found) = found {
                        let usage = &found.cost.usage;
                        let _ = writeln!(
                            details,
                            "| {step} | {latency_ms} ms | {} | {} | {:.1} | {} | {:.1} | {:.1} | {:.1} |",
                            column.0,
                            usage.gets + usage.ranged_gets,
                            usage.bytes_down as f64 / 1e6,
                            usage.puts,
                            usage.bytes_up as f64 / 1e6,
                            found.cost.waited_s,
                            found.cost.computed_s
                        );
                    }
                }
            }
        }
        self.say("");
        self.say(format!(
            "Goal: adaptive within {TIME_GOAL} of the best fixed policy in every row, by the sum and by the waiting alone. {}",
            verdict(&misses)
        ));
        self.say("");
        self.say("The paper's (400 MB, 35,000 files of Linux 2.6.37; i386 default configuration):");
        self.say("");
        self.say("| step | RTT | local NFS server | warm | cold | full segments |");
        self.say("|---|---|---|---|---|---|");
        for (latency_ms, step, [warm, cold, full]) in PAPER_TABLE1 {
            let local = PAPER_LOCAL
                .iter()
                .find(|(name, _)| *name == step)
                .map_or("", |(_, time)| time);
            self.say(format!(
                "| {step} | {latency_ms} ms | {local} | {warm} | {cold} | {full} |"
            ));
        }
        self.say("");
        self.say("Behind the cold columns:");
        self.say("");
        self.say("| step | RTT | policy | GETs | MB down | PUTs | MB up | waited, s | computed, s |");
        self.say("|---|---|---|---|---|---|---|---|---|");
        self.say(details.trim_end());
        self.say("");
    }

    fn table2(&mut self) -> Result<()> {
        self.say("## Table 2: money for a million operations");
        self.say("");
        let rows: Vec<(&table2::Configuration, Mixed)> = CONFIGURATIONS
            .iter()
            .filter_map(|row| Some((row, self.cells.get(&format!("table2-{}", row.name))?)))
            .collect();
        let Some((_, any)) = rows.first() else {
            self.say("Not measured yet.\n");
            return Ok(());
        };
        let list = |shares: &[(u64, u64)]| {
            let parts: Vec<String> = shares
                .iter()
                .map(|(bytes, share)| format!("{} KiB {share} %", bytes >> 10))
                .collect();
            parts.join(", ")
        };
        let mix: Vec<String> = MIX
            .iter()
            .map(|(operation, share)| format!("{operation:?} {share} %"))
            .collect();
        let text = format!(
            "The mix of calls is SPECsfs2008's for NFSv3: {}. {} files of {:.0} MB that do not compress ({}; each ±25 %), of which a\n\
             third ({:.0} MB) is used, evenly; the edge's disk cache holds half of that ({:.0} MB). Reads and writes: {}, at random\n\
             multiples of 4 KiB. {} calls a second are offered, eight at a time; {} are measured after the cache has come to its usual\n\
             state, and what they left to upload is uploaded. 12 ms round trip. The rows decide by current prices unless they say\n\
             otherwise; only the adaptive policy looks at prices at all. *No segments*: each object is a store object of its own.",
            mix.join(", "),
            any.files,
            any.file_bytes as f64 / 1e6,
            list(&FILE_SIZES),
            any.used_bytes as f64 / 1e6,
            any.cache_bytes as f64 / 1e6,
            list(&TRANSFERS),
            table2::OPERATIONS_PER_SECOND,
            any.operations
        );
        self.say(text);
        for (book, ours, when) in [
            (table2::BOOK_2011, "adaptive-2011", "September 2011"),
            (table2::NOW, "adaptive", "current"),
        ] {
            let book = ProviderPrices::named(book)?;
            self.say("");
            self.say(format!("### At {when} prices ({}, {})", book.title, book.as_of));
            self.say("");
            let of_paper = when != "current";
            let paper_head = if of_paper {
                " paper: down | op | total |"
            } else {
                ""
            };
            self.say(format!(
                "| configuration | down $ | op $ | total $ | old up $ |{paper_head}"
            ));
            self.say(format!(
                "|---|---|---|---|---|{}",
                if of_paper { "---|---|---|" } else { "" }
            ));
            let before = ProviderPrices::named("s3-2011-06")?;
            let per_million = |mixed: &Mixed, dollars: f64| dollars * 1e6 / mixed.operations as f64;
            let total = |mixed: &Mixed, cost: &Money| {
                per_million(mixed, cost.requests.saturating_plus(cost.down).as_f64())
            };
            let mut cheapest = f64::INFINITY;
            let mut adaptive = None;
            for (row, mixed) in &rows {
                let cost = book.cost(&mixed.cost.usage, Route::Internet);
                let sum = total(mixed, &cost);
                if matches!(row.name, "baseline" | "full" | "noseg") {
                    cheapest = cheapest.min(sum);
                }
                if row.name == ours {
                    adaptive = Some(sum);
                }
                let paper = PAPER_TABLE2.iter().find(|(name, _)| *name == row.name);
                let paper = match (of_paper, paper) {
                    (false, _) => String::new(),
                    (true, None) => " | | |".to_owned(),
                    (true, Some((_, [down, op, total, _]))) => format!(" {down} | {op} | {total} |"),
                };
                let up = if of_paper {
                    format!(
                        "{:.2}",
                        per_million(mixed, before.cost(&mixed.cost.usage, Route::Internet).up.as_f64())
                    )
                } else {
                    "–".to_owned()
                };
                self.say(format!(
                    "| {} | {:.3} | {:.3} | {sum:.3} | {up} |{paper}",
                    row.title,
                    per_million(mixed, cost.down.as_f64()),
                    per_million(mixed, cost.requests.as_f64()),
                ));
            }
            if let Some(adaptive) = adaptive {
                let ratio = adaptive / cheapest;
                let misses = if ratio > MONEY_GOAL {
                    vec![format!("{ratio:.2}")]
                } else {
                    Vec::new()
                };
                self.say("");
                self.say(format!(
                    "Goal: adaptive within {MONEY_GOAL} of the cheapest 32 KiB policy; it is at {ratio:.2}. {}",
                    verdict(&misses)
                ));
            }
        }
        self.say("");
        self.say("Behind them (for a million operations):");
        self.say("");
        self.say(
            "| configuration | GETs | MB down | PUTs | MB up | misses | mean read, ms | mean operation, ms |",
        );
        self.say("|---|---|---|---|---|---|---|---|");
        for (row, mixed) in &rows {
            let usage = &mixed.cost.usage;
            let each = |count: u64| count as f64 * 1e6 / mixed.operations as f64;
            self.say(format!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
                row.title,
                each(usage.gets + usage.ranged_gets),
                each(usage.bytes_down) / 1e6,
                each(usage.puts),
                each(usage.bytes_up) / 1e6,
                each(mixed.misses),
                mixed.read_ms,
                mixed.all_ms
            ));
        }
        self.say("");
        Ok(())
    }

    fn point7(&self, policy: &str, kib: u32, percent: u64) -> Option<figure7::Point> {
        self.cells.get(&format!("figure7-{policy}-{kib}-{percent}"))
    }

    fn figure7(&mut self) {
        self.say("## Figure 7: read latency by the part of the working set that the cache holds");
        self.say("");
        let Some(any) = self.point7("exact", 32, 0) else {
            self.say("Not measured yet.\n");
            return;
        };
        self.say(format!(
            "One client reads at random from {:.0} MB that do not compress, one request at a time, {} for each point; 12 ms round trip.\n\
             The paper had 32 GB in files of 16 MB. Time is virtual: what is shown is waiting.",
            any.file_bytes as f64 / 1e6,
            any.requests
        ));
        self.say("");
        self.say("![Figure 7](figures/bluesky-figure7.svg)");
        self.say("");
        let head: Vec<String> = figure7::CACHED_PERCENT
            .iter()
            .map(|percent| format!(" {percent} % |"))
            .collect();
        self.say(format!("| mean ms (GETs a request) | policy |{}", head.concat()));
        self.say(format!("|---|---|{}", "---|".repeat(head.len())));
        for kib in figure7::REQUESTS_KIB {
            for (policy, _) in figure7::POLICIES {
                let mut row = format!("| {kib} KiB | {policy} |");
                for percent in figure7::CACHED_PERCENT {
                    match self.point7(policy, kib, percent) {
                        Some(point) => {
                            let gets = point.usage.gets + point.usage.ranged_gets;
                            let _ = write!(
                                row,
                                " {:.1} ({:.1}) |",
                                point.mean_ms,
                                gets as f64 / point.requests.max(1) as f64
                            );
                        }
                        None => row.push_str(" – |"),
                    }
                }
                self.say(row);
            }
        }
        self.say("");
        self.say(
            "The paper (S3 in 2011): a straight fall with the cached part, to a few milliseconds at 100 %; requests of 1 MiB, 32 times\n\
             as large as those of 32 KiB, took only 4 times as long.\n\
             \n\
             For 1 MiB the adaptive policy asks for one or a few long ranges where exact ranges come over some thirty connections at\n\
             once: a fraction of the requests, but longer waiting where one connection carries less than half of the line.",
        );
        self.say("");
    }

    fn chart7(&self) -> Chart {
        let mut curves = Vec::new();
        for (policy, _) in figure7::POLICIES {
            for kib in figure7::REQUESTS_KIB {
                let points = figure7::CACHED_PERCENT.iter().filter_map(|percent| {
                    let point = self.point7(policy, kib, *percent)?;
                    Some((*percent as f64, point.mean_ms))
                });
                curves.push(Curve {
                    name: format!("{kib} KiB, {policy}"),
                    points: points.collect(),
                    dashed: policy == "exact",
                });
            }
        }
        Chart {
            title: "Read latency by cached part of the working set".into(),
            x: "working set in the edge's cache, %".into(),
            y: "mean latency, ms".into(),
            curves,
        }
    }

    fn point8(&self, buffer_mib: u64, rate: u64) -> Option<figure8::Point> {
        self.cells.get(&format!("figure8-{buffer_mib}-{rate}"))
    }

    fn figure8(&mut self) {
        self.say("## Figure 8: writing faster than the line carries");
        self.say("");
        let Some(any) = figure8::RATES.iter().find_map(|rate| self.point8(128, *rate)) else {
            self.say("Not measured yet.\n");
            return;
        };
        self.say(format!(
            "1 MiB writes to random files for {} s, stable at the reply, with 100 Mbit/s (11.9 MiB/s) up and 12 ms. *Buffer*: the journal,\n\
             which holds what was not uploaded yet. At most 16 writes are under way. Time is virtual; content does not compress.",
            any.burst_s
        ));
        self.say("");
        self.say("![Figure 8](figures/bluesky-figure8.svg)");
        self.say("");
        let head: Vec<String> = figure8::RATES
            .iter()
            .map(|rate| format!(" {rate} MiB/s |"))
            .collect();
        self.say(format!("| buffer | |{}", head.concat()));
        self.say(format!("|---|---|{}", "---|".repeat(head.len())));
        for buffer_mib in figure8::BUFFERS_MIB {
            let points: Vec<Option<figure8::Point>> = figure8::RATES
                .iter()
                .map(|rate| self.point8(buffer_mib, *rate))
                .collect();
            let Some(name) = points.iter().flatten().next().map(|point| point.buffer_mib) else {
                continue;
            };
            let row = |show: &dyn Fn(&figure8::Point) -> String| -> String {
                points
                    .iter()
                    .map(|point| format!(" {} |", point.as_ref().map_or_else(|| "–".to_owned(), show)))
                    .collect()
            };
            let latency = row(&|point| format!("{:.1} ± {:.1}", point.mean_ms, point.deviation_ms));
            self.say(format!("| {name} MiB | ms, mean ± deviation |{latency}"));
            let achieved = row(&|point| format!("{:.1}", point.achieved));
            self.say(format!("| | MiB/s done |{achieved}"));
        }
        self.say("");
        self.say(
            "The paper's expectation: below what the line carries a write takes as long as the local disk; above it the small buffer\n\
             fills and clients are slowed to the line's rate, while the large one takes the whole burst up to a higher rate. A buffer\n\
             smaller than what starts a checkpoint (32 MiB) makes clients wait below the line's rate too.",
        );
        self.say("");
    }

    /// One run, one place: its figures would differ on two pages.
    fn figure11(&mut self) {
        self.say("## Figure 11: the cleaner beside a busy client");
        self.say("");
        self.say("With what else cleaning costs: [benchmarks-cleaner.md](benchmarks-cleaner.md).");
    }

    fn chart8(&self) -> Chart {
        let curves = figure8::BUFFERS_MIB.iter().filter_map(|buffer_mib| {
            let points: Vec<(u64, figure8::Point)> = figure8::RATES
                .iter()
                .filter_map(|rate| Some((*rate, self.point8(*buffer_mib, *rate)?)))
                .collect();
            let (_, first) = points.first()?;
            Some(Curve {
                name: format!("{} MiB buffer", first.buffer_mib),
                points: points
                    .iter()
                    .map(|(rate, point)| (*rate as f64, point.mean_ms))
                    .collect(),
                dashed: false,
            })
        });
        Chart {
            title: "Write latency with 100 Mbit/s to the store".into(),
            x: "offered load, MiB/s".into(),
            y: "mean latency of a 1 MiB write, ms".into(),
            curves: curves.collect(),
        }
    }
}

fn verdict(misses: &[String]) -> String {
    if misses.is_empty() {
        "Met.".to_owned()
    } else {
        format!("**Missed**: {}.", misses.join(", "))
    }
}

/// Figure 11 for the page of cleaning, on standard output, and its charts into `figures`.
pub fn figure11(cells: &Cells, figures: &Path) -> Result<()> {
    fs::create_dir_all(figures).with_context(|| format!("cannot make {}", figures.display()))?;
    let figure = figure11::of(cells).context("figure 11 was not measured")?;
    let chart = figure
        .chart("Figure 11 in virtual time: storage beside a busy client, after each run of the cleaner");
    fs::write(figures.join("cleaner-figure11.svg"), chart.svg())?;
    println!("{}", figure.text());
    let Some(real) = figure11::in_real_time(cells) else {
        println!("Not measured in real time.");
        return Ok(());
    };
    let chart =
        real.chart("Figure 11 in real time: storage beside a busy client, after each run of the cleaner");
    fs::write(figures.join("cleaner-figure11-real.svg"), chart.svg())?;
    println!(
        "In real time: `firn-edge` and `firn-cleaner` as processes, versitygw as S3, DynamoDB Local, a foreign NFS client; the same\n\
         writes. Everything was read back afterwards without a cache, and verified.\n\n\
         ![Figure 11 in real time](figures/cleaner-figure11-real.svg)\n\n{}",
        figure.beside_real_time(&real)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn times_are_written_as_the_paper_writes_them() {
        assert_eq!(clock(33.04), "0:33.0");
        assert_eq!(clock(5.25), "0:05.2");
        assert_eq!(clock(109.0), "1:49");
        assert_eq!(clock(3446.0), "57:26");
    }
}
