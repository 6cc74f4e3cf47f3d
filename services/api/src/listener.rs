//! A listener: accepts, ends TLS, serves HTTP/1.1, and bounds what strangers can hold ([`connections`](crate::connections)).
//!
//! The service has up to three, each with a connection table of its own, so that a crowd at one takes nothing from another:
//!
//! | listener | who | TLS |
//! |---|---|---|
//! | tenants | everybody | 1.3, client certificates optional; or plain, behind a gateway on the same machine |
//! | internal | edges, nodes and the service's own components | 1.3, client certificates required |
//! | metrics | the operator's monitoring | none |

use crate::{
    connections::{ConnectionLimits, Connections, Ended, Phase, Seat, canonical},
    throttle::Throttle,
};
use axum::{Router, body::Body, http::Request};
use firn_env::{Env, Task};
use firn_identity::PeerIdentity;
use futures::future::{AbortHandle, Abortable};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// Heads of requests are some kilobytes with their token; a gateway lets 16 KiB through.
const HEAD_BYTES: usize = 32 << 10;
const HEADERS: usize = 100;
/// Between two looks for connections that are late.
const REAP_PERIOD: Duration = Duration::from_secs(1);
/// How long requests that are being served may take to end when the service stops.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Where a request came from: the caller's address, or what a gateway says it is.
///
/// The listener puts it into the request for the router, whose limits by address go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote(pub IpAddr);

/// A request's connection, as far as the router tells it how far it is.
#[derive(Clone)]
pub(crate) struct Progress {
    env: Env,
    seat: Arc<Seat>,
}

impl Progress {
    pub(crate) fn enter(&self, phase: Phase) {
        self.seat.enter(phase, self.env.now());
    }
}

/// A listener's parts.
pub(crate) struct Door {
    /// Which it is, in metrics and warnings.
    pub(crate) name: &'static str,
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: ConnectionLimits,
    /// Whether what gateways say of a caller's address is believed: not where they pass bytes through unread.
    pub(crate) hears_gateways: bool,
    pub(crate) router: Router,
}

/// A listener at work.
pub(crate) struct Open {
    pub(crate) name: &'static str,
    pub(crate) connections: Connections,
    env: Env,
    accepting: Task<()>,
    reaping: Task<()>,
}

impl Door {
    /// Starts to accept.
    pub(crate) fn open(self, env: &Env) -> Open {
        let connections = Connections::new(self.limits.clone());
        Open {
            name: self.name,
            env: env.clone(),
            reaping: env.spawn("connections", reap(env.clone(), self.name, connections.clone())),
            accepting: env.spawn("accept", self.accept(env.clone(), connections.clone())),
            connections,
        }
    }

    async fn accept(self, env: Env, connections: Connections) {
        let door = Arc::new(self);
        let mut failures = Throttle::default();
        loop {
            match door.listener.accept().await {
                Ok((stream, peer)) => door.seat(&env, &connections, stream, peer),
                Err(error) => {
                    // Out of descriptors, most likely: then somebody who only waits gives theirs.
                    connections.displace();
                    if let Some(count) = failures.note(env.now()) {
                        tracing::warn!(listener = door.name, %error, count, "connections could not be accepted");
                    }
                    env.sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    fn seat(self: &Arc<Self>, env: &Env, connections: &Connections, stream: TcpStream, peer: SocketAddr) {
        let phase = if self.tls.is_some() {
            Phase::Handshake
        } else {
            Phase::First
        };
        let (end, registration) = AbortHandle::new_pair();
        let Some(seat) = connections.admit(peer.ip(), phase, env.now(), end) else {
            return;
        };
        let progress = Progress {
            env: env.clone(),
            seat: Arc::new(seat),
        };
        let served = self.clone().serve(stream, peer.ip(), progress);
        drop(env.spawn("connection", async move {
            // Ended early or by itself: either way there is nobody to tell.
            let _ = Abortable::new(served, registration).await;
        }));
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, address: IpAddr, progress: Progress) {
        // Replies are written whole; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = &self.tls else {
            return self.converse(stream, address, None, progress).await;
        };
        // A client that breaks its handshake off, or fails it, has no request to be answered.
        let Ok(stream) = acceptor.accept(stream).await else {
            return;
        };
        progress.enter(Phase::First);
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let peer = certificate.and_then(|certificate| PeerIdentity::of_certificate(certificate).ok());
        self.converse(stream, address, peer, progress).await;
    }

    async fn converse<S>(&self, stream: S, address: IpAddr, peer: Option<PeerIdentity>, progress: Progress)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = Noticed {
            stream,
            progress: progress.clone(),
        };
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            let remote = Remote(self.remote(&request, address));
            let extensions = request.extensions_mut();
            extensions.insert(remote);
            extensions.insert(progress.clone());
            if let Some(peer) = &peer {
                extensions.insert(peer.clone());
            }
            progress.enter(Phase::Working);
            let (reply, progress) = (self.router.clone().oneshot(request), progress.clone());
            async move {
                let reply = reply.await;
                progress.enter(Phase::Replying);
                reply
            }
        });
        let connection = http1::Builder::new()
            // The connection table knows how long each phase may take.
            .header_read_timeout(None::<Duration>)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(stream), service);
        // What a client does to its own connection is its own matter.
        let _ = connection.await;
    }

    /// A gateway puts the caller's address behind those that the caller may have written itself.
    fn remote(&self, request: &Request<Body>, address: IpAddr) -> IpAddr {
        if !self.hears_gateways || !self.limits.gateways.contains(&canonical(address)) {
            return address;
        }
        let last = request.headers().get_all("x-forwarded-for").iter().next_back();
        last.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok())
            .unwrap_or(address)
    }
}

impl Open {
    /// Accepts nobody any more, and waits until those being served have their replies, for ten seconds at most.
    pub(crate) async fn close(self) {
        self.accepting.abort();
        let until = self.env.now().after(STOP_LIMIT);
        let busy = |connections: &Connections| {
            let phases = connections.phases();
            Phase::ALL.iter().zip(phases).any(|(phase, count)| {
                matches!(phase, Phase::Receiving | Phase::Working | Phase::Replying) && count > 0
            })
        };
        while busy(&self.connections) && self.env.now() < until {
            self.env.sleep(STOP_LOOK).await;
        }
        self.reaping.abort();
    }
}

/// Ends late connections, and says once a minute how many did not end by themselves.
async fn reap(env: Env, name: &'static str, connections: Connections) {
    let (mut throttle, mut before) = (Throttle::default(), Ended::default());
    loop {
        env.sleep(REAP_PERIOD).await;
        connections.reap(env.now());
        let ended = connections.ended();
        if ended.sum() == before.sum() || throttle.note(env.now()).is_none() {
            continue;
        }
        tracing::warn!(
            listener = name,
            displaced = ended.displaced - before.displaced,
            late = ended.late - before.late,
            refused = ended.refused - before.refused,
            connections = connections.len(),
            "connections were ended that said nothing or too little; honest clients are served beside them"
        );
        before = ended;
    }
}

/// A stream of which the table learns when a reply was written.
struct Noticed<S> {
    stream: S,
    progress: Progress,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noticed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        // Replies are whole when they are given to hyper, which flushes when it has written all it has.
        if self.progress.seat.phase() == Some(Phase::Replying) {
            self.progress.enter(Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
