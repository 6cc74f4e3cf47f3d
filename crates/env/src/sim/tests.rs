//! The simulation's promises to those who trust its verdicts.

mod disk;
mod executor;
mod network;
mod recording;
