//! `firn dev` from outside: the README's quick start, and the whole story of a customer, with the real programs.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod auditing;
mod bill;
mod branch;
mod cleaning;
mod desired;
mod distrust;
mod doctor;
mod knowledge;
mod machine;
mod mounting;
mod outage;
mod quick_start;
mod rekeying;
mod removal;
mod search;
mod several_volumes;
mod story;
mod two_volumes;
