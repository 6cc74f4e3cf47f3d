//! NSM, the network status monitor: who must be told when a machine with locks restarts.
//!
//! Locks live in memory, on both sides. When we restart, every client that held some must reclaim them; when a client
//! restarts, its locks must go. So three things happen here:
//!
//! - a client is put on the durable list before its first lock is granted, and taken off once it has held nothing
//!   for a while;
//! - at a start with clients on the list, the lock table opens a grace period in which only reclaims are served, and each
//!   client's status monitor gets SM_NOTIFY with our new state number (it rises by 2 at each start and is odd), upon which
//!   its lock manager reclaims;
//! - SM_NOTIFY from a client releases what it held, if it is believed ([`claim`]).
//!
//! ```text
//! start ─ list empty ──────────────────────────────────────────────> normal
//!   └──── list not empty ─> grace ─ every client has reclaimed ────> normal ─ held nothing for 2 passes ─> off the list
//!                             └───── `grace` has passed ───────────> normal
//! ```
//!
//! The protocol has no message for "that was my last reclaim". A client counts as done when it has reclaimed something and
//! then nothing for `reclaim_quiet`, or when it restarted itself. A client that never answers costs the whole period.

mod claim;
mod list;
mod program;
mod record;
#[cfg(test)]
mod tests;

pub use list::{ListError, Presence};
pub use program::{NsmProgram, StatusChange};
pub use record::{DamagedRecord, LIST_VERSION};

use crate::{
    remote,
    rpc::{Credential, Target},
};
use bytes::Bytes;
use claim::Claims;
use firn_env::{Backoff, DiskError, Env, Monotonic};
use firn_session::{LockClient, LockProtocol, LockTable};
use list::ClientList;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};
use tokio::sync::Semaphore;
use tracing::{info, warn};

/// NSM's program number.
pub const PROGRAM: u32 = 100_024;
/// Its only version.
pub const VERSION: u32 = 1;
pub(crate) const NOTIFY: u32 = 6;

/// Notices sent at once; each may wait some seconds for a client that is off.
const NOTICES: usize = 32;
/// Between notices to a client that does not answer.
const NOTICE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).without_jitter();
/// How often the end of the grace period is looked for.
const GRACE_STEP: Duration = Duration::from_secs(1);

/// A client machine: its address and what it calls itself. Both, since several may be behind one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Where its calls come from, and where it is called back.
    pub address: IpAddr,
    /// Its name for itself (`caller_name`).
    pub name: Bytes,
}

impl Host {
    /// As the lock table knows it.
    pub fn lock_client(&self) -> LockClient {
        let mut name = format!("{} ", self.address).into_bytes();
        name.extend_from_slice(&self.name);
        LockClient {
            protocol: LockProtocol::Nlm,
            name: name.into(),
        }
    }

    /// Whether `name` is its name; the domain may be missing in either.
    fn is_called(&self, name: &[u8]) -> bool {
        let short = |name: &[u8]| {
            let end = name.iter().position(|byte| *byte == b'.');
            name[..end.unwrap_or(name.len())].to_ascii_lowercase()
        };
        short(&self.name) == short(name)
    }
}

/// How clients are kept and told.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// Where on the disk the list is kept; nobody else writes there.
    pub directory: String,
    /// Our name as clients may have mounted it. They also know us by our address, so a wrong one does no harm on Linux.
    pub name: String,
    /// How long clients have to reclaim. Linux begins to reclaim within a second of the notice; the rest is for clients
    /// that are hard to reach. All servers use 45 to 90 s.
    pub grace: Duration,
    /// A client that has reclaimed something and then nothing for so long is done. Linux sends reclaims one after the
    /// other without a pause; this is twice what it waits before it sends a lost call again.
    pub reclaim_quiet: Duration,
    /// How long a client that does not answer is sent notices (Linux's `sm-notify` has 15 minutes).
    pub notify_for: Duration,
    /// A client that held nothing at two looks so far apart is taken off the list.
    pub idle_pass: Duration,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            directory: "nsm".into(),
            name: "firn".into(),
            grace: Duration::from_secs(45),
            reclaim_quiet: Duration::from_secs(10),
            notify_for: Duration::from_secs(15 * 60),
            idle_pass: Duration::from_secs(60),
        }
    }
}

/// What the status page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MonitorStatus {
    /// Clients that would be told of a restart.
    pub clients: usize,
    /// Clients that were told of this start.
    pub notified: usize,
    /// Clients that have not answered the notice yet.
    pub unanswered: usize,
    /// Whether only reclaims are served.
    pub in_grace: bool,
}

/// How far a client on the list at our start is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// Nothing was heard.
    Waiting,
    /// It reclaims; the last time was then.
    Reclaiming(Monotonic),
    /// It restarted itself and has nothing to reclaim.
    Restarted,
}

