//! The build step: what `make` asked of the file system when it really built the tree, asked again through a mount.
//!
//! The recording (`bench/bluesky/record-build`) has one job for each command of make, with the files it asked for, read and
//! wrote, and the time it computed. The jobs run again four at a time, as under `make -j4`, in their order; one that reads what
//! another writes waits for it. Computing is a sleep of the recorded length, so it is the same in every column.

use crate::mount::Mount;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use firn_env::Env;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Semaphore, watch};

/// Jobs at a time.
const JOBS_AT_ONCE: usize = 4;
/// Calls of one job between two parts of its computing.
const CALLS_BETWEEN_COMPUTING: usize = 8;

/// One file system call of a job, with paths that begin with `S` (source tree) or `O` (build tree).
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RecordedCall")]
enum Call {
    Write(String, u64),
    Rename(String, String),
    /// What has one path.
    Other(Kind, String),
}

/// As the recording has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedCall {
    Write(Kind, String, u64),
    Rename(Kind, String, String),
    Other(Kind, String),
}

impl From<RecordedCall> for Call {
    fn from(call: RecordedCall) -> Self {
        match call {
            RecordedCall::Write(Kind::Write, path, length) => Self::Write(path, length),
            RecordedCall::Rename(Kind::Rename, from, to) => Self::Rename(from, to),
            // What has more arguments than it needs is as good without them.
            RecordedCall::Write(kind, path, _)
            | RecordedCall::Rename(kind, path, _)
            | RecordedCall::Other(kind, path) => Self::Other(kind, path),
        }
    }
}

/// What a call does; see `record-build`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum Kind {
    #[serde(rename = "w")]
    Write,
    #[serde(rename = "m")]
    Rename,
    #[serde(rename = "r")]
    Read,
    #[serde(rename = "s")]
    Status,
    #[serde(rename = "u")]
    Remove,
    #[serde(rename = "d")]
    MakeDirectory,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Recorded {
    Job { ms: f64, ops: Vec<Call> },
    Start { start: Vec<(String, u64)> },
}

struct Job {
    computes: Duration,
    calls: Vec<Call>,
    /// Earlier jobs that write what this one reads.
    after: Vec<usize>,
}

/// A recorded build.
pub struct Build {
    jobs: Vec<Job>,
    /// What is in the build tree before.
    start: Vec<(String, u64)>,
}

/// `source` or `build` in the volume, and the path below.
fn placed(path: &str, build: &str) -> String {
    match path.split_at(1) {
        ("S", below) => format!("linux{below}"),
        (_, below) => format!("{build}{below}"),
    }
}

impl Build {
    /// Reads a recording.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (mut jobs, mut start): (Vec<Job>, _) = (Vec::new(), Vec::new());
        let mut writers: BTreeMap<String, usize> = BTreeMap::new();
        for line in text.lines() {
            match serde_json::from_str(line)? {
                Recorded::Start { start: files } => start = files,
                Recorded::Job { ms, ops } => {
                    let number = jobs.len();
                    let mut after = BTreeSet::new();
                    for call in &ops {
                        match call {
                            Call::Other(Kind::Read, path) => after.extend(writers.get(path)),
                            Call::Other(..) => {}
                            Call::Write(path, _) => {
                                writers.insert(path.clone(), number);
                            }
                            Call::Rename(from, to) => {
                                after.extend(writers.get(from));
                                writers.insert(to.clone(), number);
                            }
                        }
                    }
                    after.remove(&number);
                    jobs.push(Job {
                        computes: Duration::from_secs_f64(ms.max(0.0) / 1000.0),
                        calls: ops,
                        after: after.into_iter().collect(),
                    });
                }
            }
        }
        Ok(Self { jobs, start })
    }

    /// The source files it touches.
    pub fn sources(&self) -> BTreeSet<String> {
        let paths = self
            .jobs
            .iter()
            .flat_map(|job| &job.calls)
            .filter_map(|call| match call {
                Call::Other(_, path) => path.strip_prefix("S/"),
                Call::Write(..) | Call::Rename(..) => None,
            });
        paths.map(str::to_owned).collect()
    }

    /// Makes the build tree as it was before the recording.
    pub async fn prepare(&self, mount: &Mount, build: &str) -> Result<()> {
        mount.make_path(build).await?;
        for (path, size_bytes) in &self.start {
            let path = format!("{build}/{path}");
            mount.write_path(&path, object_code(*size_bytes)).await?;
        }
        Ok(())
    }

    /// Runs the jobs; without a mount only their computing, which is what a file system that takes no time would give.
    pub async fn run(self: Arc<Self>, env: &Env, mount: Option<Arc<Mount>>, build: &str) -> Result<()> {
        let permits = Arc::new(Semaphore::new(JOBS_AT_ONCE));
        let done: Vec<watch::Sender<bool>> = self.jobs.iter().map(|_| watch::channel(false).0).collect();
        let done = Arc::new(done);
        let mut running = Vec::with_capacity(self.jobs.len());
        for number in 0..self.jobs.len() {
            let permit = permits.clone().acquire_owned().await.context("the permits end")?;
            let (this, env_of_job, mount, done) = (self.clone(), env.clone(), mount.clone(), done.clone());
            let build = build.to_owned();
            running.push(env.spawn("job", async move {
                let job = &this.jobs[number];
                for earlier in &job.after {
                    // It began before, and the oldest that runs waits for nobody.
                    let mut waiting = done[*earlier].subscribe();
                    waiting
                        .wait_for(|done| *done)
                        .await
                        .context("a job was dropped")?;
                }
                let outcome = job.run(&env_of_job, mount.as_deref(), &build).await;
                done[number].send_replace(true);
                drop(permit);
                outcome.with_context(|| format!("job {number}"))
            }));
        }
        for job in running {
            job.await.context("a job was dropped")??;
        }
        Ok(())
    }
}

impl Job {
    async fn run(&self, env: &Env, mount: Option<&Mount>, build: &str) -> Result<()> {
        let parts = self.calls.chunks(CALLS_BETWEEN_COMPUTING);
        let pause = self.computes / u32::try_from(parts.len().max(1)).unwrap_or(u32::MAX);
        for part in parts {
            env.sleep(pause).await;
            let Some(mount) = mount else { continue };
            for call in part {
                call.make(mount, build)
                    .await
                    .with_context(|| format!("{call:?}"))?;
            }
        }
        Ok(())
    }
}

impl Call {
    async fn make(&self, mount: &Mount, build: &str) -> Result<()> {
        match self {
            Self::Write(path, size_bytes) => {
                mount
                    .write_path(&placed(path, build), object_code(*size_bytes))
                    .await
            }
            Self::Rename(from, to) => mount.rename_path(&placed(from, build), &placed(to, build)).await,
            Self::Other(kind, path) => {
                let path = placed(path, build);
                match kind {
                    Kind::Read => mount.read_path(&path).await.map(drop),
                    Kind::Remove => mount.remove_path(&path).await,
                    Kind::MakeDirectory => mount.make_path(&path).await,
                    Kind::Status => mount.status(&path).await.map(drop),
                    Kind::Write | Kind::Rename => bail!("a recorded {kind:?} lacks an argument"),
                }
            }
        }
    }
}

/// Content for what a compiler writes: about as compressible as object code.
fn object_code(size_bytes: u64) -> Bytes {
    let mut content = vec![0; size_bytes as usize];
    for (number, chunk) in content.chunks_mut(128).enumerate() {
        let noise = blake3::hash(&number.to_le_bytes());
        let length = chunk.len().min(32);
        chunk[..length].copy_from_slice(&noise.as_bytes()[..length]);
    }
    content.into()
}
