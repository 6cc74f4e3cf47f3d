//! [`Changes`]: notification of changes to those who cache, so that a cache need not ask.
//!
//! Whoever caches (a mount's kernel; later an SMB client's notification) is a [`Watcher`] with a bounded queue. A change is
//! announced by the protocol through which it came, named by an [`Origin`], to every watcher but those of the same origin,
//! which know their own work. [`Changes::announce`] completes when the watchers have dropped what they cached, so that the
//! client that made the change is answered only when nobody can read the old state any more.
//!
//! ```text
//!             queue has room          queue is full
//! coherent ─> deliver and wait   |   drop the queue, say "rescan", wait for that
//! stalled  ─> deliver, no wait   |   the same, no wait         stalled: did not acknowledge within the limit;
//!                                                              coherent again at its next acknowledgement
//! ```
//!
//! So a watcher that hangs delays each other client once, not at each call, and costs no memory beyond its queue.

use firn_env::{Env, Wait};
use firn_vfs::{FileHandle, Name};
use futures::future::join_all;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Changes that wait for one watcher. At some hundred bytes each it stays under a mebibyte.
const QUEUE_MAX: usize = 4096;

/// How long a change waits for a watcher. Dropping a page takes microseconds; a kernel that has to write a dirty page back
/// first takes as long as that write.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(1);

/// Through what a change came: one value for all of NFS, one for each mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(pub u32);

impl Origin {
    /// All clients of NFS, who are told nothing: they ask.
    pub const NFS: Self = Self(0);
    /// Other edges of the volume.
    pub const ELSEWHERE: Self = Self(u32::MAX);
}

/// What is no longer as it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// What a name in a directory stands for.
    Entry {
        /// The directory.
        directory: FileHandle,
        /// The name.
        name: Name,
    },
    /// Attributes, extended attributes or access control lists of a file.
    Attributes(FileHandle),
    /// Content of a file, and its attributes.
    Content(FileHandle),
    /// Anything of a file or directory, of the latter its names too, by another edge: nobody here knows what.
    Elsewhere(FileHandle),
}

impl ChangeKind {
    /// The file or directory whose cached state is meant.
    pub fn file(&self) -> FileHandle {
        match self {
            Self::Entry { directory, .. } => *directory,
            Self::Attributes(file) | Self::Content(file) | Self::Elsewhere(file) => *file,
        }
    }
}

/// All that one call changed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Change {
    /// Each thing once.
    pub parts: Vec<ChangeKind>,
}

/// What a watcher gets. Dropping it is the acknowledgement: what it names is no longer cached.
#[derive(Debug)]
pub enum Delivery {
    /// Drop what is cached of this.
    Change(Change, Acknowledgement),
    /// More changed than the queue holds: drop everything.
    Rescan(Acknowledgement),
}

/// Held by a watcher while it drops what it cached.
#[derive(Debug)]
pub struct Acknowledgement {
    waiting: Vec<oneshot::Sender<()>>,
    queue: Weak<Queue>,
}

impl Drop for Acknowledgement {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.state().stalled = false;
        }
        for waiting in self.waiting.drain(..) {
            // Whoever waited may have given up.
            let _ = waiting.send(());
        }
    }
}

/// Counts of one watcher, for the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WatchCounts {
    /// Changes delivered.
    pub delivered: u64,
    /// Times it had to drop everything.
    pub rescans: u64,
    /// Times a change was answered before it had acknowledged.
    pub late: u64,
    /// Whether it is not waited for now.
    pub stalled: bool,
}

#[derive(Default)]
struct QueueState {
    deliveries: VecDeque<(Change, Vec<oneshot::Sender<()>>)>,
    /// Those who wait for a rescan that is due; the queue is empty then.
    rescan: Option<Vec<oneshot::Sender<()>>>,
    stalled: bool,
    delivered: u64,
    rescans: u64,
    late: u64,
    closed: bool,
}

