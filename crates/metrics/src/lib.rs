//! Metrics for Prometheus: a process's figures in the OpenMetrics text format, by Prometheus's own client library.
//!
//! Our figures stand in snapshots and counters that serve other readers too (`status`, logs), so nothing is counted twice for
//! Prometheus: a [`Metrics`] keeps one function that is asked at each scrape and tells an [`Exposition`] what is so now. Names are
//! given as they stand on the wire without the process's prefix, so that an alert's metric is found in the source: counters end in
//! `_total`, and a unit ends the name before that.

mod exposition;
#[cfg(feature = "http")]
mod listener;
#[cfg(feature = "http")]
mod serve;
mod value;

pub use exposition::{Exposition, Metrics};
#[cfg(feature = "http")]
pub use serve::{Served, serve};
pub use value::Value;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
