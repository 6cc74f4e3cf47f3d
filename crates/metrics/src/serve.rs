//! The figures over plain HTTP, on an address of their own.

use crate::{CONTENT_TYPE, Metrics, listener::Bounded};
use axum::{
    Router,
    http::header::{CONNECTION, CONTENT_TYPE as KIND},
    routing::get,
};
use firn_env::{Env, Task};
use std::{io, net::SocketAddr, sync::Arc};

/// A listener at work.
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// Ends it when aborted.
    pub task: Task<()>,
}

/// Serves `/metrics`, and what `beside` answers, such as `/healthz`. Connections are bounded in number and time.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(env: &Env, address: &str, metrics: Metrics, beside: Router) -> io::Result<Served> {
    let listener = firn_env::listen_tcp(address).await?;
    let address = listener.local_addr()?;
    let metrics = Arc::new(metrics);
    let scrape = get(move || {
        let text = metrics.text();
        // Scrapes are seconds apart: a connection kept in between holds a place for nothing.
        async move { ([(KIND, CONTENT_TYPE), (CONNECTION, "close")], text) }
    });
    let router = beside.route("/metrics", scrape);
    let bounded = Bounded::new(listener, env);
    let task = env.spawn("metrics", async move {
        if let Err(error) = axum::serve(bounded, router).await {
            tracing::error!(%error, "metrics are no longer served");
        }
    });
    Ok(Served { address, task })
}
