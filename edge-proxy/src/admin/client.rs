//! The command line's side of the admin socket.

use super::{Command, REPLY_BYTES_MAX, Reply, Request, VERSION, socket};
use crate::{config::Config, failure::Failure};
use firn_env::eprintln;
use std::path::Path;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixStream, unix::OwnedReadHalf},
};

/// One request under way.
pub struct Client {
    replies: BufReader<OwnedReadHalf>,
}

impl Client {
    /// Asks the running edge about this volume.
    pub async fn ask(config: &Config, command: Command) -> Result<Self, Failure> {
        let name = config.edge.has_names.then(|| config.volume.name.clone());
        Self::ask_edge(&config.edge.directory, name, command).await
    }

    /// Asks the edge that uses this state directory.
    pub async fn ask_edge(
        state_directory: &Path,
        volume: Option<String>,
        command: Command,
    ) -> Result<Self, Failure> {
        let path = socket(state_directory);
        let stream = UnixStream::connect(&path)
            .await
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    Failure::new(format!(
                        "no firn-edge is running on {}; start it with: firn-edge run",
                        state_directory.display()
                    ))
                }
                std::io::ErrorKind::PermissionDenied => Failure::usage(format!(
                    "{} belongs to another user; run this as root or as the user of the edge",
                    path.display()
                )),
                _ => Failure::new(format!("cannot reach the edge at {}: {error}", path.display())),
            })?;
        let (read, mut write) = stream.into_split();
        let request = Request {
            version: VERSION,
            command,
            volume,
        };
        let mut line = serde_json::to_vec(&request).map_err(Failure::new)?;
        line.push(b'\n');
        write.write_all(&line).await.map_err(lost)?;
        // Dropping the write half would look like leaving.
        write.forget();
        Ok(Self {
            replies: BufReader::new(read),
        })
    }

    /// The next reply; an error of the edge is an `Err`.
    pub async fn next(&mut self) -> Result<Reply, Failure> {
        let mut line = String::new();
        let mut bounded = (&mut self.replies).take(REPLY_BYTES_MAX);
        if bounded.read_line(&mut line).await.map_err(lost)? == 0 {
            return Err(lost("the connection was closed"));
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Error { text }) => Err(Failure::new(text)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Failure::new(format!(
                "the running edge answers in a way this build does not know ({error}); use the same version of both"
            ))),
        }
    }
}

fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!(
        "the edge went away while it was asked ({error}); what it acknowledged is in its journal (level 1)"
    ))
}

/// Shows progress until the end, which is returned.
pub async fn expect_end(client: &mut Client, what: &str) -> Result<Reply, Failure> {
    loop {
        match client.next().await? {
            Reply::Progress { text } => eprintln!("{what}: {text}"),
            end => return Ok(end),
        }
    }
}
