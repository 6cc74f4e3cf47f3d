//! Members without copies: what a pass may drop from the second store, what it releases in the first, and how copies come back.
//!
//! ```text
//! begin or count the pass in the table ─▶ list what is doomed ─▶ list the groups ─▶ change them ─▶ drop copies ─▶ release
//!                            └───────────────── nothing is dropped or released once another pass was counted ─────────────────┘
//! ```
//!
//! | a segment, while copies go | in the second | in the first |
//! |---|---|---|
//! | member of a group that is whole, not retired, the first has its very bytes | dropped | |
//! | member, retired `keep_deleted` ago | | leaves its group; then released |
//! | in no group, retired | as ever | released |
//!
//! **Why in this order.** A copy goes only after its group's generation is there and the hold is in force, so whoever retires the segment later leaves
//! it held; and a release is by a pass that listed the groups after it saw the segment retired. Two passes at a time would tell each other nothing
//! of generations under way: the later one counts, and the earlier one finds that before its next deletion or release. What it changed of groups
//! is a generation like any other.
//!
//! **What the first store has** is read before a copy goes, whole, and compared with the hash that the group has of the copy: a GET for each segment,
//! once, from beside the bucket for nothing but that.

use super::{Parity, look::Seen};
use crate::{MirrorError, comparison::Suspects};
use firn_anchor::{Anchor, AnchorError, DoomedSegment, Hold, HoldChange, MAX_RELEASED, TupleVersion};
use firn_format::SegmentId;
use firn_parity::{Member, row_hash};
use firn_store::StoreError;
use futures::stream::{self, StreamExt};
use std::{collections::BTreeMap, str::FromStr, time::Duration};

/// Doomed segments listed with one query.
const PAGE: usize = 1000;

/// Copies dropped at a time: as many segments in memory.
const SIDE_BY_SIDE: usize = 4;

/// What becomes of members' copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// They stay, and come back where they were dropped.
    Keep,
    /// They go once their group is there.
    Drop,
}

impl FromStr for Copies {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "keep" => Ok(Self::Keep),
            "drop" => Ok(Self::Drop),
            other => Err(format!("copies are either \"keep\" or \"drop\", not {other:?}")),
        }
    }
}

/// How parity groups are kept.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    /// How old a segment must be to join one.
    pub after: Duration,
    /// `None`: as the table says, which says that they stay until somebody dropped one.
    pub copies: Option<Copies>,
}

/// How a hold stands, as the last pass or comparison saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldStatus {
    /// Whether copies go; otherwise they come back.
    pub drops: bool,
    /// Since when it is in force, milliseconds since 1970.
    pub since_ms: i64,
    /// Members without a copy.
    pub dropped: u64,
    /// Bytes of them.
    pub dropped_bytes: u64,
    /// Members whose copy is to go and could not be deleted, or was not yet.
    pub undropped: u64,
    /// Retired segments that cleaners keep until they are released.
    pub held: u64,
    /// Bytes of them in the first store.
    pub held_bytes: u64,
    /// Since when the oldest of them, milliseconds since 1970.
    pub held_since_ms: Option<i64>,
}

/// What a pass knows of the hold.
pub(super) struct Held {
    pub drops: bool,
    /// The hold as this pass left it; `None`: it may neither drop nor release.
    fence: Option<TupleVersion>,
    /// The round as it was before what is doomed was listed.
    round: Option<TupleVersion>,
    pub doomed: BTreeMap<SegmentId, DoomedSegment>,
}

impl Held {
    /// Whether cleaners keep it.
    pub fn is_held(&self, segment: SegmentId) -> bool {
        let doomed = self.doomed.get(&segment);
        doomed.is_some_and(|doomed| doomed.held_since_ms.is_some())
    }

    /// Since when a segment is retired, by whoever saw it; `None`: it is not.
    pub fn retired_ms(&self, segment: SegmentId) -> Option<i64> {
        let doomed = self.doomed.get(&segment)?;
        doomed.held_since_ms.or(doomed.seen_at_ms).or(Some(i64::MAX))
    }
}

