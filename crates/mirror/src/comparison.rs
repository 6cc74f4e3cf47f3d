//! The comparison of both stores: their listings of the family side by side.
//!
//! | first | second | |
//! |---|---|---|
//! | there | absent | copied; while a hold is in force, not if it is a member of a parity group, or retired |
//! | there | there, as long | nothing; a tombstone goes |
//! | there | there, of another length | whichever is no whole segment is damaged |
//! | absent | marked, not long enough ago | waits |
//! | absent | marked `keep_deleted` ago | deleted, then its tombstone; a member of a parity group waits until it left |
//! | absent | retired | marked |
//! | absent | not retired | lost: a suspect, for a repair to judge |
//!
//! A listing is the store's word, so what it does not show is asked for by name before anything follows from it. A store that lists right
//! and reads wrong is found by readers and audits. Memory: a page of each listing and the suspects.

use crate::{
    LocalCopies, Mirror, MirrorError,
    copier::Copied,
    expiry::{self, Verdict},
    listing::Listing,
    parity::{all_doomed, known_hold},
};
use firn_anchor::DoomedSegment;
use firn_format::{SegmentId, decode_segment};
use firn_store::{ObjectInfo, ObjectKey, StoreError};
use futures::future::join_all;
use std::{cmp::Ordering, collections::BTreeMap, future::Future};

/// Segments that the first store lost, with their lengths.
pub(crate) type Suspects = BTreeMap<SegmentId, u64>;

/// Copies under way at a time: 16 MiB of memory at the default size of segments, and enough that a round trip is not what counts.
const SIDE_BY_SIDE: usize = 4;

/// Suspects remembered, of some 60 bytes each; more are found again once these are repaired.
const SUSPECTS_MAX: usize = 65_536;

/// Names in a report.
const NAMED_MAX: usize = 8;

/// What a comparison found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Members that both have now.
    pub members: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Of them, those that were copied by it.
    pub copied: u64,
    /// Segments that the first lost or altered, and nobody retired.
    pub lost_segments: u64,
    /// Other members that the first lost and nobody may have deleted.
    pub lost_others: u64,
    /// Members that are damaged in the second, or that the first has no right bytes of and the second none.
    pub damaged: u64,
    /// Names of the first of all these.
    pub named: Vec<String>,
    /// Marked as not needed since when the time of `keep_deleted` counts.
    pub marked: u64,
    /// Marked before, and waiting for the end of it.
    pub waiting: u64,
    /// Deleted from the second.
    pub deleted: u64,
    /// What the second would not delete: a lock, a missing permission.
    pub held: u64,
    /// What would be deleted if it were in no parity group.
    pub held_by_parity: u64,
    /// Members of parity groups that the first alone has, as they are to be.
    pub without_copy: u64,
    /// Bytes of them.
    pub without_copy_bytes: u64,
}

impl Comparison {
    fn name(&mut self, key: &ObjectKey) {
        if self.named.len() < NAMED_MAX {
            self.named.push(key.to_string());
        }
    }
}

struct Work<'a> {
    mirror: &'a Mirror,
    local: &'a dyn LocalCopies,
    found: Comparison,
    suspects: Suspects,
    to_copy: Vec<ObjectInfo>,
    /// What is retired, while copies of members go.
    doomed: Option<BTreeMap<SegmentId, DoomedSegment>>,
    keeps_versions: Option<bool>,
    /// Once somebody wants it.
    now_ms: Option<i64>,
}

