//! Listening, limits and shutdown.

use super::{
    Peer, Programs, Transport,
    activity::Activity,
    budget::{Budget, SMALL_BYTES},
    connection::{self, Accepting, Allowance},
    datagram,
};
use firn_env::{ByteStream, ConnectionTable, Env, Listener, LogLimiter, Place};
use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, warn};

/// What clients may use of the server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// The largest record: the largest WRITE with its head.
    pub record_bytes: usize,
    /// Calls of one connection that are executed or answered at once. The Linux client has up to 65,536 slots and uses
    /// some hundred; more here would only make a queue before the engine.
    pub calls_per_connection: usize,
    /// Bytes of calls in flight, all connections together; each may use a quarter, and each address half.
    pub request_bytes: usize,
    /// Bytes of replies in flight, all connections together; each may use a quarter, and each address half.
    pub reply_bytes: usize,
    /// Connections at once. A silent or idle one gives way to a newcomer beyond that.
    pub connections: usize,
    /// Connections at once from one address, where [`PeerRules`] say nothing else: 16 is the most that `nconnect` makes, and
    /// several clients may be behind one.
    pub connections_per_client: usize,
    /// A connection that has made no call so long after it was accepted is closed. Clients connect when they have a call to
    /// make; this leaves room for lost packets.
    pub silent: Duration,
    /// A connection without a call for so long is closed; clients reconnect unnoticed (Linux closes after 5 minutes itself).
    pub idle: Duration,
    /// A record that takes longer than this, and a second more for each 32 KiB of it, ends its connection; the same for
    /// replies that are not taken.
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
            silent: Duration::from_secs(15),
            idle: Duration::from_secs(6 * 60),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(20),
        }
    }
}

/// The pause after a failed accept (no file descriptors left): long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that gave way and have not ended yet: they are out of the table, but have a descriptor. When there are so many,
/// no further ones are accepted until some have ended.
const LEAVING_MAX: usize = 256;
/// How long somebody waits for memory before those that hold it and are slow are ended.
const MEMORY_WAIT: Duration = Duration::from_secs(1);
/// How often that is looked for, while somebody waits.
const MEMORY_LOOK: Duration = Duration::from_millis(250);

/// Which peers a server serves.
pub trait PeerRules: Send + Sync {
    /// Connections that `address` may have at once; `None` if there is nothing for it here. Must be cheap.
    fn connections_for(&self, address: IpAddr) -> Option<usize>;
}

/// Everybody, with so many connections for each address.
struct Everybody(usize);

impl PeerRules for Everybody {
    fn connections_for(&self, _: IpAddr) -> Option<usize> {
        Some(self.0)
    }
}

/// Peers that were not served, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// Connections and datagrams of addresses that the rules know nothing for.
    pub strangers: u64,
    /// Connections for which no other could give way.
    pub full: u64,
    /// Connections that could not be accepted, for want of descriptors.
    pub failed: u64,
    /// Connections ended because they held memory, were slow, and others waited.
    pub slow: u64,
}

/// Serves RPC programs on any number of listeners.
pub struct Server {
    env: Env,
    limits: ServerLimits,
    rules: Arc<dyn PeerRules>,
    requests: Budget,
    replies: Budget,
    table: ConnectionTable,
    registry: Arc<Registry>,
    strangers: Arc<LogLimiter>,
    full: LogLimiter,
    failed: LogLimiter,
    stop: watch::Sender<bool>,
    /// Every task of the server holds a clone; when all are dropped, all tasks have ended.
    running: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

/// The activities of all connections, for whoever looks for slow ones.
#[derive(Default)]
struct Registry {
    next: AtomicU64,
    active: Mutex<BTreeMap<u64, Arc<Activity>>>,
    slow: LogLimiter,
}

struct Registered<'a> {
    registry: &'a Registry,
    number: u64,
    activity: Arc<Activity>,
}

impl Registry {
    fn enter(&self, activity: Activity) -> Registered<'_> {
        let (number, activity) = (self.next.fetch_add(1, Relaxed), Arc::new(activity));
        let mut active = self.active.lock().expect("no panic under this lock");
        active.insert(number, activity.clone());
        drop(active);
        Registered {
            registry: self,
            number,
            activity,
        }
    }

    /// Ends the connections that hold memory and are slow.
    fn end_slow(&self, env: &Env) {
        let now = env.now();
        let active = self.active.lock().expect("no panic under this lock");
        for activity in active.values().filter(|activity| activity.holds_others_up(now)) {
            activity.end();
            if let Some(count) = self.slow.count(now) {
                warn!(
                    count,
                    "memory for calls is short; connections that held some and were slow were closed"
                );
            }
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut active = self.registry.active.lock().expect("no panic under this lock");
        active.remove(&self.number);
    }
}

/// Looks for slow connections while somebody waits for memory of `budget`.
async fn relieve(env: Env, budget: Budget, registry: Arc<Registry>, mut stop: watch::Receiver<bool>) {
    let stopping = stop.wait_for(|stop| *stop);
    let looking = async {
        loop {
            budget.pressure().begun().await;
            env.sleep(MEMORY_LOOK).await;
            let lasts = budget.pressure().lasts(env.now());
            if lasts.is_some_and(|lasts| lasts >= MEMORY_WAIT) {
                registry.end_slow(&env);
            }
        }
    };
    futures::pin_mut!(stopping, looking);
    let _: futures::future::Either<_, (std::convert::Infallible, _)> =
        futures::future::select(stopping, looking).await;
}

