//! The engine as a whole, on simulated machines.

mod against_model;
mod cleaning;
mod confirming;
mod copied_machine;
mod damage;
mod detached;
mod files;
mod following;
mod holes;
mod late;
mod level_two;
mod level_zero;
mod manifest;
mod manifest_audit;
mod manifest_gathering;
mod quota;
mod reading_back;
mod rekeying;
mod restoring;
mod rolled_back;
mod sequential;
mod snapshots;
mod usage;
mod verify;
mod world;
