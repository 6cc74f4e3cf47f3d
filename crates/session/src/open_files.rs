//! [`OpenFiles`]: which client has which file open.
//!
//! An open keeps an unlinked file alive ([`Vfs::retain`]) until its close. One that denies something to others (DOS sharing,
//! SMB) also has a reservation in the [`LockTable`], where it meets those of NLM clients; one that denies nothing and asks
//! for none (POSIX) has none and is stopped by none. Locks that belong to one open rather than to a process end with it:
//! closing releases what the owner named by [`OpenFiles::lock_owner`] holds.

use crate::{ByteRange, LockClient, LockError, LockOwner, LockTable, ShareMode};
use bytes::Bytes;
use firn_vfs::{FileHandle, Vfs, VfsError};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

/// Names one open; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// For what a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenAccess {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// An open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The file.
    pub file: FileHandle,
    /// For what.
    pub access: OpenAccess,
    /// By whom.
    pub client: LockClient,
}

/// Why a file was not opened. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file system refused.
    #[error(transparent)]
    Refused(#[from] VfsError),
    /// Another open denies this access, or has what this one denies; or the table of reservations is full.
    #[error(transparent)]
    Share(#[from] LockError),
    /// A limit of the table or of the client is reached.
    #[error("too many open files")]
    TooMany,
}

/// Bounds of [`OpenFiles`].
#[derive(Clone, Copy, Debug)]
pub struct OpenLimits {
    /// Opens in all. At some 150 bytes each the default stays under 160 MiB when all is taken.
    pub opens: usize,
    /// Opens of one client.
    pub opens_per_client: usize,
}

impl Default for OpenLimits {
    fn default() -> Self {
        Self {
            opens: 1 << 20,
            opens_per_client: 1 << 20,
        }
    }
}

/// Counts for the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenCounts {
    /// Opens.
    pub opens: usize,
    /// Clients that have one.
    pub clients: usize,
}

#[derive(Default)]
struct State {
    opens: BTreeMap<OpenId, (OpenFile, bool)>,
    per_client: BTreeMap<LockClient, usize>,
    next: u64,
}

impl State {
    fn remove(&mut self, id: OpenId) -> Option<(OpenFile, bool)> {
        let (open, shares) = self.opens.remove(&id)?;
        if let Some(count) = self.per_client.get_mut(&open.client) {
            *count -= 1;
            if *count == 0 {
                self.per_client.remove(&open.client);
            }
        }
        Some((open, shares))
    }
}

/// The table; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct OpenFiles {
    vfs: Arc<dyn Vfs>,
    locks: LockTable,
    limits: OpenLimits,
    state: Arc<Mutex<State>>,
}

impl OpenFiles {
    /// No file is open.
    pub fn new(vfs: Arc<dyn Vfs>, locks: LockTable, limits: OpenLimits) -> Self {
        Self {
            vfs,
            locks,
            limits,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Opens `file`, whose permissions the caller has checked. `share`: what others are denied, `None` for POSIX opens.
    ///
    /// Dropped before it completes, the open does not exist; a file unlinked at that moment may then stay until the restart.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(
        &self,
        client: &LockClient,
        file: FileHandle,
        access: OpenAccess,
        share: Option<ShareMode>,
    ) -> Result<OpenId, OpenError> {
        let id = self.reserve(client, file, access, share.is_some())?;
        let place = Place {
            files: self,
            id: Some(id),
        };
        if let Some(mode) = share {
            self.locks.share(file, &lock_owner(client, id), mode)?;
        }
        if !firn_env::planted!("session.open_does_not_retain") {
            self.vfs.retain(file).await?;
        }
        place.keep();
        Ok(id)
    }

    fn reserve(
        &self,
        client: &LockClient,
        file: FileHandle,
        access: OpenAccess,
        shares: bool,
    ) -> Result<OpenId, OpenError> {
        let mut state = self.state();
        let of_client = state.per_client.get(client).copied().unwrap_or(0);
        let full = state.opens.len() >= self.limits.opens || of_client >= self.limits.opens_per_client;
        if full && !firn_env::planted!("session.opens_without_limit") {
            return Err(OpenError::TooMany);
        }
        let id = OpenId(state.next);
        state.next += 1;
        *state.per_client.entry(client.clone()).or_default() += 1;
        let open = OpenFile {
            file,
            access,
            client: client.clone(),
        };
        state.opens.insert(id, (open, shares));
        Ok(id)
    }

    /// Gives the place of an open back; what it denied to others is free. Returns what was open.
    fn forget(&self, id: OpenId) -> Option<OpenFile> {
        let (open, shares) = self.state().remove(id)?;
        let owner = lock_owner(&open.client, id);
        if shares && !firn_env::planted!("session.close_keeps_the_share") {
            self.locks.unshare(open.file, &owner);
        }
        if !firn_env::planted!("session.close_keeps_locks") {
            self.locks.unlock(open.file, &owner, ByteRange::ALL);
        }
        Some(open)
    }

    /// What is open under this id.
    pub fn get(&self, id: OpenId) -> Option<OpenFile> {
        self.state().opens.get(&id).map(|(open, _)| open.clone())
    }

    /// The owner of locks that end with this open; `None` if it is closed.
    pub fn lock_owner(&self, id: OpenId) -> Option<LockOwner> {
        self.get(id).map(|open| lock_owner(&open.client, id))
    }

    /// Closes; an id that is not open is not an error.
    ///
    /// # Errors
    /// If an unlinked file could not be freed; it is closed then, and freed at the next start.
    pub async fn close(&self, id: OpenId) -> Result<(), VfsError> {
        match self.forget(id) {
            Some(_) if firn_env::planted!("session.close_does_not_release") => Ok(()),
            Some(open) => self.vfs.release(open.file).await,
            None => Ok(()),
        }
    }

    /// Closes all that a client has open and releases its locks: it is gone.
    pub async fn release_client(&self, client: &LockClient) {
        let of_client =
            |(id, (open, _)): (&OpenId, &(OpenFile, bool))| (open.client == *client).then_some(*id);
        let ids: Vec<OpenId> = self.state().opens.iter().filter_map(of_client).collect();
        for id in ids {
            // A file that cannot be freed now is freed at the next start.
            let _ = self.close(id).await;
        }
        if !firn_env::planted!("session.gone_client_keeps_locks") {
            self.locks.release_client(client);
        }
    }

    /// Counts.
    pub fn counts(&self) -> OpenCounts {
        let state = self.state();
        OpenCounts {
            opens: state.opens.len(),
            clients: state.per_client.len(),
        }
    }
}

fn lock_owner(client: &LockClient, id: OpenId) -> LockOwner {
    LockOwner {
        client: client.clone(),
        owner: Bytes::copy_from_slice(&id.0.to_be_bytes()),
    }
}

/// A place in the table that is given back unless the open succeeds.
struct Place<'a> {
    files: &'a OpenFiles,
    id: Option<OpenId>,
}

impl Place<'_> {
    fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.files.forget(id);
        }
    }
}
