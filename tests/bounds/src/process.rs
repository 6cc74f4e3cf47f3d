//! Process and machine accounting, from the kernel (proc(5)).

use anyhow::{Context, Result};
use std::fs;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The most that was resident at one moment since the process began or [`forget_peak`] was called.
    pub peak: u64,
    /// Resident now.
    pub resident: u64,
}

/// The memory of a process.
pub fn memory(process: u32) -> Result<Memory> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes
            .map(|kibibytes| kibibytes << 10)
            .with_context(|| format!("{path} has no {name}"))
    };
    Ok(Memory {
        peak: field("VmHWM:")?,
        resident: field("VmRSS:")?,
    })
}

/// Makes the kernel count the peak anew.
pub fn forget_peak(process: u32) -> Result<()> {
    // 5: proc(5), clear_refs.
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("resetting the peak of resident memory")
}

/// The machine in a few words.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processor = processor.map_or("unknown processor", |(_, name)| name);
    format!("{cores} cores, {processor}")
}
