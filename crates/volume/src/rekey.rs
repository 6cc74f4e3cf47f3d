//! Rekeying: background re-encryption of the live tree under the newest key of the ring (key rotation's second half).
//!
//! A rotation seals what is new under a new epoch's key; what was there before stays under the old ones. A rekey goes through the
//! volume once, in the order of its trees, and seals whatever it meets under an older epoch anew: the same payload, the same
//! place, no change that a client could see (no attribute, no journal record). To everybody else an object that was sealed anew
//! is an object that was written anew, born with the checkpoint that has it, so I4, the cleaner and the usage map need to know
//! nothing of it. That is why snapshots are not rewritten: what they retain is one interval of births (decision 0166). They are named in
//! [`RekeyStatus::snapshots`] until they are deleted.
//!
//! ```text
//! inode map: inode 2 ─ its map ─ leaves … | inode 3 … | …   then the orphans   then the usage map   done: clean since this version
//!                          ▲ cursor: (tree, inode, block)
//! ```
//!
//! The walk belongs to the checkpointer and runs between build and commit of a checkpoint (`walk.rs`), a step of
//! [`STEP_BYTES_MAX`] at most; the cursor is committed by the root that has the step's objects (`state.rs`), so a crash, a restart
//! and a takeover go on where the newest root says. Behind the cursor nothing old can come back: what checkpoints write is sealed under
//! the newest key, whose epoch only rises. An idle volume has a timer while a rekey is under way, and none after it (I9).
//!
//! | state | event | next |
//! |---|---|---|
//! | idle | start | under way to the newest epoch, or idle if the tree is clean already |
//! | under way | step committed | under way, later by what the rate allows |
//! | under way | last step committed | idle; clean since this version, unless something could not be read |
//! | under way | a newer key | under way from the beginning, to the newer epoch |
//! | under way | start | under way; the rate is the new one |
//! | under way | stop | idle; what was done stays done |

mod state;
mod walk;

use crate::volume::{Inner, Volume};
use firn_env::Monotonic;
use firn_format::{KeyEpoch, TreeRoot, Version};
use firn_vfs::VfsError;
pub use state::{CleanSince, LastRekey, RekeyCounts, RekeyEnd, RekeyState, UnderWay};
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;
pub(crate) use walk::step;

/// 4 MiB a second, read and written: a third of a line of 100 Mbit/s; 1 TiB takes three days.
pub const REKEY_BYTES_PER_SECOND: u64 = 4 << 20;

/// A step holds the checkpoint that it is part of for as long as it takes to move this, so that is some seconds on a slow line.
const STEP_BYTES_MAX: u64 = 32 << 20;
const STEP_BYTES_MIN: u64 = 64 << 10;
/// A step moves what the rate allows in this time: a commit every four seconds at most.
const STEP_SECONDS: u64 = 4;

/// What an administrator asked for, until a checkpoint takes it.
#[derive(Clone, Copy, Debug)]
enum Request {
    Start { bytes_per_second: u64 },
    Stop,
}

#[derive(Default)]
struct Shared {
    /// As the newest root has it.
    committed: RekeyState,
    request: Option<Request>,
    /// Requests made, and of them those that are committed.
    asked: u64,
    settled: u64,
    /// When the next step may be made.
    next_step: Option<Monotonic>,
    /// Looks for a newer key ring that were asked for; those that were made, and why the last one failed.
    looks_asked: u64,
    looks_made: u64,
    look_failed: Option<String>,
}

/// The volume's rekey, shared by who asks for it and the checkpointer.
pub(crate) struct Rekey {
    shared: Mutex<Shared>,
    looked: Notify,
}

/// What a checkpoint does about it.
pub(crate) struct Plan {
    /// To be committed with the checkpoint.
    pub state: RekeyState,
    asked: u64,
    /// Bytes that the step may move; 0: no step.
    step_bytes: u64,
    /// Bytes that it moved.
    moved_bytes: u64,
    /// The maps of inodes that were sealed anew.
    pub contents: Vec<(u64, TreeRoot)>,
}

