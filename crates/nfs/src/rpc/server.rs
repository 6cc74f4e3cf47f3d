//! Listening, limits and shutdown.

use super::{
    Peer, Programs, Transport,
    budget::Budget,
    connection::{self, Allowance},
    datagram,
};
use firn_env::{ByteStream, Env, Listener};
use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

/// What clients may use of the server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// The largest record: the largest WRITE with its head.
    pub record_bytes: usize,
    /// Calls of one connection that are executed or answered at once. The Linux client has up to 65,536 slots and uses
    /// some hundred; more here would only make a queue before the engine.
    pub calls_per_connection: usize,
    /// Bytes of calls in flight, all connections together; each may use a quarter.
    pub request_bytes: usize,
    /// Bytes of replies in flight, all connections together; each may use a quarter.
    pub reply_bytes: usize,
    /// Connections at once.
    pub connections: usize,
    /// Connections at once from one address: 16 is the most that `nconnect` makes, and several clients may be behind one.
    pub connections_per_client: usize,
    /// A connection without a call for so long is closed; clients reconnect unnoticed (Linux closes after 5 minutes itself).
    pub idle: Duration,
    /// A connection that stops inside a record, or takes no replies, for so long is closed.
    pub stall: Duration,
    /// How long calls in flight may take to end at shutdown.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            record_bytes: (1 << 20) + 4096,
            calls_per_connection: 256,
            request_bytes: 32 << 20,
            reply_bytes: 48 << 20,
            connections: 1024,
            connections_per_client: 64,
            idle: Duration::from_secs(6 * 60),
            stall: Duration::from_secs(60),
            drain: Duration::from_secs(20),
        }
    }
}

/// The pause after a failed accept (no file descriptors left): long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves RPC programs on any number of listeners.
pub struct Server {
    env: Env,
    limits: ServerLimits,
    requests: Budget,
    replies: Budget,
    connections: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    stop: watch::Sender<bool>,
    /// Every task of the server holds a clone; when all are dropped, all tasks have ended.
    running: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

/// Counts one connection of a client for as long as it lives.
struct Admission {
    connections: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut connections = self.connections.lock().expect("no panic under this lock");
        if let Some(count) = connections.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.address);
            }
        }
    }
}

impl Server {
    /// A server without listeners.
    pub fn new(env: &Env, limits: ServerLimits) -> Arc<Self> {
        let (running, ended) = mpsc::channel(1);
        Arc::new(Self {
            env: env.clone(),
            requests: Budget::new(limits.request_bytes, limits.record_bytes),
            replies: Budget::new(limits.reply_bytes, limits.record_bytes),
            limits,
            connections: Arc::default(),
            stop: watch::channel(false).0,
            running: Mutex::new(Some(running)),
            ended: tokio::sync::Mutex::new(ended),
        })
    }

    /// Serves `programs` to stream connections on `address` and returns the address bound.
    ///
    /// # Errors
    /// If it cannot be listened on.
    pub async fn listen(self: &Arc<Self>, address: &str, programs: Arc<Programs>) -> io::Result<String> {
        let listener = self.env.network().listen(address).await?;
        let bound = listener.address();
        let running = self.running()?;
        let accepting = accept(self.clone(), listener, programs, self.stop.subscribe(), running);
        drop(self.env.spawn("rpc listener", accepting));
        Ok(bound)
    }

    /// Serves `programs` to datagrams on `address` and returns the address bound.
    ///
    /// # Errors
    /// If it cannot be bound.
    pub async fn listen_datagram(
        self: &Arc<Self>,
        address: &str,
        programs: Arc<Programs>,
    ) -> io::Result<String> {
        let socket = self.env.network().bind_datagram(address).await?;
        let bound = socket.address();
        let running = self.running()?;
        let serving = datagram::serve(self.env.clone(), socket.into(), programs, self.stop.subscribe());
        drop(self.env.spawn("rpc datagrams", async move {
            serving.await;
            drop(running);
        }));
        Ok(bound)
    }

    /// Serves one connected stream until it ends or the server is shut down.
    pub async fn serve_stream(&self, stream: Box<dyn ByteStream>, peer: Peer, programs: Arc<Programs>) {
        let (Ok(running), Some(admission)) = (self.running(), self.admit(peer.address)) else {
            return;
        };
        let allowance = Allowance {
            record_bytes: self.limits.record_bytes,
            calls: self.limits.calls_per_connection,
            requests: self.requests.share(),
            replies: self.replies.share(),
            idle: self.limits.idle,
            stall: self.limits.stall,
            drain: self.limits.drain,
        };
        let stop = self.stop.subscribe();
        connection::serve(self.env.clone(), stream, peer, programs, allowance, stop).await;
        drop((running, admission));
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.connections
            .lock()
            .expect("no panic under this lock")
            .values()
            .sum()
    }

    /// Takes no more connections and calls, lets those in flight end and sends their replies. Returns whether all ended
    /// within the limit's `drain`.
    pub async fn shutdown(&self) -> bool {
        self.running.lock().expect("no panic under this lock").take();
        self.stop.send_replace(true);
        let mut ended = self.ended.lock().await;
        // A little more than a connection gives its own calls, so that it is the connection that says what is left.
        let limit = self.limits.drain + Duration::from_secs(1);
        self.env.timeout(limit, ended.recv()).await.is_ok()
    }

    fn running(&self) -> io::Result<mpsc::Sender<()>> {
        let running = self.running.lock().expect("no panic under this lock");
        let stopped = || io::Error::new(io::ErrorKind::NotConnected, "the server is shut down");
        running.clone().ok_or_else(stopped)
    }

    fn admit(&self, address: IpAddr) -> Option<Admission> {
        let mut connections = self.connections.lock().expect("no panic under this lock");
        let total: usize = connections.values().sum();
        let own = connections.get(&address).copied().unwrap_or(0);
        if total >= self.limits.connections || own >= self.limits.connections_per_client {
            warn!(%address, total, own, "too many connections; a new one was closed");
            return None;
        }
        connections.insert(address, own + 1);
        Some(Admission {
            connections: self.connections.clone(),
            address,
        })
    }
}

async fn accept(
    server: Arc<Server>,
    listener: Box<dyn Listener>,
    programs: Arc<Programs>,
    mut stop: watch::Receiver<bool>,
    running: mpsc::Sender<()>,
) {
    loop {
        let accepted = {
            let (next, stopping) = (listener.accept(), stop.wait_for(|stop| *stop));
            futures::pin_mut!(next, stopping);
            match futures::future::select(stopping, next).await {
                futures::future::Either::Left(_) => break,
                futures::future::Either::Right((accepted, _)) => accepted,
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let peer = Peer::parse(&peer, Transport::Tcp);
                debug!(?peer, "connection accepted");
                let (server, programs) = (server.clone(), programs.clone());
                drop(server.env.clone().spawn("rpc connection", async move {
                    server.serve_stream(stream, peer, programs).await;
                }));
            }
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                server.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(running);
}
