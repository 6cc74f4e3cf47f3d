//! The view of a pass: the listings of segments beside each other, the tombstones, and the members of groups.
//!
//! | second | first | a member | |
//! |---|---|---|---|
//! | there | | no | a candidate, if it is cold, not marked and not retired |
//! | there | | yes | due, if it is marked `keep_deleted` ago; while copies go it is due once it is retired, and else its copy may go |
//! | absent | there | yes | without a copy; due, if it is retired `keep_deleted` ago. Of another length: a suspect |
//! | absent | absent | yes | asked for by name: not needed, or lost |
//!
//! The first store is listed only while a hold is in force: without one each member has its copy, or had it.

use super::{Ages, Parity, hold::Held};
use crate::{
    MirrorError,
    comparison::Suspects,
    expiry::{self, tombstone_key},
    listing::Listing,
};
use firn_anchor::Anchor;
use firn_format::{MAX_SEGMENT_BYTES, SegmentId};
use firn_store::{ObjectInfo, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Candidates remembered in a pass, of 32 bytes each; the next pass finds more.
const CANDIDATES_MAX: usize = 65_536;

/// A segment that is cold and in no group.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub segment: SegmentId,
    pub bytes: u32,
    pub modified_ms: i64,
    /// Whether the first store was seen to have it as well.
    pub is_first: bool,
}

#[derive(Default)]
pub(super) struct Seen {
    pub candidates: Vec<Candidate>,
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Members whose deletion is due, by group, and since when.
    pub due: BTreeMap<u64, BTreeMap<SegmentId, i64>>,
    /// Members that the second store does not have.
    absent: Vec<SegmentId>,
    /// Members with a copy that the first store has as well and nobody retired.
    pub copies: Vec<SegmentId>,
    /// Members that the first store alone has.
    pub dropped: u64,
    pub dropped_bytes: u64,
    /// Retired members with a copy.
    pub doomed_copies: BTreeSet<SegmentId>,
    /// Held segments' bytes in the first store.
    pub held_bytes: u64,
    /// Members without a copy that the first store has in another length than their group says.
    pub altered: Suspects,
}

/// The segments of a listing, in order.
struct Segments(Listing);

impl Segments {
    async fn peek(&mut self) -> Result<Option<SegmentId>, StoreError> {
        while let Some(object) = self.0.peek().await? {
            if let Some((_, segment)) = SegmentId::parse_key(object.key.as_str()) {
                return Ok(Some(segment));
            }
            self.0.take();
        }
        Ok(None)
    }

    /// If it is the next one.
    async fn take(&mut self, segment: SegmentId) -> Result<Option<ObjectInfo>, StoreError> {
        match self.peek().await? == Some(segment) {
            true => Ok(self.0.take()),
            false => Ok(None),
        }
    }
}

