//! The copier: takes what was put into the first store to the second, in the order in which it was put, and never holds anybody up.
//!
//! | state | event | next |
//! |---|---|---|
//! | unchecked | a nonce shows two stores | copying |
//! | unchecked | a nonce shows one | alias, for good |
//! | copying | the second store refuses a put | refusing: the same member again, after a pause that grows to five minutes |
//! | refusing | it takes one | copying |
//!
//! A segment comes from the local disk, which has it pinned for a minute and cached after that; what is not there, from the first store. It is
//! copied only if it is one whole segment of its name and family: damage is not mirrored.

use crate::{
    AliasError, Comparison, Grouping, MirrorState, MirrorStatus, Parity, Queue, alias::check_and_ask_clock,
    comparison::Suspects, expiry, parity::Ages, store_clock::StoreClock,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::{Anchor, AnchorError};
use firn_env::{Backoff, Env};
use firn_format::{FamilyId, MAX_SEGMENT_BYTES, SegmentId, decode_segment};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use futures::future::join3;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;

/// Between two tries of what a store refuses.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300)).without_jitter();

/// Segments as they were put, as far as this machine has them.
#[async_trait]
pub trait LocalCopies: Send + Sync {
    /// The whole segment, not verified.
    async fn segment(&self, id: SegmentId, bytes: u64) -> Option<Bytes>;
}

/// A machine that has none.
pub struct NoLocalCopies;

#[async_trait]
impl LocalCopies for NoLocalCopies {
    async fn segment(&self, _: SegmentId, _: u64) -> Option<Bytes> {
        None
    }
}

/// How a mirror is kept.
#[derive(Clone, Copy, Debug)]
pub struct MirrorOptions {
    /// How much longer the second store has what was deleted from the first.
    pub keep_deleted: Duration,
    /// How often the listings are compared.
    pub compare_every: Duration,
}

/// Why a member was not copied, or a comparison ended early.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// Worth trying again.
    #[error("the first store: {0}")]
    First(StoreError),
    /// The member waits.
    #[error("the second store: {0}")]
    Second(StoreError),
    /// Whether something was retired is not known.
    #[error("the table: {0}")]
    Table(#[from] AnchorError),
    /// See [`AliasError::Alias`].
    #[error(transparent)]
    Alias(#[from] AliasError),
}

/// What became of a member that was to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The second store has it.
    Yes { bytes: u64 },
    /// The first does not have it any more.
    Gone,
    /// What the first has is no whole segment of this name.
    Unreadable,
}

#[derive(Default)]
struct State {
    status: MirrorStatus,
    suspects: Suspects,
    /// Members of parity groups that neither store has.
    absent: Suspects,
    /// The second store's, once it was asked.
    clock: Option<StoreClock>,
}

struct Inner {
    env: Env,
    first: Arc<dyn Store>,
    second: Arc<dyn Store>,
    anchor: Anchor,
    queue: Arc<Queue>,
    options: MirrorOptions,
    parity: Parity,
    /// How groups are kept; `None`: none are made.
    grouping: Option<Grouping>,
    state: Mutex<State>,
    /// One comparison at a time.
    comparing: tokio::sync::Mutex<()>,
    /// Somebody wants a comparison now.
    wanted: Notify,
    /// A comparison has ended.
    compared: Notify,
}

/// The mirror of one family; cheap to clone.
#[derive(Clone)]
pub struct Mirror {
    inner: Arc<Inner>,
}

impl Mirror {
    /// A mirror that has made no request yet. `queue` is that of the [`Noting`](crate::Noting) layer over the first store.
    pub fn new(
        env: &Env,
        (first, second): (Arc<dyn Store>, Arc<dyn Store>),
        anchor: Anchor,
        queue: Arc<Queue>,
        options: MirrorOptions,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                env: env.clone(),
                parity: Parity::new(env, (first.clone(), second.clone()), anchor.family()),
                grouping: None,
                first,
                second,
                anchor,
                queue,
                options,
                state: Mutex::default(),
                comparing: tokio::sync::Mutex::default(),
                wanted: Notify::new(),
                compared: Notify::new(),
            }),
        }
    }

    /// The same with the parity groups that readers have, too; with `grouping` it makes and changes them.
    ///
    /// # Panics
    /// If the mirror was cloned before.
    #[must_use]
    pub fn with_parity(mut self, parity: Parity, grouping: Option<Grouping>) -> Self {
        let inner = Arc::get_mut(&mut self.inner).expect("a mirror is made whole before it is shared");
        inner.parity = parity;
        inner.grouping = grouping;
        self
    }

    /// The parity groups in the second store.
    pub fn parity(&self) -> &Parity {
        &self.inner.parity
    }

    /// Copies and compares, for good; ends only if the second store is the first.
    pub async fn run(&self, local: Arc<dyn LocalCopies>) {
        let mut failures = 0_u32;
        while let Err(error) = self.check().await {
            if matches!(error, AliasError::Alias) {
                tracing::error!("{error}");
                return;
            }
            failures += 1;
            AGAIN.wait(&self.inner.env, failures).await;
        }
        join3(
            self.copy_as_noted(&*local),
            self.compare_again_and_again(&*local),
            self.group_again_and_again(),
        )
        .await;
    }

    /// Finds out whether the second store is another than the first.
    ///
    /// # Errors
    /// [`AliasError`].
    pub async fn check(&self) -> Result<(), AliasError> {
        let checked = check_and_ask_clock(&self.inner.env, self.first(), self.second()).await;
        let mut state = self.lock();
        state.clock = checked.as_ref().ok().copied().or(state.clock);
        state.status.last_error = checked.as_ref().err().map(ToString::to_string);
        state.status.state = match &checked {
            Ok(_) => MirrorState::Copying,
            Err(AliasError::Alias) => MirrorState::Alias,
            Err(AliasError::Unasked(_)) => MirrorState::Unchecked,
        };
        checked.map(drop)
    }

    /// The moment by which ages of what the second store has are judged: by its clock or this machine's, whichever is earlier. Asks for it if it
    /// is not known yet.
    ///
    /// # Errors
    /// [`AliasError`].
    pub(crate) async fn judged_now_ms(&self) -> Result<i64, AliasError> {
        let known = self.lock().clock;
        let clock = match known.filter(|known| known.ahead_ms(self.env()).is_none()) {
            Some(clock) => clock,
            // Also if they differ by now: the machine may have slept.
            None => {
                self.check().await?;
                let asked = self.lock().clock;
                asked.expect("a check that passes knows it")
            }
        };
        let ahead_ms = clock.ahead_ms(self.env());
        let before = std::mem::replace(&mut self.lock().status.clock_ahead_ms, ahead_ms);
        if let (Some(ahead_ms), None) = (ahead_ms, before) {
            tracing::warn!(
                ahead_ms,
                "this machine's clock is not the second store's: what is deleted there waits until both say that it is time"
            );
        }
        Ok(clock.now_ms(self.env()))
    }

    /// Whether copies may be made, and repairs from them.
    pub fn is_checked(&self) -> bool {
        matches!(
            self.lock().status.state,
            MirrorState::Copying | MirrorState::Refusing
        )
    }

    /// This moment.
    pub fn status(&self) -> MirrorStatus {
        let (objects, bytes, since) = self.inner.queue.backlog();
        let mut status = self.lock().status.clone();
        status.backlog_objects = objects;
        status.backlog_bytes = bytes;
        status.behind_since_ms = since;
        status
    }

    /// Segments that the last comparison found in the second store and not, or not whole, in the first, and members of parity groups that neither
    /// has, with their lengths; nobody retired them.
    pub fn suspects(&self) -> Suspects {
        let state = self.lock();
        let mut suspects = state.suspects.clone();
        suspects.extend(&state.absent);
        suspects
    }

    /// A repair took care of it.
    pub fn forget_suspect(&self, segment: SegmentId) {
        let mut state = self.lock();
        state.suspects.remove(&segment);
        state.absent.remove(&segment);
    }

    /// A repair found that no root needs anything of a segment that the first store does not have.
    ///
    /// # Errors
    /// The second store's.
    pub async fn mark_unneeded(&self, segment: SegmentId) -> Result<(), StoreError> {
        let family = self.family();
        expiry::put_tombstone(self.second(), &family, &ObjectKey::new(&segment.key(&family))).await?;
        self.forget_suspect(segment);
        Ok(())
    }

    /// Asks for a comparison before it is due.
    pub fn want_comparison(&self) {
        self.inner.wanted.notify_one();
    }

    /// Compares the listings, and copies and deletes what follows from them; one at a time.
    ///
    /// # Errors
    /// [`MirrorError`]; what was copied before is there, and the next comparison finds the rest.
    pub async fn compare(&self, local: &dyn LocalCopies) -> Result<Comparison, MirrorError> {
        let _one = self.inner.comparing.lock().await;
        let began_ms = self.env().wall().as_millis();
        self.lock().status.is_comparing = true;
        let compared = self.compare_once(local).await;
        let mut state = self.lock();
        state.status.is_comparing = false;
        let (comparison, suspects) = compared?;
        state.status.comparison = comparison.clone();
        state.status.compared_at_ms = Some(self.env().wall().as_millis());
        state.suspects = suspects;
        drop(state);
        self.inner.parity.note_held(comparison.held_by_parity);
        self.inner.queue.forget_overflow(began_ms);
        self.inner.compared.notify_one();
        Ok(comparison)
    }

    /// Takes what is cold into parity groups, and out of them what is to be deleted; drops members' copies where that is wanted. Nothing without
    /// a [`Grouping`].
    ///
    /// # Errors
    /// [`MirrorError`]; what was put before is there, and the next pass goes on.
    pub async fn group(&self) -> Result<(), MirrorError> {
        let inner = &self.inner;
        let Some(grouping) = inner.grouping else {
            return Ok(());
        };
        let now_ms = self.judged_now_ms().await?;
        let ages = Ages {
            now_ms,
            keep_deleted: inner.options.keep_deleted,
        };
        let absent = inner.parity.pass(&inner.anchor, grouping, ages).await?;
        self.lock().absent = absent;
        Ok(())
    }

    /// Whether this one makes and changes parity groups.
    pub(crate) fn keeps_groups(&self) -> bool {
        self.inner.grouping.is_some()
    }

    /// After each comparison: by then both stores have what either had.
    async fn group_again_and_again(&self) {
        if !self.keeps_groups() {
            return;
        }
        loop {
            self.inner.compared.notified().await;
            if let Err(error) = self.group().await {
                tracing::warn!(%error, "parity groups are not kept for now; the next comparison is followed by another try");
            }
        }
    }

    async fn copy_as_noted(&self, local: &dyn LocalCopies) {
        let queue = &self.inner.queue;
        let mut failures = 0_u32;
        loop {
            let noted = queue.noted();
            futures::pin_mut!(noted);
            noted.as_mut().enable();
            let Some(waiting) = queue.first() else {
                if queue.overflowed() {
                    self.want_comparison();
                }
                noted.await;
                continue;
            };
            match self.copy(local, &waiting.key, waiting.bytes).await {
                Ok(_) => {
                    failures = 0;
                    queue.done();
                }
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, key = %waiting.key, "not copied into the second store yet; uploads go on");
                    }
                    AGAIN.wait(self.env(), failures).await;
                }
            }
        }
    }

    async fn compare_again_and_again(&self, local: &dyn LocalCopies) {
        let mut failures = 0_u32;
        loop {
            match self.compare(local).await {
                Ok(found) => {
                    failures = 0;
                    tracing::debug!(?found, "first and second store were compared");
                    let wanted = self.inner.wanted.notified();
                    // Either it is time, or somebody wants one.
                    let _ = self.env().timeout(self.inner.options.compare_every, wanted).await;
                }
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "first and second store cannot be compared for now");
                    }
                    AGAIN.wait(self.env(), failures).await;
                }
            }
        }
    }

    /// Copies one member of this family; others are none of its.
    pub(crate) async fn copy(
        &self,
        local: &dyn LocalCopies,
        key: &ObjectKey,
        bytes: u64,
    ) -> Result<Copied, MirrorError> {
        let family = self.family();
        if !key.as_str().starts_with(&format!("{family}/")) {
            return Ok(Copied::Gone);
        }
        let copied = self.copy_member(local, key, bytes).await;
        let mut state = self.lock();
        let status = &mut state.status;
        match &copied {
            Ok(Copied::Yes { bytes }) => {
                status.state = MirrorState::Copying;
                status.last_error = None;
                status.copied_objects += 1;
                status.copied_bytes += bytes;
            }
            Ok(Copied::Gone) => {}
            Ok(Copied::Unreadable) => {
                drop(state);
                tracing::error!(%key, "the first store has something else under this name than one whole segment; it is not copied");
            }
            Err(error) => {
                if matches!(error, MirrorError::Second(_)) {
                    status.state = MirrorState::Refusing;
                }
                status.last_error = Some(error.to_string());
            }
        }
        copied
    }

    async fn copy_member(
        &self,
        local: &dyn LocalCopies,
        key: &ObjectKey,
        bytes: u64,
    ) -> Result<Copied, MirrorError> {
        if bytes > MAX_SEGMENT_BYTES as u64 {
            return Ok(Copied::Unreadable);
        }
        let segment = SegmentId::parse_key(key.as_str()).map(|(_, segment)| segment);
        let content = match segment {
            Some(segment) => match local
                .segment(segment, bytes)
                .await
                .filter(|found| self.is_whole(found, segment))
            {
                Some(here) => here,
                None => match self.read_first(key).await? {
                    None => return Ok(Copied::Gone),
                    Some(found) if self.is_whole(&found, segment) => found,
                    // Once more, before it is called damaged: what travels may be damaged on its way.
                    Some(_) => match self.read_first(key).await? {
                        None => return Ok(Copied::Gone),
                        Some(found) if self.is_whole(&found, segment) => found,
                        Some(_) => return Ok(Copied::Unreadable),
                    },
                },
            },
            None => match self.read_first(key).await? {
                Some(found) => found,
                None => return Ok(Copied::Gone),
            },
        };
        let bytes = content.len() as u64;
        match self.second().put(key, vec![content], PutMode::Create).await {
            Ok(()) | Err(StoreError::AlreadyExists { .. }) => Ok(Copied::Yes { bytes }),
            Err(error) => Err(MirrorError::Second(error)),
        }
    }

    fn is_whole(&self, bytes: &Bytes, segment: SegmentId) -> bool {
        firn_env::planted!("mirror.copy_unchecked")
            || decode_segment(bytes.clone())
                .is_ok_and(|found| found.id == segment && found.family == self.family())
    }

    async fn read_first(&self, key: &ObjectKey) -> Result<Option<Bytes>, MirrorError> {
        match self.first().get(key).await {
            Ok(bytes) => {
                self.lock().status.read_back_bytes += bytes.len() as u64;
                Ok(Some(bytes))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(MirrorError::First(error)),
        }
    }

    pub(crate) fn note_deleted(&self) {
        self.lock().status.deleted_objects += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("no panic under the mirror's lock")
    }

    pub(crate) fn env(&self) -> &Env {
        &self.inner.env
    }

    pub(crate) fn anchor(&self) -> &Anchor {
        &self.inner.anchor
    }

    pub(crate) fn options(&self) -> &MirrorOptions {
        &self.inner.options
    }

    pub(crate) fn family(&self) -> FamilyId {
        self.inner.anchor.family()
    }

    pub(crate) fn stores(&self) -> (&Arc<dyn Store>, &Arc<dyn Store>) {
        (&self.inner.first, &self.inner.second)
    }

    pub(crate) fn first(&self) -> &dyn Store {
        &*self.inner.first
    }

    pub(crate) fn second(&self) -> &dyn Store {
        &*self.inner.second
    }
}
