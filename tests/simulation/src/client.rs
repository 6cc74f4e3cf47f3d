//! Clients: each makes one call after the other, as a task of the machine it talks to would, and tells the judge.

use crate::{
    history::{History, SharedOracle, judge, on},
    operation::Operation,
    oracle::in_call,
    outcome::Outcome,
    system::Running,
    workload::{Known, Workload, caller},
};
use firn_env::{
    TaskEnded,
    sim::{Machine, Seeded},
};
use firn_vfs::{Durability, FileHandle, FileKind, Vfs, VfsError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// No call may take longer, whatever the weather (I7 slows clients, but does not leave them without any answer).
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The same of a call that is answered once it is in the cloud, which may be away for an hour.
const TIMEOUT_IN_CLOUD: Duration = Duration::from_secs(2 * 3600);

/// The clients of one life.
#[derive(Clone)]
pub(crate) struct Work {
    shared: Arc<Shared>,
}

struct Shared {
    calls_left: AtomicU64,
    stopped: AtomicBool,
    clients: AtomicU64,
    /// Those who work beside the clients, and end when these do.
    helpers: AtomicU64,
    changed: Notify,
}

impl Work {
    pub(crate) fn new(calls: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                calls_left: AtomicU64::new(calls),
                stopped: AtomicBool::new(false),
                clients: AtomicU64::new(0),
                helpers: AtomicU64::new(0),
                changed: Notify::new(),
            }),
        }
    }

    pub(crate) fn start(&self, client: Client) {
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        let (work, env) = (self.clone(), client.history.env.clone());
        env.spawn("client", async move {
            client.run(&work).await;
            work.shared.clients.fetch_sub(1, Ordering::Relaxed);
            work.shared.changed.notify_waiters();
        });
    }

    /// Somebody who works beside the clients; everybody who waits for these waits for the helper as well.
    pub(crate) fn help(&self, history: &Arc<History>, help: impl Future<Output = ()> + Send + 'static) {
        self.shared.helpers.fetch_add(1, Ordering::Relaxed);
        let work = self.clone();
        history.env.spawn("helper", async move {
            help.await;
            work.shared.helpers.fetch_sub(1, Ordering::Relaxed);
            work.shared.changed.notify_waiters();
        });
    }

    /// No more calls are begun.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed) || self.shared.clients.load(Ordering::Relaxed) == 0
    }

    /// Until no more calls are begun.
    pub(crate) async fn over(&self) {
        self.until(Self::is_over).await;
    }

    /// Until all clients have ended.
    pub(crate) async fn done(&self) {
        self.until(|work| !work.is_under_way()).await;
    }

    /// Until all clients have ended, which they do at the latest when their machine is down.
    pub(crate) async fn done_or_down(&self, history: &Arc<History>, machine: &Machine) {
        while self.is_under_way() && machine.is_running() {
            // Looks again now and then: a machine that goes down tells nobody.
            let _ = history.env.timeout(Duration::from_secs(1), self.done()).await;
        }
    }

    fn is_under_way(&self) -> bool {
        self.shared.clients.load(Ordering::Relaxed) + self.shared.helpers.load(Ordering::Relaxed) > 0
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            futures::pin_mut!(changed);
            changed.as_mut().enable();
            if reached(self) {
                return;
            }
            changed.await;
        }
    }

    fn next_call(&self) -> bool {
        !self.shared.stopped.load(Ordering::Relaxed)
            && self
                .shared
                .calls_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }
}

/// One client.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) machine: Machine,
    pub(crate) incarnation: u64,
    pub(crate) running: Arc<dyn Running>,
    pub(crate) oracle: SharedOracle,
    pub(crate) workload: Workload,
    pub(crate) pause: Duration,
    pub(crate) random: Seeded,
    pub(crate) history: Arc<History>,
    pub(crate) retained: Vec<FileHandle>,
    /// How durable what it changed is when it is told so.
    pub(crate) durability: Durability,
    /// The disk is made to fail, so that the edge may give up.
    pub(crate) may_fail: bool,
    /// Another edge may take over.
    pub(crate) may_be_fenced: bool,
}

