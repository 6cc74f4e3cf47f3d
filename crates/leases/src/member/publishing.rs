//! Publishing of a member's changes: read the root, adopt it, build on it, commit; and what becomes of a commit whose answer does not come.

use super::{BEAT_EVERY, Member, Own};
use crate::{Build, Built, MemberError, validity::Validity};
use firn_anchor::{Anchor, MemberCommitEnd, Membership, VolumeTuple};
use firn_env::Env;
use firn_format::Version;
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::sync::futures::Notified;

/// Roots that others put before an own one; each try costs a build.
const TRIES: usize = 64;
/// Between two signs of life that fail while the file system works.
const BEAT_AGAIN: Duration = Duration::from_secs(1);

/// A commit that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    built: Built,
    commit_id: [u8; 16],
}

impl Member {
    /// Reads the root and adopts it: what was granted before is usable.
    pub(super) async fn refresh(&self, own: &mut Own) -> Result<(), MemberError> {
        let read = self.table().begin_root_read();
        let (tuple, version) = self.anchor.load(self.volume).await?;
        let tuple = Arc::new(tuple);
        // What is in memory is not waited for, which an upload may have.
        if !is_same_root(&own.adopted.0, &tuple) {
            self.moved.notify_waiters();
            if !firn_env::planted!("leases.rebase_without_adoption") {
                self.alive(own, self.content.adopt(&tuple)).await?;
            }
        }
        own.adopted = (tuple, version);
        self.table().adopted(read);
        Ok(())
    }

    /// Publishes, as the only one of this member that does. What is built is uploaded beside everything else that the member does; only reads of the root and the commit itself are
    /// made under the lock of [`Own`].
    pub(super) async fn publish_alone(&self) -> Result<(), MemberError> {
        let mut lost = 0;
        for _ in 0..TRIES {
            let waited = self.wait_for_commit_lease(lost).await?;
            let (tuple, moved) = {
                let mut own = self.own.lock().await;
                let own = &mut *own;
                self.settle(own).await?;
                if !waited.is_fresh {
                    let (refreshed, looked) = futures::join!(self.refresh(own), self.look_at_line());
                    refreshed.and(looked)?;
                }
                (own.adopted.0.clone(), self.moved.notified())
            };
            if !waited.has_waited && self.is_others_turn() {
                continue;
            }
            let began = self.env.now();
            let built = self.build_beside(&tuple, moved).await?;
            self.line().built(self.env.now().since(began), &built);
            let Some(built) = built else {
                lost += 1;
                self.meets_others();
                continue;
            };
            let mut own = self.own.lock().await;
            let own = &mut *own;
            let built = match built {
                Build::Nothing => return Ok(()),
                Build::LeafChanged { inode } => {
                    // A member that was broken and does not know it yet finds this too: then that is the reason, and what comes next.
                    self.beat(own).await?;
                    return Err(MemberError::LeafChanged { inode });
                }
                Build::Root(built) => built,
            };
            self.settle(own).await?;
            let (adopted, seen) = own.adopted.clone();
            if !is_same_root(&adopted, &tuple) {
                lost += 1;
                self.meets_others();
                continue;
            }
            let commit_id = self.env.random_bytes();
            let before = tuple.root.as_ref().map_or(0, |root| root.version.0);
            let root = own.membership.next_root(
                &adopted,
                (built.uid, built.location),
                Version(before + 1),
                commit_id,
                self.env.wall().as_millis(),
            );
            let doubt = Doubt { built, commit_id };
            own.doubt = Some(doubt).filter(|_| !firn_env::planted!("leases.doubt_is_failure"));
            let called_at = self.env.wall();
            let end = self
                .anchor
                .commit_member(&mut own.membership, seen, &root, built.sequence)
                .await;
            self.heard(own, called_at);
            match end {
                Ok(MemberCommitEnd::Committed) => {
                    // Who is dropped before the file system knows leaves the note, and settles it.
                    self.content.committed(&built).await;
                    own.doubt = None;
                    self.line().committed();
                    return Ok(());
                }
                Ok(MemberCommitEnd::RootMoved) => {
                    own.doubt = None;
                    lost += 1;
                    self.meets_others();
                }
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(self.told(error)),
            }
        }
        Err(MemberError::Content("others committed first at every try".into()))
    }

