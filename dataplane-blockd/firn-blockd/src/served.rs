//! A disk that is attached and served over NBD by this process.

use crate::{
    admin::{self, Command, DiskStatus, JournalStatus, Reply},
    cap::Capped,
    disks::check_size,
    failure::Failure,
    kernel::KernelDevice,
    snapshots::{Place, Taking},
};
use firn_blockd_client::{AttachedDisk, ClusterReplicas, News};
use firn_blockd_disk::{FlushPolicy, VirtualDisk, journal::Journaled};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, Export, Exports, Limits, Server, Tls};
use firn_blockd_placement::DiskRecord;
use firn_blockd_snapshot::{SNAPSHOT_TRACT_BYTES, SnapshotGate};
use firn_env::{Env, Monotonic, Task, println};
use firn_quantity::Size;
use std::{
    io,
    path::Path,
    sync::{Arc, MutexGuard, Weak},
    time::Duration,
};
use tokio::{
    net::UnixStream,
    sync::{Mutex, watch},
};

/// How long NBD clients have to leave before a disk is given back.
const GRACE: Duration = Duration::from_secs(5);

/// How a disk is served.
pub struct Serving {
    /// Its name, which is the export's.
    pub name: String,
    /// `unix:/path` or `tcp:host:port`.
    pub nbd: String,
    /// For `status`.
    pub flush: FlushPolicy,
    /// For `status`.
    pub dirty_bytes_max: u64,
    /// How long a detach waits for nodes.
    pub detach_limit: Duration,
    /// Clients at once; more wait to be accepted.
    pub connections: usize,
    /// NBD clients must speak TLS.
    pub tls: Option<Tls>,
    /// Where snapshots go, if nobody says.
    pub snapshots: Place,
}

/// See the module.
pub struct Served {
    env: Env,
    serving: Serving,
    address: String,
    attached: Mutex<AttachedDisk>,
    gate: SnapshotGate<Journaled>,
    taking: Taking,
    export: Export,
    server: Server,
    /// The kernel's device that has the disk.
    device: std::sync::Mutex<Option<KernelDevice>>,
    end: watch::Sender<Ending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// The disk was given back; who asked for it is being told.
    Detached,
    Told,
}

/// The address of a `--nbd` argument as the network wants it.
pub fn nbd_address(text: &str) -> Result<String, Failure> {
    match text.split_once(':') {
        Some(("unix", path)) if path.starts_with('/') => Ok(text.to_owned()),
        Some(("tcp", address)) if address.contains(':') => Ok(address.to_owned()),
        _ => Err(Failure::usage(format!(
            "--nbd {text}: write unix:/path/of/socket or tcp:host:port"
        ))),
    }
}

/// How long writers wait before the log says so.
const WAIT_IS_LONG: Duration = Duration::from_secs(10);
/// Between two looks at what waits.
const WAIT_LOOK: Duration = Duration::from_secs(2);
/// Between two lines about one wait.
const WAIT_TELL: Duration = Duration::from_secs(60);

/// Says in the log what writers and readers wait for, once a minute while they do, and when they go on.
async fn tell_waits(env: Env, name: String, disk: VirtualDisk, replicas: Arc<ClusterReplicas>) {
    let mut told: Option<(Monotonic, Monotonic)> = None;
    while !disk.is_fenced() {
        env.sleep(WAIT_LOOK).await;
        let now = env.now();
        let waiting = replicas.trouble();
        // A store that is tried again begins anew; the oldest write knows for how long it has not been durable.
        let seconds = waiting
            .as_ref()
            .map(|waiting| now.since(waiting.since))
            .max(waiting.as_ref().and_then(|_| disk.waiting()));
        match (waiting, seconds, told) {
            (Some(waiting), Some(waited), _) if waited >= WAIT_IS_LONG => {
                let since = told.map_or(now, |(since, _)| since);
                if told.is_none_or(|(_, said)| now.since(said) >= WAIT_TELL) {
                    tracing::warn!(
                        disk = name,
                        waited_seconds = waited.as_secs(),
                        not_durable_bytes = disk.dirty_bytes(),
                        why = waiting.why,
                        "writers or readers wait for nodes; nothing is lost, they go on by themselves"
                    );
                    told = Some((since, now));
                }
            }
            (None, _, Some((since, _))) => {
                told = None;
                tracing::info!(
                    disk = name,
                    told_seconds = now.since(since).as_secs(),
                    "nodes answer again; nobody waits"
                );
            }
            _ => {}
        }
    }
}

/// Between two tries to take up what others made of the disk.
const TAKE_UP_AGAIN: Duration = Duration::from_secs(5);

