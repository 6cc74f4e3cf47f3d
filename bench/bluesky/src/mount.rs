//! A client's mount: NFS calls in the order in which a Linux client makes them for the calls of a program.
//!
//! What is modelled of the client is what decides which calls reach the server: names once looked up (also those that are not
//! there) and file content once read stay in its memory, an open asks for the attributes again (close-to-open consistency), a
//! file that fits one WRITE is written stable at its close, a longer one unstable and committed, and reading ahead keeps two
//! READs of 128 KiB under way. Attribute caches that expire after seconds are not modelled: only this client changes anything.

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use firn_env::Env;
use firn_nfs::{
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::types::{
        ACCESS_READ, CreateHow, DirectoryEntryPlus, Entry, FileAttributes, FileType, NewAttributes, NewTime,
        StableHow, Time,
    },
    v3::{Status, types::Made},
};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

/// The largest WRITE, and from where on a file is written unstable and committed.
const WRITE_BYTES: usize = 1 << 20;
/// Reading ahead: the window of a stock Linux client, in two calls.
const READ_BYTES: u32 = 128 << 10;
const READS_AHEAD: usize = 2;
/// A directory's names and attributes for each call.
const LIST_BYTES: u32 = 64 << 10;
/// Longer than anything that is measured waits.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What is known of a name.
#[derive(Clone)]
enum Known {
    Absent,
    Present { handle: WireHandle, size_bytes: u64 },
}

/// A connection to the server with the caches of a client that just mounted it.
pub struct Mount {
    nfs: NfsClient,
    root: WireHandle,
    /// By path from the root.
    names: Mutex<BTreeMap<String, Known>>,
    /// Paths whose content is in the client's memory.
    held: Mutex<BTreeSet<String>>,
}

/// A file's name, handle and attributes from a listing.
pub struct Listed {
    pub name: String,
    pub handle: WireHandle,
    pub attributes: FileAttributes,
}

fn attributes_of_mode(mode: u32) -> NewAttributes {
    NewAttributes {
        mode: Some(mode),
        ..NewAttributes::default()
    }
}

/// The time a program like tar sets; which one does not matter.
fn with_time() -> NewAttributes {
    let time = NewTime::ClientTime(Time {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    });
    NewAttributes {
        accessed: time,
        modified: time,
        ..NewAttributes::default()
    }
}

fn made(answer: Result<Made, impl std::fmt::Debug>, what: &str) -> Result<WireHandle> {
    let made = answer.map_err(|failed| anyhow!("{what}: {failed:?}"))?;
    made.file.with_context(|| format!("{what}: no handle"))
}

