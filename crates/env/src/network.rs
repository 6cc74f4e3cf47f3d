//! Stream connections between machines.

use async_trait::async_trait;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A place to connect to and accept from; addresses are `host:port`.
#[async_trait]
pub trait Network: Send + Sync {
    /// Starts to accept connections. Port 0 asks for any free one.
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>>;
    /// Connects.
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>>;
}

/// Accepts connections.
#[async_trait]
pub trait Listener: Send + Sync {
    /// The next connection and its peer's address.
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, String)>;
    /// The address listened on.
    fn address(&self) -> String;
}
