//! The engine as a whole, on simulated machines.

mod against_model;
mod cleaning;
mod damage;
mod files;
mod restoring;
mod snapshots;
mod usage;
mod world;
