//! The edge's side of the admin socket.

use super::{Command, REQUEST_BYTES_MAX, Reply, Request, VERSION, socket};
use crate::{
    auditor::Asked, failure::Failure, junctions, manifest::ManifestCommand, rekey::RekeyCommand, report,
    snapshot::Observed, snapshots::SnapshotCommand, volumes::Volumes,
};
use firn_audit_report::AskedBy;
use firn_env::{ConnectionTable, Env, LogLimiter, Place, Task};
use firn_volume::{VerifyReport, VolumeError};
use futures::future::{Either, select};
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Mutex as AsyncMutex, Semaphore, mpsc, oneshot},
};

/// Connections at one time; of those that have not said what they want, the oldest gives way to a newcomer.
const CONNECTIONS_MAX: usize = 64;
/// Commands at one time. `status` is not one of them: it is answered at once, and asked for when something hangs.
const COMMANDS_MAX: usize = 16;
/// Local sockets have no addresses: whoever may open this one is one and the same.
const ADDRESS: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// How long a client may take to send its request or to take a line.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Somebody wants the volume given up: whoever runs the edge does it and says how it went.
pub struct DrainRequest {
    pub outcome: oneshot::Sender<Result<(), String>>,
    /// Resolves when the client has been told, or is gone.
    pub told: oneshot::Receiver<()>,
}

/// The socket.
struct Door {
    env: Env,
    volumes: Arc<Volumes>,
    commands: Semaphore,
}

/// The administration of an open volume.
pub struct Admin {
    pub(super) env: Env,
    pub observed: Arc<Observed>,
    drains: mpsc::Sender<DrainRequest>,
    verifying: AsyncMutex<()>,
}

/// Answers on the socket until the task is aborted.
pub fn serve(state_directory: &Path, volumes: Arc<Volumes>) -> Result<Task<()>, Failure> {
    let path = socket(state_directory);
    let failed = |error: std::io::Error| {
        Failure::new(format!(
            "cannot make the admin socket {}: {error} (a path of more than 107 bytes cannot be a socket)",
            path.display()
        ))
    };
    // Under another name until only its owner may open it. What is there is ours: we hold the lock of the directory.
    let making = path.with_extension("new");
    for stale in [&making, &path] {
        match std::fs::remove_file(stale) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&making).map_err(failed)?;
    std::fs::set_permissions(&making, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&making, &path).map_err(failed)?;
    let env = volumes.env.clone();
    let door = Arc::new(Door {
        env: env.clone(),
        volumes,
        commands: Semaphore::new(COMMANDS_MAX),
    });
    Ok(env.spawn("admin socket", accept(door, listener)))
}