impl Server {
    /// A server without listeners that serves everybody.
    pub fn new(env: &Env, limits: ServerLimits) -> Arc<Self> {
        let everybody = Everybody(limits.connections_per_client);
        Self::for_peers(env, limits, Arc::new(everybody))
    }

    /// A server without listeners that serves those whom `rules` know.
    pub fn for_peers(env: &Env, limits: ServerLimits, rules: Arc<dyn PeerRules>) -> Arc<Self> {
        let (running, ended) = mpsc::channel(1);
        let server = Arc::new(Self {
            env: env.clone(),
            requests: Budget::new(env, limits.request_bytes, limits.record_bytes),
            replies: Budget::new(env, limits.reply_bytes, limits.record_bytes),
            table: ConnectionTable::new(limits.connections),
            limits,
            rules,
            registry: Arc::default(),
            strangers: Arc::default(),
            full: LogLimiter::default(),
            failed: LogLimiter::default(),
            stop: watch::channel(false).0,
            running: Mutex::new(Some(running)),
            ended: tokio::sync::Mutex::new(ended),
        });
        for budget in [&server.requests, &server.replies] {
            let (registry, stop) = (server.registry.clone(), server.stop.subscribe());
            let relieving = relieve(env.clone(), budget.clone(), registry, stop);
            drop(env.spawn("rpc memory", relieving));
        }
        server
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
        let door = datagram::Door {
            rules: self.rules.clone(),
            strangers: self.strangers.clone(),
        };
        let serving = datagram::serve(
            self.env.clone(),
            socket.into(),
            programs,
            door,
            self.stop.subscribe(),
        );
        drop(self.env.spawn("rpc datagrams", async move {
            serving.await;
            drop(running);
        }));
        Ok(bound)
    }

    /// Serves one connected stream until it ends or the server is shut down.
    pub async fn serve_stream(&self, stream: Box<dyn ByteStream>, peer: Peer, programs: Arc<Programs>) {
        let Some(place) = self.admit(peer.address) else {
            return;
        };
        self.serve_admitted(stream, peer, programs, place).await;
    }

    async fn serve_admitted(
        &self,
        stream: Box<dyn ByteStream>,
        peer: Peer,
        programs: Arc<Programs>,
        place: Place,
    ) {
        let Ok(running) = self.running() else {
            return;
        };
        let limits = &self.limits;
        let allowance = Allowance {
            record_bytes: limits.record_bytes,
            calls: limits.calls_per_connection,
            requests: self.requests.clone(),
            replies: self.replies.clone(),
            silent: limits.silent,
            idle: limits.idle,
            stall: limits.stall,
            drain: limits.drain,
        };
        let registered = self.registry.enter(Activity::new(self.env.now(), SMALL_BYTES));
        let accepting = Accepting {
            env: self.env.clone(),
            peer,
            programs,
            allowance,
            place,
            activity: registered.activity.clone(),
        };
        connection::serve(accepting, stream, self.stop.subscribe()).await;
        drop((running, registered));
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Peers that were not served.
    pub fn turned(&self) -> Turned {
        Turned {
            strangers: self.strangers.total(),
            full: self.full.total(),
            failed: self.failed.total(),
            slow: self.registry.slow.total(),
        }
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

    fn admit(&self, address: IpAddr) -> Option<Place> {
        let now = self.env.now();
        let Some(most) = self.rules.connections_for(address) else {
            if let Some(count) = self.strangers.count(now) {
                warn!(%address, count, "nothing is exported to this address; its connection was closed");
            }
            return None;
        };
        match self.table.enter(address, most, now) {
            Ok(place) => Some(place),
            Err(full) => {
                if let Some(count) = self.full.count(now) {
                    let (total, own) = (full.total, full.of_address);
                    warn!(
                        %address, total, own, count,
                        "too many connections in use; new ones were closed (nfs.connections, connections_per_client)"
                    );
                }
                None
            }
        }
    }
}

async fn accept(
    server: Arc<Server>,
    listener: Box<dyn Listener>,
    programs: Arc<Programs>,
    mut stop: watch::Receiver<bool>,
    running: mpsc::Sender<()>,
) {
    let leaving = Arc::new(Semaphore::new(LEAVING_MAX + server.limits.connections));
    loop {
        // A place for its descriptor, before it is accepted.
        let descriptor = leaving.clone().acquire_owned().await;
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
                let Some(place) = server.admit(peer.address) else {
                    continue;
                };
                let (server, programs) = (server.clone(), programs.clone());
                drop(server.env.clone().spawn("rpc connection", async move {
                    server.serve_admitted(stream, peer, programs, place).await;
                    drop(descriptor);
                }));
            }
            Err(error) => {
                if let Some(count) = server.failed.count(server.env.now()) {
                    warn!(%error, count, "connections could not be accepted");
                }
                server.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(running);
}
