//! A follower's term: nothing is asked until a client wants to change something; then the volume is wanted, and waited for.
//!
//! | what is seen | what is done |
//! |---|---|
//! | nobody owns it, and this member is the first of the queue | it may be had |
//! | the same, and others stand before it, for 3 s | it may be had: they are dead |
//! | another owns it, and its heart beats | wait |
//! | another owns it, its heart has stood still for 60 s, and it is one that beats | it is taken over from that very ownership |
//! | another owns it that never beat | wait: it does not share |
//! | no client has waited for 30 s | the want is withdrawn, and nothing is asked any more |
//!
//! **Stood still** means: the count was read, and read again by a read that *began* a minute after the first one was *answered*. What lies between
//! is no time by anybody else's clock, and it does not matter whether the anchor was out of reach meanwhile.

use super::{Inner, TermEnd, end_of, gate::Served};
use crate::{error::VolumeError, volume::Volume};
use firn_anchor::{AnchorError, HandoverRecord, OwnerId, VolumeTuple};
use firn_env::Monotonic;
use firn_format::OwnershipEpoch;
use firn_table::TableError;
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};

/// Between two looks whether the volume may be had.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long one look may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// While the anchor does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Between two reads of the heartbeat.
const HEART_EVERY: Duration = Duration::from_secs(2);
/// For so long the first of the queue may leave a volume that nobody owns.
const FIRST_TAKES_WITHIN: Duration = Duration::from_secs(3);

/// An owner's heart, watched.
struct Watch {
    epoch: OwnershipEpoch,
    beats: u64,
    /// When this count was first read.
    seen_at: Monotonic,
}

/// What a look led to.
enum Look {
    MayOwn,
    Wait,
    Away(String),
}

/// What is remembered between looks.
struct Waiting {
    me: OwnerId,
    joined: bool,
    unowned_since: Option<Monotonic>,
    watch: Option<Watch>,
    heart_read: Option<Monotonic>,
}

impl Inner {
    /// The term of a follower.
    pub(super) async fn follow(&self, served: &Arc<Served>) -> Result<TermEnd, VolumeError> {
        let ended = pin!(served.volume.ended());
        let me = crate::local::LocalState::load(&self.parts.env).await?.owner;
        let (had, kept) = (pin!(self.until_had(me)), pin!(self.keep_locks(me)));
        match select(ended, select(had, kept)).await {
            Either::Left((state, _)) => Ok(end_of(state)),
            Either::Right((Either::Left((had, _)), _)) => had.map(|()| TermEnd::MayOwn),
            Either::Right((Either::Right(((), _)), _)) => unreachable!("locks are kept until the term ends"),
        }
    }

    async fn until_had(&self, me: OwnerId) -> Result<(), VolumeError> {
        let env = &self.parts.env;
        loop {
            self.gate.until_wanted().await;
            self.figures().wants(env.now());
            let mut waiting = Waiting {
                me,
                joined: false,
                unowned_since: None,
                watch: None,
                heart_read: None,
            };
            while self.gate.is_wanted() {
                let look = env.timeout(CALL_LIMIT, self.look(&mut waiting)).await;
                let pause = match look {
                    Ok(Look::MayOwn) => return Ok(()),
                    Ok(Look::Wait) => LOOK_EVERY,
                    Ok(Look::Away(why)) => {
                        self.figures().away = Some(why);
                        LOOK_AGAIN
                    }
                    Err(elapsed) => {
                        self.figures().away = Some(format!("the anchor: {elapsed}"));
                        LOOK_AGAIN
                    }
                };
                env.sleep(pause).await;
            }
            // Whoever waited has given up. A want that cannot be withdrawn costs the others a handover.
            self.figures().wants_no_more();
            let withdraw = self.parts.anchor.withdraw_want(self.parts.volume, me);
            let _ = env.timeout(CALL_LIMIT, withdraw).await;
        }
    }

    async fn look(&self, waiting: &mut Waiting) -> Look {
        match self.try_look(waiting).await {
            Ok(look) => {
                self.figures().away = None;
                self.deny(None);
                look
            }
            Err(error) => {
                if let VolumeError::Anchor(AnchorError::Table(TableError::Refused(why))) = &error {
                    self.deny(Some(why));
                }
                Look::Away(error.to_string())
            }
        }
    }

    async fn try_look(&self, waiting: &mut Waiting) -> Result<Look, VolumeError> {
        let (env, anchor, volume) = (&self.parts.env, &self.parts.anchor, self.parts.volume);
        if !waiting.joined {
            anchor.want(volume, waiting.me, &self.config.owner_name).await?;
            env.fault_point("member.after_want").await;
            waiting.joined = true;
        }
        let began = env.now();
        let (tuple, _) = anchor.load(volume).await?;
        let Some(owner) = &tuple.owner else {
            let now = env.now();
            let since = *waiting.unowned_since.get_or_insert(now);
            let (record, _) = anchor.handover(volume).await?;
            let place = record.place_of(waiting.me);
            // Out of the queue: the next look joins it again.
            waiting.joined = place.is_some();
            let is_next = place == Some(0) || now.since(since) >= FIRST_TAKES_WITHIN;
            return Ok(if is_next { Look::MayOwn } else { Look::Wait });
        };
        waiting.unowned_since = None;
        if owner.id == waiting.me {
            return Ok(Look::MayOwn);
        }
        if waiting
            .heart_read
            .is_some_and(|read| began.since(read) < HEART_EVERY)
        {
            return Ok(Look::Wait);
        }
        let read_began = env.now();
        let (record, _) = anchor.handover(volume).await?;
        waiting.heart_read = Some(env.now());
        waiting.joined = record.place_of(waiting.me).is_some();
        let shares = shares(&tuple, &record, owner.id);
        self.figures().owner_shares = Some(shares);
        if !self.stands_still(waiting, &tuple, &record, read_began) || !shares {
            return Ok(Look::Wait);
        }
        tracing::warn!(
            owner = owner.name,
            "the owner gives no sign of life: the volume is taken over; what it did not publish it will salvage into a clone"
        );
        Volume::takeover_from(&self.parts, &self.config, tuple.grant).await?;
        self.figures().breaks += 1;
        self.locking.takes_over_from(owner.id);
        Ok(Look::MayOwn)
    }

    /// Whether the owner's heart has stood still for long enough at a read that began then.
    fn stands_still(
        &self,
        waiting: &mut Waiting,
        tuple: &VolumeTuple,
        record: &HandoverRecord,
        read_began: Monotonic,
    ) -> bool {
        let heartbeat = record.heartbeat.filter(|beat| beat.epoch == tuple.epoch);
        let beats = heartbeat.map_or(0, |beat| beat.beats);
        let is_same = |watch: &&mut Watch| {
            watch.epoch == tuple.epoch
                && (watch.beats == beats || firn_env::planted!("volume.member_breaks_the_living"))
        };
        match waiting.watch.as_mut().filter(is_same) {
            Some(watch) => read_began.since(watch.seen_at) >= self.options.break_after,
            None => {
                waiting.watch = Some(Watch {
                    epoch: tuple.epoch,
                    beats,
                    seen_at: self.parts.env.now(),
                });
                false
            }
        }
    }
}

/// Whether an owner is a member that beats: it has since it got the volume, or it died between getting it and its first beat.
fn shares(tuple: &VolumeTuple, record: &HandoverRecord, owner: OwnerId) -> bool {
    let beat = record
        .heartbeat
        .is_some_and(|beat| beat.owner == owner && beat.epoch >= tuple.tenure);
    beat || record.place_of(owner).is_some()
}
