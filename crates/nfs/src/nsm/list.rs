//! The durable list of clients that hold locks.
//!
//! A client is on disk before its first lock is granted (level 1: the file is fsynced and its name too), or a restart could
//! not tell it to reclaim. Clients that come at one moment share one write. The file is written beside the old one and
//! renamed over it, so a crash leaves the one or the other, never a mixture. A failed write changes nothing: the client is
//! not on the list and gets no lock, and the next attempt starts a new file.

use super::{
    Host,
    record::{Clients, DamagedRecord, Record},
};
use firn_env::{DiskError, Env, OpenMode};
use firn_session::LockTable;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, mpsc, oneshot};
use tracing::{error, warn};

/// Clients on the list. At ~100 bytes each the file is rewritten in one page-sized write up to some dozen, and stays below
/// half a megabyte.
pub(super) const CLIENTS_MAX: usize = 4096;
/// Of them, behind one address: a client names itself, and must not fill the list with names.
const CLIENTS_PER_ADDRESS_MAX: usize = 256;
/// Changes waiting for the disk; more wait in their callers.
const QUEUE: usize = 256;
/// Longest file read: the longest list.
const FILE_MAX_BYTES: usize = 8 << 20;

/// A client could not be put on the list.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListError {
    /// The disk refused; the list is as it was.
    #[error("the list of lock clients could not be written: {0}")]
    Disk(#[from] DiskError),
    /// More clients than the server keeps.
    #[error("{CLIENTS_MAX} clients hold locks already")]
    Full,
    /// More names behind one address than the server keeps.
    #[error("{CLIENTS_PER_ADDRESS_MAX} clients behind this address hold locks already")]
    AddressFull,
    /// The service is shutting down.
    #[error("the lock service has ended")]
    Ended,
}

enum Change {
    Add(Host),
    Remove(Vec<Host>),
    Restarted(Host, u32),
    Raise,
}

struct Wish {
    change: Change,
    done: oneshot::Sender<Result<(), ListError>>,
}

/// What requests see of the list.
struct View {
    state: u32,
    /// All of them are on disk.
    listed: Clients,
    /// Requests under way of each client, which must stay on the list meanwhile.
    present: BTreeMap<Host, usize>,
}

/// The list of clients.
pub(super) struct ClientList {
    wishes: mpsc::Sender<Wish>,
    view: Arc<Mutex<View>>,
    /// Told when a client is added.
    pub(super) added: Arc<Notify>,
}

/// Keeps a client on the list while a request of its is under way.
pub struct Presence {
    view: Arc<Mutex<View>>,
    host: Host,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut view = self.view.lock().expect("no panic under this lock");
        if let Some(count) = view.present.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                view.present.remove(&self.host);
            }
        }
    }
}

impl ClientList {
    /// Reads the list in `directory` of the disk and begins a new incarnation of the server: the state number rises to the
    /// next odd one, durably. A damaged list is put aside with a warning; its clients cannot be told then. `table` says who
    /// holds locks.
    pub(super) async fn open(env: &Env, directory: &str, table: LockTable) -> Result<Self, DiskError> {
        env.disk().create_directory(directory).await?;
        env.disk().sync_directory("").await?;
        let file = File {
            env: env.clone(),
            directory: directory.to_owned(),
        };
        let mut record = file.read().await?.unwrap_or_else(|| Record {
            // A number that no earlier list of this server can have given to a client that still remembers it.
            state: ((env.wall().as_millis() / 1000) & 0x3fff_ffff) as u32,
            clients: Clients::new(),
        });
        record.state = next_state(record.state);
        file.write(&record).await?;
        let view = Arc::new(Mutex::new(View {
            state: record.state,
            listed: record.clients.clone(),
            present: BTreeMap::new(),
        }));
        let (wishes, queue) = mpsc::channel(QUEUE);
        let added = Arc::new(Notify::new());
        let writer = Writer {
            file,
            record,
            table,
            view: view.clone(),
            added: added.clone(),
        };
        drop(env.spawn("lock client list", writer.serve(queue)));
        Ok(Self { wishes, view, added })
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().expect("no panic under this lock")
    }

    /// Our state number.
    pub(super) fn state(&self) -> u32 {
        self.view().state
    }

    pub(super) fn clients(&self) -> Clients {
        self.view().listed.clone()
    }

    /// Puts a client on the list and keeps it there while the result lives. When this returns, it is on disk.
    pub(super) async fn enter(&self, host: &Host) -> Result<Presence, ListError> {
        let (presence, listed) = {
            let mut view = self.view();
            *view.present.entry(host.clone()).or_default() += 1;
            let presence = Presence {
                view: self.view.clone(),
                host: host.clone(),
            };
            (presence, view.listed.contains_key(host))
        };
        if !listed {
            self.change(Change::Add(host.clone())).await?;
        }
        Ok(presence)
    }

    /// Takes those of `hosts` off the list that hold nothing and have no request under way.
    pub(super) async fn remove(&self, hosts: Vec<Host>) -> Result<(), ListError> {
        self.change(Change::Remove(hosts)).await
    }

