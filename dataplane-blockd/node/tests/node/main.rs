//! Tests of a node: what it keeps, answers and repairs. One program: each more would build and link all of it once again.

mod attachments;
mod cluster;
mod fairness;
mod journal;
mod newer_data;
mod room;
mod slots;
mod store;
mod strangers;
mod support;
mod takeovers;
mod tenants;
mod upkeep;
