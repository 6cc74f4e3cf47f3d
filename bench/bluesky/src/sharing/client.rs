//! A client's mount where others change files too: which calls a Linux NFS client makes for the calls of a program.
//!
//! Every open asks for the name again (close-to-open consistency: LOOKUP, one call as the GETATTR of a name that is known); content stays in the client's
//! memory as long as length and time of change are the same at an open. What is written goes out at the close: one stable WRITE, or unstable ones
//! and a COMMIT for what is longer than one.

use anyhow::{Context, Result, anyhow, ensure};
use bytes::{Bytes, BytesMut};
use firn_env::Env;
use firn_nfs::{
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::{
        Status,
        types::{CreateHow, FileAttributes, NewAttributes, StableHow, Time},
    },
};
use futures::{StreamExt, TryStreamExt, stream};
use std::{collections::BTreeMap, sync::Mutex, time::Duration};

/// The largest WRITE, and from where on a file is written unstable and committed.
const WRITE_BYTES: usize = 1 << 20;
const WRITES_AT_ONCE: usize = 4;
/// Reading ahead: the window of a stock Linux client, in two calls.
const READ_BYTES: u64 = 128 << 10;
const READS_AHEAD: usize = 2;
/// Longer than anything that is measured waits.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// A Linux client asks again so long after it was told to.
const ASKS_AGAIN: Duration = Duration::from_secs(5);

/// Makes a call of a client that asks again as long as it is told to.
pub async fn patiently<F: Future<Output = Result<()>>>(env: &Env, call: impl Fn() -> F) -> Result<()> {
    loop {
        match call().await {
            Err(error) if format!("{error:#}").contains("Jukebox") => env.sleep(ASKS_AGAIN).await,
            answer => return answer,
        }
    }
}

/// See the module.
pub struct Mount {
    nfs: NfsClient,
    root: WireHandle,
    /// By inode: length, time of change, content.
    pages: Mutex<BTreeMap<u64, (u64, Time, Bytes)>>,
}

/// An open file.
pub struct Open {
    pub handle: WireHandle,
    pub attributes: FileAttributes,
}

fn new_file() -> NewAttributes {
    NewAttributes {
        mode: Some(0o644),
        size_bytes: Some(0),
        ..NewAttributes::default()
    }
}

impl Mount {
    pub async fn new(env: &Env, address: &str) -> Result<Self> {
        let credential = Credential::sys("client", 0, 0, Vec::new());
        let nfs = NfsClient::connect(env, address, credential, TIMEOUT).await?;
        let mounted = nfs.mount("/").await?;
        let root = mounted.map_err(|status| anyhow!("mount: {status:?}"))?.handle;
        Ok(Self {
            nfs,
            root,
            pages: Mutex::default(),
        })
    }

    /// The same of a directory below the root, which is made if it is not there.
    pub async fn of_directory(env: &Env, address: &str, name: &str) -> Result<Self> {
        let whole = Self::new(env, address).await?;
        let root = match whole.open(name).await? {
            Some(open) => open.handle,
            None => {
                let made = whole
                    .nfs
                    .make_directory(&whole.root, name, NewAttributes::default());
                let made = made
                    .await?
                    .map_err(|failed| anyhow!("MKDIR {name}: {failed:?}"))?;
                made.file.context("MKDIR without a handle")?
            }
        };
        Ok(Self { root, ..whole })
    }

    /// open of a file that may be there.
    pub async fn open(&self, name: &str) -> Result<Option<Open>> {
        match self.nfs.lookup(&self.root, name).await? {
            Ok(found) => Ok(Some(Open {
                handle: found.file,
                attributes: found.attributes.context("LOOKUP without attributes")?,
            })),
            Err(failed) if failed.status == Status::NoEntry => Ok(None),
            Err(failed) => Err(anyhow!("LOOKUP {name}: {failed:?}")),
        }
    }

    /// open with O_CREAT and O_TRUNC.
    pub async fn create(&self, name: &str) -> Result<WireHandle> {
        let answer = self
            .nfs
            .create(&self.root, name, CreateHow::Unchecked(new_file()))
            .await?;
        let made = answer.map_err(|failed| anyhow!("CREATE {name}: {failed:?}"))?;
        made.file.context("CREATE without a handle")
    }

