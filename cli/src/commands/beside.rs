//! Firn's other programs beside this one: found, tried, and become. This one links no engine.

use crate::failure::{Failure, of_file};
use std::{io, path::PathBuf, process::Command};

/// The program of this name beside this one, else by the search path; refused if it does not run. `task` says what it is there for.
pub(super) fn program(name: &str, task: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program does not find itself: {error}")))?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let beside = own.with_file_name(&file);
    let program = if beside.is_file() {
        beside
    } else {
        PathBuf::from(file)
    };
    match Command::new(&program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(_) => Err(Failure::usage(format!(
            "{} does not run; is it of this version?",
            program.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::usage(format!(
            "{name} is installed neither beside firn nor on the search path"
        ))
        .next(format!(
            "{task}: install it, or build it: cargo build --release -p {name}"
        ))),
        Err(error) => Err(of_file(&program)(error)),
    }
}

/// Ends as that program; comes back only with why not.
#[cfg(unix)]
pub(super) fn become_it(mut command: Command) -> io::Error {
    use std::os::unix::process::CommandExt as _;
    command.exec()
}

/// Ends with that program; comes back only with why not.
#[cfg(not(unix))]
pub(super) fn become_it(mut command: Command) -> io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
