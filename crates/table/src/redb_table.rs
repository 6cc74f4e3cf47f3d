//! The embedded table: one redb file on the local disk, for an edge that works alone.
//!
//! redb is a copy-on-write B-tree with checksummed pages: a transaction becomes visible and durable by one fsynced switch
//! of the root, so a crash leaves the state before or after it. What [`Table::transact`] acknowledged is durable at level 1
//! (the local disk). Writers queue for redb's single write transaction; readers see the last committed state.
//!
//! ```text
//! "format"  name -> number                          ("version": the layout below is 1)
//! "items"   (partition, sort) -> (version, value)
//! ```
//!
//! redb itself locks the file, so a second process is refused at once. It verifies checksums only after an unclean stop;
//! the file of roots is small and everything hangs on it, so every open verifies all of it.

use crate::{
    Applied, Item, ItemKey, ItemVersion, Page, Table, TableError, Write, limits,
    page::{self, PageBuilder},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use redb::{Database, ReadableDatabase, ReadableTable, StorageError, TableDefinition};
use std::{
    fs::{File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::Semaphore;

/// The layout above.
const FORMAT_VERSION: u64 = 1;
/// A table of roots is a few hundred KiB; this bounds memory, it does not bound the table.
const CACHE_BYTES: usize = 16 << 20;

const FORMAT: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const ITEMS: TableDefinition<'_, (&str, &str), (u64, &[u8])> = TableDefinition::new("items");

/// The embedded table; cheap to clone.
#[derive(Clone)]
pub struct RedbTable {
    env: Env,
    file: Arc<OpenFile>,
    /// redb lets one write transaction run and blocks the threads of all others; here they wait without a thread.
    writers: Arc<Semaphore>,
}

struct OpenFile {
    path: PathBuf,
    database: Database,
}

/// What goes wrong inside a blocking call, before it is told with the path.
enum Trouble {
    Table(TableError),
    Storage(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Storage(error.into())
    }
}

impl RedbTable {
    /// Opens the table, creating its file if there is none (its directory must exist), and verifies every page.
    ///
    /// # Errors
    /// [`TableError::Refused`] if another process has it open, if it is damaged or is no table of this layout, or if the
    /// file system does not allow it.
    pub async fn open(env: &Env, path: &Path) -> Result<Self, TableError> {
        let path = path.to_owned();
        let file = env
            .compute(move || guarded(&path.clone(), move || open_file(path)))
            .await?;
        Ok(Self {
            env: env.clone(),
            file: Arc::new(file),
            writers: Arc::new(Semaphore::new(1)),
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, TableError> {
        let file = self.file.clone();
        self.env
            .compute(move || guarded(&file.path, || work(&file.database)))
            .await
    }
}

/// Turns errors into words with the path, and a panic too: redb asserts what only a damaged file can break.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, TableError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Trouble::Table(error))) => Err(error),
        Ok(Err(Trouble::Storage(error))) => Err(describe(path, &error)),
        Err(_) => Err(damaged(path, "it contradicts itself")),
    }
}

fn open_file(path: PathBuf) -> Result<OpenFile, Trouble> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(StorageError::Io)?;
    let was_empty = file.metadata().map_err(StorageError::Io)?.len() == 0;
    let mut database = redb::Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_file(file)?;
    if was_empty {
        // The new name must survive a power cut as surely as what is stored under it.
        sync_directory_of(&path).map_err(StorageError::Io)?;
    } else if !database.check_integrity()? {
        return Err(Trouble::Table(damaged(
            &path,
            "some pages failed their checksum and were rebuilt, perhaps from an older state",
        )));
    }
    check_format(&path, &database)?;
    Ok(OpenFile { path, database })
}

fn check_format(path: &Path, database: &Database) -> Result<(), Trouble> {
    let transaction = database.begin_write()?;
    let found = {
        let mut format = transaction.open_table(FORMAT)?;
        let found = format.get("version")?.map(|version| version.value());
        if found.is_none() {
            format.insert("version", FORMAT_VERSION)?;
        }
        transaction.open_table(ITEMS)?;
        found
    };
    match found {
        None => Ok(transaction.commit()?),
        Some(FORMAT_VERSION) => Ok(transaction.abort()?),
        Some(other) => Err(Trouble::Table(TableError::Refused(format!(
            "{} has layout {other}; this build reads layout {FORMAT_VERSION}",
            path.display()
        )))),
    }
}

fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

fn damaged(path: &Path, how: &str) -> TableError {
    TableError::Refused(format!(
        "{} is damaged: {how}; restore it from a backup, or make it anew and accept the newest root that the edge remembers",
        path.display()
    ))
}

fn describe(path: &Path, error: &redb::Error) -> TableError {
    match error {
        redb::Error::DatabaseAlreadyOpen => TableError::Refused(format!(
            "{} is in use by another process; stop that one, or give this one a table of its own",
            path.display()
        )),
        redb::Error::Corrupted(how) => damaged(path, how),
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            damaged(path, &format!("it is not a table file ({error})"))
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            damaged(path, "it is cut short")
        }
        redb::Error::UpgradeRequired(version) => TableError::Refused(format!(
            "{} was written by an older engine (file format {version}) that this build cannot read",
            path.display()
        )),
        redb::Error::Io(error)
            if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            TableError::Unavailable(format!("the disk of {} is full", path.display()))
        }
        redb::Error::Io(error) => TableError::Refused(format!("{}: {error}", path.display())),
        // After a failed write redb refuses everything until the file is opened again.
        other => TableError::Refused(format!("{}: {other}", path.display())),
    }
}

#[async_trait]
impl Table for RedbTable {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        limits::check_key(key)?;
        let key = key.clone();
        self.run(move |database| {
            let items = database.begin_read()?.open_table(ITEMS)?;
            let found = items.get((key.partition.as_str(), key.sort.as_str()))?;
            Ok(found.map(|stored| {
                let (version, value) = stored.value();
                Item {
                    version: ItemVersion(version),
                    value: Bytes::copy_from_slice(value),
                    key,
                }
            }))
        })
        .await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        let (partition, prefix) = (partition.to_owned(), prefix.to_owned());
        let after = after.map(str::to_owned);
        self.run(move |database| {
            let items = database.begin_read()?.open_table(ITEMS)?;
            let start = page::start(&prefix, after.as_deref()).map(|sort| (partition.as_str(), sort));
            let mut builder = PageBuilder::new(limit);
            for entry in items.range::<(&str, &str)>((start, std::ops::Bound::Unbounded))? {
                let (key, stored) = entry?;
                let (found_partition, sort) = key.value();
                if found_partition != partition || !sort.starts_with(&prefix) {
                    break;
                }
                let (version, value) = stored.value();
                let item = Item {
                    key: ItemKey::new(found_partition, sort),
                    version: ItemVersion(version),
                    value: Bytes::copy_from_slice(value),
                };
                if !builder.push(item) {
                    break;
                }
            }
            Ok(builder.finish())
        })
        .await
    }

    /// Cancel-safe: dropped before its turn it never happens, dropped later it happens all the same.
    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        limits::check_transaction(&writes)?;
        let permit = self
            .writers
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        // Random, not counted: a restored copy of the file must not repeat a version either.
        let versions: Vec<_> = writes
            .iter()
            .map(|write| matches!(write, Write::Put { .. }).then(|| ItemVersion(self.env.random_u64())))
            .collect();
        self.run(move |database| {
            let _permit = permit;
            let mut transaction = database.begin_write()?;
            transaction.set_durability(redb::Durability::Immediate)?;
            let mut items = transaction.open_table(ITEMS)?;
            for (index, write) in writes.iter().enumerate() {
                let key = write.key();
                let current = items
                    .get((key.partition.as_str(), key.sort.as_str()))?
                    .map(|stored| ItemVersion(stored.value().0));
                if !write.condition().holds(current) {
                    return Err(Trouble::Table(TableError::ConditionFailed { index }));
                }
            }
            for (write, version) in writes.iter().zip(&versions) {
                let key = write.key();
                let key = (key.partition.as_str(), key.sort.as_str());
                match (write, version) {
                    (Write::Put { value, .. }, Some(version)) => {
                        items.insert(key, (version.0, &value[..]))?;
                    }
                    (Write::Delete { .. }, _) => {
                        items.remove(key)?;
                    }
                    (Write::Check { .. } | Write::Put { .. }, _) => {}
                }
            }
            drop(items);
            transaction.commit()?;
            Ok(versions)
        })
        .await
    }
}
