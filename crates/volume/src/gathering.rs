//! Gathering a manifest: a volume that was made without one gains it from its trees, in the background (decision 0206).
//!
//! ```text
//! begun: round R, proposal P ─▶ from here on packers and rounds enter what they write and take out what is retired
//!   waits until P is merged ─▶ head ─▶ snapshots and retained roots ─▶ the manifest has all
//!                                └─ step (walk.rs) ─▶ segments met ─▶ entries (segments.rs) ─▶ the next checkpoint, with the cursor
//! ```
//!
//! Never from a listing: what the store lost would be missing there, and so in the manifest. What a tree names and the store does not have is
//! entered as what must exist and cannot be read, and told.
//!
//! **Why behind the cursor nothing is missed.** The walk goes through the head as it is at each step. What changes behind the cursor is packed anew, and the
//! packer enters it; or a merge adopts where a cleaner put it, which the rounds after R tell, but for what was proposed before: therefore it is waited for
//! first. A snapshot is made of a head, so those that are there once the head is done are gone through after it, where they differ from the next newer
//! root; later ones have nothing that is not entered.
//!
//! **What is retired meanwhile.** A step remembers the newest round from before it asked which of its segments are retired, and its entries count
//! only if the manifest has taken in no later one: so a round either was seen by the step, or takes the entry out again. A round that is missing, as
//! a cleaner leaves none that began before the volume did, begins all anew.
//!
//! | state | event | next |
//! |---|---|---|
//! | none, or ended with gaps | begin | waiting |
//! | any stage | begin | the same, at the new rate |
//! | waiting | proposal merged, or another chain begun | head |
//! | head | last step committed | retained roots |
//! | retained roots | last step committed | settled; with unreadable nodes: ended with gaps |
//! | settled | a round since the beginning | whole: cleaners of before are overtaken, whose retirements name the round that they saw |
//! | any stage, settled | a round is missing | waiting, from the beginning |

mod segments;
mod walk;

use crate::{
    checkpointer::CheckpointerState,
    manifest::Manifest,
    serving::ServingState,
    volume::{Inner, Volume},
};
use firn_anchor::AnchorError;
use firn_env::Monotonic;
use firn_format::{Gathering, GatheringStage, ListedSegment, SegmentId};
use firn_vfs::VfsError;
use futures::future::select;
use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::Notify;

/// 1 MiB a second: the nodes and indexes of 1 TiB of large files, some 6 GB, in two hours.
pub const GATHERING_BYTES_PER_SECOND: u64 = 1 << 20;

/// A step reads what the rate allows in this time, and is committed: less often than a busy volume commits anyway.
const STEP_SECONDS: u64 = 8;
const STEP_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES_MAX: u64 = 16 << 20;

/// Between two tries while something does not answer, and two looks at what is waited for.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What an administrator asked for, with what was read of the table for it.
#[derive(Clone, Copy, Debug)]
struct Begin {
    round: u64,
    proposal: u64,
    bytes_per_second: u64,
}

/// What a step found, until a checkpoint takes it.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    /// The newest round from before it was asked what is retired.
    pub as_of_round: u64,
    /// The run that it belongs to.
    pub run: u64,
    pub entries: Vec<ListedSegment>,
    /// How far it then is.
    pub next: Gathering,
}

/// Whether a volume has a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManifestStatus {
    /// It has none.
    #[default]
    Without,
    /// It is being gathered, or ended with gaps.
    Gathering(Gathering),
    /// It says of every segment that must exist.
    Whole,
}

#[derive(Default)]
struct Shared {
    committed: ManifestStatus,
    begin: Option<Begin>,
    /// Requests made, and of them those that are committed.
    asked: u64,
    settled: u64,
    gathered: Option<Gathered>,
}

/// Shared by who asks for it, the task and the checkpointer.
#[derive(Default)]
pub(crate) struct ManifestGathering {
    shared: Mutex<Shared>,
    committed: Notify,
}

/// What a checkpoint takes of it.
pub(crate) struct Taken {
    asked: u64,
    pub gathered: Option<Gathered>,
}

impl ManifestGathering {
    pub fn new(manifest: &Manifest) -> Self {
        let gathering = Self::default();
        gathering.lock().committed = manifest.status();
        gathering
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no panic under this lock")
    }

    /// Whether a checkpoint is needed for it.
    pub fn is_waited_for(&self) -> bool {
        let shared = self.lock();
        shared.begin.is_some() || shared.gathered.is_some()
    }

