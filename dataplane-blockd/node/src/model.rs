//! A disk as slow as one says: `seek=8ms,bw=128MB/s`.
//!
//! The model is a [`Disk`] around another: everything goes through it on the node's own code path, and what it adds is time.
//! There is one arm. An operation waits for the arm, moves it (a seek, unless it begins where the last one ended), and
//! passes its bytes under it. Data that is written is charged when it is written, not when it is synced; a sync costs the
//! time it says, by default none, as for a disk whose cache survives.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, Env, FileStatus, OpenMode};
use std::{str::FromStr, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// A gibibyte: no disk moves its arm for longer than that takes.
const SEEK_BYTES_MAX: u64 = 1 << 30;

/// The parameters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// From anywhere to anywhere.
    pub seek: Duration,
    /// Under the arm.
    pub bytes_per_second: u64,
    /// A sync.
    pub sync: Duration,
    /// The journal and the index lie on another device, without an arm: a battery-backed memory or a small solid disk.
    pub journal_apart: bool,
}

/// The text is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is no part of a disk model; write seek=8ms,bw=128MB/s[,sync=0ms][,journal=apart]")]
pub struct ModelError {
    part: String,
}

impl FromStr for DiskModel {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let mut model = Self {
            seek: Duration::ZERO,
            bytes_per_second: u64::MAX,
            sync: Duration::ZERO,
            journal_apart: false,
        };
        for part in text.split(',') {
            let wrong = || ModelError { part: part.into() };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            match name {
                "seek" => model.seek = duration(value).ok_or_else(wrong)?,
                "sync" => model.sync = duration(value).ok_or_else(wrong)?,
                "bw" => {
                    let megabytes: u64 = value
                        .strip_suffix("MB/s")
                        .and_then(|number| number.parse().ok())
                        .filter(|megabytes| *megabytes > 0)
                        .ok_or_else(wrong)?;
                    model.bytes_per_second = megabytes.checked_mul(1_000_000).ok_or_else(wrong)?;
                }
                "journal" if value == "apart" => model.journal_apart = true,
                _ => return Err(wrong()),
            }
        }
        Ok(model)
    }
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(number) = text.strip_suffix("us") {
        return number.parse().ok().map(Duration::from_micros);
    }
    let number: f64 = text.strip_suffix("ms")?.parse().ok()?;
    (0.0..=60_000.0)
        .contains(&number)
        .then(|| Duration::from_secs_f64(number / 1000.0))
}

impl DiskModel {
    /// Bytes that pass under the arm in the time of a seek; nothing: it does not seek.
    pub fn seek_bytes(self) -> Option<u64> {
        let bytes = self.seek.as_nanos() * u128::from(self.bytes_per_second) / 1_000_000_000;
        (bytes > 0).then(|| u64::try_from(bytes).unwrap_or(u64::MAX).min(SEEK_BYTES_MAX))
    }

    /// The environment with its disk behind the model.
    pub fn over(self, env: &Env) -> Env {
        let modelled = ModelledDisk {
            inner: env.disk().clone(),
            arm: Arc::new(Arm {
                env: env.clone(),
                model: self,
                at: Mutex::new((u64::MAX, 0)),
            }),
            next_file: Default::default(),
        };
        env.with_disk(Arc::new(modelled))
    }
}

struct Arm {
    env: Env,
    model: DiskModel,
    /// File and offset at which the last operation ended.
    at: Mutex<(u64, u64)>,
}

impl Arm {
    async fn pass(&self, file: u64, offset: u64, bytes: usize) {
        let mut at = self.at.lock().await;
        let seek = if *at == (file, offset) {
            Duration::ZERO
        } else {
            self.model.seek
        };
        let nanos = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.model.bytes_per_second);
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.env.sleep_precisely(seek + transfer).await;
        *at = (file, offset + bytes as u64);
    }
}

struct ModelledDisk {
    inner: Arc<dyn Disk>,
    arm: Arc<Arm>,
    next_file: std::sync::atomic::AtomicU64,
}

struct ModelledFile {
    inner: Arc<dyn DiskFile>,
    /// `None`: on the other device.
    arm: Option<Arc<Arm>>,
    file: u64,
}

#[async_trait]
impl Disk for ModelledDisk {
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let apart = self.arm.model.journal_apart && !path.starts_with("data/");
        Ok(Arc::new(ModelledFile {
            inner: self.inner.open(path, mode).await?,
            arm: (!apart).then(|| self.arm.clone()),
            file: self.next_file.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
        }))
    }

    async fn create_directory(&self, path: &str) -> Result<(), DiskError> {
        self.inner.create_directory(path).await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(directory).await
    }

    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        self.inner.entries(directory).await
    }

    async fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        self.inner.status(path).await
    }

    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.inner.remove(path).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to).await
    }

    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.link(from, to).await
    }

    async fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        self.inner.sync_directory(path).await
    }

    async fn free_bytes(&self) -> Result<u64, DiskError> {
        self.inner.free_bytes().await
    }

    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        self.inner.lock(path).await
    }
}

#[async_trait]
impl DiskFile for ModelledFile {
    async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        if let Some(arm) = &self.arm {
            arm.pass(self.file, offset, length).await;
        }
        self.inner.read_at(offset, length).await
    }

    async fn write_at(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        if let Some(arm) = &self.arm {
            arm.pass(self.file, offset, parts.iter().map(Bytes::len).sum())
                .await;
        }
        self.inner.write_at(offset, parts).await
    }

    async fn sync_data(&self) -> Result<(), DiskError> {
        if let Some(arm) = &self.arm
            && !arm.model.sync.is_zero()
        {
            arm.env.sleep_precisely(arm.model.sync).await;
        }
        self.inner.sync_data().await
    }

    async fn allocate(&self, length: u64) -> Result<(), DiskError> {
        self.inner.allocate(length).await
    }

    async fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.inner.truncate(length).await
    }

    async fn length(&self) -> Result<u64, DiskError> {
        self.inner.length().await
    }
}