impl Parity {
    /// One listing of the segments, beside that of their tombstones and the members of groups.
    pub(super) async fn look(
        &self,
        held: Option<&Held>,
        after: Duration,
        Ages { now_ms, keep_deleted }: Ages,
    ) -> Result<Seen, MirrorError> {
        let family = self.family();
        let is_older = |since_ms: i64, than: Duration| {
            i128::from(now_ms.saturating_sub(since_ms)) >= than.as_millis() as i128
        };
        let members: Vec<(SegmentId, u64)> = {
            let state = self.lock();
            let members = state.index.members.iter();
            members.map(|(segment, group)| (*segment, *group)).collect()
        };
        let mut members = members.into_iter().peekable();
        let mut seen = Seen::default();
        let listing = |store: &_| Segments(Listing::new(store, format!("{family}/log/")));
        let mut copies = listing(&self.inner.second);
        let mut ours = held.map(|_| listing(&self.inner.first));
        let mut tombstones = Listing::new(&self.inner.second, format!("{family}/tombstone/log/"));
        loop {
            let mut next = copies.peek().await.map_err(MirrorError::Second)?;
            if let Some(ours) = &mut ours {
                let of_first = ours.peek().await.map_err(MirrorError::First)?;
                next = earlier(next, of_first);
            }
            next = earlier(next, members.peek().map(|(member, _)| *member));
            let Some(segment) = next else { break };
            let copy = copies.take(segment).await.map_err(MirrorError::Second)?;
            let our = match &mut ours {
                Some(ours) => ours.take(segment).await.map_err(MirrorError::First)?,
                None => None,
            };
            let group = members
                .next_if(|(member, _)| *member == segment)
                .map(|(_, group)| group);
            let mut marked_ms = None;
            if copy.is_some() {
                let key = self.segment_key(segment);
                while let Some(tombstone) = tombstones.peek().await.map_err(MirrorError::Second)? {
                    let of = expiry::member_of(&family, &tombstone.key);
                    if of.as_ref() > Some(&key) {
                        break;
                    }
                    if of.as_ref() == Some(&key) {
                        marked_ms = Some(tombstone.modified_ms);
                    }
                    tombstones.take();
                }
            }
            let retired_ms = held.and_then(|held| held.retired_ms(segment));
            if let (Some(our), Some(held)) = (&our, held)
                && held.is_held(segment)
            {
                seen.held_bytes += our.size_bytes;
            }
            match (group, copy, our) {
                (Some(group), Some(copy), our) => {
                    let since_ms = match (marked_ms, retired_ms) {
                        (Some(marked_ms), _) => is_older(marked_ms, keep_deleted).then_some(marked_ms),
                        // Its copy stays for `keep_deleted` after it left.
                        (None, retired_ms) => retired_ms,
                    };
                    if let Some(since_ms) = since_ms {
                        seen.due.entry(group).or_default().insert(segment, since_ms);
                    }
                    if retired_ms.is_some() {
                        seen.doomed_copies.insert(segment);
                    } else if marked_ms.is_none() && our.is_some_and(|our| our.size_bytes == copy.size_bytes)
                    {
                        seen.copies.push(segment);
                    }
                }
                (Some(group), None, Some(our)) => {
                    seen.dropped += 1;
                    seen.dropped_bytes += our.size_bytes;
                    if let Some(retired_ms) = retired_ms {
                        if is_older(retired_ms, keep_deleted) {
                            seen.due.entry(group).or_default().insert(segment, retired_ms);
                        }
                    } else if let Some(bytes) = self.bytes_in(group, segment)
                        && bytes != our.size_bytes
                    {
                        tracing::error!(%segment, "the first store has this segment in another length than its parity group");
                        seen.altered.insert(segment, bytes);
                    }
                }
                (Some(_), None, None) => seen.absent.push(segment),
                (None, Some(copy), our)
                    if marked_ms.is_none()
                        && retired_ms.is_none()
                        && is_older(copy.modified_ms, after)
                        && (1..=MAX_SEGMENT_BYTES as u64).contains(&copy.size_bytes) =>
                {
                    seen.waiting += 1;
                    seen.waiting_bytes += copy.size_bytes;
                    if seen.candidates.len() < CANDIDATES_MAX {
                        seen.candidates.push(Candidate {
                            segment,
                            bytes: copy.size_bytes as u32,
                            modified_ms: copy.modified_ms,
                            is_first: our.is_some_and(|our| our.size_bytes == copy.size_bytes),
                        });
                    }
                }
                (None, Some(_) | None, Some(_) | None) => {}
            }
        }
        Ok(seen)
    }

    /// Members that neither store lists, and bytes of them: whether a store that was a second one can stand alone.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn lacking(&self) -> Result<(u64, u64), StoreError> {
        self.refresh().await?;
        let mut lacking: BTreeMap<SegmentId, u64> = {
            let state = self.lock();
            let groups = state.index.groups.values();
            let members = groups.flat_map(|known| &known.head.members);
            members
                .map(|member| (member.segment, u64::from(member.bytes)))
                .collect()
        };
        for store in [&self.inner.second, &self.inner.first] {
            if lacking.is_empty() {
                break;
            }
            let mut listed = Segments(Listing::new(store, format!("{}/log/", self.family())));
            while let Some(segment) = listed.peek().await? {
                lacking.remove(&segment);
                listed.0.take();
            }
        }
        Ok((lacking.len() as u64, lacking.values().sum()))
    }

    /// Bytes of a member, as its group says.
    fn bytes_in(&self, group: u64, segment: SegmentId) -> Option<u64> {
        let state = self.lock();
        let member = *state.index.groups.get(&group)?.head.find(segment)?;
        Some(u64::from(member.bytes))
    }

    /// Members that the second store does not have: who is not needed leaves, who is in the first is copied by the next comparison.
    pub(super) async fn judge_absent(
        &self,
        anchor: &Anchor,
        seen: &mut Seen,
    ) -> Result<Suspects, MirrorError> {
        let family = self.family();
        let mut suspects = Suspects::new();
        for segment in std::mem::take(&mut seen.absent) {
            let Some(head) = self.group_of(segment) else {
                continue;
            };
            let key = self.segment_key(segment);
            let is_marked = match tombstone_key(&family, &key) {
                Some(tombstone) => {
                    is_there(self.second().head(&tombstone).await).map_err(MirrorError::Second)?
                }
                None => false,
            };
            if is_marked || anchor.retired(segment).await?.is_some() {
                // Nothing of it is left to keep.
                seen.due.entry(head.group).or_default().insert(segment, i64::MIN);
                continue;
            }
            let is_first = is_there(self.inner.first.head(&key).await).map_err(MirrorError::First)?;
            if let (false, Some(member)) = (is_first, head.find(segment)) {
                tracing::error!(%segment, "neither store has this segment; it can be computed from its parity group, and `firn-edge repair` writes it anew");
                suspects.insert(segment, u64::from(member.bytes));
            }
        }
        Ok(suspects)
    }
}

fn earlier(one: Option<SegmentId>, other: Option<SegmentId>) -> Option<SegmentId> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn is_there<T>(found: Result<T, StoreError>) -> Result<bool, StoreError> {
    match found {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
