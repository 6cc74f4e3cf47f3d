//! Processor calibration: the speed of the processor at the moment, by a loop of known work.
//!
//! Half of what a file server does is computing over its data, half is the kernel copying it; so is the loop. It is measured by
//! this process's own time on the processor: what others take of the machine's time does not count, only that they share its
//! caches and its units.

use crate::process;
use anyhow::Result;
use std::{
    io::{Read, Seek, SeekFrom, Write},
    time::Duration,
};

/// Beyond the caches that are nearest, and few enough pages that making them takes no part in it.
const BUFFER_BYTES: usize = 4 << 20;
const PASSES: usize = 48;

/// Processor time of the loop now.
pub fn measure() -> Result<Duration> {
    let mut buffer = crate::content(0, BUFFER_BYTES).to_vec();
    let mut file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())?;
    // The file's pages are made before the time is taken.
    file.write_all(&buffer)?;
    let before = process::own_processor_time()?;
    for _ in 0..PASSES {
        let hash = blake3::hash(&buffer);
        buffer[..32].copy_from_slice(hash.as_bytes());
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&buffer)?;
        file.seek(SeekFrom::Start(0))?;
        file.read_exact(&mut buffer)?;
    }
    Ok(process::own_processor_time()?.saturating_sub(before))
}
