//! The program as its users meet it: real processes, a real disk, real sockets.

#![allow(
    clippy::disallowed_methods,
    reason = "tests of a real program measure real time"
)]

mod access_log;
mod administration;
mod audit_reports;
mod auditing;
mod bounds;
mod check;
mod cleaning;
mod damage;
mod dropped_puts;
mod explanations;
mod junctions;
mod level_two;
mod lock_administration;
mod locks;
mod machine;
mod messages;
mod mounts;
mod newer_data;
mod noise;
mod outage;
mod parities;
mod refusals;
mod returns;
mod rings;
mod rolled_back;
mod second_audit;
mod second_store;
mod small_disk;
mod smb;
mod snapshots;
mod takeover;
mod traces;
mod upgrades;
mod volumes;