    /// The checkpoint is committed.
    pub fn commit(&self, taken: &Taken, manifest: &Manifest) {
        let mut shared = self.lock();
        let now = manifest.status();
        if shared.committed != now && now == ManifestStatus::Whole {
            tracing::info!("the manifest has every segment that the volume needs");
        }
        shared.committed = now;
        shared.settled = taken.asked;
        drop(shared);
        self.committed.notify_waiters();
    }
}

/// A checkpoint begins, and has packed nothing yet.
pub(crate) fn take(inner: &Inner, own: &mut CheckpointerState) -> Taken {
    let (begin, taken) = {
        let mut shared = inner.gathering.lock();
        let gathered = shared.gathered.take();
        let asked = shared.asked;
        (shared.begin.take(), Taken { asked, gathered })
    };
    if let Some(begin) = begin {
        let now_ms = inner.env.wall().as_millis();
        let begun = Gathering {
            proposal: begin.proposal,
            bytes_per_second: begin.bytes_per_second,
            begun_at_ms: now_ms,
            ..Gathering::default()
        };
        if own.manifest.begin(begin.round, begun) {
            // Before anything of this checkpoint is packed.
            inner.checkpointer.packer.finished.want();
        }
    }
    taken
}

/// A round is missing: all begins anew. Nothing changes if the table does not answer.
pub(crate) async fn begin_anew(inner: &Inner, manifest: &mut Manifest) -> Result<(), AnchorError> {
    let (round, proposal) = newest(inner).await?;
    let Some(before) = manifest.gathering() else {
        return Ok(());
    };
    tracing::warn!(
        round,
        "a cleaner retired segments without telling: the manifest is gathered from the beginning. No data is concerned"
    );
    manifest.begin_anew(
        round,
        Gathering {
            proposal,
            bytes_per_second: before.bytes_per_second,
            begun_at_ms: inner.env.wall().as_millis(),
            run: before.run + 1,
            ..Gathering::default()
        },
    );
    Ok(())
}

/// The newest round, and after it the newest proposal.
async fn newest(inner: &Inner) -> Result<(u64, u64), AnchorError> {
    let (round, _) = inner.anchor.cleaner_round().await?;
    let proposal = inner.anchor.proposal(inner.volume).await?;
    Ok((round.round, proposal.map_or(0, |(proposal, _)| proposal.sequence)))
}

/// Runs until the volume stops serving.
pub(crate) async fn run(inner: Arc<Inner>) {
    let (ended, work) = (pin!(inner.serving.ended()), pin!(work(&inner)));
    select(ended, work).await;
}

async fn work(inner: &Inner) {
    // Not there as a tree says, and to be seen once more with a newer root before it is called lost.
    let mut doubted: BTreeSet<SegmentId> = BTreeSet::new();
    loop {
        let before = wait_for_work(inner).await;
        let began = inner.env.now();
        let stepped = step(inner, before, &mut doubted).await;
        let bytes = match stepped {
            // What is met while it is being stopped is met again after the next start.
            Ok(Some((gathered, bytes))) if inner.serving.now() == ServingState::Serving => {
                inner.gathering.lock().gathered = Some(gathered);
                inner.checkpointer.want();
                wait_until_taken(inner).await;
                bytes
            }
            Ok(_) => {
                inner.env.sleep(TRY_AGAIN).await;
                continue;
            }
            Err(why) => {
                tracing::debug!(why, "the manifest cannot be gathered further now");
                inner.env.sleep(TRY_AGAIN).await;
                continue;
            }
        };
        let micros = bytes.saturating_mul(1_000_000) / before.bytes_per_second.max(1);
        pace(inner, before, began.after(Duration::from_micros(micros))).await;
    }
}

/// Waits until the next step may be made; not longer once the rate is another.
async fn pace(inner: &Inner, before: Gathering, until: Monotonic) {
    loop {
        let committed = inner.gathering.committed.notified();
        futures::pin_mut!(committed);
        committed.as_mut().enable();
        let left = until.since(inner.env.now());
        let ManifestStatus::Gathering(now) = inner.gathering.lock().committed else {
            return;
        };
        if left.is_zero() || now.bytes_per_second != before.bytes_per_second {
            return;
        }
        let _ = inner.env.timeout(left, committed).await;
    }
}

/// The newest committed state once something is to be done.
async fn wait_for_work(inner: &Inner) -> Gathering {
    loop {
        let committed = inner.gathering.committed.notified();
        futures::pin_mut!(committed);
        committed.as_mut().enable();
        let now = inner.gathering.lock().committed;
        match now {
            ManifestStatus::Gathering(gathering) if gathering.stage != GatheringStage::Gaps => {
                return gathering;
            }
            ManifestStatus::Gathering(_) | ManifestStatus::Without | ManifestStatus::Whole => {}
        }
        committed.await;
    }
}