/// The status monitor; see the module's header.
pub struct Monitor {
    env: Env,
    config: MonitorConfig,
    table: LockTable,
    list: ClientList,
    /// Clients on the list at our start.
    recovering: Mutex<BTreeMap<Host, Recovery>>,
    notices: Mutex<(usize, usize)>,
    claims: Claims,
}

impl Monitor {
    /// Reads the list, begins a new incarnation, and puts `table` into grace if clients must reclaim.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn start(env: &Env, table: LockTable, config: MonitorConfig) -> Result<Arc<Self>, DiskError> {
        let list = ClientList::open(env, &config.directory, table.clone()).await?;
        let clients = list.clients();
        if !clients.is_empty() {
            table.start_grace();
        }
        let recovering = clients
            .into_keys()
            .map(|host| (host, Recovery::Waiting))
            .collect();
        Ok(Arc::new(Self {
            env: env.clone(),
            config,
            table,
            list,
            recovering: Mutex::new(recovering),
            notices: Mutex::new((0, 0)),
            claims: Claims::default(),
        }))
    }

    /// Tells the clients that we are back, and begins to count the grace period. To be called once clients can reach the
    /// lock manager, since they come at once.
    pub fn announce(self: &Arc<Self>) {
        let recovering: Vec<Host> = self.recovering().keys().cloned().collect();
        let addresses: BTreeSet<IpAddr> = recovering.iter().map(|host| host.address).collect();
        if !addresses.is_empty() {
            let seconds = self.config.grace.as_secs();
            info!(
                clients = addresses.len(),
                seconds, "waiting for clients to reclaim their locks"
            );
        }
        self.notices.lock().expect("no panic under this lock").1 = addresses.len();
        self.notify(addresses);
        let background = follow(self.env.clone(), Arc::downgrade(self), self.config.clone());
        drop(self.env.spawn("lock client monitor", background));
    }

    /// Tells clients that locks of theirs were broken, in the only words there are: that we restarted. They ask again for all that they held; what was
    /// not broken they are granted, and of the rest they hear that it is lost.
    ///
    /// # Errors
    /// If the new state number cannot be written; nobody is told then.
    pub async fn locks_broken(self: &Arc<Self>, clients: &BTreeSet<LockClient>) -> Result<(), ListError> {
        let hosts = self.list.clients().into_keys();
        let addresses: BTreeSet<IpAddr> = hosts
            .filter(|host| clients.contains(&host.lock_client()))
            .map(|host| host.address)
            .collect();
        if !addresses.is_empty() {
            self.list.raise().await?;
            self.notices.lock().expect("no panic under this lock").1 += addresses.len();
            self.notify(addresses);
        }
        Ok(())
    }

    fn notify(self: &Arc<Self>, addresses: BTreeSet<IpAddr>) {
        let slots = Arc::new(Semaphore::new(NOTICES));
        for address in addresses {
            let notice = Notice {
                env: self.env.clone(),
                address,
                change: StatusChange {
                    name: Bytes::copy_from_slice(self.config.name.as_bytes()).into(),
                    state: self.list.state().cast_signed(),
                },
                give_up: self.env.now().after(self.config.notify_for),
            };
            let (monitor, slots) = (Arc::downgrade(self), slots.clone());
            drop(self.env.spawn("lock restart notice", async move {
                notice.deliver(slots, monitor).await;
            }));
        }
    }

    /// Puts a client on the durable list, and keeps it there while the result lives: until its lock is in the table.
    ///
    /// # Errors
    /// If it cannot be; then it must get no lock.
    pub async fn enter(&self, host: &Host) -> Result<Presence, ListError> {
        self.list.enter(host).await
    }

    /// Notes that a client reclaimed a lock.
    pub fn reclaimed(&self, host: &Host) {
        if let Some(recovery) = self.recovering().get_mut(host) {
            *recovery = Recovery::Reclaiming(self.env.now());
        }
    }

    /// A client that calls itself `name` says from `address` that it restarted, and now has state number `state`: releases
    /// what it held. The same number again is the same restart.
    ///
    /// An unknown name counts for the one client of that address, if there is just one; from another address than its own
    /// nobody can release a client's locks.
    pub async fn client_restarted(&self, address: IpAddr, name: &[u8], state: i32) {
        let state = state.cast_unsigned();
        for host in self.affected(address, name, state) {
            info!(%address, name = %String::from_utf8_lossy(name), "client restarted; its locks are released");
            self.table.release_client(&host.lock_client());
            if let Some(recovery) = self.recovering().get_mut(&host) {
                *recovery = Recovery::Restarted;
            }
            // If this is not written, a repeated notice releases the client's locks once more; nothing else depends on it.
            if let Err(error) = self.list.restarted(&host, state).await {
                warn!(%error, "a client's restart could not be noted");
            }
        }
    }

    /// The clients that a notice is about which has not been heard before.
    fn affected(&self, address: IpAddr, name: &[u8], state: u32) -> Vec<Host> {
        let mut at_address = self.list.clients();
        at_address.retain(|host, _| host.address == address);
        let named = at_address.keys().any(|host| host.is_called(name));
        let only_one = at_address.len() == 1;
        at_address
            .into_iter()
            .filter(|(host, known)| *known != state && (host.is_called(name) || !named && only_one))
            .map(|(host, _)| host)
            .collect()
    }

    /// Our state number.
    pub fn state(&self) -> i32 {
        self.list.state().cast_signed()
    }

    /// The clients that would be told of a restart.
    pub fn clients(&self) -> Vec<Host> {
        self.list.clients().into_keys().collect()
    }

    /// Counts.
    pub fn status(&self) -> MonitorStatus {
        let (notified, unanswered) = *self.notices.lock().expect("no panic under this lock");
        MonitorStatus {
            clients: self.list.clients().len(),
            notified,
            unanswered,
            in_grace: self.table.in_grace(),
        }
    }

    fn recovering(&self) -> std::sync::MutexGuard<'_, BTreeMap<Host, Recovery>> {
        self.recovering.lock().expect("no panic under this lock")
    }

    fn all_have_reclaimed(&self) -> bool {
        let now = self.env.now();
        self.recovering().values().all(|recovery| match recovery {
            Recovery::Waiting => false,
            Recovery::Reclaiming(last) => now.since(*last) >= self.config.reclaim_quiet,
            Recovery::Restarted => true,
        })
    }

    /// Takes clients off the list that hold nothing and held nothing at the last look; returns those that hold nothing now.
    async fn prune(&self, idle_before: &BTreeSet<Host>) -> BTreeSet<Host> {
        let listed: BTreeSet<Host> = self.list.clients().into_keys().collect();
        self.claims.keep(&listed);
        let idle: BTreeSet<Host> = listed
            .into_iter()
            .filter(|host| !self.table.is_used_by(&host.lock_client()))
            .collect();
        let gone: Vec<Host> = idle.intersection(idle_before).cloned().collect();
        if !gone.is_empty()
            && let Err(error) = self.list.remove(gone).await
        {
            warn!(%error, "clients without locks stay on the list; they are told of the next restart for nothing");
        }
        idle
    }
}