type Interest = Box<dyn Fn(FileHandle) -> bool + Send + Sync>;

struct Queue {
    origin: Origin,
    limit: usize,
    interest: Interest,
    state: Mutex<QueueState>,
    news: Notify,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Queue")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Replaces what is in the queue by a rescan; the receiver completes at its acknowledgement. `None`: nobody has to wait.
    fn deliver_rescan(&self) -> Option<oneshot::Receiver<()>> {
        let (sender, acknowledged) = oneshot::channel();
        let mut state = self.state();
        if state.closed {
            return None;
        }
        let waits = !state.stalled;
        let mut waiting: Vec<_> = state.rescan.take().unwrap_or_default();
        waiting.extend(state.deliveries.drain(..).flat_map(|(_, waiting)| waiting));
        waiting.extend(waits.then_some(sender));
        state.rescan = Some(waiting);
        state.rescans += 1;
        drop(state);
        self.news.notify_one();
        waits.then_some(acknowledged)
    }

    /// Puts a change in the queue; the receiver completes at its acknowledgement. `None`: nobody has to wait.
    fn deliver(&self, change: Change) -> Option<oneshot::Receiver<()>> {
        let (sender, acknowledged) = oneshot::channel();
        let mut state = self.state();
        if state.closed {
            return None;
        }
        let waits = !state.stalled;
        // A waiter is kept only if it waits, so that the queue of one that is stalled has a bound as well.
        let waiter = waits.then_some(sender);
        if let Some(waiting) = &mut state.rescan {
            waiting.extend(waiter);
        } else if state.deliveries.len() < self.limit {
            state.deliveries.push_back((change, waiter.into_iter().collect()));
        } else {
            let mut waiting: Vec<_> = state
                .deliveries
                .drain(..)
                .flat_map(|(_, waiting)| waiting)
                .collect();
            waiting.extend(waiter);
            if !firn_env::planted!("session.overflow_is_silent") {
                state.rescan = Some(waiting);
            }
            state.rescans += 1;
        }
        drop(state);
        self.news.notify_one();
        waits.then_some(acknowledged)
    }
}

/// A receiver of changes. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<Queue>,
}

impl Watcher {
    /// The next delivery. Cancel-safe.
    pub async fn next(&self) -> Delivery {
        loop {
            let news = self.queue.news.notified();
            if let Some(delivery) = self.take() {
                return delivery;
            }
            news.await;
        }
    }

    fn take(&self) -> Option<Delivery> {
        let mut state = self.queue.state();
        let acknowledgement = |waiting| Acknowledgement {
            waiting,
            queue: Arc::downgrade(&self.queue),
        };
        if let Some(waiting) = state.rescan.take() {
            return Some(Delivery::Rescan(acknowledgement(waiting)));
        }
        let (change, waiting) = state.deliveries.pop_front()?;
        state.delivered += 1;
        Some(Delivery::Change(change, acknowledgement(waiting)))
    }

    /// Counts.
    pub fn counts(&self) -> WatchCounts {
        let state = self.queue.state();
        WatchCounts {
            delivered: state.delivered,
            rescans: state.rescans,
            late: state.late,
            stalled: state.stalled,
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.closed = true;
        // Whoever waits for it waits no longer.
        state.deliveries.clear();
        state.rescan = None;
    }
}

/// Who watches a volume; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Changes {
    env: Env,
    watchers: Arc<Mutex<Vec<Weak<Queue>>>>,
    acknowledge_within: Duration,
}

