//! Log of a host to its cloud: one JSON object a line.

use tracing_subscriber::EnvFilter;

/// Writes everything from `info` on (or as in `RUST_LOG`) to standard error, one JSON object a line, without colours: what
/// CloudWatch and Application Insights can be asked about. A second call does nothing.
pub fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_ansi(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}