impl Rekey {
    pub fn new(committed: RekeyState) -> Self {
        Self {
            shared: Mutex::new(Shared {
                committed,
                ..Shared::default()
            }),
            looked: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no panic under this lock")
    }

    fn ask(&self, request: Request) -> u64 {
        let mut shared = self.lock();
        shared.request = Some(request);
        shared.asked += 1;
        shared.asked
    }

    /// How long until a checkpoint is needed for it; `None`: not at all.
    pub fn due(&self, now: Monotonic) -> Option<Duration> {
        let shared = self.lock();
        if shared.request.is_some() {
            return Some(Duration::ZERO);
        }
        shared.committed.under_way.as_ref()?;
        Some(shared.next_step.map_or(Duration::ZERO, |next| next.since(now)))
    }

    /// A checkpoint begins that seals under `newest` or later.
    pub fn begin(&self, newest: KeyEpoch, now: Monotonic, now_ms: i64) -> Plan {
        let mut shared = self.lock();
        let mut state = shared.committed.clone();
        match shared.request.take() {
            Some(Request::Start { bytes_per_second }) => state.start(newest, bytes_per_second, now_ms),
            Some(Request::Stop) => state.stop(now_ms),
            None => {}
        }
        state.follow(newest);
        let is_due = shared.next_step.is_none_or(|next| next.since(now).is_zero());
        let step_bytes = match &state.under_way {
            Some(under_way) if is_due => under_way
                .bytes_per_second
                .saturating_mul(STEP_SECONDS)
                .clamp(STEP_BYTES_MIN, STEP_BYTES_MAX),
            Some(_) | None => 0,
        };
        Plan {
            state,
            asked: shared.asked,
            step_bytes,
            moved_bytes: 0,
            contents: Vec::new(),
        }
    }

    /// The checkpoint is committed.
    pub fn committed(&self, plan: Plan, now: Monotonic) {
        let mut shared = self.lock();
        if let Some(under_way) = &plan.state.under_way {
            if plan.step_bytes > 0 {
                let micros = plan.moved_bytes.saturating_mul(1_000_000) / under_way.bytes_per_second.max(1);
                shared.next_step = Some(now.after(Duration::from_micros(micros)));
            }
        } else {
            shared.next_step = None;
        }
        log_end(&shared.committed, &plan.state);
        shared.committed = plan.state;
        shared.settled = plan.asked;
    }

    pub fn state(&self) -> RekeyState {
        self.lock().committed.clone()
    }
}

impl Plan {
    pub fn has_step(&self) -> bool {
        self.step_bytes > 0
    }
}

/// A snapshot that may hold what is sealed under older keys than the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldSnapshot {
    /// Its name.
    pub name: String,
    /// Until when nobody can delete it, in milliseconds since 1970; 0: not protected.
    pub protected_until_ms: i64,
    /// It holds nothing older than this; `None`: it may hold any epoch's.
    pub oldest: Option<KeyEpoch>,
}

/// How far a volume is from needing only its newest key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RekeyStatus {
    /// What is written now is sealed under this.
    pub newest: KeyEpoch,
    /// The tree as clients see it holds nothing older than this; `None`: it may hold any epoch's.
    pub oldest: Option<KeyEpoch>,
    /// The rekey that is under way.
    pub under_way: Option<UnderWay>,
    /// Bytes that it has still to look at, by the volume's count of used bytes.
    pub left_bytes: u64,
    /// How the last one ended.
    pub last: Option<LastRekey>,
    /// Snapshots that may need an older key than the newest, the oldest first.
    pub snapshots: Vec<OldSnapshot>,
}

impl RekeyStatus {
    /// The oldest epoch whose key anything reachable may need, the snapshots included; `None`: any may be needed.
    pub fn oldest_needed(&self) -> Option<KeyEpoch> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.oldest);
        snapshots.chain([self.oldest]).min().flatten()
    }

    /// Whether nothing reachable needs an older key than the newest.
    pub fn is_done(&self) -> bool {
        self.oldest_needed() == Some(self.newest)
    }
}

impl Volume {
    /// Begins to seal the live tree anew under the newest key, `bytes_per_second` at most; returns once that is committed (level 2).
    /// If a rekey is under way it goes on, at the new rate. If nothing older is left, none is begun.
    ///
    /// # Errors
    /// If the volume is detached, or stops serving.
    pub async fn rekey_start(&self, bytes_per_second: u64) -> Result<RekeyStatus, VfsError> {
        self.rekey_request(Request::Start { bytes_per_second }).await
    }

    /// Ends a rekey that is under way; what it did stays done. Returns once that is committed (level 2).
    ///
    /// # Errors
    /// As [`Volume::rekey_start`].
    pub async fn rekey_stop(&self) -> Result<RekeyStatus, VfsError> {
        self.rekey_request(Request::Stop).await
    }

    async fn rekey_request(&self, request: Request) -> Result<RekeyStatus, VfsError> {
        let inner = &self.inner;
        inner.check_serving()?;
        inner.checkpointer.attached()?;
        let asked = inner.rekey.ask(request);
        loop {
            let committed = inner.checkpointer.committed();
            futures::pin_mut!(committed);
            committed.as_mut().enable();
            inner.serving.check_not_ended()?;
            if inner.rekey.lock().settled >= asked {
                return Ok(self.rekey_status());
            }
            inner.checkpointer.want();
            committed.await;
        }
    }

