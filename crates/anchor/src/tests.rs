//! What the anchor promises, one sentence a test.

mod cleaning;
mod histories;
mod layouts;
mod mutants;
mod support;
mod volumes;
