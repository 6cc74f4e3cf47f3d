//! The cleaner as a custom handler of Azure Functions, on a timer and from a queue, over Azure Blob.
//!
//! The Functions host starts this program with a port in `FUNCTIONS_CUSTOMHANDLER_PORT`, polls `/`, and posts to the path of a
//! function when its trigger fires (`app/`). Settings are the function app's (`firn_cleaner_host::Settings`). See
//! docs/cleaner.md.

#![recursion_limit = "256"]

mod call;
mod server;

use anyhow::Context as _;
use firn_cleaner_host::{Host, Settings, start_log};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};

const PORT: &str = "FUNCTIONS_CUSTOMHANDLER_PORT";
/// `functionTimeout` of app/host.json, less what a run needs to come to its end.
const CALL_LIMIT: Duration = Duration::from_secs(290);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    start_log();
    let env = firn_env::real(&std::env::temp_dir()).context("the directory for temporary files")?;
    let host = Arc::new(Host::new(env, Settings::from_environment()?));
    let port =
        std::env::var(PORT).with_context(|| format!("{PORT} is not set; the Functions host does that"))?;
    let port: u16 = port
        .parse()
        .with_context(|| format!("{PORT}={port:?} is no port"))?;
    #[allow(
        clippy::disallowed_methods,
        reason = "axum wants tokio's own listener; nothing deterministic runs here"
    )]
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("listening on 127.0.0.1:{port}"))?;
    tracing::info!(port, "calls of the Functions host are taken");
    axum::serve(listener, server::router(host, CALL_LIMIT)).await?;
    Ok(())
}
