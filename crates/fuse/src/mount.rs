//! [`Mount`]: a mounted volume, from mount(2) to umount(2).

use crate::{
    case_index::{CaseIndex, CaseIndexCounts},
    connection::Connection,
    device::{self, MountError},
    indexed::IndexedVfs,
    invalidation,
    operations::Operations,
    staging::Staging,
    traffic::TrafficCounts,
};
use bytes::Bytes;
use firn_access_log::Recorder;
use firn_env::{Env, Task};
use firn_session::{
    AnnouncingVfs, Changes, LockClient, LockProtocol, LockTable, OpenCounts, OpenFiles, Origin, WatchCounts,
    Watcher,
};
use firn_vfs::{Durability, Vfs};
use std::{
    fmt,
    net::IpAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How long an end waits for the kernel to write back what mapped files have in memory.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(20);

/// Whereby the access log knows what is done through a mount, and by whom.
#[derive(Clone)]
pub struct MountRecorder {
    /// The log's end.
    pub recorder: Recorder,
    /// From which address the client comes for whom a process of this number works, where such processes serve clients. Asked for each
    /// request; expected to remember.
    pub address_of: Option<Arc<dyn Fn(u32) -> Option<IpAddr> + Send + Sync>>,
}

impl fmt::Debug for MountRecorder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recorder.fmt(out)
    }
}

/// Is told by number which process's fsync fails, before that is answered. Must not wait.
#[derive(Clone)]
pub struct OnFailedSync(pub Arc<dyn Fn(u32) + Send + Sync>);

impl fmt::Debug for OnFailedSync {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OnFailedSync")
    }
}

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory.
    pub path: PathBuf,
    /// What /proc/mounts shows as the device.
    pub source: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Other users than the one the edge runs as may use it, as the modes and ACLs of files allow.
    pub allow_other: bool,
    /// By what protocol those who hold locks through it come.
    pub protocol: LockProtocol,
    /// Where what is done through it is recorded.
    pub access_log: Option<MountRecorder>,
    /// It answers smbd how a name is written that is asked for in another case.
    pub case_index: bool,
    /// How durable a file is when fsync returns, or close where it is the cloud.
    pub durability: Durability,
    /// For how long the kernel may believe names and attributes at most, of a volume that other edges change; none: only this one does.
    pub cached_for: Option<Duration>,
    /// Who is told of an fsync that fails.
    pub on_failed_sync: Option<OnFailedSync>,
}

/// What the status page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountStatus {
    /// The directory.
    pub path: PathBuf,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Whether the kernel still has it.
    pub is_mounted: bool,
    /// Files and directories that the kernel knows.
    pub nodes: usize,
    /// Files that are open.
    pub opens: OpenCounts,
    /// Requests since the mount.
    pub requests: u64,
    /// How they were answered.
    pub traffic: TrafficCounts,
    /// Of them those that list a directory.
    pub listings: u64,
    /// What was taken out of the kernel's caches because others changed it.
    pub invalidations: WatchCounts,
    /// The index of folded names, if there is one.
    pub case_index: Option<CaseIndexCounts>,
}

/// A mounted volume. Dropped without [`Mount::unmount`], it stays in the table of mounts and answers ENOTCONN, like after a
/// kill; the next start takes it away.
pub struct Mount {
    env: Env,
    options: MountOptions,
    connection: Arc<Connection>,
    files: OpenFiles,
    client: LockClient,
    watcher: Arc<Watcher>,
    serving: Task<()>,
    following: Task<()>,
}

impl MountOptions {
    /// Mounts and unmounts at once, so that what cannot be mounted is known before a volume is opened for it. Blocks.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn check(&self) -> Result<(), MountError> {
        let Self { path, source, .. } = self;
        let (device, staging) = device::mount(path, source, self.read_only, self.allow_other)?;
        drop(device);
        if staging.is_some() {
            return Ok(());
        }
        device::detach(path).map_err(|source| MountError::Failed {
            path: path.clone(),
            source,
        })
    }
}

