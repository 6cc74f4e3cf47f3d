//! An owner's term: heartbeats beside looks at who waits; then everything is published and the volume given up.
//!
//! ```text
//! beat, beat, beat … ─────────────────────────────────────────────── until the end of the term, or until one is refused: fenced
//! look, look … somebody waits (or nobody has changed anything for long) ─▶ publish with the gate open ─▶ gate closed ─▶ locks recorded
//!                                                                          ─▶ what came meanwhile published ─▶ given up
//! ```
//!
//! What takes long, the upload of what was written, is done while clients go on; they are held up for what they changed during that.

use super::{Inner, TermEnd, end_of, gate::Served, lease::Lease};
use crate::{error::VolumeError, serving::ServingState};
use firn_anchor::AnchorError;
use firn_table::TableError;
use futures::future::{Either, select};
use std::{
    future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long a look or a beat may take before it is tried again.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Between two beats while they fail.
const BEAT_AGAIN: Duration = Duration::from_secs(1);
/// Between two tries to give the volume up.
const GIVE_AGAIN: Duration = Duration::from_secs(1);

impl Inner {
    /// The term of an owner.
    pub(super) async fn own(&self, served: &Arc<Served>, lease: &Arc<Lease>) -> Result<TermEnd, VolumeError> {
        let giving = AtomicBool::new(false);
        let ended = pin!(served.volume.ended());
        let beats = pin!(self.beat_on(served, lease, &giving));
        let given = pin!(self.until_given(served, lease, &giving));
        match select(ended, select(beats, given)).await {
            Either::Left((state, _)) => Ok(end_of(state)),
            Either::Right((Either::Left(((), _)), _)) => Ok(TermEnd::Fenced),
            Either::Right((Either::Right((given, _)), _)) => match given {
                Ok(()) => Ok(TermEnd::Given),
                Err(VolumeError::Anchor(AnchorError::Fenced(fenced))) => {
                    // Between the last commit and the gift: everything was published.
                    tracing::error!(%fenced, "another office took the volume over as it was given");
                    served.volume.inner.set_serving_state(ServingState::Fenced);
                    Ok(TermEnd::Fenced)
                }
                Err(error) => match served.volume.inner.serving.now() {
                    state @ ServingState::Fenced => Ok(end_of(state)),
                    ServingState::Serving
                    | ServingState::Stopping
                    | ServingState::Broken(_)
                    | ServingState::Failed(_) => Err(error),
                },
            },
        }
    }

    /// Beats until a beat is refused. While the volume is being given that may be the gift itself, whose answer is still under way: what
    /// became of it whoever gives is told.
    async fn beat_on(&self, served: &Served, lease: &Lease, giving: &AtomicBool) {
        let env = &self.parts.env;
        let mut failing = false;
        loop {
            let pause = match failing {
                true => BEAT_AGAIN,
                false => self.options.beat_every,
            };
            env.sleep(pause).await;
            // Counted from here, whenever it is answered.
            let sent = (env.now(), env.wall());
            let beat = self.parts.anchor.beat(self.parts.volume, &lease.beating);
            let error = match env.timeout(CALL_LIMIT, beat).await {
                Ok(Ok(record)) => {
                    self.deny(None);
                    lease.renew(sent);
                    self.locking.locks.serve();
                    self.gate.tell();
                    self.figures().waiting = record.wants.len();
                    failing = false;
                    continue;
                }
                Ok(Err(AnchorError::Fenced(_))) if giving.load(Ordering::Relaxed) => future::pending().await,
                Ok(Err(AnchorError::Fenced(fenced))) => {
                    self.deny(None);
                    tracing::error!(%fenced, "another office took the volume over");
                    self.locking.locks.close();
                    served.volume.inner.set_serving_state(ServingState::Fenced);
                    return;
                }
                Ok(Err(error)) => {
                    if let AnchorError::Table(TableError::Refused(why)) = &error {
                        self.deny(Some(why));
                    }
                    error.to_string()
                }
                Err(elapsed) => elapsed.to_string(),
            };
            if !failing {
                tracing::warn!(
                    error,
                    "no heartbeat: if that lasts, clients wait, and others take the volume over"
                );
            }
            failing = true;
        }
    }

    /// Notes whether the anchor refuses this edge, and why.
    pub(super) fn deny(&self, why: Option<&str>) {
        let is_news = self.gate.deny(why.is_some());
        self.figures().denied = why.map(str::to_owned);
        match why {
            Some(why) if is_news => tracing::error!(
                why,
                "the anchor refuses this edge: nothing of the volume is served to its clients any more, who get \"permission denied\". What they were \
                 acknowledged and the cloud does not have stays in the journal here (level 1). If the volume is granted anew, it is committed, or put into \
                 a salvage clone if another office took the volume over meanwhile; this edge asks on"
            ),
            None if is_news => tracing::info!("the anchor lets this edge in again"),
            Some(_) | None => {}
        }
    }

    /// Waits until the volume is to be given, and gives it.
    async fn until_given(
        &self,
        served: &Arc<Served>,
        lease: &Lease,
        giving: &AtomicBool,
    ) -> Result<(), VolumeError> {
        let env = &self.parts.env;
        let (volume, me) = (self.parts.volume, lease.beating.owner);
        let began = env.now();
        loop {
            env.sleep(self.options.look_every).await;
            let read_began = env.now();
            let look = self.parts.anchor.handover(volume);
            let Ok(Ok((record, _))) = env.timeout(CALL_LIMIT, look).await else {
                continue;
            };
            let waiting = record.wants.iter().filter(|want| want.member != me).count();
            self.figures().waiting = waiting;
            self.look_at_locks(lease, &record, read_began).await;
            let now = env.now();
            // Clients that reclaim after a restart are known to nobody else.
            let may_give = !self.locking.locks.in_grace();
            let is_wanted = waiting > 0
                && now.since(began) >= self.options.hold
                && !firn_env::planted!("volume.member_ignores_wants");
            let idle_since = began.max(self.gate.last_change());
            // The anchor has just answered: nobody is kept waiting for an outage to end.
            let is_idle = now.since(idle_since) >= self.options.idle_after;
            if may_give && (is_wanted || is_idle) {
                self.figures().gives(now);
                return self.give(served, lease, giving).await;
            }
        }
    }

    async fn give(
        &self,
        served: &Arc<Served>,
        lease: &Lease,
        giving: &AtomicBool,
    ) -> Result<(), VolumeError> {
        let env = &self.parts.env;
        let volume = &served.volume;
        let published = volume.committed().await;
        published.map_err(|error| VolumeError::Stopped(error.to_string()))?;
        self.figures().gate_closed(env.now());
        self.gate.close(served).await;
        env.fault_point("member.gate_closed").await;
        self.hand_locks_over(lease).await?;
        env.fault_point("member.locks_recorded").await;
        giving.store(true, Ordering::Relaxed);
        loop {
            match volume.drain().await {
                Ok(()) => return Ok(()),
                Err(VolumeError::Anchor(error)) if error.is_transient() => {
                    tracing::warn!(%error, "the volume is published, and given up once the anchor answers");
                }
                Err(error) => return Err(error),
            }
            env.sleep(GIVE_AGAIN).await;
        }
    }
}