impl Mirror {
    pub(crate) async fn compare_once(
        &self,
        local: &dyn LocalCopies,
    ) -> Result<(Comparison, Suspects), MirrorError> {
        let hold = known_hold(self.anchor()).await?.map(|(hold, _)| hold);
        self.parity().learn_hold(hold);
        let doomed = match hold.is_some_and(|hold| hold.drops) {
            true => Some(all_doomed(self.anchor()).await?),
            false => None,
        };
        // Who is a member of a group is known before anything is deleted.
        self.parity().refresh().await.map_err(MirrorError::Second)?;
        if !self.keeps_groups() {
            // For an edge that may not delete what its groups left behind.
            self.parity().delete_left_over().await?;
        }
        let family = self.family();
        let (first_store, second_store) = self.stores();
        let mut first = Listing::new(first_store, format!("{family}/"));
        let mut second = Listing::new(second_store, format!("{family}/"));
        let mut tombstones = Listing::new(second_store, expiry::tombstones_prefix(&family));
        let mut work = Work {
            mirror: self,
            local,
            found: Comparison::default(),
            suspects: Suspects::new(),
            to_copy: Vec::new(),
            doomed,
            keeps_versions: None,
            now_ms: None,
        };
        loop {
            let ours = first.peek().await.map_err(MirrorError::First)?.cloned();
            let copy = second.peek().await.map_err(MirrorError::Second)?.cloned();
            let order = match (&ours, &copy) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(ours), Some(copy)) => ours.key.cmp(&copy.key),
            };
            let taken = if order == Ordering::Less {
                None
            } else {
                second.take()
            };
            let listed = if order == Ordering::Greater {
                None
            } else {
                first.take()
            };
            match (listed, taken) {
                (Some(ours), None) => work.only_first(ours).await?,
                (Some(ours), Some(copy)) => {
                    let tombstone = work.tombstone_of(&mut tombstones, &copy.key).await?;
                    work.in_both(ours, copy, tombstone.is_some()).await?;
                }
                (None, Some(copy)) if expiry::member_of(&family, &copy.key).is_some() => {}
                (None, Some(copy)) => {
                    let tombstone = work.tombstone_of(&mut tombstones, &copy.key).await?;
                    work.only_second(copy, tombstone).await?;
                }
                (None, None) => break,
            }
        }
        work.copy_gathered().await?;
        Ok((work.found, work.suspects))
    }
}

