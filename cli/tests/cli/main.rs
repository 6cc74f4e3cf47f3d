//! Tests of the command line: what a customer types, against servers that run. One program: each more would build and link all of it once again.

mod cloud;
mod distrust;
mod grants;
mod hidden;
mod install;
mod logins;
mod members;
mod newcomer;
mod recovery;
mod running;
mod shared_costs;
mod sharing;
mod story;
mod swaps;
