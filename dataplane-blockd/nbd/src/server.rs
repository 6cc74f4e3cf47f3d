//! Listening, connections, stopping.

use crate::{
    execute::Terms,
    export::Exports,
    negotiation::{Negotiation, NoAgreement},
    tls::Tls,
    transmission::Transmission,
};
use firn_env::{ByteStream, Env, Listener, Task};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, watch};

/// Bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// Requests in flight on one connection.
    pub requests: usize,
    /// Bytes of payload in flight on one connection, in both directions.
    pub bytes: u32,
    /// How long a client may haggle before it chooses an export.
    pub negotiation: Duration,
}

impl Default for Limits {
    /// 256 requests are twice the kernel client's deepest queue; 64 MiB are two of the longest payloads, so that one can be
    /// received while another is sent; a minute is long for a program, and a person at a prompt can be quicker.
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 256,
            bytes: 64 << 20,
            negotiation: Duration::from_secs(60),
        }
    }
}

/// A server of [`Exports`]; it may listen on several addresses.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    exports: Arc<Exports>,
    tls: Option<Tls>,
    limits: Limits,
    stopping: AtomicBool,
    slots: Arc<Semaphore>,
    next_id: AtomicU64,
    /// Listeners and connections, by number, until they end.
    tasks: Mutex<BTreeMap<u64, Task<()>>>,
    /// Open connections, for those who wait until there are none.
    open: watch::Sender<usize>,
}

/// A place where a server listens; dropping it does not end that, [`Server::stop`] does.
pub struct Listening {
    address: String,
}

impl Listening {
    /// The address, with the port if any was asked for.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Server {
    /// A server that does not listen yet. With `tls`, no client gets anything without it.
    pub fn new(env: Env, exports: Arc<Exports>, tls: Option<Tls>, limits: Limits) -> Self {
        assert!(limits.requests > 0 && limits.connections > 0 && limits.bytes >= 1 << 20);
        Self {
            inner: Arc::new(Inner {
                slots: Arc::new(Semaphore::new(limits.connections)),
                env,
                exports,
                tls,
                limits,
                stopping: AtomicBool::new(false),
                next_id: AtomicU64::new(0),
                tasks: Mutex::new(BTreeMap::new()),
                open: watch::Sender::new(0),
            }),
        }
    }

    /// Accepts connections at `host:port` or `unix:/path`.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub async fn listen(&self, address: &str) -> io::Result<Listening> {
        let listener = self.inner.env.network().listen(address).await?;
        let listening = Listening {
            address: listener.address(),
        };
        let server = self.clone();
        // Essential: who connects would wait for ever at a listener that nobody asks.
        self.keep(|env, _| env.spawn_essential("nbd listener", async move { server.accept(listener).await }));
        Ok(listening)
    }

    async fn accept(&self, listener: Box<dyn Listener>) {
        loop {
            let slot = self.inner.slots.clone().acquire_owned().await;
            let slot = slot.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let server = self.clone();
                    self.keep(move |env, id| {
                        env.spawn("nbd connection", async move {
                            let _slot = slot;
                            server.inner.open.send_modify(|open| *open += 1);
                            let _open = Open(server.clone(), id);
                            server.serve(stream, &peer).await;
                        })
                    });
                }
                Err(error) => {
                    // Out of descriptors, or a client that has gone already: the next may be luckier.
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.inner.env.sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves one connection, to its end.
    pub async fn serve(&self, stream: Box<dyn ByteStream>, peer: &str) {
        let stopping = || self.inner.stopping.load(Ordering::SeqCst);
        let negotiation = Negotiation {
            exports: &self.inner.exports,
            tls: self.inner.tls.as_ref(),
            is_shutting_down: &stopping,
        };
        let limit = self.inner.limits.negotiation;
        let agreed = match self.inner.env.timeout(limit, negotiation.run(stream)).await {
            Ok(Ok(agreed)) => agreed,
            Ok(Err(NoAgreement::Aborted)) => return,
            Ok(Err(error)) => return tracing::info!(peer, %error, "no export was chosen"),
            Err(elapsed) => return tracing::info!(peer, %elapsed, "no export was chosen"),
        };
        let transmission = Transmission {
            env: &self.inner.env,
            device: agreed.export.device,
            terms: Terms {
                style: agreed.style,
                block_status: agreed.block_status,
            },
            limits: self.inner.limits,
            is_shutting_down: &stopping,
        };
        if let Err(error) = transmission.run(agreed.stream).await {
            tracing::info!(peer, %error, "the connection broke");
        }
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        *self.inner.open.borrow()
    }

    /// Stops: new connections and requests are refused, what was begun is done, and clients have `grace` to leave before they
    /// are cut off. Devices are not flushed.
    pub async fn stop(&self, grace: Duration) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        let mut open = self.inner.open.subscribe();
        let left = self
            .inner
            .env
            .timeout(grace, open.wait_for(|open| *open == 0))
            .await;
        if left.is_err() {
            tracing::info!(connections = self.connections(), "clients are cut off");
        }
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().expect("no panic under this lock"));
        tasks.values().for_each(Task::abort);
    }

    /// Starts a task that [`Server::stop`] can end.
    fn keep(&self, start: impl FnOnce(&Env, u64) -> Task<()>) {
        let id = self.inner.next_id.fetch_add(1, Ordering::SeqCst);
        // Held over the start, so that a task that ends at once finds itself in the map.
        let mut tasks = self.inner.tasks.lock().expect("no panic under this lock");
        let task = start(&self.inner.env, id);
        tasks.insert(id, task);
    }
}

/// Counts a connection for as long as it lives.
struct Open(Server, u64);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.inner.open.send_modify(|open| *open -= 1);
        self.0
            .inner
            .tasks
            .lock()
            .expect("no panic under this lock")
            .remove(&self.1);
    }
}
