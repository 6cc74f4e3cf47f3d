//! What the anchor promises, one sentence a test.

mod histories;
mod layouts;
mod support;
mod volumes;
