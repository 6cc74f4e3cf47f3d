//! The gate: what each call passes on its way to the term at hand, and where it waits while there is none that may answer it.
//!
//! | at hand | a read | a change |
//! |---|---|---|
//! | nothing (between two terms) | waits | waits, and is noted |
//! | a follower's term | is let in | waits, and is noted: the volume is wanted |
//! | an owner's term, its lease holds | is let in | is let in, once those who cache know what the term began with |
//! | an owner's term, its lease has lapsed | waits | waits |
//! | whatever, while the anchor refuses this edge | is refused, by the follower itself if it is one | is refused; the anchor is asked on as if the volume were wanted |
//!
//! A term is closed before it ends: nobody comes in any more, and who is in gets an answer.

use super::{MemberOptions, lease::Lease};
use crate::{config::VolumeConfig, volume::Volume};
use firn_env::{Env, Monotonic};
use firn_vfs::{Vfs, VfsError};
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How long the volume stays wanted after a client has waited for it: a client that is told to try again comes back after some seconds.
const WANTED_FOR: Duration = Duration::from_secs(30);
/// Who waits looks again so often: a lease may have lapsed in silence.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long calls under way may take before a term ends all the same.
const CALLS_END_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks at them.
const CALLS_LOOK: Duration = Duration::from_millis(2);

/// While the anchor refuses this edge.
const DENIED: VfsError = VfsError::AccessDenied;

const WAITS: VfsError = VfsError::TryAgain {
    reason: "another office is changing the volume, and gives it",
};

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Read,
    Change,
}

/// What is served during a term.
pub(crate) struct Served {
    pub volume: Volume,
    pub vfs: Arc<dyn Vfs>,
    /// The same with snapshots under their times.
    pub vfs_by_time: Arc<dyn Vfs>,
    /// Of an owner's.
    pub owning: Option<Arc<Lease>>,
    /// Calls that were let in and are not answered yet.
    pub calls: AtomicUsize,
}

/// How a call is made.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub need: Need,
    /// How long it waits for a term that may answer, before its client is told to try again.
    pub limit: Duration,
    /// A change that was made waits for its answer until its term is over: whoever is told to try again would make it twice.
    pub waits_out: bool,
}

/// A call that was let in.
pub(crate) struct Entered(Arc<Served>);

impl Entered {
    fn new(served: &Arc<Served>) -> Self {
        served.calls.fetch_add(1, Ordering::SeqCst);
        Self(served.clone())
    }

    /// What answers it.
    pub fn vfs(&self, by_time: bool) -> &dyn Vfs {
        match by_time {
            true => &*self.0.vfs_by_time,
            false => &*self.0.vfs,
        }
    }

