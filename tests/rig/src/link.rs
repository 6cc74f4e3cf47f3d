//! A way to a server that can be cut: a port that hands every connection on to another.
//!
//! Cut, it behaves as a network that swallows packets does to those who wait long enough: connections that stand are closed,
//! and new ones are closed as soon as they are made. Nothing of the machine's own network is touched, so no root is needed.

#![allow(
    clippy::disallowed_methods,
    reason = "a way between real programs; nothing deterministic runs here"
)]

use anyhow::Result;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// See the module. Dropped, it is closed.
pub struct SlowLink {
    address: SocketAddr,
    cut: Arc<watch::Sender<bool>>,
    accepting: JoinHandle<()>,
}

impl SlowLink {
    /// A line to `target` (`host:port`), whole at first.
    pub async fn to(target: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let cut = Arc::new(watch::Sender::new(false));
        let (target, news) = (target.to_owned(), cut.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, target.clone(), news.subscribe()));
            }
        });
        Ok(Self {
            address,
            cut,
            accepting,
        })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends every connection and refuses new ones.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.cut.send_replace(false);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn carry(mut near: TcpStream, target: String, mut cut: watch::Receiver<bool>) {
    if *cut.borrow() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(&target).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let carried = std::pin::pin!(tokio::io::copy_bidirectional(&mut near, &mut far));
    let ended = std::pin::pin!(cut.wait_for(|cut| *cut));
    // Whichever comes first ends the other.
    drop(futures::future::select(ended, carried).await);
}
