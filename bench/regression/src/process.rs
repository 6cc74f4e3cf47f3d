//! Process accounting: what the kernel counts of a process (proc(5)).

use anyhow::{Context, Result};
use std::{fs, time::Duration};

/// Counts of a process since its start.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// On the processor, in user and kernel mode.
    pub processor: Duration,
    /// Page faults that needed no disk.
    pub faults: u64,
    /// Calls of the read kind.
    pub read_calls: u64,
    /// Calls of the write kind.
    pub write_calls: u64,
    /// Bytes that calls of the read kind gave, those on sockets excluded.
    pub read_bytes: u64,
    /// Bytes handed to calls of the write kind, those on sockets included.
    pub written_bytes: u64,
    /// Times a thread gave the processor up, to wait for something; of the threads that there are now.
    pub switches: u64,
    /// Most memory resident at one moment.
    pub peak_bytes: u64,
}

/// Counts of a process.
pub fn counts(process: u32) -> Result<Counts> {
    let read = |name: &str| {
        let path = format!("/proc/{process}/{name}");
        fs::read_to_string(&path).with_context(|| format!("reading {path}"))
    };
    let (stat, io, status) = (read("stat")?, read("io")?, read("status")?);
    let line = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse::<u64>().ok())
            .with_context(|| format!("no {name}"))
    };
    let mut switches = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // One that has ended meanwhile has none.
        if let Ok(status) = fs::read_to_string(thread?.path().join("status")) {
            switches += line(&status, "voluntary_ctxt_switches:")?;
        }
    }
    // The name of the program, in parentheses, may hold anything.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    // Numbered as in proc(5), where the first after the name is 3.
    let field = |number: usize| {
        let text = fields.get(number - 3).context("a field of stat")?;
        text.parse::<u64>().context("a number in stat")
    };
    let tick = Duration::from_secs(1) / rustix::param::clock_ticks_per_second() as u32;
    Ok(Counts {
        processor: tick * (field(14)? + field(15)?) as u32,
        faults: field(10)?,
        read_calls: line(&io, "syscr:")?,
        write_calls: line(&io, "syscw:")?,
        read_bytes: line(&io, "rchar:")?,
        written_bytes: line(&io, "wchar:")?,
        switches,
        peak_bytes: line(&status, "VmHWM:")? << 10,
    })
}

/// What this process had of the processor.
pub fn own_processor_time() -> Result<Duration> {
    // Nanoseconds of this thread: what counts ticks is too coarse for a short loop.
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("reading schedstat")?;
    let nanos = text.split_whitespace().next().context("an empty schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}