    /// read of the whole file: from the client's memory, if what the open showed is what lies there.
    pub async fn read(&self, open: &Open) -> Result<Bytes> {
        let (size, changed, inode) = (
            open.attributes.size_bytes,
            open.attributes.changed,
            open.attributes.inode,
        );
        if let Some((held_size, held_changed, content)) = self.pages().get(&inode)
            && *held_size == size
            && *held_changed == changed
        {
            return Ok(content.clone());
        }
        let reads = (0..size).step_by(READ_BYTES as usize).map(|offset| {
            let count = (size - offset).min(READ_BYTES) as u32;
            self.read_at(&open.handle, offset, count)
        });
        let mut reads = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AHEAD);
        let mut content = BytesMut::new();
        while let Some(part) = reads.next().await {
            content.extend_from_slice(&part?);
        }
        let content = content.freeze();
        if content.len() as u64 == size {
            self.pages().insert(inode, (size, changed, content.clone()));
        }
        Ok(content)
    }

    /// One READ of the edge, whatever the client's memory has.
    pub async fn read_at(&self, file: &WireHandle, offset: u64, count: u32) -> Result<Bytes> {
        let answer = self.nfs.read(file, offset, count).await?;
        let read = answer.map_err(|failed| anyhow!("READ: {failed:?}"))?;
        let mut content = BytesMut::new();
        for part in read.data.0 {
            content.extend_from_slice(&part);
        }
        Ok(content.freeze())
    }

    /// One WRITE.
    pub async fn write_at(
        &self,
        file: &WireHandle,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> Result<()> {
        let length = data.len();
        let answer = self.nfs.write(file, offset, data, stable).await?;
        let written = answer.map_err(|failed| anyhow!("WRITE: {failed:?}"))?;
        ensure!(written.count as usize == length, "a short WRITE");
        Ok(())
    }

    /// One WRITE that is answered when the journal has it.
    pub async fn write_stable(&self, file: &WireHandle, offset: u64, data: Bytes) -> Result<()> {
        self.write_at(file, offset, data, StableHow::FileSync).await
    }

    /// What write leaves for the close.
    pub async fn close_written(&self, file: &WireHandle, content: Bytes) -> Result<()> {
        if content.len() <= WRITE_BYTES {
            return self.write_at(file, 0, content, StableHow::FileSync).await;
        }
        let parts = (0..content.len()).step_by(WRITE_BYTES).map(|start| {
            let part = content.slice(start..content.len().min(start + WRITE_BYTES));
            self.write_at(file, start as u64, part, StableHow::Unstable)
        });
        stream::iter(parts.collect::<Vec<_>>())
            .buffer_unordered(WRITES_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        self.commit(file).await
    }

    /// COMMIT.
    pub async fn commit(&self, file: &WireHandle) -> Result<()> {
        let answer = self.nfs.commit(file, 0, 0).await?;
        answer.map_err(|failed| anyhow!("COMMIT: {failed:?}")).map(drop)
    }

    /// open for writing, write, close.
    pub async fn save(&self, name: &str, content: Bytes) -> Result<()> {
        let file = self.create(name).await?;
        self.close_written(&file, content).await
    }

    /// open, read, close; none if it is not there.
    pub async fn load(&self, name: &str) -> Result<Option<Bytes>> {
        match self.open(name).await? {
            Some(open) => Ok(Some(self.read(&open).await?)),
            None => Ok(None),
        }
    }

    /// truncate to nothing.
    pub async fn truncate(&self, file: &WireHandle) -> Result<()> {
        let nothing = NewAttributes {
            size_bytes: Some(0),
            ..NewAttributes::default()
        };
        let answer = self.nfs.set_attributes(file, nothing, None).await?;
        answer.map_err(|failed| anyhow!("SETATTR: {failed:?}")).map(drop)
    }

    /// unlink.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let answer = self.nfs.remove(&self.root, name).await?;
        answer
            .map_err(|failed| anyhow!("REMOVE {name}: {failed:?}"))
            .map(drop)
    }

    /// What is in the client's memory is forgotten, as by a client that mounts anew.
    pub fn forget(&self) {
        self.pages().clear();
    }

    fn pages(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, (u64, Time, Bytes)>> {
        self.pages.lock().expect("no panic under this lock")
    }
}
