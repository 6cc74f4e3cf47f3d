//! The edge proxy appliance.
fn main() {}
