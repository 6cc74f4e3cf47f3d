//! `--detach` and `--stop`: the process in the background, found again by the file `firn-dev.pid`.

use crate::{Arguments, layout::Layout};
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long a start may take: recovery of a full journal is the longest part.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// How the report of a start ends.
const LAST_WORDS: &str = "Stop it with: firn dev --stop\n";

/// Starts this program once more without `--detach`, in a process group of its own, and waits for its report.
pub fn detach(arguments: &Arguments) -> Result<()> {
    let layout = Layout::make(&arguments.directory)?;
    let path = layout.path("firn-dev.out");
    let output = fs::File::create(&path).with_context(|| path.display().to_string())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(
            std::env::args_os()
                .skip(1)
                .filter(|argument| argument != "--detach"),
        )
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()?;
    let began = Instant::now();
    loop {
        let said = fs::read_to_string(&path)?;
        if said.ends_with(LAST_WORDS) {
            firn_env::print!("{said}");
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("{}\nit ended at its start ({status})", said.trim_end());
        }
        if began.elapsed() > START_TIMEOUT {
            bail!(
                "it is not ready after {} s; see {}",
                START_TIMEOUT.as_secs(),
                path.display()
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether it is there and does something: one that ended and that nobody has waited for is there too.
fn is_running(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    let has_ended = stat
        .rsplit_once(") ")
        .is_none_or(|(_, state)| state.starts_with(['Z', 'X']));
    !has_ended && test_kill_process(process).is_ok()
}

/// Asks the process of the directory to end, and waits until it has.
pub fn stop(directory: &Path) -> Result<()> {
    let path = directory.join("firn-dev.pid");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("nothing runs in {} ({})", directory.display(), path.display()))?;
    let process = text
        .trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{} names no process", path.display()))?;
    // The number may be another's by now: only a process of our program is ended.
    let name = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero())).unwrap_or_default();
    if name.trim() != "firn-dev" {
        fs::remove_file(&path)?;
        bail!(
            "nothing runs in {}: it ended without a last word",
            directory.display()
        );
    }
    kill_process(process, Signal::TERM)?;
    let began = Instant::now();
    while is_running(process) {
        if began.elapsed() > STOP_TIMEOUT {
            bail!("process {} goes on", process.as_raw_nonzero());
        }
        std::thread::sleep(LOOK);
    }
    firn_env::println!("Stopped; everything acknowledged is durable.");
    Ok(())
}