/// Takes up what others make of the disk while it is served: larger. Says when new writes are refused ([`Capped`] does it), and when
/// no longer.
async fn follow(served: Weak<Served>, mut news: watch::Receiver<News>) {
    let mut was_capped = false;
    while news.changed().await.is_ok() {
        let Some(served) = served.upgrade() else {
            return;
        };
        let News { record, capped, .. } = news.borrow_and_update().clone();
        match (was_capped, capped) {
            (false, true) => tracing::warn!(
                disk = served.serving.name,
                "the hard cap of the tenant's budget is reached: new writes are refused (ENOSPC), all else goes on; firn budget raise lets \
                 them in again"
            ),
            (true, false) => {
                tracing::info!(
                    disk = served.serving.name,
                    "the cap is lifted: writes are taken again"
                );
            }
            (false, false) | (true, true) => {}
        }
        was_capped = capped;
        if let Err(error) = served.take_up(&record).await {
            tracing::warn!(disk = served.serving.name, %error, "the disk is larger, and cannot be used so yet; it is tried again");
            served.env.sleep(TAKE_UP_AGAIN).await;
            news.mark_changed();
        }
    }
}

impl Served {
    /// Exports the disk and answers administrators.
    pub async fn start(
        env: &Env,
        attached: AttachedDisk,
        serving: Serving,
        socket: &Path,
    ) -> Result<(Arc<Self>, Task<()>), Failure> {
        let served = Self::export(env, attached, serving).await?;
        let admin = admin::serve(env, socket, served.clone())?;
        Ok((served, admin))
    }

    /// Exports the disk.
    async fn export(env: &Env, attached: AttachedDisk, serving: Serving) -> Result<Arc<Self>, Failure> {
        let exports = Arc::new(Exports::new());
        let gate = SnapshotGate::new(attached.device.clone(), SNAPSHOT_TRACT_BYTES);
        let aligned = AnyAlignment::new(gate.clone());
        let device: Arc<dyn BlockDevice> = Arc::new(Capped::new(aligned, attached.news()));
        let export = Export::new(device, "a Firn disk");
        exports.insert(&serving.name, export.clone());
        let limits = Limits {
            connections: serving.connections,
            ..Limits::default()
        };
        let server = Server::new(env.clone(), exports, serving.tls.clone(), limits);
        let listening = server
            .listen(&nbd_address(&serving.nbd)?)
            .await
            .map_err(|error| Failure::new(format!("cannot listen at {}: {error}", serving.nbd)))?;
        let (disk, replicas) = (attached.disk.clone(), attached.replicas.clone());
        let telling = tell_waits(env.clone(), serving.name.clone(), disk, replicas);
        drop(env.spawn_essential("tell waits", telling));
        let mut news = attached.news();
        // What stood at the attach is news, too.
        news.mark_changed();
        let served = Arc::new(Self {
            env: env.clone(),
            serving,
            address: listening.address().to_owned(),
            attached: Mutex::new(attached),
            gate,
            taking: Taking::default(),
            export,
            server,
            device: std::sync::Mutex::default(),
            end: watch::Sender::new(Ending::No),
        });
        // Before the first look, which only `taken_over` makes: what it finds is not missed.
        let following = follow(Arc::downgrade(&served), news);
        drop(env.spawn_essential("follow the table", following));
        Ok(served)
    }

    async fn take_up(&self, record: &DiskRecord) -> Result<(), Failure> {
        let is_larger = self.attached.lock().await.take_up(record).await?;
        if is_larger {
            println!(
                "disk {} has {}; {}",
                self.serving.name,
                Size(record.size_bytes),
                self.tell_larger().await
            );
        }
        Ok(())
    }

    /// Gives the disk to the kernel as well.
    ///
    /// # Errors
    /// What the kernel says; then it has nothing.
    pub async fn plug(&self, device: &KernelDevice) -> Result<(), Failure> {
        let broken = |error: io::Error| Failure::new(format!("a pair of sockets for the kernel: {error}"));
        let (ours, kernels) = UnixStream::pair().map_err(broken)?;
        let kernels = Arc::new(kernels.into_std().map_err(broken)?);
        kernels.set_nonblocking(false).map_err(broken)?;
        let flags = self.export.plain_flags();
        self.server
            .adopt(self.export.clone(), Box::new(ours), "the kernel");
        let size_bytes = self.export.device.geometry().size_bytes;
        device.connect(&self.env, kernels, size_bytes, flags).await?;
        *self.device() = Some(device.clone());
        Ok(())
    }

    /// Takes the disk back from the kernel, once that has written what it has of it.
    pub async fn unplug(&self) {
        let device = self.device().take();
        if let Some(device) = device {
            device.disconnect(&self.env, self.serving.detach_limit).await;
        }
    }

