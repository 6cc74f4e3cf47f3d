//! The clients that work beside the crowd, and how long each of their operations took.

use crate::{Protocol, Target};
use anyhow::{Context, Result, bail, ensure};
use firn_rig::Client;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
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

/// Lets `clients` work at `target` for `time`. `command`, if given, is what a client does instead of what its protocol says.
///
/// # Errors
/// If any operation fails.
pub async fn work(
    target: &Target,
    clients: usize,
    time: Duration,
    command: Option<&str>,
) -> Result<Latencies> {
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let end = Instant::now() + time;
    let mut working = JoinSet::new();
    for number in 0..clients {
        let (target, latencies) = (target.clone(), latencies.clone());
        let command = command.map(str::to_owned);
        working.spawn(async move {
            let mut client = Working::new(&target, number, command).await?;
            while Instant::now() < end {
                for step in 0..3 {
                    let began = Instant::now();
                    tokio::time::timeout(LIMIT, client.step(&target, step))
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

enum Working {
    Nfs { client: Box<Client>, name: String },
    Http,
    Command(String),
}

impl Working {
    /// A client that has just come: for NFS, that means a mount.
    async fn new(target: &Target, number: usize, command: Option<String>) -> Result<Self> {
        Ok(match (command, target.protocol) {
            (Some(command), _) => Self::Command(command),
            (None, Protocol::Nfs) => Self::Nfs {
                client: Box::new(Client::mount(target.address, &target.path).await?),
                name: format!("client-{number}"),
            },
            (None, Protocol::Http) => Self::Http,
            (None, Protocol::Tls) => bail!("what a client of TLS does must be given: --client COMMAND"),
        })
    }

    async fn step(&mut self, target: &Target, step: usize) -> Result<()> {
        match self {
            Self::Nfs { client, name } => {
                let root = client.root.clone();
                match step {
                    0 => {
                        client
                            .write_file(&root, name.as_bytes(), 0o644, &[7; FILE_BYTES])
                            .await
                    }
                    1 => client.lookup(&root, name.as_bytes()).await.map(drop),
                    _ => {
                        let file = client.lookup(&root, name.as_bytes()).await?;
                        let (_, bytes) = client.checksum(&file).await?;
                        ensure!(bytes == FILE_BYTES as u64, "{bytes} bytes came back");
                        Ok(())
                    }
                }
            }
            Self::Http => get(target).await,
            Self::Command(command) => {
                let ended = tokio::process::Command::new("sh")
                    .arg("-c")
                    .arg(&*command)
                    .status()
                    .await?;
                ensure!(ended.success(), "{command}: {ended}");
                Ok(())
            }
        }
    }
}

async fn get(target: &Target) -> Result<()> {
    let mut stream = TcpStream::connect(target.address).await?;
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: firn\r\nconnection: close\r\n\r\n",
        target.path
    );
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    stream.take(1 << 20).read_to_end(&mut reply).await?;
    let status = reply.get(9..12).unwrap_or_default();
    ensure!(
        reply.starts_with(b"HTTP/1.1 ") && !status.starts_with(b"5"),
        "GET {}: {:?}",
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