impl Client {
    async fn run(mut self, work: &Work) {
        let env = self.history.env.clone();
        let mut transaction = self.random.draw() as u32;
        while work.next_call() {
            if self.random.chance(3, 4) {
                let pause = self.random.duration(Duration::ZERO, self.pause * 2);
                env.sleep(pause).await;
            }
            if !self.serves() {
                return;
            }
            transaction = transaction.wrapping_add(1);
            match self.call(transaction).await {
                // The machine is down, or its edge is out of order until it is restarted.
                Err(TaskEnded) => return,
                Ok(Err(VfsError::Fenced)) => {
                    if !self.may_be_fenced {
                        self.history.fail("fenced, though nobody took over");
                    }
                    return;
                }
                Ok(Err(VfsError::Io(reason))) => {
                    let stopped = reason.contains("the edge has stopped") || reason.contains("was drained");
                    if !self.may_fail && !work.is_over() && !stopped {
                        self.history
                            .fail(format!("an edge in good health answers EIO: {reason}"));
                    }
                    return;
                }
                // The edge ended meanwhile; nobody is told anything.
                Ok(Err(VfsError::Unanswered)) => return,
                Ok(Err(VfsError::TryAgain { .. })) => {
                    let pause = self.random.duration(Duration::ZERO, Duration::from_secs(2));
                    env.sleep(pause).await;
                }
                Ok(_) => {}
            }
        }
    }

    fn serves(&self) -> bool {
        self.machine.is_running() && self.machine.incarnation() == self.incarnation
    }

    async fn call(&mut self, transaction: u32) -> Result<Outcome, TaskEnded> {
        let known = self.known();
        let operation = self.workload.next(&mut self.random, &known, &self.retained);
        let caller = caller(&mut self.random, self.number, transaction, self.durability);
        let id = judge(&self.oracle).begin(self.number, &caller, &operation);
        let call = {
            let (running, oracle) = (self.running.clone(), self.oracle.clone());
            let (caller, operation) = (caller.clone(), operation.clone());
            in_call(id, async move {
                let outcome = running.perform(&caller, &operation).await;
                judge(&oracle).returned(id, &outcome);
                outcome
            })
        };
        let limit = match self.durability {
            Durability::Memory | Durability::Journal => TIMEOUT,
            Durability::Cloud => TIMEOUT_IN_CLOUD,
        };
        let limited = self
            .history
            .env
            .timeout(limit, on(&self.machine, "call", call))
            .await;
        let outcome = match limited {
            Ok(outcome) => outcome?,
            Err(_) => {
                self.history
                    .fail(format!("no answer within {limit:?}: {operation:?}"));
                return Err(TaskEnded);
            }
        };
        // An answer that left the machine before it went down counts.
        judge(&self.oracle).end(id, &outcome);
        match (&operation, &outcome) {
            (Operation::Retain { file }, Ok(_)) => self.retained.push(*file),
            (Operation::Release { .. }, Ok(_)) => {
                self.retained.remove(0);
            }
            _ => {}
        }
        Ok(outcome)
    }

    /// The root directory, and all other files whose handles some client was told.
    fn known(&self) -> Vec<Known> {
        let oracle = judge(&self.oracle);
        let root = self.running.vfs().root();
        let mut known = vec![Known {
            handle: root,
            kind: FileKind::Directory,
        }];
        for inode in oracle.known_inodes() {
            if inode == root.inode {
                continue;
            }
            let handle = FileHandle { inode, ..root };
            let Some(model) = oracle.model_handle(handle) else {
                continue;
            };
            // Gone files stay known as regular ones, so that stale handles are used at times.
            let kind = oracle.model().kind(model).unwrap_or(FileKind::Regular);
            known.push(Known { handle, kind });
        }
        known
    }
}

/// The kind of a file, without waiting.
trait Kind {
    fn kind(&self, file: FileHandle) -> Option<FileKind>;
}

impl Kind for firn_vfs::MemoryVfs {
    fn kind(&self, file: FileHandle) -> Option<FileKind> {
        use futures::FutureExt;
        let attributes = self.attributes(file).now_or_never()?;
        Some(attributes.ok()?.kind)
    }
}
