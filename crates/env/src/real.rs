//! The real environment: tokio for time, tasks and network, the kernel for the disk and randomness.

#![allow(
    clippy::disallowed_methods,
    reason = "this is where the outside world comes in; everything else asks Env"
)]

mod disk;
#[cfg(test)]
mod tests;

pub use disk::RealDisk;

use crate::{
    Clock, Env, Listener, Monotonic, Network, Parts, QueueDepth, Random, Tasks, WallTime,
    network::{ByteStream, DatagramSocket},
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::{
    any::Any,
    convert::Infallible,
    io,
    os::unix::fs::FileTypeExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The real environment with its disk rooted at `directory`, which must exist. Call it inside a tokio runtime.
///
/// # Errors
/// If `directory` cannot be opened.
pub fn real(directory: &Path) -> Result<Env, crate::DiskError> {
    let queue_depth = Arc::new(QueueDepth::default());
    let parts = Parts {
        clock: Arc::new(RealClock {
            start: Instant::now(),
        }),
        random: Arc::new(SystemRandom),
        tasks: Arc::new(TokioTasks),
        disk: Arc::new(RealDisk::open(directory)?.serving(&queue_depth)),
        network: Arc::new(TcpNetwork),
        #[cfg(feature = "testing")]
        faults: Arc::default(),
    };
    Ok(Env::with_queue_depth(parts, queue_depth))
}

struct RealClock {
    start: Instant,
}

impl Clock for RealClock {
    fn now(&self) -> Monotonic {
        Monotonic(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> WallTime {
        wall_time(SystemTime::now())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn sleep_precisely(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let end = Instant::now() + duration;
        Box::pin(async move {
            if let Some(first) = duration.checked_sub(TIMER_LATE_MAX) {
                tokio::time::sleep(first).await;
            }
            while Instant::now() < end {
                tokio::task::yield_now().await;
            }
        })
    }
}

/// The runtime's timers go by milliseconds, and round up.
const TIMER_LATE_MAX: Duration = Duration::from_millis(2);

fn wall_time(time: SystemTime) -> WallTime {
    WallTime(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    })
}

struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness no nonce is safe (I5): there is nothing sensible to go on with.
        getrandom::fill(bytes).expect("the operating system provides randomness");
    }
}

struct TokioTasks;

impl Tasks for TokioTasks {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
        let handle = tokio::spawn(future).abort_handle();
        Box::new(move || handle.abort())
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(work);
    }

    // The panic itself was printed by the hook.
    fn essential_panicked(&self, name: &'static str, _payload: Box<dyn Any + Send>) -> Infallible {
        tracing::error!(
            task = name,
            "an essential task has panicked: this process ends, start it again"
        );
        std::process::exit(crate::ESSENTIAL_PANICKED)
    }

    // The runtime's own way puts the task behind the others of this thread; a task that wakes itself is offered to the next
    // thread, and waking that one costs more than what is waited for.
    fn yield_now(&self) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

/// Connections that the kernel holds until they are accepted. With few places there, a burst of newcomers makes it drop the last
/// packet of somebody else's handshake, who then waits for seconds; Linux allows so many by default (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// Listens on the first of the addresses of `HOST:PORT` that can be bound.
///
/// # Errors
/// If none can.
pub async fn listen_tcp(address: &str) -> io::Result<tokio::net::TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "a name without an address");
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() {
            tokio::net::TcpSocket::new_v4()?
        } else {
            tokio::net::TcpSocket::new_v6()?
        };
        // A server that is started again does not wait for the connections of the one before to be forgotten.
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

struct TcpNetwork;

#[async_trait]
impl Network for TcpNetwork {
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Ok(Box::new(UnixListener::bind(path).await?));
        }
        Ok(Box::new(TcpListener(listen_tcp(address).await?)))
    }

    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Ok(Box::new(tokio::net::UnixStream::connect(path).await?));
        }
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    async fn bind_datagram(&self, address: &str) -> io::Result<Box<dyn DatagramSocket>> {
        Ok(Box::new(UdpSocket(tokio::net::UdpSocket::bind(address).await?)))
    }
}

struct UdpSocket(tokio::net::UdpSocket);

#[async_trait]
impl DatagramSocket for UdpSocket {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, String)> {
        let (length, peer) = self.0.recv_from(buffer).await?;
        Ok((length, peer.to_string()))
    }

    async fn send(&self, bytes: &[u8], to: &str) -> io::Result<()> {
        self.0.send_to(bytes, to).await.map(|_| ())
    }

    fn address(&self) -> String {
        self.0
            .local_addr()
            .map(|address| address.to_string())
            .unwrap_or_default()
    }
}

struct TcpListener(tokio::net::TcpListener);

#[async_trait]
impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, String)> {
        let (stream, peer) = self.0.accept().await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), peer.to_string()))
    }

    fn address(&self) -> String {
        self.0
            .local_addr()
            .map(|address| address.to_string())
            .unwrap_or_default()
    }
}

/// Listens on a local socket and removes it at its end.
struct UnixListener {
    listener: tokio::net::UnixListener,
    path: String,
}

impl UnixListener {
    async fn bind(path: &str) -> io::Result<Self> {
        let listener = match tokio::net::UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // A process that was killed leaves its socket behind. Only a socket that refuses connections is such a one;
                // connecting to a plain file is refused as well.
                if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                    return Err(error);
                }
                match tokio::net::UnixStream::connect(path).await {
                    Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                    Ok(_) | Err(_) => return Err(error),
                }
                std::fs::remove_file(path)?;
                tokio::net::UnixListener::bind(path)?
            }
            other => other?,
        };
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        // It may be gone already; a socket left behind is replaced by the next to listen.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[async_trait]
impl Listener for UnixListener {
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, String)> {
        let (stream, _) = self.listener.accept().await?;
        Ok((Box::new(stream), self.address()))
    }

    fn address(&self) -> String {
        format!("unix:{}", self.path)
    }
}
