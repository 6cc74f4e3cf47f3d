//! `firn dev`: becomes `firn-dev`, so that this program links no engine.

use super::beside::become_it;
use crate::failure::{Failure, of_file};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

const PROGRAM: &str = if cfg!(windows) { "firn-dev.exe" } else { "firn-dev" };

/// `firn-dev` beside this program, or by the search path.
fn program(own: &Path) -> PathBuf {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() {
        beside
    } else {
        PathBuf::from(PROGRAM)
    }
}

pub fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program does not find itself: {error}")))?;
    let program = program(&own);
    let mut command = Command::new(&program);
    // It types what a customer types, with the same program as the customer.
    command.args(arguments).env("FIRN_PROGRAM", &own);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::usage("firn-dev is not installed beside firn")
            .next("build it: cargo build --release -p firn-dev"),
        _ => of_file(&program)(error),
    };
    Err(failed(become_it(command)))
}
