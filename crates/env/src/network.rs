//! Stream connections and datagrams between machines.

use async_trait::async_trait;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A place to connect to and accept from; addresses are `host:port`, or `unix:/path` for a local socket.
#[async_trait]
pub trait Network: Send + Sync {
    /// Starts to accept connections. Port 0 asks for any free one. A local socket that nobody listens on any more is
    /// replaced; anything else at its path is left alone and an error.
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>>;
    /// Connects.
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>>;
    /// Opens a socket for datagrams. Port 0 asks for any free one. Networks without datagrams refuse.
    async fn bind_datagram(&self, address: &str) -> io::Result<Box<dyn DatagramSocket>> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("no datagrams on this network ({address})"),
        ))
    }
}

/// Sends and receives datagrams; both directions may be used at once.
#[async_trait]
pub trait DatagramSocket: Send + Sync {
    /// The next datagram (cut off at the buffer's end) and its sender's address.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, String)>;
    /// Sends one datagram. That it left does not mean that it arrives.
    async fn send(&self, bytes: &[u8], to: &str) -> io::Result<()>;
    /// The address bound.
    fn address(&self) -> String;
}

/// Accepts connections.
#[async_trait]
pub trait Listener: Send + Sync {
    /// The next connection and its peer's address.
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, String)>;
    /// The address listened on.
    fn address(&self) -> String;
}