    pub fn is_owner(&self) -> bool {
        self.0.owning.is_some()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) struct Gate {
    env: Env,
    pub wait_limit: Duration,
    serves_lapsed: bool,
    state: Mutex<State>,
    changed: Notify,
    wanted: Notify,
}

struct State {
    at_hand: Option<Arc<Served>>,
    /// It has begun, and serves reads only so far.
    reads_only: bool,
    ended: Option<String>,
    /// The anchor refuses this edge.
    is_denied: bool,
    verifier: [u8; 8],
    /// That of no term was shown yet.
    is_first: bool,
    wanted_until: Option<Monotonic>,
    last_change: Monotonic,
}

impl Gate {
    pub fn new(env: &Env, config: &VolumeConfig, options: &MemberOptions) -> Self {
        Self {
            env: env.clone(),
            wait_limit: config.wait_limit,
            serves_lapsed: options.serves_lapsed,
            state: Mutex::new(State {
                at_hand: None,
                reads_only: true,
                ended: None,
                is_denied: false,
                verifier: env.random_bytes(),
                is_first: true,
                wanted_until: None,
                last_change: env.now(),
            }),
            changed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    pub fn verifier(&self) -> [u8; 8] {
        self.state().verifier
    }

    /// The term at hand, whoever may use it.
    pub fn at_hand(&self) -> Option<Arc<Served>> {
        self.state().at_hand.clone()
    }

    /// When the last call came that changes something.
    pub fn last_change(&self) -> Monotonic {
        self.state().last_change
    }

    /// A term begins, with its reads.
    pub fn open(&self, served: Arc<Served>) {
        let mut state = self.state();
        if state.is_first {
            // After a clean stop it is the one before.
            state.verifier = served.volume.inner.verifier;
            state.is_first = false;
        }
        state.last_change = self.env.now();
        state.at_hand = Some(served);
        state.reads_only = true;
        drop(state);
        self.tell();
    }

    /// And goes on with its changes.
    pub fn open_for_changes(&self) {
        self.state().reads_only = false;
        self.tell();
    }

    /// Lets nobody in any more, and waits until those within are answered.
    pub async fn close(&self, served: &Arc<Served>) {
        self.state()
            .at_hand
            .take_if(|at_hand| Arc::ptr_eq(at_hand, served));
        self.tell();
        let end = self.env.now().after(CALLS_END_WITHIN);
        while served.calls.load(Ordering::SeqCst) > 0 && self.env.now() < end {
            self.env.sleep(CALLS_LOOK).await;
        }
    }

    /// The volume was taken over: what clients wrote may not be in it.
    pub fn lost_the_volume(&self, env: &Env) {
        if !firn_env::planted!("volume.member_keeps_verifier") {
            self.state().verifier = env.random_bytes();
        }
    }

    /// Nothing is served any more.
    pub fn end(&self, why: String) {
        self.state().ended = Some(why);
        self.tell();
    }

    /// The anchor refuses this edge, or does no more. Whether that is news.
    pub fn deny(&self, is_denied: bool) -> bool {
        let was = std::mem::replace(&mut self.state().is_denied, is_denied);
        if was != is_denied {
            self.tell();
        }
        was != is_denied
    }

    /// Has all who wait look again.
    pub fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Whether a client waits for the volume, or did lately.
    pub fn is_wanted(&self) -> bool {
        let now = self.env.now();
        self.state().wanted_until.is_some_and(|until| now < until)
    }

    /// A client here wants what only the owner can give, without a call that waits at the gate: a lock.
    pub fn want(&self) {
        let until = self.env.now().after(WANTED_FOR);
        self.state().wanted_until = Some(until);
        self.wanted.notify_one();
    }

    /// This member has the volume: whoever waited for it finds it.
    pub fn is_had(&self) {
        self.state().wanted_until = None;
    }

    /// Waits until a client wants to change something.
    pub async fn until_wanted(&self) {
        while !self.is_wanted() {
            self.wanted.notified().await;
        }
    }

    fn serves(&self, served: &Served, need: Need) -> bool {
        match &served.owning {
            Some(lease) => self.serves_lapsed || lease.holds(&self.env),
            None => need == Need::Read,
        }
    }

    /// Waits until there is a term that may answer.
    ///
    /// # Errors
    /// If that takes too long, or nothing is served any more.
    pub async fn enter(&self, Way { need, limit, .. }: Way) -> Result<Entered, VfsError> {
        let end = self.env.now().after(limit);
        loop {
            let changed = self.changed.notified();
            futures::pin_mut!(changed);
            changed.as_mut().enable();
            let now = self.env.now();
            {
                let mut state = self.state();
                if let Some(why) = &state.ended {
                    return Err(VfsError::Io(why.clone()));
                }
                let is_owner = state
                    .at_hand
                    .as_ref()
                    .is_some_and(|served| served.owning.is_some());
                if state.is_denied && (is_owner || need == Need::Change) {
                    if need == Need::Change {
                        state.wanted_until = Some(now.after(WANTED_FOR));
                        self.wanted.notify_one();
                    }
                    return Err(DENIED);
                }
                let reads_only = state.reads_only;
                let serves =
                    |served: &Arc<Served>| self.serves(served, need) && !(reads_only && need == Need::Change);
                if let Some(served) = state.at_hand.clone().filter(serves) {
                    if need == Need::Change {
                        state.last_change = now;
                        state.wanted_until = None;
                    }
                    return Ok(Entered::new(&served));
                }
                if need == Need::Change {
                    state.wanted_until = Some(now.after(WANTED_FOR));
                    self.wanted.notify_one();
                }
            }
            let left = end.since(now);
            if left.is_zero() {
                return Err(WAITS);
            }
            let _ = self.env.timeout(left.min(LOOK_AGAIN), changed).await;
        }
    }

    /// What a call is answered with; `None`: it is made again, in another term.
    pub async fn leave<T>(
        &self,
        entered: Entered,
        Way {
            need,
            limit,
            waits_out,
        }: Way,
        answer: Result<T, VfsError>,
    ) -> Option<Result<T, VfsError>> {
        let served = &entered.0;
        let is_at_hand = |state: &State| {
            let at_hand = state.at_hand.as_ref();
            at_hand.is_some_and(|at_hand| Arc::ptr_eq(at_hand, served))
        };
        match (&answer, need) {
            // Nothing was done: the owner refuses everything that comes after it was fenced.
            (Err(VfsError::Fenced), _) => return None,
            (Err(VfsError::TryAgain { .. } | VfsError::Io(_)), Need::Read) if !is_at_hand(&self.state()) => {
                return None;
            }
            _ => {}
        }
        let Some(lease) = &served.owning else {
            return Some(answer);
        };
        let end = self.env.now().after(limit);
        let waits_out = waits_out && need == Need::Change;
        loop {
            if self.state().is_denied {
                return Some(Err(DENIED));
            }
            if self.serves_lapsed || lease.holds(&self.env) {
                return Some(answer);
            }
            // Whether it is true still, or kept, is not known before the next beat.
            let changed = self.changed.notified();
            futures::pin_mut!(changed);
            changed.as_mut().enable();
            if !is_at_hand(&self.state()) {
                return match need {
                    Need::Read => None,
                    Need::Change => Some(Err(WAITS)),
                };
            }
            let left = match waits_out {
                true => LOOK_AGAIN,
                false => end.since(self.env.now()),
            };
            if left.is_zero() {
                return Some(Err(WAITS));
            }
            let _ = self.env.timeout(left.min(LOOK_AGAIN), changed).await;
        }
    }
}
