//! The local journal: a write-ahead log on the client's own disk, of what is answered while nodes are away.
//!
//! It serves the modes that answer from memory. While nodes answer it is empty and costs nothing. When the oldest write has waited
//! for them too long, all that waits is written to it, then every change that comes; what it holds is answered, up to its bound.
//! When nodes are back its changes are given to the disk in their order, and it is empty again.
//!
//! ```text
//! <directory>/<disk>/lock              held by the process that uses it
//! <directory>/<disk>/owner             the disk and the attach that wrote here last
//! <directory>/<disk>/00000000000000000001 …   entries, sealed (entry.rs)
//! <directory>/<disk>/salvage-<attach>/…   the journal of an attach that lost the disk to another
//! ```
//!
//! *After a crash* the next attach on this machine goes on with it, if nobody had the disk in between: what the disk has already is
//! found by looking (`resume.rs`). If somebody had it, the journal is put aside, for people to look at, to write into another disk,
//! or to delete.
//!
//! [`Journaled`] is the disk with its journal, as its users see it.

mod entry;
mod files;
mod journaled;
mod resume;
mod spans;
mod tasks;

pub use files::JournalError;
pub use journaled::{Journaled, JournalingStatus};

use crate::types::Change;
use data_encoding::HEXLOWER;
use entry::Entry;
use files::{JournalFiles, is_file_name};
use firn_env::{DiskError, DiskLock, Env, OpenMode};
use std::time::Duration;

/// A file is left for the next when it has so many bytes: what the disk has is given back in such pieces.
const FILE_BYTES: u64 = 16 << 20;
/// Unless the journal is so small that it would be less than so many pieces.
const FILES_MIN: u64 = 8;

/// How a journal is used.
#[derive(Clone)]
pub struct JournalOptions {
    /// The machine, with the disk on which the journal lies.
    pub env: Env,
    /// The directory on it.
    pub directory: String,
    /// Bytes it may have, or one change, or what waited when it began, if these are more; writers wait at this bound.
    pub bytes_max: u64,
    /// Of each file, and a change more: 16 MiB, or an eighth of a small journal.
    pub file_bytes: u64,
    /// How long the oldest write waits for nodes before the journal begins.
    pub after: Duration,
    /// How long nodes may be away before writes fail; nothing: they never do.
    pub give_up: Option<Duration>,
}

impl JournalOptions {
    /// With what is right for most.
    pub fn new(env: Env, directory: &str, bytes_max: u64) -> Self {
        Self {
            env,
            directory: directory.to_owned(),
            bytes_max,
            file_bytes: FILE_BYTES.min(bytes_max / FILES_MIN),
            after: Duration::from_secs(2),
            give_up: None,
        }
    }

    /// Where the journal of one disk is.
    pub fn directory_of(&self, disk: [u8; 16]) -> String {
        format!("{}/{}", self.directory, HEXLOWER.encode(&disk))
    }
}

/// A journal that belongs to an attach.
pub struct Journal {
    options: JournalOptions,
    files: JournalFiles,
    /// One process uses a journal.
    lock: Box<dyn DiskLock>,
    /// Where the journal of an attach before was put, if it was.
    pub salvaged: Option<String>,
}

impl Journal {
    /// Takes the journal over for attach `incarnation`, which has just been made: before anything is read of the disk. What the
    /// attach right before it left is there to go on with; what an earlier one left is put aside.
    ///
    /// # Errors
    /// [`JournalError`]; nothing is lost.
    pub async fn claim(
        options: JournalOptions,
        disk: [u8; 16],
        key: &[u8; 32],
        incarnation: u64,
    ) -> Result<Self, JournalError> {
        let (env, directory) = (options.env.clone(), options.directory_of(disk));
        env.disk().create_directory(&directory).await?;
        // The names on the way there too: a journal that nobody finds after a crash has kept nothing.
        let mut above = directory.as_str();
        while !above.is_empty() {
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
            env.disk().sync_directory(above).await?;
        }
        let lock = env.disk().lock(&format!("{directory}/lock")).await?;
        let owner = read_owner(&env, &directory).await?;
        let open = || JournalFiles::open(&env, &directory, disk, key, options.file_bytes);
        let mut salvaged = None;
        let mut files = match (owner, open().await) {
            (Some(owner), Ok(files))
                if owner + 1 == incarnation || firn_env::planted!("journal.trusts_an_earlier_attach") =>
            {
                files
            }
            // Nothing to put aside.
            (_, Ok(files)) if is_empty(&files) => files,
            (owner, Ok(_) | Err(JournalError::Damaged { .. })) => {
                let aside = put_aside(&env, &directory, owner.unwrap_or(0)).await?;
                tracing::warn!(%aside, "another attach had the disk since this journal was used: it is put aside");
                salvaged = Some(aside);
                open().await?
            }
            (_, Err(error)) => return Err(error),
        };
        if !begins_whole(&files).await? {
            // Its process died before anything was answered on its strength.
            files.clear().await?;
            files = open().await?;
        }
        files.sync_found().await?;
        write_owner(&env, &directory, incarnation).await?;
        Ok(Self {
            options,
            files,
            lock,
            salvaged,
        })
    }
}