impl Mount {
    /// Mounts the server's export.
    pub async fn new(env: &Env, address: &str) -> Result<Self> {
        let credential = Credential::sys("client", 0, 0, Vec::new());
        let nfs = NfsClient::connect(env, address, credential, TIMEOUT).await?;
        let mounted = nfs.mount("/").await?;
        let root = mounted.map_err(|status| anyhow!("mount: {status:?}"))?.handle;
        Ok(Self {
            nfs,
            root,
            names: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// The calls themselves.
    pub fn nfs(&self) -> &NfsClient {
        &self.nfs
    }

    /// The root directory.
    pub fn root(&self) -> &WireHandle {
        &self.root
    }

    /// mkdir.
    pub async fn make_directory(&self, directory: &WireHandle, name: &str) -> Result<WireHandle> {
        let answer = self
            .nfs
            .make_directory(directory, name, attributes_of_mode(0o755))
            .await?;
        made(answer, name)
    }

    /// symlink.
    pub async fn make_symlink(&self, directory: &WireHandle, name: &str, target: &str) -> Result<()> {
        let answer = self
            .nfs
            .make_symlink(directory, name, target, NewAttributes::default())
            .await?;
        made(answer, name).map(drop)
    }

    /// A new, empty file.
    pub async fn make_file(&self, directory: &WireHandle, name: &str) -> Result<WireHandle> {
        let how = CreateHow::Guarded(attributes_of_mode(0o644));
        made(self.nfs.create(directory, name, how).await?, name)
    }

    /// What tar does for a file: create (exclusively, hence a SETATTR), write, set the times, close.
    pub async fn unpack_file(&self, directory: &WireHandle, name: &str, content: Bytes) -> Result<()> {
        let answer = self
            .nfs
            .create(directory, name, CreateHow::Exclusive([0x5a; 8]))
            .await?;
        let file = made(answer, name)?;
        self.set(&file, attributes_of_mode(0o644)).await?;
        self.write_whole(&file, content).await?;
        self.set(&file, with_time()).await
    }

    async fn set(&self, file: &WireHandle, attributes: NewAttributes) -> Result<()> {
        let answer = self.nfs.set_attributes(file, attributes, None).await?;
        answer.map_err(|failed| anyhow!("SETATTR: {failed:?}")).map(drop)
    }

    /// Writes a file's content, stable at the end (level 1).
    pub async fn write_whole(&self, file: &WireHandle, content: Bytes) -> Result<()> {
        if content.is_empty() {
            return Ok(());
        }
        if content.len() <= WRITE_BYTES {
            return self.write(file, 0, content, StableHow::FileSync).await;
        }
        let parts = (0..content.len()).step_by(WRITE_BYTES).map(|start| {
            let part = content.slice(start..content.len().min(start + WRITE_BYTES));
            self.write(file, start as u64, part, StableHow::Unstable)
        });
        stream::iter(parts.collect::<Vec<_>>())
            .buffer_unordered(4)
            .try_collect::<Vec<()>>()
            .await?;
        let answer = self.nfs.commit(file, 0, 0).await?;
        answer.map_err(|failed| anyhow!("COMMIT: {failed:?}")).map(drop)
    }

    /// One WRITE.
    pub async fn write(&self, file: &WireHandle, offset: u64, data: Bytes, stable: StableHow) -> Result<()> {
        let length = data.len();
        let answer = self.nfs.write(file, offset, data, stable).await?;
        let written = answer.map_err(|failed| anyhow!("WRITE: {failed:?}"))?;
        ensure!(written.count as usize == length, "a short WRITE");
        Ok(())
    }

    /// All entries of a directory but `.` and `..`.
    pub async fn list(&self, directory: &WireHandle) -> Result<Vec<Listed>> {
        let (mut cookie, mut verifier) = (0, [0; 8]);
        let mut listed = Vec::new();
        loop {
            let answer = self
                .nfs
                .read_directory_plus(directory, cookie, verifier, LIST_BYTES, LIST_BYTES)
                .await?;
            let page = answer.map_err(|failed| anyhow!("READDIRPLUS: {failed:?}"))?;
            verifier = page.verifier;
            if let Some(last) = page.entries.last() {
                cookie = last.cookie;
            } else {
                ensure!(page.end, "an empty page that is not the last");
            }
            for entry in page.entries {
                if let Some(entry) = self.listed(directory, entry).await? {
                    listed.push(entry);
                }
            }
            if page.end {
                return Ok(listed);
            }
        }
    }

    async fn listed(&self, directory: &WireHandle, entry: DirectoryEntryPlus) -> Result<Option<Listed>> {
        let name = String::from_utf8_lossy(&entry.name.0).into_owned();
        if name == "." || name == ".." {
            return Ok(None);
        }
        Ok(Some(match (entry.handle, entry.attributes) {
            (Some(handle), Some(attributes)) => Listed {
                name,
                handle,
                attributes,
            },
            _ => {
                let answer = self.nfs.lookup(directory, &name).await?;
                let found = answer.map_err(|failed| anyhow!("LOOKUP {name}: {failed:?}"))?;
                Listed {
                    attributes: found.attributes.context("LOOKUP without attributes")?,
                    handle: found.file,
                    name,
                }
            }
        }))
    }

    /// open, read to the end, close: the content's checksum.
    pub async fn checksum(&self, file: &Listed) -> Result<blake3::Hash> {
        let answer = self.nfs.get_attributes(&file.handle).await?;
        answer.map_err(|failed| anyhow!("GETATTR {}: {failed:?}", file.name))?;
        let answer = self.nfs.access(&file.handle, ACCESS_READ).await?;
        answer.map_err(|failed| anyhow!("ACCESS {}: {failed:?}", file.name))?;
        let mut hasher = blake3::Hasher::new();
        self.read_to(&file.handle, file.attributes.size_bytes, |bytes| {
            hasher.update(bytes);
        })
        .await
        .with_context(|| file.name.clone())?;
        Ok(hasher.finalize())
    }

    async fn read_to(&self, file: &WireHandle, size_bytes: u64, mut take: impl FnMut(&[u8])) -> Result<()> {
        let offsets = (0..size_bytes).step_by(READ_BYTES as usize);
        let reads = offsets.map(|offset| {
            let count = (size_bytes - offset).min(u64::from(READ_BYTES)) as u32;
            self.read(file, offset, count)
        });
        let mut reads = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AHEAD);
        while let Some(data) = reads.next().await {
            for part in data? {
                take(&part);
            }
        }
        Ok(())
    }

    /// One READ, which must not be short.
    pub async fn read(&self, file: &WireHandle, offset: u64, count: u32) -> Result<Vec<Bytes>> {
        let answer = self.nfs.read(file, offset, count).await?;
        let read = answer.map_err(|failed| anyhow!("READ: {failed:?}"))?;
        ensure!(read.count == count, "{} bytes of {count} at {offset}", read.count);
        Ok(read.data.0)
    }
}

/// By path, with the client's caches: for programs that open what they may have opened before.
impl Mount {
    fn known(&self, path: &str) -> Option<Known> {
        self.names
            .lock()
            .expect("no panic under this lock")
            .get(path)
            .cloned()
    }

    fn note(&self, path: &str, known: Known) {
        self.names
            .lock()
            .expect("no panic under this lock")
            .insert(path.to_owned(), known);
    }

    fn hold(&self, path: &str) -> bool {
        self.held
            .lock()
            .expect("no panic under this lock")
            .insert(path.to_owned())
    }

    fn learn(&self, path: &str, handle: WireHandle) {
        self.note(
            path,
            Known::Present {
                handle,
                size_bytes: 0,
            },
        );
    }

    /// Looks a path up; each of its names is asked for once.
    async fn find(&self, path: &str) -> Result<Option<(WireHandle, u64)>> {
        let mut at = (self.root.clone(), 0);
        let mut end = 0;
        while end < path.len() {
            let start = if end == 0 { 0 } else { end + 1 };
            end = path[start..]
                .find('/')
                .map_or(path.len(), |length| start + length);
            let here = &path[..end];
            let known = match self.known(here) {
                Some(known) => known,
                None => {
                    let known = match self.nfs.lookup(&at.0, &path[start..end]).await? {
                        Ok(found) => Known::Present {
                            handle: found.file,
                            size_bytes: found.attributes.map_or(0, |attributes| attributes.size_bytes),
                        },
                        Err(failed) if failed.status == Status::NoEntry => Known::Absent,
                        Err(failed) if failed.status == Status::NotDirectory => Known::Absent,
                        Err(failed) => bail!("LOOKUP {here}: {failed:?}"),
                    };
                    self.note(here, known.clone());
                    known
                }
            };
            match known {
                Known::Absent => return Ok(None),
                Known::Present { handle, size_bytes } => at = (handle, size_bytes),
            }
        }
        Ok(Some(at))
    }

    async fn parent_of<'p>(&self, path: &'p str) -> Result<(WireHandle, &'p str)> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = self.find(directory).await?;
        Ok((
            found.with_context(|| format!("{path}: no such directory"))?.0,
            name,
        ))
    }

    /// stat.
    pub async fn status(&self, path: &str) -> Result<bool> {
        Ok(self.find(path).await?.is_some())
    }

    /// open, read to the end unless that is in memory, close. Whether the file is there.
    pub async fn read_path(&self, path: &str) -> Result<bool> {
        let Some((handle, _)) = self.find(path).await? else {
            return Ok(false);
        };
        let answer = self.nfs.get_attributes(&handle).await?;
        let attributes = answer.map_err(|failed| anyhow!("GETATTR {path}: {failed:?}"))?;
        if attributes.kind == FileType::Regular && self.hold(path) {
            self.read_to(&handle, attributes.size_bytes, |_| {})
                .await
                .with_context(|| path.to_owned())?;
        }
        Ok(true)
    }

    /// open for writing (made or truncated), write, close.
    pub async fn write_path(&self, path: &str, content: Bytes) -> Result<()> {
        if let Some((directory, _)) = path.rsplit_once('/') {
            // The job that makes it may be a little behind.
            self.make_path(directory).await?;
        }
        let (directory, name) = self.parent_of(path).await?;
        let how = CreateHow::Unchecked(NewAttributes {
            size_bytes: Some(0),
            ..attributes_of_mode(0o644)
        });
        let file = made(self.nfs.create(&directory, name, how).await?, path)?;
        let size_bytes = content.len() as u64;
        self.write_whole(&file, content).await?;
        self.note(
            path,
            Known::Present {
                handle: file,
                size_bytes,
            },
        );
        self.hold(path);
        Ok(())
    }

    /// mkdir -p; what is there is fine.
    pub async fn make_path(&self, path: &str) -> Result<()> {
        for end in path.match_indices('/').map(|(at, _)| at).chain([path.len()]) {
            let here = &path[..end];
            if self.find(here).await?.is_some() {
                continue;
            }
            let (directory, name) = self.parent_of(here).await?;
            let answer = self
                .nfs
                .make_directory(&directory, name, attributes_of_mode(0o755))
                .await?;
            let handle = match answer {
                Err(failed) if failed.status == Status::Exists => {
                    let answer = self.nfs.lookup(&directory, name).await?;
                    answer
                        .map_err(|failed| anyhow!("LOOKUP {here}: {failed:?}"))?
                        .file
                }
                answer => made(answer, here)?,
            };
            self.learn(here, handle);
        }
        Ok(())
    }

    /// unlink; one that is not there is fine.
    pub async fn remove_path(&self, path: &str) -> Result<()> {
        let (directory, name) = self.parent_of(path).await?;
        // A directory is left: nothing depends on its absence.
        let _ = self.nfs.remove(&directory, name).await?;
        self.note(path, Known::Absent);
        self.held.lock().expect("no panic under this lock").remove(path);
        Ok(())
    }

    /// rename of a file.
    pub async fn rename_path(&self, from: &str, to: &str) -> Result<()> {
        let Some((handle, size_bytes)) = self.find(from).await? else {
            return Ok(());
        };
        let (from_directory, from_name) = self.parent_of(from).await?;
        let (to_directory, to_name) = self.parent_of(to).await?;
        let at = |directory: WireHandle, name: &str| Entry {
            directory,
            name: name.into(),
        };
        let answer = self
            .nfs
            .rename(at(from_directory, from_name), at(to_directory, to_name))
            .await?;
        answer.map_err(|failed| anyhow!("RENAME {from} to {to}: {failed:?}"))?;
        self.note(from, Known::Absent);
        self.note(to, Known::Present { handle, size_bytes });
        self.hold(to);
        Ok(())
    }
}