    /// Has whoever follows the key rings look for a newer one, and waits for it: a rekey is to the newest key there is, and an idle
    /// edge does not look by itself.
    ///
    /// # Errors
    /// Why no ring was taken; the keys are as they were.
    pub async fn want_newest_keys(&self, within: Duration) -> Result<(), String> {
        let inner = &self.inner;
        let asked = {
            let mut shared = inner.rekey.lock();
            shared.looks_asked += 1;
            shared.looks_asked
        };
        let made = async {
            loop {
                let looked = inner.rekey.looked.notified();
                futures::pin_mut!(looked);
                looked.as_mut().enable();
                {
                    let shared = inner.rekey.lock();
                    if shared.looks_made >= asked {
                        return shared.look_failed.clone().map_or(Ok(()), Err);
                    }
                }
                looked.await;
            }
        };
        futures::pin_mut!(made);
        inner
            .env
            .timeout(within, made)
            .await
            .unwrap_or_else(|_| Err("nobody looked for a newer key ring in time".into()))
    }

    /// The look for a newer key ring that somebody waits for, if any; for who follows the rings.
    pub fn newest_keys_wanted(&self) -> Option<u64> {
        let shared = self.inner.rekey.lock();
        (shared.looks_asked > shared.looks_made).then_some(shared.looks_asked)
    }

    /// That look was made.
    pub fn newest_keys_looked(&self, asked: u64, outcome: Result<(), String>) {
        let mut shared = self.inner.rekey.lock();
        shared.looks_made = asked;
        shared.look_failed = outcome.err();
        drop(shared);
        self.inner.rekey.looked.notify_waiters();
    }

    /// How far the volume is from needing only its newest key; takes no request.
    pub fn rekey_status(&self) -> RekeyStatus {
        let inner = &self.inner;
        let committed = inner.rekey.state();
        let newest = inner.checkpointer.packer.keys.current();
        let state = inner.lock();
        let snapshots = state.snapshots().iter().filter_map(|snapshot| {
            let oldest = match snapshot.retained {
                Some(retained) if !firn_env::planted!("volume.rekey_forgets_snapshots") => {
                    committed.oldest_at(retained.version)
                }
                // Its tree is the one that the next commit has.
                Some(_) | None => committed.oldest(),
            };
            (oldest != Some(newest)).then(|| OldSnapshot {
                name: String::from_utf8_lossy(&snapshot.name).into_owned(),
                protected_until_ms: snapshot.protected_until_ms,
                oldest,
            })
        });
        let passed = committed
            .under_way
            .as_ref()
            .map_or(0, |under_way| under_way.counts.passed_bytes);
        RekeyStatus {
            newest,
            oldest: committed.oldest(),
            left_bytes: match committed.under_way {
                Some(_) => state.counters.used_bytes.saturating_sub(passed),
                None => 0,
            },
            snapshots: snapshots.collect(),
            under_way: committed.under_way,
            last: committed.last,
        }
    }
}

/// The last step was made: nothing older is left, or something that could not be read.
fn finish(plan: &mut Plan, version: Version, now_ms: i64) {
    let Some(done) = plan.state.under_way.take() else {
        return;
    };
    let end = if done.counts.unreadable == 0 {
        plan.state.note_clean(CleanSince {
            epoch: done.target,
            version,
        });
        RekeyEnd::Done
    } else {
        RekeyEnd::Unreadable
    };
    plan.state.last = Some(LastRekey {
        target: done.target,
        ended_ms: now_ms,
        end,
        counts: done.counts,
    });
}

/// A checkpoint begins.
pub(crate) fn begin(inner: &Inner) -> Plan {
    let newest = inner.checkpointer.packer.keys.current();
    inner
        .rekey
        .begin(newest, inner.env.now(), inner.env.wall().as_millis())
}

/// Says how a rekey ended, if it did with this commit.
fn log_end(before: &RekeyState, after: &RekeyState) {
    if before.under_way.is_none() || after.under_way.is_some() {
        return;
    }
    let Some(last) = &after.last else { return };
    let RekeyCounts {
        resealed_objects,
        resealed_bytes,
        unreadable,
        ..
    } = last.counts;
    let target = last.target.0;
    match last.end {
        RekeyEnd::Done => {
            tracing::info!(
                target,
                resealed_objects,
                resealed_bytes,
                "the volume holds nothing sealed under older keys; snapshots may"
            );
        }
        RekeyEnd::Stopped => {
            tracing::info!(
                target,
                resealed_objects,
                resealed_bytes,
                "the rekey was stopped; what it did stays done"
            );
        }
        RekeyEnd::Unreadable => {
            tracing::warn!(
                target,
                unreadable,
                "the rekey came to its end, but what could not be read is still under its old key; run `firn-edge verify`, restore or remove what is damaged, and start it again"
            );
        }
    }
}
