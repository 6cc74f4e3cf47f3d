//! What the anchor promises, one sentence a test.

mod cleaning;
mod histories;
mod layouts;
mod support;
mod volumes;