impl Parity {
    /// Counts a pass, or begins a hold; `None`: none is in force and none is wanted.
    pub(super) async fn enter_pass(
        &self,
        anchor: &Anchor,
        copies: Option<Copies>,
    ) -> Result<Option<Held>, AnchorError> {
        let before = match copies {
            Some(Copies::Drop) => anchor.hold().await?,
            Some(Copies::Keep) | None => known_hold(anchor).await?,
        };
        let (seen, change) = match (before, copies) {
            (None, Some(Copies::Keep) | None) => {
                self.learn_hold(None);
                return Ok(None);
            }
            (None, Some(Copies::Drop)) => (None, HoldChange::Begin),
            (Some((_, seen)), Some(Copies::Drop)) => (Some(seen), HoldChange::Drop),
            (Some((_, seen)), Some(Copies::Keep)) => (Some(seen), HoldChange::Restore),
            (Some((hold, seen)), None) if hold.drops => (Some(seen), HoldChange::Drop),
            (Some((_, seen)), None) => (Some(seen), HoldChange::Restore),
        };
        let (_, round_seen) = anchor.cleaner_round().await?;
        let fence = match anchor.change_hold(seen, round_seen, change).await {
            Ok(fence) => fence,
            Err(AnchorError::Table(error)) if !error.is_in_doubt() => {
                tracing::debug!(%error, "this one may not change the hold; whoever may drops copies and releases what is retired");
                None
            }
            Err(error) => return Err(error),
        };
        let now = anchor.hold().await?;
        self.learn_hold(now.map(|(hold, _)| hold));
        let Some((hold, version)) = now else {
            return Ok(None);
        };
        // Before what is doomed is listed: what is retired after that is of another round.
        let (_, round) = anchor.cleaner_round().await?;
        Ok(Some(Held {
            drops: hold.drops,
            fence: fence.filter(|fence| *fence == version),
            round,
            doomed: all_doomed(anchor).await?,
        }))
    }

    /// As the table says now.
    pub(crate) fn learn_hold(&self, hold: Option<Hold>) {
        let mut state = self.lock();
        state.status.hold = hold.map(|hold| HoldStatus {
            drops: hold.drops,
            since_ms: hold.since_ms,
            ..state.status.hold.unwrap_or_default()
        });
    }

    /// After the groups were changed: drops copies, and releases what is retired. Gives the segments that the first store has other bytes of.
    pub(super) async fn hold_after(
        &self,
        anchor: &Anchor,
        held: &Held,
        seen: &Seen,
    ) -> Result<Suspects, MirrorError> {
        let mut altered = seen.altered.clone();
        let copies = match held.drops {
            true => self.copies_to_drop(seen),
            false => Vec::new(),
        };
        let (mut dropped, mut dropped_bytes) = (seen.dropped, seen.dropped_bytes);
        let before = dropped;
        if let (Some(fence), true) = (held.fence, held.drops) {
            let mut outcomes = stream::iter(copies.clone())
                .map(|member| async move { (member, self.drop_copy(anchor, fence, member).await) })
                .buffer_unordered(SIDE_BY_SIDE);
            while let Some((member, outcome)) = outcomes.next().await {
                match outcome? {
                    Dropped::Yes => {
                        dropped += 1;
                        dropped_bytes += u64::from(member.bytes);
                    }
                    Dropped::Altered => {
                        altered.insert(member.segment, u64::from(member.bytes));
                    }
                    Dropped::Gone => {}
                    // Neither would another one go.
                    Dropped::Denied | Dropped::Overtaken => break,
                }
            }
        }
        let kept = self.release(anchor, held, seen).await?;
        let mut state = self.lock();
        if let Some(hold) = &mut state.status.hold {
            hold.dropped = dropped;
            hold.dropped_bytes = dropped_bytes;
            hold.undropped = copies.len() as u64 - (dropped - before);
            hold.held = kept.len() as u64;
            hold.held_bytes = seen.held_bytes;
            hold.held_since_ms = kept.iter().filter_map(|doomed| doomed.held_since_ms).min();
        }
        Ok(altered)
    }

    /// Members of groups that are whole whose copies are there, those that joined just now as well.
    fn copies_to_drop(&self, seen: &Seen) -> Vec<Member> {
        let state = self.lock();
        let index = &state.index;
        let joined = seen.candidates.iter().filter(|candidate| candidate.is_first);
        let joined = joined.map(|candidate| candidate.segment);
        let member = |segment: SegmentId| {
            let known = index.groups.get(index.members.get(&segment)?)?;
            known.head.find(segment).copied().filter(|_| known.is_whole)
        };
        let is_planted = firn_env::planted!("mirror.only_what_joined_is_dropped");
        let of_old = seen.copies.iter().copied().filter(|_| !is_planted);
        of_old.chain(joined).filter_map(member).collect()
    }

