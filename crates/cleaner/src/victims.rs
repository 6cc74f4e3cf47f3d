//! Which segments are worth a look: a window of the log's listing, ordered by cost and benefit.
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
//! leaves space for a later run. A family whose heads have no usage map is looked at segment by segment.

use crate::{CleanError, branches::Branch, limits::Limits, lookup::lookup, objects::Objects};
use firn_format::{SegmentId, UsageLeaf, usage_slot};
use firn_store::ObjectKey;
use std::collections::BTreeMap;

/// A segment as the listing and the usage maps show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub segment: SegmentId,
    pub size_bytes: u64,
    /// When it was put, by the store's clock.
    pub modified_ms: i64,
    /// Bytes the heads need of it, if they say.
    pub hinted_live_bytes: Option<u64>,
}

impl Candidate {
    /// Bytes that would become free, by the hints.
    pub fn hinted_free_bytes(&self) -> u64 {
        let live = self.hinted_live_bytes.unwrap_or(0);
        self.size_bytes.saturating_sub(live)
    }

    fn is_worth_a_look(&self, limits: &Limits) -> bool {
        self.hinted_free_bytes().saturating_mul(1000) >= self.size_bytes.saturating_mul(limits.free_per_mille)
    }

    fn score(&self, now_ms: i64) -> u128 {
        // Nothing is known: as if half of it were free.
        let live = self.hinted_live_bytes.unwrap_or(self.size_bytes / 2);
        let free = self.size_bytes.saturating_sub(live);
        let age_ms = (now_ms - self.modified_ms).max(0).unsigned_abs() + 1;
        u128::from(free) * u128::from(age_ms) * 1000 / u128::from((self.size_bytes + live).max(1))
    }
}

/// A part of the log.
pub(crate) struct Window {
    /// Worth a look, the best first.
    pub candidates: Vec<Candidate>,
    /// Segments listed.
    pub listed: u64,
    /// Bytes of them.
    pub listed_bytes: u64,
    /// Names under the log's prefix that are no segment's.
    pub foreign: Vec<ObjectKey>,
    /// Where the next window begins; `None`: at the log's beginning.
    pub next: Option<SegmentId>,
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
        listed: 0,
        listed_bytes: 0,
        foreign: Vec::new(),
        next: None,
    };
    let mut hints = Hints::default();
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
            let candidate = Candidate {
                segment,
                size_bytes: object.size_bytes,
                modified_ms: object.modified_ms,
                hinted_live_bytes: hints.live_bytes(objects, branches, segment).await?,
            };
            if candidate.is_worth_a_look(limits) {
                window.candidates.push(candidate);
            }
        }
        if !page.more {
            window.next = None;
            break;
        }
        after = page.objects.last().map(|object| object.key.clone());
    }
    let now_ms = objects.env.wall().as_millis();
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
    async fn live_bytes(
        &mut self,
        objects: &mut Objects,
        branches: &[Branch],
        segment: SegmentId,
    ) -> Result<Option<u64>, CleanError> {
        let Some((index, slot)) = usage_slot(segment) else {
            return Ok(None);
        };
        let mut live = 0u64;
        for (ordinal, branch) in branches.iter().enumerate() {
            let Some(head) = &branch.head else { continue };
            if head.trees.usage.is_none() {
                return Ok(None);
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
                Some(leaf) => live += u64::from(leaf.live_bytes[slot]),
                None => return Ok(None),
            }
        }
        Ok(Some(live))
    }
}
