//! A bound on who asks for metrics: so many connections at a time, each for so long. The address may be reachable for more
//! than the monitoring, and the file server must not run out of descriptors over it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "axum wants tokio's own streams; nothing deterministic runs here"
)]

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
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};

/// Several monitoring systems and load balancers at once; those beyond wait to be accepted.
const CONNECTIONS_MAX: usize = 32;

/// A reply is some KiB: whoever has not fetched it after this long holds a place for nothing.
const CONNECTION_TIME: Duration = Duration::from_secs(20);

/// A listener that accepts only as many connections as it may serve.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    time: Duration,
}

impl Bounded {
    pub fn new(listener: TcpListener) -> Self {
        Self::with_limits(listener, CONNECTIONS_MAX, CONNECTION_TIME)
    }

    fn with_limits(listener: TcpListener, places: usize, time: Duration) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(places)),
            time,
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = self.places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        let end = Box::pin(tokio::time::sleep(self.time));
        let connection = Connection {
            stream,
            end,
            _place: place,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends by itself and then gives its place back.
pub struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn is_over(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
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

    #[tokio::test]
    async fn idle_connections_hold_the_places_only_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let router = Router::new().route("/", get(|| async { "here" }));
        let bounded = Bounded::with_limits(listener, 3, Duration::from_secs(1));
        let server = tokio::spawn(async move { axum::serve(bounded, router).await });
        let mut idle = Vec::new();
        for _ in 0..3 {
            idle.push(TcpStream::connect(address).await.expect("accepted"));
        }
        // A slow machine may take longer over a reply than a connection may take, so there are several tries.
        let mut last = None;
        for _ in 0..20 {
            match ask(address).await {
                Ok(reply) if reply.ends_with("here") => {
                    server.abort();
                    return;
                }
                other => last = Some(other),
            }
        }
        panic!("never answered: {last:?}");
    }
}