    async fn drop_copy(
        &self,
        anchor: &Anchor,
        fence: TupleVersion,
        member: Member,
    ) -> Result<Dropped, MirrorError> {
        let key = self.segment_key(member.segment);
        let ours = match self.inner.first.get(&key).await {
            Ok(ours) => ours,
            Err(StoreError::NotFound { .. }) => return Ok(Dropped::Gone),
            Err(error) => return Err(MirrorError::First(error)),
        };
        if row_hash(&ours) != member.hash && !firn_env::planted!("mirror.dropped_unread") {
            tracing::error!(%key, "the first store has other bytes of this segment than the second: its copy stays, and `firn-edge repair` writes it anew");
            return Ok(Dropped::Altered);
        }
        self.env().fault_point("mirror.before_drop").await;
        let now = anchor.hold().await?;
        if now.is_none_or(|(_, version)| version != fence)
            && !firn_env::planted!("mirror.dropped_by_an_older_pass")
        {
            return Ok(Dropped::Overtaken);
        }
        match self.delete(&key).await.map_err(MirrorError::Second)? {
            true => Ok(Dropped::Yes),
            false => Ok(Dropped::Denied),
        }
    }

    /// Releases what is retired and in no group, or has a copy where copies come back; then ends the hold, if none lacks. Gives what is still held.
    async fn release(
        &self,
        anchor: &Anchor,
        held: &Held,
        seen: &Seen,
    ) -> Result<Vec<DoomedSegment>, MirrorError> {
        let doomed = held.doomed.values().copied();
        let of_hold = doomed.filter(|doomed| doomed.held_since_ms.is_some());
        let (free, kept): (Vec<DoomedSegment>, Vec<DoomedSegment>) = {
            let state = self.lock();
            // Where a group cannot be read, any of them may be its member.
            let is_known = state.index.unreadable == 0;
            let is_member = |segment: &SegmentId| {
                state.index.members.contains_key(segment) && !firn_env::planted!("mirror.member_released")
            };
            let just_left = |segment: &SegmentId| seen.due.values().any(|due| due.contains_key(segment));
            of_hold.clone().partition(|DoomedSegment { segment, .. }| {
                if firn_env::planted!("mirror.only_what_left_is_released") && !just_left(segment) {
                    return false;
                }
                let has_copy = !held.drops && seen.doomed_copies.contains(segment);
                is_known && (!is_member(segment) || has_copy)
            })
        };
        let Some(fence) = held.fence else {
            return Ok(of_hold.collect());
        };
        self.env().fault_point("mirror.before_release").await;
        for some in free.chunks(MAX_RELEASED) {
            if !anchor.release_doomed(fence, some).await? {
                return Ok(of_hold.collect());
            }
        }
        if !held.drops && seen.dropped == 0 && kept.is_empty() {
            self.env().fault_point("mirror.before_hold_ends").await;
            let round = match firn_env::planted!("mirror.hold_ends_with_any_round") {
                true => anchor.cleaner_round().await?.1,
                false => held.round,
            };
            let ended = anchor.change_hold(Some(fence), round, HoldChange::End).await?;
            if ended.is_some() {
                tracing::info!("all members of parity groups have copies again: nothing is held any more");
                self.learn_hold(None);
            }
        }
        Ok(kept)
    }

    /// A planted bug: copies go before their group is there.
    pub(super) async fn drop_planted(&self, held: &Held, seen: &Seen) -> Result<(), MirrorError> {
        if held.drops {
            for candidate in &seen.candidates {
                let key = self.segment_key(candidate.segment);
                self.delete(&key).await.map_err(MirrorError::Second)?;
            }
        }
        Ok(())
    }
}

/// What became of a copy that was to go.
enum Dropped {
    Yes,
    /// The first store has other bytes.
    Altered,
    /// The first store does not have it.
    Gone,
    /// These credentials may not delete.
    Denied,
    /// Another pass was counted since.
    Overtaken,
}

/// The hold, as far as whoever keeps the table knows that there are any: otherwise none is in force.
pub(crate) async fn known_hold(anchor: &Anchor) -> Result<Option<(Hold, TupleVersion)>, AnchorError> {
    match anchor.hold().await {
        Err(AnchorError::Table(error)) if !error.is_in_doubt() => {
            tracing::debug!(%error, "whether a hold is in force is not known to whoever keeps the table");
            Ok(None)
        }
        other => other,
    }
}

/// All that is retired and still there: some 60 bytes each.
pub(crate) async fn all_doomed(anchor: &Anchor) -> Result<BTreeMap<SegmentId, DoomedSegment>, AnchorError> {
    let mut all = BTreeMap::new();
    let mut after = None;
    loop {
        let page = anchor.list_doomed(after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(last.segment);
        all.extend(page.into_iter().map(|doomed| (doomed.segment, doomed)));
    }
}
