//! A check of one target: clients without the crowd, and with it, in turns.

use crate::{
    Target,
    attack::{Crowd, State},
    probe::{self, Latencies},
};
use anyhow::{Context, Result};
use std::{fmt, fs, path::PathBuf, time::Duration};

/// How the check is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program that holds parts of the crowd: this one's own.
    pub program: PathBuf,
    /// Silent and slow connections.
    pub connections: usize,
    /// Addresses they come from.
    pub sources: usize,
    /// Clients that work.
    pub clients: usize,
    /// How long they do in each phase.
    pub time: Duration,
    /// Phases without the crowd, each followed by one with it.
    pub rounds: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations while there was no crowd.
    pub without: Latencies,
    /// Operations beside it.
    pub beside: Latencies,
    /// The crowd at the end of the last phase.
    pub crowd: State,
    /// Processors that the server's processes kept busy: without the crowd, and beside it.
    pub server: (f64, f64),
    /// The most that the server had resident at the end of a phase, in bytes; before the crowd, and beside it.
    pub resident: Option<(u64, u64)>,
}

impl Outcome {
    /// p99 beside the crowd, in terms of the one without it.
    pub fn ratio(&self) -> f64 {
        self.beside.percentile(99).as_secs_f64() / self.without.percentile(99).as_secs_f64().max(1e-9)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |out: &mut fmt::Formatter<'_>, what: &str, latencies: &Latencies| {
            let millis = |percent| latencies.percentile(percent).as_secs_f64() * 1e3;
            writeln!(
                out,
                "  {what:<14} {:>8} operations, p50 {:.2} ms, p99 {:.2} ms, slowest {:.2} ms",
                latencies.count(),
                millis(50),
                millis(99),
                millis(100)
            )
        };
        line(out, "without crowd", &self.without)?;
        line(out, "beside crowd", &self.beside)?;
        let State { open, opened, closed } = self.crowd;
        writeln!(
            out,
            "  crowd          {open} open at the end, {opened} opened, {closed} closed by the server"
        )?;
        if let Some((before, beside)) = self.resident {
            let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let (before, beside) = (mebibytes(before), mebibytes(beside));
            writeln!(
                out,
                "  server         {before:.1} MiB resident before the crowd, at most {beside:.1} MiB beside it"
            )?;
        }
        let (without, beside) = self.server;
        writeln!(
            out,
            "  processors     {without:.2} busy for the server without crowd, {beside:.2} beside it"
        )?;
        write!(out, "  p99 ratio      {:.2}", self.ratio())
    }
}

/// Checks `target`.
///
/// # Errors
/// If an operation of a client fails, or the crowd cannot be made.
pub async fn check(target: &Target, plan: &Plan) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut resident: Option<(u64, u64)> = None;
    let (mut without, mut beside) = (0, 0);
    for round in 0..plan.rounds {
        let work = || probe::work(target, plan.clients, plan.time);
        let begun = busy_ticks(target)?;
        outcome.without.extend(work().await.context("without the crowd")?);
        without += busy_ticks(target)?.saturating_sub(begun);
        let before = memory(target)?;
        let mut crowd = Crowd::start(
            &plan.program,
            target.address,
            target.protocol,
            plan.connections,
            plan.sources,
        )?;
        // Until each has been opened once, and 60 s at most: a server may refuse many of them.
        for _ in 0..60 {
            outcome.crowd = crowd.state().await?;
            if outcome.crowd.opened >= plan.connections {
                break;
            }
        }
        let begun = busy_ticks(target)?;
        let (worked, last) = tokio::join!(work(), watch(&mut crowd, plan.time));
        beside += busy_ticks(target)?.saturating_sub(begun);
        outcome
            .beside
            .extend(worked.with_context(|| format!("beside the crowd, round {round}"))?);
        outcome.crowd = last?;
        if let (Some(before), Some(beside)) = (before, memory(target)?) {
            let (least, most) = resident.unwrap_or((before, beside));
            resident = Some((least.min(before), most.max(beside)));
        }
        crowd.end().await?;
    }
    outcome.resident = resident;
    let ticks = plan.time.as_secs_f64() * plan.rounds as f64 * rustix::param::clock_ticks_per_second() as f64;
    outcome.server = (without as f64 / ticks, beside as f64 / ticks);
    Ok(outcome)
}

async fn watch(crowd: &mut Crowd, time: Duration) -> Result<State> {
    let mut last = State::default();
    for _ in 0..time.as_secs().max(1) {
        last = crowd.state().await?;
    }
    Ok(last)
}

/// The processors' time that the target's processes have taken since they were started, in ticks.
fn busy_ticks(target: &Target) -> Result<u64> {
    let mut ticks = 0;
    for process in &target.processes {
        let path = format!("/proc/{process}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("{path}: has the server ended?"))?;
        // proc_pid_stat(5): the name may hold anything, so fields are counted behind it; utime and stime are the 14th and 15th.
        let (_, fields) = text.rsplit_once(") ").context("a process has a name")?;
        for time in fields.split(' ').skip(11).take(2) {
            ticks += time.parse::<u64>().context("a time in ticks")?;
        }
    }
    Ok(ticks)
}

/// The most that the target's processes have had resident together (VmHWM); `None` if none is known.
fn memory(target: &Target) -> Result<Option<u64>> {
    let mut bytes = None;
    for process in &target.processes {
        let path = format!("/proc/{process}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("{path}: has the server ended?"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        bytes = Some(bytes.unwrap_or(0) + (kibibytes.context("no VmHWM")? << 10));
    }
    Ok(bytes)
}
