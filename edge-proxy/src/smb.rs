//! SMB: the exports as shares for Windows and macOS, by the distribution's Samba over a private mount of the volume (decision 0132).
//!
//! ```text
//! client ──SMB3, encrypted──▶ smbd (one process a connection) ──▶ kernel ──FUSE──▶ firn-edge: the lock table of all protocols, the volume
//!                               ▲ configuration, users, start, probe, stop: firn-edge
//! ```
//!
//! The edge writes Samba's configuration ([`samba_config`]), keeps the table of users ([`users`]), finds accounts in it and in the domain ([`accounts`]), runs `smbd` in namespaces of its own
//! ([`process`]), asks it again and again whether it answers ([`probe`]), and starts it anew when it does not ([`supervisor`]). With a domain
//! `winbindd` runs beside it ([`domain`]). Samba is a
//! process beside this one, never linked.

mod accounts;
pub mod commands;
mod connections;
mod domain;
mod domain_commands;
mod paths;
mod probe;
mod process;
mod samba_config;
mod section;
mod supervisor;
mod tools;
mod users;

pub use accounts::{Account, Accounts, Sought};
pub use domain::{DomainPart, DomainSection};
pub use samba_config::{forced_user, networks, shared};
pub use section::{Encryption, ShareSection, SmbSection, check, is_read_only, unserved};
pub use supervisor::{SmbPart, SmbService, Volume};

/// Where smbd's configuration is, which it is started with.
pub fn configuration(config: &crate::config::Config) -> std::path::PathBuf {
    paths::Paths::new(&config.volume.state_directory).configuration()
}

/// Numbers and names of SMB's users; none where there are none, or the table cannot be read.
pub fn user_names(state_directory: &std::path::Path) -> Vec<(u32, String)> {
    let table = users::Table::load(&paths::Paths::new(state_directory)).unwrap_or_default();
    table
        .users
        .into_iter()
        .map(|user| (user.uid, user.name))
        .collect()
}
