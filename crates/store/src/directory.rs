//! A store in a local directory: the embedded default, and what tests and demonstrations run on.
//!
//! An object is a plain file under the path its key spells, so any tool can copy the directory into a bucket and back. It
//! is written under a temporary name, synced, and only then given its own: by `link` for a create-only put (the kernel
//! lets exactly one caller win, between processes too), by `rename` for an overwrite. So a name never shows half an
//! object, and a crash leaves the old state or the new one.
//!
//! ```text
//! root/+incoming/<32 hex>                       being written; '+' cannot occur in a key
//! root/<key, a directory for each component>    the object
//! ```
//!
//! A put returns once file, name and directories are synced (level 2 of this store: that disk). "Exists already" is a
//! durable answer as well, because a retried put takes it for success. A directory sync that failed proves nothing when
//! repeated, hence after one the store takes no more puts until it is opened anew. What a file system cannot hold is
//! refused as invalid: an object at `a` beside one at `a/b`, a component longer than 255 bytes.

use crate::{LIST_PAGE_OBJECTS, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Disk, DiskError, EntryKind, Env, OpenMode};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// Where objects are written before they get their names.
const INCOMING: &str = "+incoming";

/// The longest file name of the usual file systems.
const COMPONENT_BYTES_MAX: usize = 255;

/// Temporary files this old have no writer any more: an hour is far beyond any deadline of a put. Should a clock jump make
/// a live one look old, its put fails as unavailable and is tried again.
const ABANDONED_AFTER_MS: i64 = 3_600_000;

/// Directories remembered as durable, so that a put need not sync them all again. Forgetting costs a few syncs.
const KNOWN_DIRECTORIES_MAX: usize = 4096;

/// Objects as files below one directory of the environment's disk.
pub struct DirectoryStore {
    env: Env,
    root: String,
    durable_directories: Mutex<BTreeSet<String>>,
    failed_sync: Mutex<Option<String>>,
}

impl DirectoryStore {
    /// Opens (and makes, if need be) the store in `root`, a path on the environment's disk; `""` is the disk itself.
    ///
    /// # Errors
    /// If the directory cannot be made or read.
    pub async fn open(env: &Env, root: &str) -> Result<Self, DiskError> {
        let store = Self {
            env: env.clone(),
            root: root.trim_matches('/').to_owned(),
            durable_directories: Mutex::default(),
            failed_sync: Mutex::default(),
        };
        let disk = env.disk();
        let incoming = store.path(INCOMING);
        disk.create_directory(&incoming).await?;
        for directory in above(&incoming) {
            disk.sync_directory(directory).await?;
        }
        store.remove_abandoned(&incoming).await?;
        Ok(store)
    }