/// Ends the grace period, then keeps the list short; ends with the monitor.
async fn follow(env: Env, monitor: Weak<Monitor>, config: MonitorConfig) {
    let end = env.now().after(config.grace);
    loop {
        let Some(monitor) = monitor.upgrade() else {
            return;
        };
        let reclaimed = monitor.all_have_reclaimed();
        if reclaimed || env.now() >= end {
            if monitor.table.in_grace() {
                info!(reclaimed, "locks are granted again");
            }
            monitor.table.end_grace();
            break;
        }
        drop(monitor);
        env.sleep(GRACE_STEP).await;
    }
    let mut idle = BTreeSet::new();
    loop {
        let Some(present) = monitor.upgrade() else {
            return;
        };
        idle = present.prune(&idle).await;
        let added = present.list.added.clone();
        let nobody = present.list.clients().is_empty();
        drop(present);
        if nobody {
            // An idle server has nothing to look after.
            added.notified().await;
        }
        env.sleep(config.idle_pass).await;
    }
}

/// SM_NOTIFY to one client.
struct Notice {
    env: Env,
    address: IpAddr,
    change: StatusChange,
    give_up: Monotonic,
}

impl Notice {
    async fn deliver(self, slots: Arc<Semaphore>, monitor: Weak<Monitor>) {
        let target = Target {
            program: PROGRAM,
            version: VERSION,
            credential: Credential::None,
        };
        let mut failures = 0;
        loop {
            let slot = slots.acquire().await;
            let called = remote::call(&self.env, self.address, &target, NOTIFY, &self.change).await;
            drop(slot);
            let Err(error) = called else {
                break;
            };
            failures += 1;
            let pause = NOTICE_BACKOFF.pause(&self.env, failures);
            if self.env.now().after(pause) >= self.give_up || monitor.strong_count() == 0 {
                warn!(client = %self.address, %error, "could not be told that the server restarted; its locks are lost");
                return;
            }
            self.env.sleep(pause).await;
        }
        if let Some(monitor) = monitor.upgrade() {
            let mut notices = monitor.notices.lock().expect("no panic under this lock");
            notices.0 += 1;
            notices.1 -= 1;
        }
    }
}
