//! `firn`: the one command a customer types.
//!
//! It speaks to the API and holds the tenant's side of the keys: the recovery phrase is made here and never leaves, the
//! tenant's key is pinned here, and a key is wrapped only to somebody whom the join secret or the signed key ring proves. The
//! storage engine is not linked in.
//!
//! ```text
//! arguments ─► command ─► session (profile, token) ─► http ─► API
//!                │                                              │
//!                ├── phrase, rings: keys, offline               ▼
//!                └──────────────────────────────► screen: tables for people, JSON for programs
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "a program of one request after the other: nothing here is replayed from a seed"
)]

mod arguments;
mod chain;
mod commands;
mod failure;
mod hexadecimal;
mod http;
mod money;
mod names;
mod phrase;
mod pins;
mod profile;
mod random;
mod rings;
mod screen;
mod session;
mod times;

use clap::Parser as _;
use std::{io::Write as _, process::ExitCode};

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(arguments)),
        Err(error) => Err(failure::Failure::failed(format!("cannot start: {error}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody may be reading: then nobody is told, and the exit code says it.
            let _ = writeln!(std::io::stderr(), "firn: {failure}");
            ExitCode::from(failure.exit as u8)
        }
    }
}
