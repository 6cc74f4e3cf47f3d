//! The page: our figures beside the paper's, and each goal as it is met or missed.

mod by_inode;

use super::{
    MODES, Mode, NEAR_LINES_MS, PAPER_LINES_MS, WAYS, actions, commit, freshness,
    latency::{self, percentile},
    money, namespaces,
    paper::Paper,
    table3::{self, PROGRAMS},
};
use crate::{cells::Cells, office::price_list};
use anyhow::Result;
use std::fmt::Write as _;

/// An office alone in a shared volume may take so much longer than one with a volume of its own.
const ALONE_GOAL: f64 = 1.05;
/// Sharing of 1 MiB: so many seconds and round trips.
const LATENCY_GOAL_S: f64 = 0.5;
const LATENCY_GOAL_ROUND_TRIPS: f64 = 2.0;
const LATENCY_GOAL_KIB: u64 = 1 << 10;
/// A COMMIT that waits for the cloud: to PUT and table.
const COMMIT_GOAL: f64 = 1.2;
const CACHED_OPEN_GOAL_MICRO_DOLLARS: f64 = 1.0;

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "**MISSED**" }
}

/// Three figures that matter.
fn short(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 100.0 => format!("{seconds:.0}"),
        seconds if seconds >= 10.0 => format!("{seconds:.1}"),
        seconds if seconds >= 1.0 => format!("{seconds:.2}"),
        seconds => format!("{seconds:.3}"),
    }
}

fn mib(kib: u64) -> String {
    match kib {
        kib if kib < 1024 => format!("{kib} KiB"),
        kib => format!("{} MiB", kib >> 10),
    }
}

fn micro(dollars: f64) -> String {
    short(dollars * 1e6)
}

struct Page<'c> {
    cells: &'c Cells,
    paper: Paper,
    text: String,
    goals: Vec<(String, bool)>,
}

/// The whole page.
pub fn text(cells: &Cells) -> Result<String> {
    let mut page = Page {
        cells,
        paper: Paper::read()?,
        text: String::new(),
        goals: Vec::new(),
    };
    page.table3()?;
    page.commit()?;
    page.figure8()?;
    page.figure9()?;
    page.figure10()?;
    page.figure11()?;
    page.hours()?;
    page.by_inode()?;
    let mut whole = page.introduction();
    whole.push_str("\n## Goals\n\n| goal | |\n|---|---|\n");
    for (goal, met) in &page.goals {
        let _ = writeln!(whole, "| {goal} | {} |", verdict(*met));
    }
    whole.push_str(&page.text);
    Ok(whole)
}