    fn device(&self) -> MutexGuard<'_, Option<KernelDevice>> {
        self.device.lock().expect("no panic under this lock")
    }

    /// Tells the kernel that the disk is larger; for people, who sees it when.
    async fn tell_larger(&self) -> &'static str {
        let device = self.device().clone();
        let Some(device) = device else {
            return "NBD clients see it when they connect again";
        };
        let size_bytes = self.export.device.geometry().size_bytes;
        match device.resize(size_bytes).await {
            Ok(()) => "the kernel's device is as large now; NBD clients see it when they connect again",
            Err(error) => {
                tracing::warn!(disk = self.serving.name, %error, "the kernel's device stays as it was until the next attach");
                "the kernel's device is not larger before the next attach"
            }
        }
    }

    /// Resolves when the disk was taken over, with what to tell people. NBD clients have been cut off then.
    pub async fn taken_over(&self) -> Failure {
        let (taken_over, device) = {
            let attached = self.attached.lock().await;
            (attached.taken_over(), attached.device.clone())
        };
        let taken = taken_over.await;
        let kept = match device.status() {
            Some(journal) if journal.used_bytes > 0 => {
                "; what was answered from the local journal is still there: look at it with firn-blockd journal show"
            }
            Some(_) | None => "; what was answered as durable is on the disk, what was not may be lost",
        };
        self.server.stop(GRACE).await;
        Failure::fenced(format!("disk {}: {taken}{kept}", self.serving.name))
    }

    /// Where NBD clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Resolves when an administrator has detached the disk and knows it.
    pub async fn ended(&self) {
        let mut end = self.end.subscribe();
        // The sender lives as long as we do.
        let _ = end.wait_for(|end| *end == Ending::Told).await;
    }

    pub(crate) fn told(&self) {
        self.end.send_if_modified(|end| {
            let detached = *end == Ending::Detached;
            if detached {
                *end = Ending::Told;
            }
            detached
        });
    }

    /// Gives the disk back, with everything durable. NBD clients are gone afterwards, also when nodes are away and it fails; then it
    /// may be tried again.
    pub async fn detach(&self) -> Result<(), Failure> {
        // What the kernel has is written to us before we give the disk back.
        self.unplug().await;
        self.server.stop(GRACE).await;
        let attached = self.attached.lock().await;
        Ok(attached.detach_within(self.serving.detach_limit).await?)
    }

    pub(crate) async fn execute(&self, command: Command) -> Reply {
        match command {
            Command::Status => Reply::Status {
                status: Box::new(self.status().await),
            },
            Command::Detach => match self.detach().await {
                Ok(()) => {
                    self.end.send_replace(Ending::Detached);
                    Reply::Done {
                        text: format!("disk {} is detached; everything is durable", self.serving.name),
                    }
                }
                Err(error) => Reply::Error {
                    text: error.to_string(),
                },
            },
            Command::Snapshot { name, store } => {
                let place = match self.serving.snapshots.or_at(store.as_deref()) {
                    Ok(place) => place,
                    Err(error) => {
                        return Reply::Error {
                            text: error.to_string(),
                        };
                    }
                };
                let settings = self.attached.lock().await.record().settings.clone();
                match self.taking.begin(&self.env, &place, &self.gate, &name, &settings) {
                    Ok(()) => Reply::Done {
                        text: format!("snapshot {name} has begun"),
                    },
                    Err(error) => Reply::Error {
                        text: error.to_string(),
                    },
                }
            }
            Command::Grow { size_bytes } => {
                let mut attached = self.attached.lock().await;
                let block_bytes = attached.settings().shape.block_bytes();
                if let Err(error) = check_size(size_bytes, block_bytes) {
                    return Reply::Error {
                        text: error.to_string(),
                    };
                }
                match attached.grow(size_bytes).await {
                    Ok(()) => Reply::Done {
                        text: format!(
                            "disk {} has {size_bytes} bytes; {}",
                            self.serving.name,
                            self.tell_larger().await
                        ),
                    },
                    Err(error) => Reply::Error {
                        text: Failure::from(error).to_string(),
                    },
                }
            }
        }
    }

    /// The disk at this moment.
    pub async fn status(&self) -> DiskStatus {
        let attached = self.attached.lock().await;
        let (record, usage) = (attached.record(), attached.replicas.usage());
        let trouble = attached.replicas.trouble();
        let now = self.env.now();
        DiskStatus {
            name: self.serving.name.clone(),
            disk: record.disk.hex().to_string(),
            size_bytes: record.size_bytes,
            copies: record.copies,
            fence: attached.fence.0,
            mode: attached.mode.to_string(),
            flush: match self.serving.flush {
                FlushPolicy::Durable => "durable".into(),
                FlushPolicy::Ordered { lag_ms_max } => format!("ordered, at most {lag_ms_max} ms behind"),
            },
            nbd: self.address.clone(),
            connections: self.server.connections() as u64,
            dirty_bytes: attached.disk.dirty_bytes(),
            dirty_bytes_max: self.serving.dirty_bytes_max,
            reconciled_regions: attached.reconciled_regions,
            stores: usage.stores,
            loads: usage.loads,
            retries: usage.retries,
            sent_bytes: usage.sent_bytes,
            received_bytes: usage.received_bytes,
            waits_seconds: trouble
                .as_ref()
                .map_or(0, |waiting| now.since(waiting.since).as_secs()),
            trouble: trouble.map(|waiting| waiting.why),
            fenced: attached.disk.is_fenced(),
            capped: attached.news().borrow().capped,
            connections_max: self.serving.connections as u64,
            snapshot: self.taking.status(),
            journal: attached.device.status().map(|status| JournalStatus {
                journaling: status.session.is_some(),
                used_bytes: status.used_bytes,
                bytes_max: status.bytes_max,
                waiting: status.waiting,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
