//! A bound on who asks for metrics: so many connections at a time, each for so long. The address may be reachable for more
//! than the monitoring, and the program must not run out of descriptors over it.
//!
//! A connection is accepted in any case; one that has not asked for anything gives way to it, as in every connection table
//! ([`firn_env::ConnectionTable`]). A load balancer whose question waited behind silent connections would call the program dead.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "axum wants tokio's own streams; nothing deterministic runs here"
)]

use firn_env::{ConnectionTable, Env, InFlight, LogLimiter, Place};
use futures::{FutureExt, future::BoxFuture};
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Sleep,
};

/// Several monitoring systems and load balancers at once.
const CONNECTIONS_MAX: usize = 64;
/// Of them, from one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;

/// Whoever connects asks at once.
const SILENT_TIME: Duration = Duration::from_secs(5);
/// A reply is some KiB: whoever has not fetched it after this long holds a place for nothing.
const CONNECTION_TIME: Duration = Duration::from_secs(20);

/// A listener whose connections are bounded in number and time.
pub struct Bounded {
    env: Env,
    listener: TcpListener,
    table: ConnectionTable,
    full: LogLimiter,
    most_of_address: usize,
    silent: Duration,
}

impl Bounded {
    pub fn new(listener: TcpListener, env: &Env) -> Self {
        Self {
            env: env.clone(),
            listener,
            table: ConnectionTable::new(CONNECTIONS_MAX),
            full: LogLimiter::default(),
            most_of_address: CONNECTIONS_PER_ADDRESS_MAX,
            silent: SILENT_TIME,
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            let now = self.env.now();
            let ip = address.ip().to_canonical();
            let place = match self.table.enter(ip, self.most_of_address, now) {
                Ok(place) => Arc::new(place),
                Err(_) => {
                    if let Some(count) = self.full.count(now) {
                        tracing::warn!(%address, count, "too many connections for metrics; new ones were closed");
                    }
                    continue;
                }
            };
            let watched = place.clone();
            let connection = Connection {
                env: self.env.clone(),
                stream,
                end: Box::pin(tokio::time::sleep(self.silent)),
                evicted: async move { watched.evicted().await }.boxed(),
                place,
                answering: None,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends by itself, or gives way, and then leaves the table.
pub struct Connection {
    env: Env,
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    evicted: BoxFuture<'static, ()>,
    place: Arc<Place>,
    /// Once its request is there: it is answered, and does not give way.
    answering: Option<InFlight>,
}

impl Connection {
    fn is_over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.evicted.poll_unpin(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    fn answers(&mut self) {
        if self.answering.is_none() {
            self.answering = Some(self.place.request(self.env.now()));
            self.end = Box::pin(tokio::time::sleep(CONNECTION_TIME));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_over(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_over(context)?;
        self.answers();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::Bounded;
    use axum::{Router, routing::get};
    use std::{io, net::SocketAddr, time::Duration};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        Ok(reply)
    }

    async fn serve(silent: Duration) -> (SocketAddr, tokio::task::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let router = Router::new().route("/", get(|| async { "here" }));
        let env = firn_env::real(&std::env::temp_dir()).expect("an environment");
        let mut bounded = Bounded::new(listener, &env);
        bounded.silent = silent;
        let server = tokio::spawn(async move { axum::serve(bounded, router).await });
        (address, server)
    }

    #[tokio::test]
    async fn a_question_is_answered_however_many_connections_are_silent() {
        let (address, server) = serve(Duration::from_secs(3600)).await;
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(TcpStream::connect(address).await.expect("accepted"));
        }
        let reply = tokio::time::timeout(Duration::from_secs(30), ask(address)).await;
        let reply = reply.expect("in time").expect("answered");
        assert!(reply.ends_with("here"), "{reply}");
        server.abort();
    }

    #[tokio::test]
    async fn silent_connections_end_by_themselves() {
        let (address, server) = serve(Duration::from_millis(200)).await;
        let mut silent = TcpStream::connect(address).await.expect("accepted");
        silent.write_all(b"GET / HT").await.expect("sent");
        let ended = tokio::time::timeout(Duration::from_secs(30), silent.read(&mut [0; 100])).await;
        assert!(matches!(ended.expect("in time"), Ok(0) | Err(_)));
        server.abort();
    }
}