impl Changes {
    /// Nobody watches yet.
    pub fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            watchers: Arc::default(),
            acknowledge_within: ACKNOWLEDGE_WITHIN,
        }
    }

    /// Watches what comes from any other origin. `interest` says at once and without waiting whether anything of a file or
    /// directory is cached; changes of others are not delivered.
    pub fn watch(
        &self,
        origin: Origin,
        interest: impl Fn(FileHandle) -> bool + Send + Sync + 'static,
    ) -> Watcher {
        self.watch_with_queue(origin, QUEUE_MAX, interest)
    }

    /// The same with a queue of another length.
    pub(crate) fn watch_with_queue(
        &self,
        origin: Origin,
        limit: usize,
        interest: impl Fn(FileHandle) -> bool + Send + Sync + 'static,
    ) -> Watcher {
        let queue = Arc::new(Queue {
            origin,
            limit,
            interest: Box::new(interest),
            state: Mutex::default(),
            news: Notify::new(),
        });
        let mut watchers = self.watchers();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(Arc::downgrade(&queue));
        Watcher { queue }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Weak<Queue>>> {
        self.watchers.lock().expect("no panic under this lock")
    }

    fn of_others(&self, origin: Origin) -> Vec<Arc<Queue>> {
        let others = |queue: &Arc<Queue>| queue.origin != origin;
        self.watchers()
            .iter()
            .filter_map(Weak::upgrade)
            .filter(others)
            .collect()
    }

    /// Whether anybody but `origin` caches something of `file`.
    pub fn is_watched(&self, origin: Origin, file: FileHandle) -> bool {
        self.of_others(origin).iter().any(|queue| (queue.interest)(file))
    }

    /// Puts `change` into the queues of all who have an interest in a part of it, and returns what they acknowledge by.
    pub(crate) fn send(&self, origin: Origin, change: &Change) -> Vec<Sent> {
        let mut sent = Vec::new();
        for queue in self.of_others(origin) {
            let mut parts = change.parts.clone();
            parts.retain(|part| (queue.interest)(part.file()));
            if parts.is_empty() {
                continue;
            }
            if let Some(acknowledged) = queue.deliver(Change { parts }) {
                sent.push(Sent { queue, acknowledged });
            }
        }
        sent
    }

    /// Tells everybody but `origin` of `change`, and waits until they have dropped what they cached of it, a second at most.
    pub async fn announce(&self, origin: Origin, change: &Change) {
        self.acknowledged(self.send(origin, change)).await;
    }

    /// Tells everybody that other edges changed these files, and waits until they have dropped what they cached of them, a second at most.
    pub async fn announce_elsewhere(&self, files: impl IntoIterator<Item = FileHandle>) {
        let parts = files.into_iter().map(ChangeKind::Elsewhere).collect();
        self.announce(Origin::ELSEWHERE, &Change { parts }).await;
    }

    /// Has all watchers drop everything, and waits for it, a second at most: somebody changed the volume beside all protocols.
    pub async fn announce_unknown(&self) {
        let queues: Vec<_> = self.watchers().iter().filter_map(Weak::upgrade).collect();
        let rescan = |queue: Arc<Queue>| {
            let acknowledged = queue.deliver_rescan()?;
            Some(Sent { queue, acknowledged })
        };
        self.acknowledged(queues.into_iter().filter_map(rescan).collect())
            .await;
    }

    /// Waits for acknowledgements; who is late is not waited for again before it has acknowledged something.
    pub(crate) async fn acknowledged(&self, sent: Vec<Sent>) {
        if sent.is_empty() {
            return;
        }
        let _waiting = self.env.waits_for(Wait::OtherClients);
        let waits = sent.into_iter().map(|Sent { queue, acknowledged }| async move {
            if self
                .env
                .timeout(self.acknowledge_within, acknowledged)
                .await
                .is_err()
            {
                let mut state = queue.state();
                state.stalled = true;
                state.late += 1;
            }
        });
        join_all(waits).await;
    }
}

/// A change in the queue of a watcher.
pub(crate) struct Sent {
    queue: Arc<Queue>,
    acknowledged: oneshot::Receiver<()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;
    use futures::FutureExt;

    fn file(inode: u64) -> FileHandle {
        FileHandle {
            file_system: 1,
            inode,
        }
    }

