//! The protocol, step by step, against a client that can also do wrong.

mod haggling;
mod limits;
mod raw;
mod requests;
mod world;