async fn wait_until_taken(inner: &Inner) {
    loop {
        let committed = inner.gathering.committed.notified();
        futures::pin_mut!(committed);
        committed.as_mut().enable();
        if inner.gathering.lock().gathered.is_none() {
            break;
        }
        // A checkpoint that was under way when it was wanted may have begun before.
        let _ = inner.env.timeout(TRY_AGAIN, committed).await;
        if inner.gathering.lock().gathered.is_some() {
            inner.checkpointer.want();
        }
    }
}

/// One step; `None`: to be made again. In words, what cannot be asked now.
async fn step(
    inner: &Inner,
    before: Gathering,
    doubted: &mut BTreeSet<SegmentId>,
) -> Result<Option<(Gathered, u64)>, String> {
    let (as_of_round, _) = inner
        .anchor
        .cleaner_round()
        .await
        .map_err(|error| error.to_string())?;
    let as_of_round = as_of_round.round;
    let Some(scene) = walk::look(inner).await else {
        return Ok(None);
    };
    let Some(mut next) = scene.manifest.gathering() else {
        return Ok(None);
    };
    if next.run != before.run {
        return Ok(None);
    }
    let gathered = |entries, next| Gathered {
        as_of_round,
        run: before.run,
        entries,
        next,
    };
    if next.stage == GatheringStage::Waiting {
        let proposal = inner.anchor.proposal(inner.volume).await;
        let is_merged = match proposal.map_err(|error| error.to_string())? {
            Some((proposal, _)) => scene.merged >= next.proposal || proposal.chained_from > next.proposal,
            None => true,
        };
        if is_merged {
            next.stage = GatheringStage::Head;
        } else {
            // A checkpoint takes it over.
            inner.env.sleep(inner.config.merge_every.max(TRY_AGAIN)).await;
        }
        return Ok(Some((gathered(Vec::new(), next), 0)));
    }
    let allowed = next
        .bytes_per_second
        .saturating_mul(STEP_SECONDS)
        .clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
    let walked = walk::step(inner, &scene, next, allowed).await;
    inner.env.fault_point("gathering.after_walk").await;
    let found = segments::enter(inner, &scene.manifest, walked.found)
        .await
        .map_err(|error| error.to_string())?;
    if !found.lost.iter().all(|segment| doubted.contains(segment)) {
        doubted.extend(found.lost);
        return Ok(None);
    }
    for segment in &found.lost {
        tracing::error!(%segment, "a segment that the volume needs is not in the bucket as it must be");
        doubted.remove(segment);
    }
    let mut next = walked.next;
    next.segments += found.entries.len() as u64;
    next.lost += found.lost.len() as u64;
    if walked.is_away && found.entries.is_empty() && next == before {
        return Ok(None);
    }
    if walked.is_over {
        next.stage = match next.unreadable {
            0 => GatheringStage::Settled,
            _ => GatheringStage::Gaps,
        };
    }
    Ok(Some((
        gathered(found.entries, next),
        walked.read_bytes + found.read_bytes,
    )))
}

impl Volume {
    /// Begins to gather the manifest of a volume that has none, with `bytes_per_second` at most; returns once that is committed (level 2). If it is
    /// under way it goes on, at the new rate; a volume that has one keeps it.
    ///
    /// # Errors
    /// If the volume is detached, another's, or stops serving, or the table does not answer.
    pub async fn manifest_begin(&self, bytes_per_second: u64) -> Result<ManifestStatus, VfsError> {
        let inner = &self.inner;
        inner.check_serving()?;
        inner.checkpointer.attached()?;
        let asked = {
            let unknown = |error: AnchorError| {
                tracing::debug!(%error, "no manifest is begun");
                VfsError::TryAgain {
                    reason: "the table does not say now what was retired",
                }
            };
            let (round, proposal) = newest(inner).await.map_err(unknown)?;
            let mut shared = inner.gathering.lock();
            shared.begin = Some(Begin {
                round,
                proposal,
                bytes_per_second,
            });
            shared.asked += 1;
            shared.asked
        };
        loop {
            let committed = inner.gathering.committed.notified();
            let ended = inner.checkpointer.committed();
            futures::pin_mut!(committed, ended);
            committed.as_mut().enable();
            ended.as_mut().enable();
            inner.serving.check_not_ended()?;
            if inner.gathering.lock().settled >= asked {
                return Ok(self.manifest_status());
            }
            inner.checkpointer.want();
            select(committed, ended).await;
        }
    }

    /// Whether the volume has a manifest, and how far it is gathered; takes no request.
    pub fn manifest_status(&self) -> ManifestStatus {
        self.inner.gathering.lock().committed
    }
}
