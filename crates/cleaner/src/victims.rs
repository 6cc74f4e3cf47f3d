//! Victim selection: a window of the log's listing, ordered by cost and benefit.
//!
//! Moving the live part of a segment costs reading and writing it; the benefit is the space that becomes free, for as long
//! as what was moved stays needed, of which the age of the segment is the best guess (Rosenblum and Ousterhout's
//! cost-benefit rule):
//!
//! ```text
//! score = free × age / (size + live)
//! ```
//!
//! What is live is asked of the heads' usage maps. They are hints: too low a figure costs reading one index, too high a one
//! hides garbage. So each run also looks at a few segments that the hints say are not worth it, drawn by lot from the window
//! ([`Limits::audited_segments`](crate::Limits::audited_segments)): a map full of lies makes cleaning slow, and no garbage safe.
//! A branch without a map may need anything beyond what the others are known to need.

use crate::{CleanError, branches::Branch, limits::Limits, lookup::lookup, objects::Objects};
use firn_anchor::Listing;
use firn_format::{SegmentId, UsageLeaf, usage_slot};
use firn_store::ObjectKey;
use std::collections::{BTreeMap, BTreeSet};

/// A segment as the listing and the usage maps show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub segment: SegmentId,
    pub size_bytes: u64,
    /// When it was put, by the store's clock.
    pub modified_ms: i64,
    pub hint: Hint,
}

/// What the heads say of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// Bytes that they need of it.
    pub live_bytes: u64,
    /// Whether all of them say something; otherwise more may be needed.
    pub is_complete: bool,
}

impl Candidate {
    /// Bytes that would become free, by the hints.
    pub fn hinted_free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.hint.live_bytes)
    }

    fn score(&self, now_ms: i64) -> u128 {
        let mut live = self.hint.live_bytes;
        if !self.hint.is_complete {
            // As if half of it were free.
            live = live.max(self.size_bytes / 2);
        }
        let free = self.size_bytes.saturating_sub(live);
        let age_ms = (now_ms - self.modified_ms).max(0).unsigned_abs() + 1;
        u128::from(free) * u128::from(age_ms) * 1000 / u128::from((self.size_bytes + live).max(1))
    }
}

/// A part of the log.
pub(crate) struct Window {
    /// Worth a look, the best first.
    pub candidates: Vec<Candidate>,
    /// Not worth it by the hints, drawn by lot to be looked at all the same.
    pub audited: Vec<Candidate>,
    /// Segments listed.
    pub listed: u64,
    /// Bytes of them.
    pub listed_bytes: u64,
    /// What the listing showed.
    pub shown: BTreeSet<SegmentId>,
    /// Names under the log's prefix that are no segment's.
    pub foreign: Vec<ObjectKey>,
    /// Where the next window begins; `None`: at the log's beginning.
    pub next: Option<SegmentId>,
}

impl Window {
    /// What the listing behind `after` found, for the bill.
    pub(crate) fn listing(&self, after: Option<SegmentId>) -> Listing {
        Listing {
            after,
            until: self.next,
            bytes: self.listed_bytes,
        }
    }
}

/// Names of foreign objects that are reported; more say no more.
const FOREIGN_NAMED: usize = 16;

/// Reads the listing behind `after` and the figures of what is found there.
pub(crate) async fn window(
    objects: &mut Objects,
    limits: &Limits,
    branches: &[Branch],
    after: Option<SegmentId>,
) -> Result<Window, CleanError> {
    let family = objects.anchor.family();
    let prefix = format!("{family}/log/");
    let mut window = Window {
        candidates: Vec::new(),
        audited: Vec::new(),
        listed: 0,
        listed_bytes: 0,
        shown: BTreeSet::new(),
        foreign: Vec::new(),
        next: None,
    };
    let mut hints = Hints::default();
    let mut full = 0;
    let now_ms = objects.env.wall().as_millis();
    let mut after = after.map(|segment| ObjectKey::new(&segment.key(&family)));
    for _ in 0..limits.list_pages.max(1) {
        let page = objects.store.list(&prefix, after.as_ref()).await?;
        for object in &page.objects {
            let Some((_, segment)) = SegmentId::parse_key(object.key.as_str()) else {
                if window.foreign.len() < FOREIGN_NAMED {
                    window.foreign.push(object.key.clone());
                }
                continue;
            };
            window.listed += 1;
            window.listed_bytes += object.size_bytes;
            window.next = Some(segment);
            window.shown.insert(segment);
            let candidate = Candidate {
                segment,
                size_bytes: object.size_bytes,
                modified_ms: object.modified_ms,
                hint: hints.of(objects, branches, segment).await?,
            };
            let age_ms = now_ms - candidate.modified_ms;
            if limits.is_worth_moving(candidate.hinted_free_bytes(), candidate.size_bytes, age_ms) {
                window.candidates.push(candidate);
            } else {
                full += 1;
                if window.audited.len() < limits.audited_segments {
                    window.audited.push(candidate);
                } else {
                    // Each of those seen so far is among the drawn ones with the same chance.
                    let drawn = objects.env.random_below(full) as usize;
                    if let Some(place) = window.audited.get_mut(drawn) {
                        *place = candidate;
                    }
                }
            }
        }
        if !page.more {
            window.next = None;
            break;
        }
        after = page.objects.last().map(|object| object.key.clone());
    }
    window
        .candidates
        .sort_by_key(|candidate| (std::cmp::Reverse(candidate.score(now_ms)), candidate.segment));
    Ok(window)
}

/// The leaves of the usage maps that were read last; a listing is in the order of the maps.
#[derive(Default)]
struct Hints {
    leaves: BTreeMap<usize, (u64, Option<UsageLeaf>)>,
}

impl Hints {
    async fn of(
        &mut self,
        objects: &mut Objects,
        branches: &[Branch],
        segment: SegmentId,
    ) -> Result<Hint, CleanError> {
        let mut hint = Hint::default();
        let Some((index, slot)) = usage_slot(segment) else {
            return Ok(hint);
        };
        hint.is_complete = true;
        for (ordinal, branch) in branches.iter().enumerate() {
            let Some(head) = &branch.head else { continue };
            if head.trees.usage.is_none() {
                hint.is_complete = false;
                continue;
            }
            let leaf = match self.leaves.get(&ordinal) {
                Some((known, leaf)) if *known == index => leaf,
                Some(_) | None => {
                    let place = UsageLeaf::place(index);
                    // A damaged hint is no hint.
                    let leaf = match lookup(objects, &head.trees, place).await {
                        Ok(None) => Some(UsageLeaf::default()),
                        Ok(Some(found)) => match objects.get(&found.pointer, place).await {
                            Ok(object) => UsageLeaf::from_verified(&object).ok(),
                            Err(CleanError::Damaged(_)) => None,
                            Err(error) => return Err(error),
                        },
                        Err(CleanError::Damaged(_)) => None,
                        Err(error) => return Err(error),
                    };
                    self.leaves.insert(ordinal, (index, leaf));
                    &self.leaves[&ordinal].1
                }
            };
            match leaf {
                Some(leaf) => hint.live_bytes += u64::from(leaf.live_bytes[slot]),
                None => hint.is_complete = false,
            }
        }
        Ok(hint)
    }
}