impl Page<'_> {
    fn introduction(&self) -> String {
        let (store, table) = PAPER_LINES_MS;
        let access = &self.paper.coordination_access_ms;
        format!(
            "# What sharing between offices costs\n\n\
             Written by `make bench-sharing`: the evaluation of SCFS ({source}) over again. How a volume is shared is told in\n\
             [sharing.md](sharing.md).\n\n\
             The edges, their NFS servers and the handovers are the product's; bucket, table, lines, disks and clock are simulated, so the figures are the same on every\n\
             machine. Seconds are virtual time: waiting, without what programs compute. The office's network takes 0.2 ms there and back. Where nothing else is said the line\n\
             of an office is as the paper's: {store} ms to the bucket, {table} ms to the table (the paper's coordination service took {least} to {most} ms an access; its clients\n\
             were in Portugal, S3 in the US). *Private*: a volume of one office, answered when the journal has it. *Shared, journal*: the same in a shared volume (the paper's non-blocking\n\
             mode). *Shared, cloud*: answered when the other offices can see it (its blocking mode).\n",
            source = self.paper.source,
            least = access.least,
            most = access.most,
        )
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn table3(&mut self) -> Result<()> {
        let mut columns = Vec::new();
        for mode in &MODES {
            columns.push(table3::measure(self.cells, mode)?);
        }
        self.line("\n## Table 3: micro-benchmarks, in seconds\n");
        self.line(format!(
            "4 MiB read and written in pieces of 128 KiB; {} reads and writes of 4 KiB; 200 files of 16 KiB made, 100 of them copied. Each read and write of the first four\n\
             is a call of the edge, one after the other (what the kernel of a client spares with its memory is not counted, and the paper's programs called a\n\
             process of the same machine).\n",
            table3::RANDOM_OPERATIONS
        ));
        let names: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
        let papers: Vec<String> = MODES
            .iter()
            .map(|mode| format!("paper, {}", mode.paper))
            .collect();
        self.line(format!(
            "| program | {} | shared, journal / private | {} | paper, S3FS | S3QL | LocalFS |",
            names.join(" | "),
            papers.join(" | ")
        ));
        self.line(format!("|{}", "---|".repeat(11)));
        let mut alone = true;
        for program in PROGRAMS {
            let ours: Vec<f64> = columns.iter().map(|column| column.seconds[program]).collect();
            let ratio = ours[1] / ours[0];
            alone &= ratio <= ALONE_GOAL;
            let cells: Vec<String> = ours.iter().map(|seconds| short(*seconds)).collect();
            let others = ["S3FS", "S3QL", "LocalFS"].into_iter();
            let theirs: Vec<String> = MODES
                .iter()
                .map(|mode| mode.paper)
                .chain(others)
                .map(|column| {
                    self.paper
                        .table3(program, column)
                        .map_or(String::new(), |seconds| seconds.to_string())
                })
                .collect();
            self.line(format!(
                "| {program} | {} | {ratio:.2} | {} |",
                cells.join(" | "),
                theirs.join(" | ")
            ));
        }
        self.goals.push((
            format!(
                "an office alone in a shared volume within {:.0} % of a private one, each program of Table 3",
                (ALONE_GOAL - 1.0) * 100.0
            ),
            alone,
        ));
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.line("\n### A COMMIT in blocking mode\n");
        self.line("64 KiB written and committed, every 3 s; medians in seconds, beside a PUT of as much and a write of the table over the same line.\n");
        self.line("| to bucket, table | COMMIT | PUT | table | COMMIT / (PUT + table) |");
        self.line("|---|---|---|---|---|");
        for lines in [PAPER_LINES_MS, NEAR_LINES_MS] {
            let measured = commit::measure(self.cells, &MODES[2], lines)?;
            let ratio = measured.commit / (measured.put + measured.table);
            let [commit, put, table] = [measured.commit, measured.put, measured.table].map(short);
            self.line(format!(
                "| {} ms, {} ms | {commit} | {put} | {table} | {ratio:.2} |",
                lines.0, lines.1
            ));
            self.goals.push((
                format!(
                    "blocking mode: a COMMIT at most a PUT, a write of the table and {:.0} %, at {} and {} ms",
                    (COMMIT_GOAL - 1.0) * 100.0,
                    lines.0,
                    lines.1
                ),
                ratio <= COMMIT_GOAL,
            ));
        }
        Ok(())
    }

    fn figure8(&mut self) -> Result<()> {
        self.line("\n## Figure 8: a document of 1.2 MB opened, saved, closed, in seconds\n");
        self.line("The calls of the paper's Figure 7, means of ten rounds. (L): the program's lock files lie on the client's own disk.\n");
        self.line("| | open | save | close |");
        self.line("|---|---|---|---|");
        for mode in &MODES {
            for (suffix, local) in [("", false), (" (L)", true)] {
                let measured = actions::measure(self.cells, mode, local)?;
                let [open, save, close] = [measured.open, measured.save, measured.close].map(short);
                self.line(format!("| {}{suffix} | {open} | {save} | {close} |", mode.name));
            }
        }
        let (save, local) = (
            self.paper.figure8.save_non_blocking_seconds,
            self.paper.figure8.save_local_seconds,
        );
        self.line(format!("| paper, in words: non-blocking | | about {save} | |"));
        self.line(format!(
            "| paper, in words: a local file system | | about {local} | |"
        ));
        Ok(())
    }

    fn figure9(&mut self) -> Result<()> {
        self.line("\n## Figure 9: from the close in one office to the content in another, in seconds\n");
        self.line(
            "20 files of each size; from the return of close to the last byte at a client of the other office, which asks for the name every 50 ms (`freshness` 500 ms): median, and what\n\
             nine of ten do not exceed. *Close* is how long close itself took (median). *Uploaded and polled* is a program that keeps folders alike: it uploads after the\n\
             close, and the other side asks every ten seconds. The paper draws its figures and does not print them.\n",
        );
        for lines in [PAPER_LINES_MS, NEAR_LINES_MS] {
            self.line(format!(
                "At {} ms to the bucket and {} ms to the table:\n",
                lines.0, lines.1
            ));
            let sizes: Vec<String> = latency::FILES_KIB.iter().map(|kib| mib(*kib)).collect();
            let heads: Vec<String> = sizes
                .iter()
                .map(|size| format!("{size}: p50 | p90 | close"))
                .collect();
            self.line(format!("| | {} |", heads.join(" | ")));
            self.line(format!("|---|{}", "---|---|---|".repeat(sizes.len())));
            let mut rows = Vec::new();
            for (slug, name, way) in &WAYS {
                let mut row = format!("| {name} |");
                for kib in latency::FILES_KIB {
                    let runs = latency::measure(self.cells, slug, *way, kib, lines)?;
                    let [p50, p90, close] = [
                        percentile(&runs.seen, 50),
                        percentile(&runs.seen, 90),
                        percentile(&runs.closed, 50),
                    ];
                    let _ = write!(row, " {} | {} | {} |", short(p50), short(p90), short(close));
                    if kib == LATENCY_GOAL_KIB && *slug != "polled" {
                        let round_trip = lines.0.max(lines.1) as f64 / 1000.0;
                        let goal = LATENCY_GOAL_S + LATENCY_GOAL_ROUND_TRIPS * round_trip;
                        self.goals.push((
                            format!(
                                "sharing 1 MiB, median at {} and {} ms, {name}: {} s, at most 0.5 s and two round trips ({} s)",
                                lines.0,
                                lines.1,
                                short(p50),
                                short(goal)
                            ),
                            p50 <= goal,
                        ));
                    }
                }
                rows.push(row);
            }
            rows.iter().for_each(|row| self.line(row));
            self.line("");
        }
        Ok(())
    }

    fn figure10(&mut self) -> Result<()> {
        self.line("## Figure 10(a): how long metadata are believed\n");
        self.line(
            "`freshness` against making 200 files and copying 100 in the office that has the volume, which believes itself, and against opening, reading and closing those 200 in\n\
             another office, which has all of them in its cache.\n",
        );
        self.line(
            "| freshness | create, s | copy, s | 200 opens elsewhere, s | reads of the table for them |",
        );
        self.line("|---|---|---|---|---|");
        for freshness_ms in freshness::FRESHNESS_MS {
            let row = freshness::measure(self.cells, freshness_ms)?;
            let [create, copy, opens] = [row.create_s, row.copy_s, row.opens_s].map(short);
            self.line(format!(
                "| {freshness_ms} ms | {create} | {copy} | {opens} | {} |",
                row.opens_table_reads
            ));
        }
        self.namespaces()
    }

    fn namespaces(&mut self) -> Result<()> {
        self.line("\n## Figure 10(b): not all files are shared\n");
        let [of_create, of_copy] = self.paper.figure10.quarter_shared_factors;
        self.line(format!(
            "Making 200 files and copying 100 in an office with two volumes, a private one (answered when the journal has it, level 1) and a shared one (answered when the other offices can\n\
             see it, level 2), of which so many files lie in the shared one. The paper keeps what is not shared in a private name space, and says of a quarter shared: faster than all shared by\n\
             factors of roughly {of_create} (create) and {of_copy} (copy).\n"
        ));
        self.line("| shared | create, s | copy, s | all shared / this, create | copy |");
        self.line("|---|---|---|---|---|");
        let all = namespaces::measure(self.cells, 100)?;
        for percent in namespaces::SHARED_PERCENT {
            let row = namespaces::measure(self.cells, percent)?;
            let [create, copy] = [row.create_s, row.copy_s].map(short);
            let [create_factor, copy_factor] =
                [all.create_s / row.create_s, all.copy_s / row.copy_s].map(short);
            self.line(format!(
                "| {percent} % | {create} | {copy} | {create_factor} | {copy_factor} |"
            ));
        }
        Ok(())
    }

    fn figure11(&mut self) -> Result<()> {
        let prices = price_list()?;
        let measured = money::operations(self.cells)?;
        self.line("\n## Figure 11(b): operations, in millionths of a dollar\n");
        self.line(format!(
            "Requests counted by the edges' own meters, at list prices ({}, {}; DynamoDB on demand); bytes that come down go over the internet. An open is a LOOKUP, whose\n\
             answer has the attributes of file and directory; at `freshness = \"0 s\"` each of the two looks at the root.\n",
            prices.title, prices.as_of
        ));
        self.line("| operation | µ$ | requests | the paper |");
        self.line("|---|---|---|---|");
        let cached = measured.cached_open_dollars * 1e6;
        let paper = self.paper.figure11.cached_read_micro_dollars;
        self.line(format!(
            "| open, read, close of a cached file, `freshness = \"0 s\"` | {} | {:.2} | {paper} |",
            short(cached),
            measured.cached_open_requests
        ));
        self.line(format!(
            "| the same in the office that has the volume | {} | | |",
            micro(measured.owner_open_dollars)
        ));
        self.goals.push((
            format!(
                "an open of a cached file costs at most {CACHED_OPEN_GOAL_MICRO_DOLLARS} µ$: {} (the paper's {paper})",
                short(cached)
            ),
            cached <= CACHED_OPEN_GOAL_MICRO_DOLLARS,
        ));
        let rate = self.paper.figure11.read_dollars_a_gigabyte;
        for (kib, spent) in money::FILES_KIB.iter().zip(&measured.reads) {
            let theirs = *kib as f64 / f64::from(1 << 20) * rate * 1e6 + paper;
            self.line(format!(
                "| first read of {} | {} | {} | {} |",
                mib(*kib),
                micro(spent.dollars()?),
                spent.requests(),
                short(theirs)
            ));
        }
        for (kib, spent) in money::FILES_KIB.iter().zip(&measured.writes) {
            self.line(format!(
                "| save of {}, answered by the cloud | {} | {} | |",
                mib(*kib),
                micro(spent.dollars()?),
                spent.requests()
            ));
        }
        self.line(format!(
            "\nThe paper's reads: {rate} $ a GB of outbound traffic and the cached read's {paper} µ$. Its writes are drawn, not printed."
        ));
        self.line("\n## Figure 11(c): storage\n");
        let kept: u64 = measured.writes.iter().map(|spent| spent.store.bytes_up).sum();
        let saved: u64 = money::FILES_KIB.iter().map(|kib| kib << 10).sum();
        let a_gigabyte =
            prices.storage_month.estimate(1 << 30).nanos() as f64 / 1e9 * kept as f64 / saved as f64;
        self.line(format!(
            "{kept} bytes were stored for {saved} bytes of files that do not compress: ${a_gigabyte:.4} a GiB and month, {} µ$ a day for a version of 1 MiB that is all new.",
            micro(a_gigabyte / 1024.0 / 30.0)
        ));
        Ok(())
    }

    fn hours(&mut self) -> Result<()> {
        self.line("\n## Figure 11(a): an hour of two offices\n");
        self.line(format!(
            "By the meters of both edges together. *Alone*: one office saves a document of 100 KiB every {} s. *Reading*: the other one opens it every {} s besides.\n\
             *Contending*: both save one each, every {} s; a volume that is written by turns goes to and fro. *Idle*: nobody does anything, ten minutes after the last change. The\n\
             paper's fixed costs, a coordination service on four large machines of EC2, are ${} a month: ${:.2} an hour, whatever anybody does.\n",
            money::ALONE_SAVES_EVERY.as_secs(),
            money::READER_OPENS_EVERY.as_secs(),
            money::CONTENDERS_SAVE_EVERY.as_secs(),
            self.paper.figure11.coordination_ec2_dollars_a_month,
            self.paper.figure11.coordination_ec2_dollars_a_month / (30.0 * 24.0)
        ));
        self.hours_of(&MODES[1], &money::HOURS, "handovers")
    }

    /// An hour of each kind, and that an idle one costs nothing.
    fn hours_of(&mut self, mode: &Mode, hours: &[&str], given: &str) -> Result<()> {
        self.line(format!(
            "| | saves | opens | {given} | PUT | GET | table, read | table, written | $ an hour |"
        ));
        self.line("|---|---|---|---|---|---|---|---|---|");
        for what in hours {
            let hour = money::hour(self.cells, mode, what)?;
            let spent = &hour.spent;
            self.line(format!(
                "| {what} | {} | {} | {} | {} | {} | {} | {} | {:.6} |",
                hour.saves,
                hour.opens,
                hour.handovers,
                spent.store.puts,
                spent.store.gets + spent.store.ranged_gets,
                spent.table_reads,
                spent.table_writes,
                spent.dollars()?
            ));
            if *what == "idle" {
                let goal = format!("idle offices make no request ({})", mode.name);
                self.goals.push((goal, spent.requests() == 0));
            }
        }
        Ok(())
    }
}