impl Work<'_> {
    /// The tombstone of a member, if it has one; those before it are of members that are gone.
    async fn tombstone_of(
        &mut self,
        tombstones: &mut Listing,
        member: &ObjectKey,
    ) -> Result<Option<ObjectInfo>, MirrorError> {
        let family = self.mirror.family();
        loop {
            let Some(tombstone) = tombstones.peek().await.map_err(MirrorError::Second)? else {
                return Ok(None);
            };
            let of = expiry::member_of(&family, &tombstone.key);
            match of.as_ref().map_or(Ordering::Less, |of| of.cmp(member)) {
                Ordering::Greater => return Ok(None),
                Ordering::Equal => return Ok(tombstones.take()),
                Ordering::Less => {
                    let stale = tombstones.take();
                    // A member's says that it may leave its group, wherever its bytes are.
                    let is_member = of.as_ref().is_some_and(|of| self.is_member(of))
                        && !firn_env::planted!("mirror.tombstone_of_a_member_removed");
                    if let (Some(stale), false) = (stale, is_member) {
                        self.remove(&stale.key).await?;
                    }
                }
            }
        }
    }

    fn is_member(&self, key: &ObjectKey) -> bool {
        let segment = SegmentId::parse_key(key.as_str());
        segment.is_some_and(|(_, segment)| self.mirror.parity().holds(segment))
    }

    async fn only_first(&mut self, ours: ObjectInfo) -> Result<(), MirrorError> {
        if let (Some(doomed), Some((_, segment))) = (&self.doomed, SegmentId::parse_key(ours.key.as_str())) {
            let is_member = self.mirror.parity().holds(segment);
            if is_member || doomed.contains_key(&segment) {
                self.found.without_copy += u64::from(is_member);
                self.found.without_copy_bytes += if is_member { ours.size_bytes } else { 0 };
                return Ok(());
            }
        }
        self.to_copy.push(ours);
        if self.to_copy.len() >= SIDE_BY_SIDE {
            self.copy_gathered().await?;
        }
        Ok(())
    }

    async fn copy_gathered(&mut self) -> Result<(), MirrorError> {
        let gathered = std::mem::take(&mut self.to_copy);
        let copies = gathered
            .iter()
            .map(|ours| self.mirror.copy(self.local, &ours.key, ours.size_bytes));
        for (ours, copied) in gathered.iter().zip(together(copies).await) {
            match copied? {
                Copied::Yes { bytes } => {
                    self.found.copied += 1;
                    self.found.members += 1;
                    self.found.bytes += bytes;
                }
                Copied::Gone => {}
                Copied::Unreadable => {
                    self.found.damaged += 1;
                    self.found.name(&ours.key);
                }
            }
        }
        Ok(())
    }

    async fn in_both(
        &mut self,
        ours: ObjectInfo,
        copy: ObjectInfo,
        has_tombstone: bool,
    ) -> Result<(), MirrorError> {
        if has_tombstone && let Some(tombstone) = expiry::tombstone_key(&self.mirror.family(), &copy.key) {
            self.remove(&tombstone).await?;
        }
        self.found.members += 1;
        self.found.bytes += copy.size_bytes;
        if ours.size_bytes == copy.size_bytes {
            return Ok(());
        }
        match SegmentId::parse_key(copy.key.as_str()) {
            Some((_, segment)) if self.is_whole_copy(&copy.key, segment).await? => {
                self.suspect(&copy, segment);
            }
            Some(_) | None => {
                self.found.damaged += 1;
                self.found.name(&copy.key);
            }
        }
        Ok(())
    }

    async fn is_whole_copy(&self, key: &ObjectKey, segment: SegmentId) -> Result<bool, MirrorError> {
        match self.mirror.second().get(key).await {
            Ok(bytes) => Ok(decode_segment(bytes)
                .is_ok_and(|found| found.id == segment && found.family == self.mirror.family())),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(MirrorError::Second(error)),
        }
    }

    fn suspect(&mut self, copy: &ObjectInfo, segment: SegmentId) {
        self.found.lost_segments += 1;
        self.found.name(&copy.key);
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert(segment, copy.size_bytes);
        }
    }

    async fn only_second(
        &mut self,
        copy: ObjectInfo,
        tombstone: Option<ObjectInfo>,
    ) -> Result<(), MirrorError> {
        match self.mirror.first().head(&copy.key).await {
            // It came since the listing, or the listing does not show it.
            Ok(ours) => return self.in_both(ours, copy, tombstone.is_some()).await,
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(MirrorError::First(error)),
        }
        let family = self.mirror.family();
        if let Some(tombstone) = tombstone {
            let keep_ms = self.mirror.options().keep_deleted.as_millis();
            let waited_ms = self.now_ms().await.saturating_sub(tombstone.modified_ms);
            let is_over =
                firn_env::planted!("mirror.delete_at_once") || i128::from(waited_ms) >= keep_ms as i128;
            let segment = SegmentId::parse_key(copy.key.as_str()).map(|(_, segment)| segment);
            let is_held = segment.is_some_and(|segment| self.mirror.parity().holds(segment))
                && !firn_env::planted!("mirror.member_deleted_before_its_subtraction");
            if !is_over {
                self.found.waiting += 1;
            } else if is_held {
                self.found.held_by_parity += 1;
            } else if self.remove(&copy.key).await? {
                self.found.deleted += 1;
                self.mirror.note_deleted();
                self.remove(&tombstone.key).await?;
            }
            return Ok(());
        }
        match expiry::judge(self.mirror.anchor(), &family, &copy.key).await? {
            Verdict::Unneeded => {
                let second = self.mirror.second();
                let put = expiry::put_tombstone(second, &family, &copy.key).await;
                put.map_err(MirrorError::Second)?;
                self.found.marked += 1;
            }
            Verdict::Lost(segment) => self.suspect(&copy, segment),
            Verdict::LostOther => {
                self.found.lost_others += 1;
                self.found.name(&copy.key);
            }
            Verdict::Foreign => {}
        }
        Ok(())
    }

    /// By which ages are judged; the beginning of time if the second store's clock is not known, since nothing is lost by waiting.
    async fn now_ms(&mut self) -> i64 {
        if let Some(now_ms) = self.now_ms {
            return now_ms;
        }
        let now_ms = self.mirror.judged_now_ms().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the second store's clock is not known, and nothing is deleted there");
            i64::MIN
        });
        *self.now_ms.insert(now_ms)
    }

    /// Whether it is gone.
    async fn remove(&mut self, key: &ObjectKey) -> Result<bool, MirrorError> {
        let second = self.mirror.second();
        let keeps_versions = match self.keeps_versions {
            Some(keeps) => keeps,
            None => {
                let keeps = match second.keeps_versions().await {
                    Ok(keeps) => keeps,
                    Err(StoreError::Denied { .. } | StoreError::Invalid { .. }) => false,
                    Err(error) => return Err(MirrorError::Second(error)),
                };
                *self.keeps_versions.insert(keeps)
            }
        };
        let removed = expiry::remove(second, keeps_versions, key).await;
        let is_gone = removed.map_err(MirrorError::Second)?;
        if !is_gone {
            self.found.held += 1;
        }
        Ok(is_gone)
    }
}

/// Side by side, in the order given.
async fn together<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    join_all(work).await
}