async fn accept(admin: Arc<Door>, listener: UnixListener) {
    let (table, failed) = (ConnectionTable::new(CONNECTIONS_MAX), LogLimiter::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(place) = table.enter(ADDRESS, CONNECTIONS_MAX, admin.env.now()) else {
                    // All have a command under way; this one finds its connection closed.
                    continue;
                };
                let serving = admin.clone();
                admin.env.spawn("admin connection", async move {
                    let (answered, evicted) = (pin!(serving.answer(stream, &place)), pin!(place.evicted()));
                    match select(answered, evicted).await {
                        Either::Left((Ok(()), _)) => {}
                        Either::Left((Err(error), _)) => {
                            tracing::debug!(%error, "an admin client went away");
                        }
                        Either::Right(_) => tracing::debug!("a silent admin client gave way to another"),
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely; they come back.
                if let Some(count) = failed.count(admin.env.now()) {
                    tracing::warn!(%error, count, "admin socket");
                }
                admin.env.sleep(PROGRESS_EVERY).await;
            }
        }
    }
}

impl Door {
    async fn answer(&self, stream: UnixStream, place: &Place) -> std::io::Result<()> {
        let (read, write) = stream.into_split();
        let mut line = String::new();
        let mut reader = BufReader::new(read.take(REQUEST_BYTES_MAX));
        let read = self
            .env
            .timeout(CLIENT_TIMEOUT, reader.read_line(&mut line))
            .await;
        read.map_err(|_| std::io::ErrorKind::TimedOut)??;
        let mut client = Replies {
            env: self.env.clone(),
            write,
        };
        let _in_flight = place.request(self.env.now());
        let request = serde_json::from_str::<Request>(&line);
        let is_status = matches!(
            &request,
            Ok(Request {
                command: Command::Status,
                ..
            })
        );
        let Ok(_permit) = self
            .commands
            .try_acquire()
            .map(Some)
            .or_else(|busy| if is_status { Ok(None) } else { Err(busy) })
        else {
            let text = format!("{COMMANDS_MAX} commands are under way already; ask again when one has ended");
            return client.send(&Reply::Error { text }).await;
        };
        match request {
            Ok(Request {
                version: VERSION,
                command,
                volume,
            }) => match (command, volume) {
                (Command::Status, None) if self.volumes.has_names => self.all(&mut client).await,
                // Exports are of all volumes, and accounts of none.
                (Command::Id { question }, _) => super::id::id(&self.volumes, &mut client, &question).await,
                (command, volume) => match self.volumes.admin(volume.as_deref()) {
                    Ok(admin) => admin.execute(&mut client, command).await,
                    Err(text) => client.send(&Reply::Error { text }).await,
                },
            },
            Ok(Request { version, .. }) => {
                let text = format!("this edge speaks version {VERSION} of the admin protocol, not {version}");
                client.send(&Reply::Error { text }).await
            }
            Err(error) => {
                let text = format!("not a request of version {VERSION} of the admin protocol: {error}");
                client.send(&Reply::Error { text }).await
            }
        }
    }

    /// How each volume stands.
    async fn all(&self, client: &mut Replies) -> std::io::Result<()> {
        junctions::look(&self.env, &self.volumes.nfs).await;
        for volume in self.volumes.shown() {
            client.send(&Reply::Volume { volume }).await?;
        }
        client.send(&Reply::Done { text: String::new() }).await
    }
}

impl Admin {
    /// The administration of a volume that is served; `drains` reach whoever serves it.
    pub fn new(observed: Arc<Observed>, drains: mpsc::Sender<DrainRequest>) -> Self {
        Self {
            env: observed.env.clone(),
            observed,
            drains,
            verifying: AsyncMutex::new(()),
        }
    }

    async fn execute(&self, client: &mut Replies, command: Command) -> std::io::Result<()> {
        if let Some(text) = self.refusal(&command) {
            return client.send(&Reply::Error { text }).await;
        }
        match command {
            Command::Status => {
                junctions::look(&self.env, &self.observed.nfs).await;
                let snapshot = Box::new(self.observed.snapshot());
                client.send(&Reply::Status { snapshot }).await
            }
            Command::Sync => self.sync(client).await,
            Command::Drain => self.drain(client).await,
            Command::Verify => self.verify(client).await,
            Command::Audit {
                challenges,
                budget,
                seed,
                second,
                goes_on,
            } => {
                let asked = Asked {
                    by: AskedBy::Administrator,
                    challenges,
                    budget,
                    seed,
                    second,
                    goes_on,
                };
                self.audit(client, asked).await
            }
            Command::Clean { plan } => self.clean(client, plan).await,
            Command::Repair { plan, all } => self.repair(client, plan, all).await,
            Command::Snapshot { what } => self.snapshot(client, what).await,
            Command::Id { .. } => unreachable!("answered at the door"),
            Command::Locks { what } => self.locks(client, what).await,
            Command::GiveUp { member, yes } => self.give_up(client, member, yes).await,
            Command::Rekey { what } => self.rekey(client, what).await,
            Command::Manifest { what } => self.manifest(client, what).await,
            Command::Restore {
                snapshot,
                path,
                to,
                replace,
            } => self.restore(client, snapshot, path, to, replace).await,
            Command::Clone { snapshot, name } => self.clone_volume(client, snapshot, name).await,
        }
    }

    /// Why what is asked cannot be done while the edge serves without the cloud, or of a volume that another edge owns; looking can.
    fn refusal(&self, command: &Command) -> Option<String> {
        let detached = self.observed.detached();
        let is_by_inode = self.observed.volume.member_by_inode().is_some();
        if is_by_inode && matches!(command, Command::Sync | Command::Drain) {
            return None;
        }
        if detached.is_none() && !self.observed.volume.is_follower() && !is_by_inode {
            return None;
        }
        let list = SnapshotCommand::List { space: false };
        match command {
            Command::Status
            | Command::Id { .. }
            | Command::Locks { .. }
            | Command::GiveUp { .. }
            | Command::Manifest {
                what: ManifestCommand::Status { .. },
            }
            | Command::Rekey {
                what: RekeyCommand::Status { .. },
            } => None,
            Command::Snapshot { what } if *what == list => None,
            Command::Sync
            | Command::Drain
            | Command::Verify
            | Command::Audit { .. }
            | Command::Clean { .. }
            | Command::Repair { .. }
            | Command::Rekey { .. }
            | Command::Manifest { .. }
            | Command::Snapshot { .. }
            | Command::Restore { .. }
            | Command::Clone { .. } => Some(match detached {
                None if is_by_inode => VolumeError::SharedByInode.to_string(),
                None => VolumeError::Follows.to_string(),
                Some(detached) => format!(
                    "not done: this edge has served without the cloud for {}: {}. Nothing was changed, and everything acknowledged is in \
                     the journal (level 1). The edge goes on by itself when both answer; ask again then",
                    report::span(detached.for_ms),
                    detached.words()
                ),
            }),
        }
    }

    pub(super) fn behind(&self) -> String {
        report::behind(&self.observed.snapshot())
    }

    async fn sync(&self, client: &mut Replies) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let outcome = client
            .meanwhile(async move { volume.sync().await }, || self.behind())
            .await?;
        client
            .send(&match outcome {
                Ok(()) => Reply::Done {
                    text: "everything acknowledged before is in the cloud (level 2)".into(),
                },
                Err(error) => Reply::Error {
                    text: format!("not everything is in the cloud: {error}"),
                },
            })
            .await
    }

    async fn drain(&self, client: &mut Replies) -> std::io::Result<()> {
        let (outcome, ended) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        if self.drains.try_send(DrainRequest { outcome, told }).is_err() {
            let text = "the edge is stopping already".into();
            return client.send(&Reply::Error { text }).await;
        }
        let ended = client.meanwhile(ended, || self.behind()).await?;
        let reply = match ended {
            Ok(Ok(())) => Reply::Done {
                text: "everything is in the cloud (level 2) and the volume has no owner: any edge can serve it".into(),
            },
            Ok(Err(text)) => Reply::Error { text },
            Err(_) => Reply::Error {
                text: "the edge ended before the volume was drained; what it acknowledged is in the journal (level 1)".into(),
            },
        };
        client.send(&reply).await?;
        let _ = tell.send(());
        Ok(())
    }

    /// A client that goes away ends the run: what it copied is garbage for the next.
    async fn clean(&self, client: &mut Replies, plan: bool) -> std::io::Result<()> {
        let cleaner = self.observed.cleaner.clone();
        let work = async move { cleaner.asked(plan).await };
        let reply = match client.meanwhile(work, || self.behind()).await? {
            Ok(cleaned) => Reply::Done {
                text: report::cleaned(&cleaned, &self.observed.book),
            },
            Err(error) => Reply::Error {
                text: format!("the run ended early: {error}; nothing is lost, it is safe to ask again"),
            },
        };
        client.send(&reply).await
    }

    async fn verify(&self, client: &mut Replies) -> std::io::Result<()> {
        let Ok(_verifying) = self.verifying.try_lock() else {
            let text = "a verification is under way already".into();
            return client.send(&Reply::Error { text }).await;
        };
        let seen = Arc::new(Mutex::new((0, 0, 0, 0, 0)));
        let (noting, volume) = (seen.clone(), self.observed.volume.clone());
        let work = async move {
            let note = move |report: &VerifyReport| {
                *noting.lock().expect("no panic under this lock") = (
                    report.inodes,
                    report.bytes,
                    report.damages.len() as u64 + report.more_damages,
                    report.missing_segments,
                    report.snapshots,
                );
            };
            volume.verify(&note).await
        };
        let progress = || {
            let (inodes, bytes, damages, missing, snapshots) =
                *seen.lock().expect("no panic under this lock");
            format!(
                "{inodes} files, {snapshots} snapshots, {} read, {damages} damages, {missing} segments missing",
                report::size(bytes)
            )
        };
        let report = match client.meanwhile(work, progress).await? {
            Ok(report) => report,
            Err(error) => {
                let text = format!("cannot verify now: {error}");
                return client.send(&Reply::Error { text }).await;
            }
        };
        let damages = report.damages.len() as u64 + report.more_damages;
        let unreachable = report.unreachable();
        let (snapshots, missing_segments) = (report.snapshots, report.missing_segments);
        let lost_directories = report.lost_directories;
        let epochs = report.epochs();
        for damage in report.damages {
            client
                .send(&Reply::Damage {
                    inode: damage.inode,
                    path: damage.path,
                    detail: damage.detail,
                })
                .await?;
        }
        let (inodes, blocks, bytes) = (report.inodes, report.blocks, report.bytes);
        client
            .send(&Reply::Verified {
                inodes,
                blocks,
                bytes,
                damages,
                snapshots,
                missing_segments,
                unreachable,
                lost_directories,
                epochs,
            })
            .await
    }
}

pub(super) struct Replies {
    env: Env,
    write: tokio::net::unix::OwnedWriteHalf,
}

impl Replies {
    pub(super) async fn send(&mut self, reply: &Reply) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        let sent = self
            .env
            .timeout(CLIENT_TIMEOUT, self.write.write_all(&line))
            .await;
        sent.map_err(|_| std::io::ErrorKind::TimedOut)?
    }

    /// Reports progress until `work` is done. A client that is gone ends the waiting.
    pub(super) async fn meanwhile<T>(
        &mut self,
        work: impl Future<Output = T>,
        progress: impl Fn() -> String,
    ) -> std::io::Result<T> {
        let env = self.env.clone();
        let mut work = pin!(work);
        loop {
            let tick = pin!(env.sleep(PROGRESS_EVERY));
            match select(work.as_mut(), tick).await {
                Either::Left((value, _)) => return Ok(value),
                Either::Right(((), _)) => self.send(&Reply::Progress { text: progress() }).await?,
            }
        }
    }
}