    async fn remove_abandoned(&self, incoming: &str) -> Result<(), DiskError> {
        let disk = self.env.disk();
        let now_ms = self.env.wall().as_millis();
        for name in disk.list(incoming).await? {
            let path = format!("{incoming}/{name}");
            match disk.status(&path).await {
                Ok(status) if now_ms.saturating_sub(status.modified.as_millis()) > ABANDONED_AFTER_MS => {
                    match disk.remove(&path).await {
                        Ok(()) | Err(DiskError::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(_) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn disk(&self) -> &Arc<dyn Disk> {
        self.env.disk()
    }

    fn path(&self, name: &str) -> String {
        match (self.root.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => self.root.clone(),
            (false, false) => format!("{}/{name}", self.root),
        }
    }

    /// Makes the object's directory and its name in every directory above durable.
    async fn make_directory(&self, key: &ObjectKey, directory: &str) -> Result<(), StoreError> {
        if self
            .durable_directories
            .lock()
            .expect("no panic under this lock")
            .contains(directory)
        {
            return Ok(());
        }
        self.check_present("put", key).await?;
        if let Err(error) = self.disk().create_directory(directory).await {
            return Err(match self.object_above(key).await {
                Some(object) => StoreError::invalid(
                    "put",
                    key,
                    format!("a directory store cannot hold an object below the object {object}"),
                ),
                None => failure("put", key, error),
            });
        }
        for ancestor in above(directory) {
            self.sync_directory("put", key, ancestor).await?;
        }
        let mut known = self.durable_directories.lock().expect("no panic under this lock");
        if known.len() >= KNOWN_DIRECTORIES_MAX {
            known.clear();
        }
        known.insert(directory.to_owned());
        Ok(())
    }

    /// The object whose name is a directory in `key`.
    async fn object_above(&self, key: &ObjectKey) -> Option<String> {
        for (end, _) in key.as_str().match_indices('/') {
            let above = &key.as_str()[..end];
            let status = self.disk().status(&self.path(above)).await;
            if status.is_ok_and(|status| status.kind == EntryKind::File) {
                return Some(above.to_owned());
            }
        }
        None
    }

    /// Whether the store's own directory is there: not while its file system is not mounted. An object that is not found then
    /// says nothing about the object.
    async fn check_present(&self, operation: &'static str, key: &ObjectKey) -> Result<(), StoreError> {
        let status = self.disk().status(&self.path(INCOMING)).await;
        if status.is_ok_and(|status| status.kind == EntryKind::Directory) {
            return Ok(());
        }
        let detail = "the store's directory is not there; is its file system mounted?";
        Err(StoreError::unavailable(operation, key, detail))
    }

    async fn is_directory(&self, key: &ObjectKey) -> bool {
        let status = self.disk().status(&self.path(key.as_str())).await;
        status.is_ok_and(|status| status.kind == EntryKind::Directory)
    }

    async fn sync_directory(
        &self,
        operation: &'static str,
        key: &ObjectKey,
        directory: &str,
    ) -> Result<(), StoreError> {
        let result = self.disk().sync_directory(directory).await;
        if let Err(error) = &result
            && !matches!(error, DiskError::NotFound { .. })
        {
            tracing::error!(%error, "the store's directory could not be synced; it takes no more writes until it is opened anew");
            *self.failed_sync.lock().expect("no panic under this lock") = Some(error.to_string());
        }
        result.map_err(|error| failure(operation, key, error))
    }

    fn refuse_after_failed_sync(&self, operation: &'static str, key: &ObjectKey) -> Result<(), StoreError> {
        match &*self.failed_sync.lock().expect("no panic under this lock") {
            None => Ok(()),
            Some(detail) => Err(StoreError::unavailable(
                operation,
                key,
                format!("an earlier sync failed ({detail}); check the disk, then restart"),
            )),
        }
    }

    async fn write_temporary(&self, temporary: &str, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let file = self.disk().open(temporary, OpenMode::CreateNew).await?;
        // Whoever reads it has a cache of its own.
        file.write_uncached_at(0, parts).await?;
        self.env.fault_point("store.directory.before_sync").await;
        file.sync_data().await?;
        self.env.fault_point("store.directory.after_sync").await;
        Ok(())
    }

    /// Gives a synced temporary file the object's name.
    async fn publish(&self, key: &ObjectKey, temporary: &str, mode: PutMode) -> Result<(), StoreError> {
        let path = self.path(key.as_str());
        let directory = parent(&path);
        let named = match mode {
            PutMode::Create => self.disk().link(temporary, &path).await,
            PutMode::Overwrite => self.disk().rename(temporary, &path).await,
        };
        self.env.fault_point("store.directory.after_name").await;
        match named {
            Ok(()) => self.sync_directory("put", key, directory).await,
            Err(_) if self.is_directory(key).await => Err(StoreError::invalid(
                "put",
                key,
                "a directory store cannot hold this object beside objects below it",
            )),
            Err(DiskError::AlreadyExists { .. }) => {
                // Whoever made it may not have synced its name yet; the caller may take this answer for success.
                self.sync_directory("put", key, directory).await?;
                Err(StoreError::already_exists(key))
            }
            Err(error) => {
                // Somebody may have removed the directory; the next put makes it again.
                self.durable_directories
                    .lock()
                    .expect("no panic under this lock")
                    .clear();
                Err(failure("put", key, error))
            }
        }
    }

    async fn read(&self, key: &ObjectKey, offset: u64, length: Option<u64>) -> Result<Bytes, StoreError> {
        let path = self.path(key.as_str());
        let result = async {
            let file = self.disk().open(&path, OpenMode::Read).await?;
            let length = match length {
                Some(length) => length,
                None => file.length().await?,
            };
            file.read_at(offset, usize::try_from(length).unwrap_or(usize::MAX))
                .await
        }
        .await;
        match result {
            Ok(bytes) => Ok(bytes),
            Err(DiskError::NotFound { .. }) => {
                self.check_present("get", key).await?;
                Err(StoreError::not_found(key))
            }
            Err(_) if self.is_directory(key).await => Err(StoreError::not_found(key)),
            Err(error) => Err(failure("get", key, error)),
        }
    }

    async fn keys_after(&self, prefix: &str, after: &str, count: usize) -> Result<Vec<String>, DiskError> {
        let start = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
        let mut keys = Vec::new();
        // Directories still to be read and objects still to be named, the next one last. A component has at least two
        // bytes of a key's 512, which bounds the depth.
        let mut pending = vec![Pending::Directory(start.to_owned())];
        while let Some(next) = pending.pop() {
            match next {
                Pending::Object(key) => {
                    keys.push(key);
                    if keys.len() == count {
                        break;
                    }
                }
                Pending::Directory(directory) => {
                    pending.extend(self.read_directory(&directory, prefix, after).await?);
                }
            }
        }
        Ok(keys)
    }

    /// What a listing of `prefix` after `after` needs of one directory, last key first.
    async fn read_directory(
        &self,
        directory: &str,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<Pending>, DiskError> {
        let entries = match self.disk().entries(&self.path(directory)).await {
            Err(DiskError::NotFound { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let key = if directory.is_empty() {
                entry.name
            } else {
                format!("{directory}/{}", entry.name)
            };
            if !ObjectKey::is_valid(&key) {
                continue;
            }
            match entry.kind {
                EntryKind::File if key.starts_with(prefix) && key.as_str() > after => {
                    found.push((key.clone(), Pending::Object(key)));
                }
                EntryKind::File => {}
                EntryKind::Directory => {
                    // All keys below start with `below`, so they sort as it does against anything that does not.
                    let below = format!("{key}/");
                    let may_match = below.starts_with(prefix) || prefix.starts_with(&below);
                    if may_match && (below.as_str() > after || after.starts_with(&below)) {
                        found.push((below, Pending::Directory(key)));
                    }
                }
            }
        }
        found.sort_by(|(left, _), (right, _)| right.cmp(left));
        Ok(found.into_iter().map(|(_, pending)| pending).collect())
    }
}

enum Pending {
    Object(String),
    Directory(String),
}

#[async_trait]
impl Store for DirectoryStore {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        if key
            .as_str()
            .split('/')
            .any(|part| part.len() > COMPONENT_BYTES_MAX)
        {
            return Err(StoreError::invalid(
                "put",
                key,
                format!("a component is longer than {COMPONENT_BYTES_MAX} bytes, the longest file name"),
            ));
        }
        self.refuse_after_failed_sync("put", key)?;
        self.make_directory(key, parent(&self.path(key.as_str()))).await?;
        let temporary = self.path(&format!(
            "{INCOMING}/{:032x}",
            u128::from_le_bytes(self.env.random_bytes())
        ));
        let result = match self.write_temporary(&temporary, parts).await {
            Ok(()) => self.publish(key, &temporary, mode).await,
            Err(error) => Err(failure("put", key, error)),
        };
        if mode == PutMode::Create || result.is_err() {
            // What stays behind is removed when the store is opened next; the object is not affected.
            if let Err(error) = self.disk().remove(&temporary).await
                && !matches!(error, DiskError::NotFound { .. })
            {
                tracing::warn!(%error, "a temporary file stays until the store is opened anew");
            }
        }
        result
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.read(key, 0, None).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.read(key, offset, Some(length)).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        match self.disk().status(&self.path(key.as_str())).await {
            Ok(status) if status.kind == EntryKind::File => Ok(ObjectInfo {
                key: key.clone(),
                size_bytes: status.length_bytes,
                modified_ms: status.modified.as_millis(),
            }),
            Ok(_) | Err(DiskError::NotFound { .. }) => {
                self.check_present("head", key).await?;
                Err(StoreError::not_found(key))
            }
            Err(error) => Err(failure("head", key, error)),
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.refuse_after_failed_sync("delete", key)?;
        let path = self.path(key.as_str());
        match self.disk().remove(&path).await {
            // Absent, perhaps by a removal that is not synced yet: the answer has to be as durable.
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(_) if self.is_directory(key).await => return Ok(()),
            Err(error) => return Err(failure("delete", key, error)),
        }
        self.env.fault_point("store.directory.after_remove").await;
        match self.sync_directory("delete", key, parent(&path)).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        if !ObjectKey::may_start_with(prefix) {
            return Ok(ListPage::default());
        }
        let mut last = after.map_or(String::new(), |key| key.as_str().to_owned());
        let mut page = ListPage::default();
        // Objects may vanish between their listing and their status, then a second look fills the page.
        while page.objects.len() < LIST_PAGE_OBJECTS {
            let wanted = LIST_PAGE_OBJECTS - page.objects.len();
            let keys = self
                .keys_after(prefix, &last, wanted + 1)
                .await
                .map_err(|error| failure("list", &ObjectKey::of_prefix(prefix), error))?;
            page.more = keys.len() > wanted;
            for key in keys.into_iter().take(wanted) {
                last.clone_from(&key);
                match self.head(&ObjectKey::new(&key)).await {
                    Ok(info) => page.objects.push(info),
                    Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if !page.more {
                break;
            }
        }
        if page.objects.is_empty() {
            self.check_present("list", &ObjectKey::of_prefix(prefix)).await?;
        }
        Ok(page)
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The directories that hold the names `path` is made of, the disk's own first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.match_indices('/').map(|(end, _)| &path[..end]);
    std::iter::once("").chain(inner)
}

fn failure(operation: &'static str, key: &ObjectKey, error: DiskError) -> StoreError {
    match error {
        DiskError::NotFound { .. } if operation != "put" => StoreError::not_found(key),
        // A directory or temporary file was taken away under the put: it is made again by the next try.
        DiskError::NotFound { .. }
        | DiskError::AlreadyExists { .. }
        | DiskError::Full { .. }
        | DiskError::Locked { .. }
        | DiskError::Io { .. } => StoreError::unavailable(operation, key, error.to_string()),
    }
}