    /// Builds on a root that was adopted, and gives signs of life meanwhile: otherwise others would break a member whose uplink is only slow. `None`: a newer root is about to be
    /// adopted, on which it is built anew; what others committed first could not be committed any more.
    async fn build_beside(
        &self,
        volume: &VolumeTuple,
        moved: Notified<'_>,
    ) -> Result<Option<Build>, MemberError> {
        if firn_env::planted!("leases.builds_under_the_lock") {
            let _own = self.own.lock().await;
            return self.content.build(volume).await.map(Some);
        }
        // What is built is dropped with this block: who adopts waits for that.
        let building = async {
            match select(pin!(moved), self.content.build(volume)).await {
                Either::Left(_) => Ok(None),
                Either::Right((built, _)) => built.map(Some),
            }
        };
        let mut building = pin!(building);
        loop {
            if let Ok(built) = self.env.timeout(BEAT_AGAIN, building.as_mut()).await {
                return built;
            }
            if firn_env::planted!("leases.silent_while_building") {
                return building.await;
            }
            match select(building.as_mut(), pin!(self.beat_if_due())).await {
                // A beat that is under way is not given up.
                Either::Left((built, beating)) => {
                    beating.await?;
                    return built;
                }
                Either::Right((beaten, _)) => beaten?,
            }
        }
    }

    /// A sign of life, if the last is so old that one is due. One that does not get through is made again.
    pub(super) async fn beat_if_due(&self) -> Result<(), MemberError> {
        let mut own = self.own.lock().await;
        if self.env.now().since(own.membership.heard_at()) < BEAT_EVERY {
            return Ok(());
        }
        match self.beat(&mut own).await {
            Err(MemberError::Anchor(error)) if error.is_transient() => Ok(()),
            beaten => beaten,
        }
    }

    /// What became of a commit in doubt: after a beat, so that it will not happen later.
    pub(super) async fn settle_commit(&self, own: &mut Own) -> Result<(), MemberError> {
        let Some(Doubt { built, commit_id }) = own.doubt else {
            return Ok(());
        };
        let called_at = self.env.wall();
        let settled = self
            .anchor
            .settle_member_commit(&mut own.membership, commit_id)
            .await;
        self.heard(own, called_at);
        let happened = settled.map_err(|error| self.told(error))?;
        if happened {
            self.content.committed(&built).await;
        }
        own.doubt = None;
        Ok(())
    }

    /// A sign of life.
    pub(super) async fn beat(&self, own: &mut Own) -> Result<(), MemberError> {
        let called_at = self.env.wall();
        let beaten = self.anchor.beat_member(&mut own.membership).await;
        self.heard(own, called_at);
        beaten.map_err(|error| self.told(error))
    }

    /// Waits for work of the file system, which may be long (much differs in the root that is adopted), and gives signs of life meanwhile: otherwise others would
    /// break a member that is only slow. While a beat is under way the work stands still.
    async fn alive<T>(
        &self,
        own: &mut Own,
        work: impl Future<Output = Result<T, MemberError>>,
    ) -> Result<T, MemberError> {
        let mut work = pin!(work);
        loop {
            let age = self.env.now().since(own.membership.heard_at());
            let due = BEAT_EVERY.saturating_sub(age).max(BEAT_AGAIN);
            if let Ok(done) = self.env.timeout(due, work.as_mut()).await {
                return done;
            }
            if firn_env::planted!("leases.silent_while_building") {
                return work.await;
            }
            match self.beat(own).await {
                Err(MemberError::Anchor(error)) if error.is_transient() => {}
                beaten => beaten?,
            }
        }
    }
}

/// Whether two tuples have the same root.
fn is_same_root(one: &VolumeTuple, other: &VolumeTuple) -> bool {
    one.root.as_ref().map(|root| root.uid) == other.root.as_ref().map(|root| root.uid)
}

/// As [`Member::alive`], of a member that is starting.
pub(super) async fn alive<T>(
    (anchor, env): (&Anchor, &Env),
    membership: &mut Membership,
    validity: &mut Validity,
    work: impl Future<Output = Result<T, MemberError>>,
) -> Result<T, MemberError> {
    let mut work = pin!(work);
    loop {
        let age = env.now().since(membership.heard_at());
        let due = BEAT_EVERY.saturating_sub(age).max(BEAT_AGAIN);
        if let Ok(done) = env.timeout(due, work.as_mut()).await {
            return done;
        }
        let called_at = env.wall();
        let beaten = anchor.beat_member(membership).await;
        validity.renew(membership.heard_at(), called_at);
        match beaten {
            Err(error) if error.is_transient() => {}
            beaten => beaten?,
        }
    }
}