/// A journal that is looked at, in use or put aside; nothing is changed.
pub struct JournalReader {
    files: JournalFiles,
    next: u64,
    end: u64,
}

impl JournalReader {
    /// Of a directory of files.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn open(env: &Env, path: &str, disk: [u8; 16], key: &[u8; 32]) -> Result<Self, JournalError> {
        let files = JournalFiles::open(env, path, disk, key, FILE_BYTES).await?;
        let (next, end) = files.range();
        Ok(Self { files, next, end })
    }

    /// The next change, in order; nothing behind the last.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn next(&mut self) -> Result<Option<Change>, JournalError> {
        while self.next < self.end {
            let entry = self.files.read(self.next).await?;
            self.next += 1;
            if let Some(Entry::Change(change)) = entry {
                return Ok(Some(change));
            }
        }
        Ok(None)
    }
}

fn is_empty(files: &JournalFiles) -> bool {
    let (first, end) = files.range();
    first == end
}

/// Whether a journal that has its beginning has all that waited when it began.
async fn begins_whole(files: &JournalFiles) -> Result<bool, JournalError> {
    if !files.has_beginning() {
        return Ok(true);
    }
    let (first, end) = files.range();
    for number in first..end {
        if files.read(number).await? == Some(Entry::Ready) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn read_owner(env: &Env, directory: &str) -> Result<Option<u64>, JournalError> {
    let path = format!("{directory}/owner");
    let file = match env.disk().open(&path, OpenMode::Read).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = file.read_at(0, 64).await?;
    let number = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.trim().strip_prefix("attach "))
        .and_then(|number| number.parse().ok());
    // A file that says nothing is as good as none: the journal is put aside then, never taken for ours.
    Ok(number)
}

async fn write_owner(env: &Env, directory: &str, incarnation: u64) -> Result<(), DiskError> {
    let (fresh, path) = (format!("{directory}/owner.new"), format!("{directory}/owner"));
    match env.disk().remove(&fresh).await {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = env.disk().open(&fresh, OpenMode::CreateNew).await?;
    let text = format!("attach {incarnation}\n");
    file.write_and_sync(0, vec![text.into_bytes().into()]).await?;
    env.disk().rename(&fresh, &path).await?;
    env.disk().sync_directory(directory).await
}

/// Moves a journal's files to where no attach looks for them.
async fn put_aside(env: &Env, directory: &str, owner: u64) -> Result<String, DiskError> {
    let mut names = env.disk().list(directory).await?;
    names.retain(|name| is_file_name(name));
    let mut aside = format!("{directory}/salvage-{owner}");
    loop {
        match env.disk().list(&aside).await {
            // A process that did the same died before it was done. What it moved belongs to what is left.
            Ok(there) if !there.iter().any(|name| names.contains(name)) => break,
            Ok(_) => aside.push('x'),
            Err(DiskError::NotFound { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    env.disk().create_directory(&aside).await?;
    env.disk().sync_directory(directory).await?;
    for name in names {
        env.disk()
            .rename(&format!("{directory}/{name}"), &format!("{aside}/{name}"))
            .await?;
    }
    env.disk().sync_directory(&aside).await?;
    env.disk().sync_directory(directory).await?;
    Ok(aside)
}