    /// Notes the state number a client announced when it restarted.
    pub(super) async fn restarted(&self, host: &Host, state: u32) -> Result<(), ListError> {
        self.change(Change::Restarted(host.clone(), state)).await
    }

    /// Begins a new incarnation while the server runs: clients that are told of it ask again for what they held. Gives its number.
    pub(super) async fn raise(&self) -> Result<u32, ListError> {
        self.change(Change::Raise).await?;
        Ok(self.state())
    }

    async fn change(&self, change: Change) -> Result<(), ListError> {
        let (done, result) = oneshot::channel();
        let wish = Wish { change, done };
        self.wishes.send(wish).await.map_err(|_| ListError::Ended)?;
        result.await.map_err(|_| ListError::Ended)?
    }
}

/// The next odd number, as a positive `int`.
fn next_state(state: u32) -> u32 {
    let next = (state + 1) | 1;
    if next > i32::MAX.cast_unsigned() { 1 } else { next }
}

/// Owns the file: takes all wishes of one moment, writes once, and tells each what came of it.
struct Writer {
    file: File,
    /// What is on disk.
    record: Record,
    table: LockTable,
    view: Arc<Mutex<View>>,
    added: Arc<Notify>,
}

impl Writer {
    async fn serve(mut self, mut queue: mpsc::Receiver<Wish>) {
        let mut group = Vec::new();
        while queue.recv_many(&mut group, QUEUE).await > 0 {
            let mut new = self.record.clone();
            let mut answers = Vec::new();
            for wish in group.drain(..) {
                answers.push((wish.done, self.apply(&mut new, wish.change)));
            }
            let written = self.replace(new).await;
            for (done, applied) in answers {
                // Whoever no longer waits does not need the answer.
                let _ = done.send(applied.and_then(|()| written.clone()));
            }
        }
    }

    fn apply(&self, record: &mut Record, change: Change) -> Result<(), ListError> {
        match change {
            Change::Add(host) => {
                if record.clients.len() >= CLIENTS_MAX && !record.clients.contains_key(&host) {
                    return Err(ListError::Full);
                }
                let of_address = record
                    .clients
                    .keys()
                    .filter(|known| known.address == host.address);
                if of_address.count() >= CLIENTS_PER_ADDRESS_MAX && !record.clients.contains_key(&host) {
                    return Err(ListError::AddressFull);
                }
                record.clients.entry(host).or_insert(0);
            }
            Change::Remove(hosts) => {
                // Out of the view before it is out of the file: a request that comes now queues behind this write.
                let mut view = self.view.lock().expect("no panic under this lock");
                for host in hosts {
                    let used = view.present.contains_key(&host) || self.table.is_used_by(&host.lock_client());
                    if !used {
                        view.listed.remove(&host);
                        record.clients.remove(&host);
                    }
                }
            }
            Change::Restarted(host, state) => {
                if let Some(known) = record.clients.get_mut(&host) {
                    *known = state;
                }
            }
            Change::Raise => record.state = next_state(record.state),
        }
        Ok(())
    }

    async fn replace(&mut self, new: Record) -> Result<(), ListError> {
        if new == self.record {
            return Ok(());
        }
        if let Err(error) = self.file.write(&new).await {
            error!(%error, "the list of lock clients could not be written; no lock is granted to a new client");
            return Err(error.into());
        }
        self.record = new;
        {
            let mut view = self.view.lock().expect("no panic under this lock");
            (view.state, view.listed) = (self.record.state, self.record.clients.clone());
        }
        self.added.notify_one();
        Ok(())
    }
}

struct File {
    env: Env,
    directory: String,
}

impl File {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    async fn read(&self) -> Result<Option<Record>, DiskError> {
        let path = self.path("clients");
        let file = match self.env.disk().open(&path, OpenMode::Read).await {
            Err(DiskError::NotFound { .. }) => return Ok(None),
            opened => opened?,
        };
        let length = usize::try_from(file.length().await?).unwrap_or(usize::MAX);
        let decoded = if length > FILE_MAX_BYTES {
            Err(DamagedRecord::too_long())
        } else {
            Record::decode(&file.read_at(0, length).await?)
        };
        match decoded {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                let aside = self.path("clients.damaged");
                warn!(%error, path, aside, "put aside; clients that held locks cannot be told to reclaim them");
                self.env.disk().rename(&path, &aside).await?;
                Ok(None)
            }
        }
    }

    /// Replaces the file (level 1).
    async fn write(&self, record: &Record) -> Result<(), DiskError> {
        let disk = self.env.disk();
        let (path, new) = (self.path("clients"), self.path("clients.new"));
        // Left over from a crash or a failed write.
        match disk.remove(&new).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        self.env.fault_point("nsm.before_write").await;
        let file = disk.open(&new, OpenMode::CreateNew).await?;
        file.write_at(0, vec![record.encode()]).await?;
        self.env.fault_point("nsm.before_sync").await;
        file.sync_data().await?;
        self.env.fault_point("nsm.before_rename").await;
        disk.rename(&new, &path).await?;
        self.env.fault_point("nsm.before_sync_directory").await;
        disk.sync_directory(&self.directory).await?;
        self.env.fault_point("nsm.after_write").await;
        Ok(())
    }
}
