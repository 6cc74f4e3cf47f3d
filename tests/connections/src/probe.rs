//! The clients that work beside the crowd, and how long each of their operations took.

use crate::{Protocol, Target, disk::Disk, tls::Tls};
use anyhow::{Context, Result, ensure};
use firn_rig::Client;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// Between two operations of a client: it works, it does not measure how fast the machine is.
const PAUSE: Duration = Duration::from_millis(5);
/// What a client writes and reads.
const FILE_BYTES: usize = 4096;
/// An operation that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// How long operations took, sorted.
#[derive(Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// The latency that `percent` of the operations did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    /// How many operations there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds those of another phase.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
        self.0.sort_unstable();
    }
}

/// Lets `clients` work at `target` for `time`.
///
/// # Errors
/// If any operation fails.
pub async fn work(target: &Target, clients: usize, time: Duration) -> Result<Latencies> {
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let end = Instant::now() + time;
    let mut working = JoinSet::new();
    for number in 0..clients {
        let (target, latencies) = (target.clone(), latencies.clone());
        working.spawn(async move {
            let mut client = Working::new(&target, number).await?;
            while Instant::now() < end {
                for _ in 0..3 {
                    let began = Instant::now();
                    tokio::time::timeout(LIMIT, client.step(&target))
                        .await
                        .with_context(|| format!("an operation took more than {} s", LIMIT.as_secs()))??;
                    latencies
                        .lock()
                        .expect("no panic under this lock")
                        .push(began.elapsed());
                    tokio::time::sleep(PAUSE).await;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = working.join_next().await {
        ended??;
    }
    let latencies = std::mem::take(&mut *latencies.lock().expect("no panic under this lock"));
    let mut sorted = Latencies::default();
    sorted.extend(Latencies(latencies));
    Ok(sorted)
}

/// The export of `firn-blockd dev` that is written to, and how much of it.
const DISK_EXPORT: &str = "dev-write-back-1";
const DISK_BLOCKS: u64 = (64 << 20) / 4096;

enum Working {
    Nfs {
        client: Box<Client>,
        name: String,
        step: usize,
    },
    Http,
    Https(Tls),
    Disk {
        disk: Box<Disk>,
        round: u64,
    },
}

impl Working {
    /// A client that has just come: for NFS, that means a mount; those of a disk come to its socket, and their disk to the node.
    async fn new(target: &Target, number: usize) -> Result<Self> {
        Ok(match target.protocol {
            Protocol::Nfs => Self::Nfs {
                client: Box::new(Client::mount(target.address, &target.path).await?),
                name: format!("client-{number}"),
                step: 0,
            },
            Protocol::Http => Self::Http,
            Protocol::Https => Self::Https(Tls::new()?),
            Protocol::Node => Self::Disk {
                disk: Box::new(Disk::open(target.path.as_ref(), DISK_EXPORT, DISK_BLOCKS).await?),
                round: (number as u64) << 32,
            },
        })
    }

    async fn step(&mut self, target: &Target) -> Result<()> {
        match self {
            Self::Nfs { client, name, step } => {
                let root = client.root.clone();
                *step += 1;
                match *step % 3 {
                    1 => {
                        client
                            .write_file(&root, name.as_bytes(), 0o644, &[7; FILE_BYTES])
                            .await
                    }
                    2 => client.lookup(&root, name.as_bytes()).await.map(drop),
                    _ => {
                        let file = client.lookup(&root, name.as_bytes()).await?;
                        let (_, bytes) = client.checksum(&file).await?;
                        ensure!(bytes == FILE_BYTES as u64, "{bytes} bytes came back");
                        Ok(())
                    }
                }
            }
            Self::Http => get(connect(target).await?, target).await,
            Self::Https(tls) => {
                let stream = connect(target).await?;
                get(tls.handshake(stream).await?, target).await
            }
            Self::Disk { disk, round } => {
                *round += 1;
                disk.work(*round).await
            }
        }
    }
}

/// As clients of HTTP do: a request is not held back until the end of the handshake is acknowledged, which some servers leave to
/// the timer of their system (40 ms).
async fn connect(target: &Target) -> Result<TcpStream> {
    let stream = TcpStream::connect(target.address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks for the target's page on a connection of its own; it must be there.
async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, target: &Target) -> Result<()> {
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        target.path
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut reply = Vec::new();
    let read = stream.take(1 << 20).read_to_end(&mut reply).await;
    let is_whole = reply.starts_with(b"HTTP/1.1 200");
    // A server may leave without TLS's goodbye once its reply is out.
    ensure!(
        is_whole,
        "GET {}: {:?} {read:?}",
        target.path,
        String::from_utf8_lossy(&reply[..reply.len().min(60)])
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(99), Duration::ZERO);
        latencies.extend(Latencies((1..=200).rev().map(Duration::from_millis).collect()));
        assert_eq!(latencies.percentile(99), Duration::from_millis(198));
        assert_eq!(latencies.percentile(50), Duration::from_millis(100));
        assert_eq!(latencies.percentile(100), Duration::from_millis(200));
    }
}
