//! The anchor's promises, one sentence a test.

mod account;
mod arenas;
mod cleaning;
mod histories;
mod hold;
mod layouts;
mod locks;
mod membership;
mod mutants;
mod refusals;
mod service;
mod support;
mod volumes;