    fn content(inode: u64) -> Change {
        Change {
            parts: vec![ChangeKind::Content(file(inode))],
        }
    }

    #[test]
    fn a_watcher_hears_what_others_did_and_what_it_cares_for() {
        let simulation = Simulation::new(1);
        let changes = Changes::new(&simulation.env());
        let watcher = changes.watch(Origin(1), |file| file.inode < 10);
        assert!(changes.is_watched(Origin::NFS, file(3)));
        assert!(!changes.is_watched(Origin::NFS, file(30)));
        assert!(!changes.is_watched(Origin(1), file(3)), "its own work");
        assert!(changes.send(Origin(1), &content(3)).is_empty());
        assert!(changes.send(Origin::NFS, &content(30)).is_empty());
        assert_eq!(changes.send(Origin::NFS, &content(3)).len(), 1);
        assert!(
            matches!(watcher.next().now_or_never(), Some(Delivery::Change(change, _)) if change == content(3))
        );
        assert!(watcher.next().now_or_never().is_none());
    }

    #[test]
    fn a_full_queue_says_rescan_and_holds_no_more_than_its_limit() {
        let simulation = Simulation::new(1);
        let changes = Changes::new(&simulation.env());
        let watcher = changes.watch_with_queue(Origin(1), 3, |_| true);
        let mut sent = Vec::new();
        for inode in 0..10 {
            sent.extend(changes.send(Origin::NFS, &content(inode)));
        }
        let Some(Delivery::Rescan(acknowledgement)) = watcher.next().now_or_never() else {
            panic!("a rescan is due");
        };
        assert!(watcher.next().now_or_never().is_none(), "and nothing else");
        drop(acknowledgement);
        assert_eq!(sent.len(), 10);
        for sent in sent {
            assert_eq!(sent.acknowledged.now_or_never(), Some(Ok(())), "by the rescan");
        }
        assert_eq!(watcher.counts().rescans, 1);
    }

    #[test]
    fn a_change_beside_all_protocols_drops_everything_whatever_is_in_the_queue() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        let changes = Changes::new(&env);
        let watcher = changes.watch(Origin(1), |_| false);
        let hub = changes.clone();
        let rescan = async move {
            let follow = env.spawn("follow", async move {
                matches!(watcher.next().await, Delivery::Rescan(_))
            });
            hub.announce_unknown().await;
            follow.await
        };
        assert_eq!(simulation.run(rescan).expect("it ends"), Ok(true));
        assert!(
            simulation.elapsed() < ACKNOWLEDGE_WITHIN,
            "acknowledged, not given up"
        );
    }

    #[test]
    fn a_watcher_that_hangs_is_waited_for_once() {
        let simulation = Simulation::new(1);
        let changes = Changes::new(&simulation.env());
        let watcher = changes.watch(Origin(1), |_| true);
        let hub = changes.clone();
        let announce = async move {
            for inode in 0..5 {
                hub.announce(Origin::NFS, &content(inode)).await;
            }
        };
        simulation.run(announce).expect("it ends");
        assert_eq!(simulation.elapsed().as_secs(), ACKNOWLEDGE_WITHIN.as_secs());
        assert!(watcher.counts().stalled);
        assert_eq!(watcher.counts().late, 1);
        for _ in 0..5 {
            assert!(watcher.next().now_or_never().is_some());
        }
        assert!(!watcher.counts().stalled, "it answers again");
    }

    #[test]
    fn nobody_waits_for_a_watcher_that_is_gone() {
        let simulation = Simulation::new(1);
        let changes = Changes::new(&simulation.env());
        let watcher = changes.watch(Origin(1), |_| true);
        let sent = changes.send(Origin::NFS, &content(1));
        drop(watcher);
        for sent in sent {
            assert!(sent.acknowledged.now_or_never().is_some());
        }
        assert!(changes.send(Origin::NFS, &content(1)).is_empty());
    }
}
