//! What the anchor promises, one sentence a test.

mod support;
mod volumes;