impl Mount {
    /// Mounts `vfs` with the locks and changes that all protocols share. `origin` is the mount's own.
    ///
    /// # Errors
    /// [`MountError`].
    pub async fn start(
        env: &Env,
        options: MountOptions,
        vfs: Arc<dyn Vfs>,
        locks: LockTable,
        changes: &Changes,
        origin: Origin,
    ) -> Result<Self, MountError> {
        let mut vfs: Arc<dyn Vfs> =
            Arc::new(AnnouncingVfs::new(vfs, changes.clone(), origin).without_waiting());
        let index = options.case_index.then(|| Arc::new(CaseIndex::new()));
        if let Some(index) = &index {
            vfs = Arc::new(IndexedVfs::new(vfs, index.clone()));
        }
        let files = OpenFiles::new(vfs.clone(), locks.clone(), firn_session::OpenLimits::default());
        let client = LockClient {
            protocol: options.protocol,
            name: Bytes::copy_from_slice(options.path.as_os_str().as_bytes()),
        };
        let MountOptions {
            path,
            source,
            read_only,
            allow_other,
            ..
        } = options.clone();
        let work = move || device::mount(&path, &source, read_only, allow_other);
        let (device, staging) = env.compute(work).await?;
        let operations = Operations::new(
            env,
            vfs,
            (locks, files.clone()),
            client.clone(),
            (options.access_log.clone(), options.durability, options.cached_for),
            index,
            options.on_failed_sync.clone(),
        );
        let failed = |source| MountError::Failed {
            path: options.path.clone(),
            source,
        };
        let connection = Arc::new(Connection::new(env, device, operations).map_err(failed)?);
        let known = Arc::downgrade(&connection);
        let watcher = changes.watch(origin, move |file| {
            let connection = known.upgrade();
            connection.is_some_and(|connection| connection.operations().caches(file))
        });
        let watcher = Arc::new(watcher);
        let serve = connection.clone();
        let serving = env.spawn_essential("mount", async move {
            if let Err(error) = serve.serve().await {
                tracing::error!(%error, "a mount is no longer served");
            }
        });
        let follow = invalidation::follow(env.clone(), connection.clone(), watcher.clone());
        let mount = Self {
            env: env.clone(),
            connection,
            files,
            client,
            following: env.spawn("invalidate", follow),
            watcher,
            serving,
            options,
        };
        mount.publish(staging).await?;
        Ok(mount)
    }

    /// Asks the kernel whether it can be used, and mounts it where it is wanted.
    async fn publish(&self, staging: Option<Staging>) -> Result<(), MountError> {
        let path = self.options.path.clone();
        let Some(staging) = staging else {
            let checked = self.check(path.clone()).await;
            if checked.is_err() {
                // What is left of it.
                let _ = self.env.compute(move || device::detach(&path)).await;
            }
            return checked;
        };
        self.check(staging.path().to_owned()).await?;
        let operations = self.connection.operations();
        operations.set_entering(true);
        let published = self.env.compute(move || staging.publish(&path)).await;
        operations.set_entering(false);
        if published.is_err() {
            self.stop();
        }
        published
    }

    fn stop(&self) {
        self.serving.abort();
        self.following.abort();
    }

    /// The agreement with the kernel is made after mount(2) has returned.
    async fn check(&self, at: PathBuf) -> Result<(), MountError> {
        let asked = self.env.compute(move || rustix::fs::statvfs(&at).map(drop)).await;
        asked.map_err(|error| {
            self.stop();
            MountError::Kernel(error.to_string())
        })
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// What the status page shows.
    pub fn status(&self) -> MountStatus {
        MountStatus {
            path: self.options.path.clone(),
            read_only: self.options.read_only,
            is_mounted: device::is_mounted(&self.options.path),
            nodes: self.connection.operations().nodes().count(),
            opens: self.files.counts(),
            requests: self.connection.requests(),
            traffic: self.connection.traffic(),
            listings: self.connection.operations().listings(),
            case_index: self.connection.operations().case_index().map(CaseIndex::counts),
            invalidations: self.watcher.counts(),
        }
    }

    /// Writes back, unmounts, and releases what processes held. Those that still have files open get ENOTCONN from now on.
    pub async fn unmount(self) {
        let path = self.options.path.clone();
        let work = self.env.compute(move || device::unmount(&path));
        let shown = self.options.path.display();
        match self.env.timeout(UNMOUNT_WITHIN, work).await {
            Ok(Ok(true)) => tracing::info!(path = %shown, "unmounted"),
            Ok(Ok(false)) => {
                tracing::warn!(path = %shown, "unmounted while in use: open files there are cut off")
            }
            Ok(Err(error)) => {
                tracing::warn!(path = %shown, %error, "not unmounted; the next start takes the mount away")
            }
            Err(_) => {
                tracing::warn!(path = %shown, "the kernel does not end the mount; the next start takes it away")
            }
        }
        self.stop();
        self.files.release_client(&self.client).await;
    }
}
