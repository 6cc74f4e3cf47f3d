//! Listening, connections, stopping.

use crate::{
    execute::Terms,
    export::{Export, Exports},
    limits::Limits,
    negotiation::{Agreed, Negotiation, NoAgreement},
    reply::Style,
    tls::Tls,
    transmission::Transmission,
};
use firn_env::{ByteStream, Env, Listener, Task};
use futures::future::{Either, select};
use std::{
    collections::BTreeMap,
    io,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

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
    /// Connections that have not chosen an export, in the order in which they came; each ends when it is told to.
    negotiating: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
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
                negotiating: Mutex::default(),
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
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let slot = self.slot().await;
                    let server = self.clone();
                    self.keep(move |env, id| {
                        env.spawn("nbd connection", async move {
                            let _slot = slot;
                            server.inner.open.send_modify(|open| *open += 1);
                            let _open = Open(server.clone(), id);
                            let (give_way, gives_way) = oneshot::channel();
                            server.negotiating().insert(id, give_way);
                            let agreed = match select(pin!(server.negotiate(stream, &peer)), gives_way).await
                            {
                                Either::Left((agreed, _)) => agreed,
                                Either::Right(_) => {
                                    return tracing::info!(peer, "no export was chosen, and others came");
                                }
                            };
                            server.negotiating().remove(&id);
                            if let Some(agreed) = agreed {
                                server.transmit(agreed, &peer).await;
                            }
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

    /// Room for a connection. Where there is none, the oldest that has not chosen an export gives way: who says nothing keeps
    /// nobody out. If all have, one of them must leave first.
    async fn slot(&self) -> OwnedSemaphorePermit {
        if let Ok(slot) = self.inner.slots.clone().try_acquire_owned() {
            return slot;
        }
        let oldest = self.negotiating().pop_first();
        if let Some((_, give_way)) = oldest {
            // One that ends by itself gives way too.
            let _ = give_way.send(());
        }
        let slot = self.inner.slots.clone().acquire_owned().await;
        slot.expect("the semaphore is never closed")
    }

    fn negotiating(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.inner.negotiating.lock().expect("no panic under this lock")
    }

    /// Serves one connection, to its end.
    pub async fn serve(&self, stream: Box<dyn ByteStream>, peer: &str) {
        if let Some(agreed) = self.negotiate(stream, peer).await {
            self.transmit(agreed, peer).await;
        }
    }

    /// Serves a client that was told by other means what it would have negotiated: the kernel at the other end of a pair of sockets. It
    /// has simple replies and no contexts, may ask what [`Export::plain_flags`] says, and ends with the server.
    pub fn adopt(&self, export: Export, stream: Box<dyn ByteStream>, peer: &str) {
        let (server, peer) = (self.clone(), peer.to_owned());
        self.keep(move |env, id| {
            env.spawn("nbd connection", async move {
                server.inner.open.send_modify(|open| *open += 1);
                let _open = Open(server.clone(), id);
                let agreed = Agreed {
                    stream,
                    export,
                    style: Style::Simple,
                    block_status: false,
                };
                server.transmit(agreed, &peer).await;
            })
        });
    }

    /// What was agreed on with a client; nothing if it left, or took too long.
    async fn negotiate(&self, stream: Box<dyn ByteStream>, peer: &str) -> Option<Agreed> {
        let stopping = || self.inner.stopping.load(Ordering::SeqCst);
        let negotiation = Negotiation {
            exports: &self.inner.exports,
            tls: self.inner.tls.as_ref(),
            is_shutting_down: &stopping,
        };
        let limit = self.inner.limits.negotiation;
        match self.inner.env.timeout(limit, negotiation.run(stream)).await {
            Ok(Ok(agreed)) => return Some(agreed),
            Ok(Err(NoAgreement::Aborted)) => {}
            Ok(Err(error)) => tracing::info!(peer, %error, "no export was chosen"),
            Err(elapsed) => tracing::info!(peer, %elapsed, "no export was chosen"),
        }
        None
    }

    async fn transmit(&self, agreed: Agreed, peer: &str) {
        let stopping = || self.inner.stopping.load(Ordering::SeqCst);
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
        self.0.negotiating().remove(&self.1);
        self.0
            .inner
            .tasks
            .lock()
            .expect("no panic under this lock")
            .remove(&self.1);
    }
}
