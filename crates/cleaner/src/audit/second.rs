//! The second store of an audited volume: what should lie there, drawn by its bytes and read from there.
//!
//! ```text
//! manifest ─┬ a listing of the second store ─┬ there, with its length ─▶ drawn ─▶ its index, and an object by its index, read there and compared
//!           │                                ├ not there, in a group ──▶ drawn ─▶ its row and a parity's, by the hashes of the group
//!           │                                └ not there ──────────────▶ waits, or is missing
//! parities of all groups ──────────────────────────────────────────────▶ drawn ─▶ a row of one, by its hash
//! without a manifest that is whole: what the trees' draws have drawn ──▶ read there and compared with its hash
//! ```
//!
//! What is wrong is judged once more by the newest manifest, the newest groups and both stores: what was retired, copied or written anew meanwhile
//! is none of it. A segment that is young in the first store is not missing yet: the mirror copies it behind the upload. What is found harms
//! no reader as long as the first store is right, so nothing here fails the audit of the first.

use super::{
    AuditProgress,
    budget::Budget,
    census::Sample,
    draws::Draws,
    manifest::{Doubt, Listing, ask, key, position},
    must_exist::Reader,
    newest::branches_now,
    report::{SecondAudit, SecondDamage},
};
use crate::{CleanError, branches::Branch, objects::Objects};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{ListedSegment, Location, SegmentId, decode_object};
use firn_mirror::{ExpectedMember, Parity, RowCheck};
use firn_store::{ObjectKey, ProviderPrices, Route, Store, StoreError, Usage};
use futures::future::join_all;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering},
};

/// A mirror has compared both stores since.
const YOUNG_MS: i64 = 48 * 3_600_000;
/// Challenges under way at a time.
const TOGETHER: usize = 16;
/// Findings that are looked at again; where there are more, some of them are enough to know.
const KEPT: usize = 1024;

/// What a challenge takes at most: a segment that is read whole, or a group's object and two rows.
const CHALLENGE_USAGE: Usage = Usage {
    puts: 0,
    gets: 0,
    ranged_gets: 4,
    heads: 0,
    lists: 0,
    deletes: 0,
    failures: 0,
    bytes_up: 0,
    bytes_down: 400 << 10,
};

/// What is taken of the manifest at a time, and the listing beside it.
const GROUP_USAGE: Usage = Usage {
    puts: 0,
    gets: 0,
    ranged_gets: 64,
    heads: 0,
    lists: 18,
    deletes: 0,
    failures: 0,
    bytes_up: 0,
    bytes_down: 64 * (10 << 10),
};

/// A second store that is to be audited beside the first.
#[derive(Clone)]
pub struct SecondToAudit {
    /// As it is: not what is computed from parities.
    pub store: Arc<dyn Store>,
    /// By which prices.
    pub prices: ProviderPrices,
    /// Which way the bytes go.
    pub route: Route,
    /// Whether it is known that the mirror has not copied everything: then nothing is missing.
    pub is_behind: bool,
}

impl fmt::Debug for SecondToAudit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("SecondToAudit");
        shown.field("is_behind", &self.is_behind).finish_non_exhaustive()
    }
}

/// Something that lies in the second store, or stands for what does.
#[derive(Clone, Copy)]
enum Item {
    Copy(ListedSegment),
    Member(ListedSegment),
    Parity(u64),
    Sample(Sample),
}

/// What a challenge found.
enum Answer {
    Right,
    Doubt(SegmentId, Doubt),
    Row { key: ObjectKey, detail: String },
    Released,
}

/// Something that seems wrong, until it was looked at again.
struct Suspicion<What> {
    what: What,
    draws: u64,
}

#[derive(Default)]
struct Found {
    segments: BTreeMap<SegmentId, Suspicion<Doubt>>,
    rows: BTreeMap<ObjectKey, Suspicion<(Item, u64)>>,
    /// Beyond those that are looked at.
    more: u64,
}

/// The second store of a family.
pub(super) struct Second {
    objects: Objects,
    parity: Parity,
    is_behind: bool,
}

impl Second {
    /// Nothing is asked yet.
    pub fn new(
        env: &Env,
        (first, second): (Arc<dyn Store>, Arc<dyn Store>),
        anchor: &Anchor,
        is_behind: bool,
    ) -> Self {
        Self {
            objects: Objects::new(env, second.clone(), anchor, 0),
            // An index of its own: what is audited is read anew.
            parity: Parity::new(env, (first, second), anchor.family()),
            is_behind,
        }
    }

    /// Audits what the second store should have of a volume.
    pub async fn check(
        &self,
        objects: &mut Objects,
        branch: &Branch,
        (seed, challenges, samples): (&[u8; 32], usize, &[Sample]),
        budget: &Budget,
        progress: &AuditProgress,
    ) -> SecondAudit {
        let mut audit = SecondAudit {
            asked: challenges as u64,
            ..SecondAudit::default()
        };
        let checked = self
            .look(
                objects,
                branch,
                (seed, challenges, samples),
                budget,
                progress,
                &mut audit,
            )
            .await;
        match checked {
            Ok(is_complete) => audit.is_complete = is_complete,
            // What was found before is told; what the first store said stands.
            Err(error) => audit.error = Some(error.to_string()),
        }
        audit.estimate();
        audit
    }

    /// Whether everything was gone through.
    async fn look(
        &self,
        objects: &mut Objects,
        branch: &Branch,
        (seed, challenges, samples): (&[u8; 32], usize, &[Sample]),
        budget: &Budget,
        progress: &AuditProgress,
        audit: &mut SecondAudit,
    ) -> Result<bool, CleanError> {
        if !budget.allows_second(&GROUP_USAGE) {
            return Ok(false);
        }
        self.parity.refresh().await?;
        let mut found = Found::default();
        let reader = Reader::open(objects, branch).await?;
        let whole = reader.filter(|reader| reader.not_whole().is_none());
        audit.has_manifest = whole.is_some();
        let mut is_whole = true;
        let drawn = match whole {
            Some(mut reader) => {
                let stream = [b"second", &branch.volume.0[..]].concat();
                let mut draws = Draws::new(seed, &stream, challenges);
                is_whole = self
                    .list(objects, &mut reader, &mut draws, budget, audit, &mut found)
                    .await?;
                draws.end()
            }
            None => samples.iter().copied().map(Item::Sample).collect(),
        };
        audit.unreadable_groups = self.parity.unreadable_groups();
        is_whole &= self
            .challenge(objects, &drawn, seed, budget, progress, audit, &mut found)
            .await?;
        is_whole &= self.settle(objects, branch, found, audit).await?;
        Ok(is_whole)
    }

    /// Holds the manifest against a listing, and draws among what should be there; whether the money was enough.
    async fn list(
        &self,
        objects: &mut Objects,
        reader: &mut Reader,
        draws: &mut Draws<Item>,
        budget: &Budget,
        audit: &mut SecondAudit,
        found: &mut Found,
    ) -> Result<bool, CleanError> {
        let mut listing = Listing::default();
        loop {
            if !budget.allows_second(&GROUP_USAGE) {
                return Ok(false);
            }
            let Some(group) = reader.next(objects).await? else {
                break;
            };
            for listed in group {
                let ListedSegment { segment, entry } = listed;
                audit.segments += 1;
                let doubt = match listing.size_of(&self.objects, segment).await? {
                    Some(bytes) if entry.is_read() && bytes != u64::from(entry.length) => {
                        Some(Doubt::Altered)
                    }
                    Some(_) => {
                        audit.copies += 1;
                        audit.bytes += u64::from(entry.length);
                        draws.meet(Item::Copy(listed), entry.length.max(1));
                        None
                    }
                    None if self.parity.has_member(segment) => {
                        audit.in_groups += 1;
                        audit.bytes += u64::from(entry.length);
                        draws.meet(Item::Member(listed), entry.length.max(1));
                        None
                    }
                    None => Some(Doubt::Missing),
                };
                if let Some(doubt) = doubt {
                    found.add_segment(segment, doubt, 0);
                }
            }
        }
        for (group, bytes) in self.parity.parity_bytes() {
            audit.groups += 1;
            audit.bytes += bytes;
            draws.meet(Item::Parity(group), u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        Ok(reader.has_all_rounds && reader.lost.is_empty())
    }

    /// Reads what was drawn; whether the money was enough.
    #[expect(clippy::too_many_arguments, reason = "the state of one audit")]
    async fn challenge(
        &self,
        objects: &mut Objects,
        drawn: &[Item],
        seed: &[u8; 32],
        budget: &Budget,
        progress: &AuditProgress,
        audit: &mut SecondAudit,
        found: &mut Found,
    ) -> Result<bool, CleanError> {
        for (number, group) in drawn.chunks(TOGETHER).enumerate() {
            let mut reserved = Usage::default();
            for _ in group {
                reserved = reserved.plus(&CHALLENGE_USAGE);
            }
            if !budget.allows_second(&reserved) {
                return Ok(false);
            }
            let mut asked = Vec::with_capacity(group.len());
            for (at, item) in group.iter().enumerate() {
                asked.push((
                    settled(objects, *item).await?,
                    position(seed, number * TOGETHER + at),
                ));
            }
            let answers = join_all(asked.iter().map(|(item, position)| self.ask(item, *position))).await;
            for ((item, position), answer) in asked.iter().zip(answers) {
                match answer? {
                    Answer::Right => audit.intact += 1,
                    Answer::Released => audit.released += 1,
                    Answer::Doubt(segment, doubt) => found.add_segment(segment, doubt, 1),
                    Answer::Row { key, .. } => found.add_row(key, (*item, *position)),
                }
                progress.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(true)
    }

    /// One challenge: `position` is a fraction of 2^64 of what is asked for.
    async fn ask(&self, item: &Item, position: u64) -> Result<Answer, CleanError> {
        Ok(match item {
            Item::Copy(listed) => match ask(&self.objects, listed, position).await? {
                Some(doubt) => Answer::Doubt(listed.segment, doubt),
                None => Answer::Right,
            },
            Item::Member(ListedSegment { segment, entry }) => {
                let byte = ((u128::from(position) * u128::from(entry.length)) >> 64) as u32;
                let member = ExpectedMember {
                    segment: *segment,
                    bytes: entry.is_read().then_some(entry.length),
                    hash: entry.has_segment_hash().then_some(entry.segment_hash),
                    byte,
                };
                self.of_row(self.parity.check_member(&member, position).await?, Some(*segment))
            }
            Item::Parity(group) => self.of_row(self.parity.check_parity(*group, position).await?, None),
            Item::Sample(sample) => self.ask_sample(sample, position).await?,
        })
    }

    fn of_row(&self, checked: RowCheck, segment: Option<SegmentId>) -> Answer {
        match (checked, segment) {
            (RowCheck::Right, _) => Answer::Right,
            (RowCheck::Wrong { key, detail }, _) => Answer::Row { key, detail },
            (RowCheck::NoGroup, Some(segment)) => Answer::Doubt(segment, Doubt::Missing),
            (RowCheck::NoGroup, None) => Answer::Released,
        }
    }

    async fn ask_sample(&self, sample: &Sample, position: u64) -> Result<Answer, CleanError> {
        let Location {
            segment,
            offset,
            length,
        } = sample.pointer.location;
        let key = key(&self.objects, segment);
        let read = self
            .objects
            .store
            .get_range(&key, u64::from(offset), u64::from(length))
            .await;
        match read {
            Ok(bytes) => {
                let is_right = decode_object(bytes)
                    .and_then(|object| object.verify(&sample.pointer.uid, Some(sample.place)))
                    .is_ok()
                    || firn_env::planted!("cleaner.audit_believes_the_second_store");
                Ok(match is_right {
                    true => Answer::Right,
                    false => Answer::Doubt(segment, Doubt::Altered),
                })
            }
            Err(StoreError::NotFound { .. }) => {
                let member = ExpectedMember {
                    segment,
                    bytes: None,
                    hash: None,
                    byte: offset,
                };
                let checked = self.parity.check_member(&member, position).await?;
                Ok(self.of_row(checked, Some(segment)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Judges what seemed wrong by what is newest; whether all of it could be.
    async fn settle(
        &self,
        objects: &mut Objects,
        branch: &Branch,
        found: Found,
        audit: &mut SecondAudit,
    ) -> Result<bool, CleanError> {
        let mut is_whole = true;
        if !found.segments.is_empty() || !found.rows.is_empty() {
            self.parity.refresh().await?;
        }
        if !found.segments.is_empty() {
            let branches = branches_now(objects).await?;
            let now = branches.iter().find(|now| now.volume == branch.volume);
            let newest = match now {
                Some(now) if audit.has_manifest => Reader::open(objects, now).await?,
                Some(_) | None => None,
            };
            for (segment, suspicion) in found.segments {
                let is_needed = match &newest {
                    Some(newest) => newest.has(objects, segment).await?,
                    None => Some(now.is_some() && !objects.is_retired(segment).await?),
                };
                match is_needed {
                    Some(true) => self.judge(objects, segment, suspicion, audit).await?,
                    Some(false) => audit.released += suspicion.draws,
                    None => is_whole = false,
                }
            }
        }
        for (
            key,
            Suspicion {
                what: (item, position),
                draws,
            },
        ) in found.rows
        {
            match self.ask(&item, position).await? {
                Answer::Row { key, detail } => {
                    audit.altered += 1;
                    audit.damaged += draws;
                    audit.name(&key, &detail);
                }
                // Its group was written anew meanwhile.
                Answer::Right | Answer::Released | Answer::Doubt(..) => {
                    tracing::debug!(%key, "a parity group was written anew while it was audited");
                    audit.released += draws;
                }
            }
        }
        // Those beyond are of the same kind as these.
        Ok(is_whole && (found.more == 0 || !audit.is_intact()))
    }

    async fn judge(
        &self,
        objects: &Objects,
        segment: SegmentId,
        suspicion: Suspicion<Doubt>,
        audit: &mut SecondAudit,
    ) -> Result<(), CleanError> {
        let Suspicion { what: doubt, draws } = suspicion;
        let key = key(&self.objects, segment);
        match doubt {
            Doubt::Altered => {
                audit.altered += 1;
                audit.damaged += draws;
                audit.name(&key, "it is not as it was put");
            }
            Doubt::Missing => {
                let is_there = size(&*self.objects.store, &key).await?.is_some();
                if is_there || self.parity.has_member(segment) {
                    audit.released += draws;
                    audit.copies += u64::from(is_there);
                    audit.in_groups += u64::from(!is_there);
                    return Ok(());
                }
                let modified_ms = size(&*objects.store, &key).await?;
                let now_ms = objects.env.wall().as_millis();
                let is_young = modified_ms.is_some_and(|at| now_ms.saturating_sub(at) < YOUNG_MS);
                if is_young || (self.is_behind && modified_ms.is_some()) {
                    audit.waiting += 1;
                    audit.released += draws;
                } else {
                    audit.missing += 1;
                    audit.damaged += draws;
                    let detail = match modified_ms {
                        Some(_) => "it is not there",
                        None => {
                            "it is in neither store, so no mirror copies it: see what is said of the first"
                        }
                    };
                    audit.name(&key, detail);
                }
            }
        }
        Ok(())
    }
}

/// Where an object lies by now, if it is one of the trees'.
async fn settled(objects: &mut Objects, item: Item) -> Result<Item, CleanError> {
    let Item::Sample(mut sample) = item else {
        return Ok(item);
    };
    if let Some(location) = objects.settle(&sample.pointer.location).await? {
        sample.pointer.location = location;
    }
    Ok(Item::Sample(sample))
}

/// When an object was put, if it is there.
async fn size(store: &dyn Store, key: &ObjectKey) -> Result<Option<i64>, CleanError> {
    match store.head(key).await {
        Ok(info) => Ok(Some(info.modified_ms)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Found {
    fn add_segment(&mut self, segment: SegmentId, what: Doubt, draws: u64) {
        if let Some(known) = self.segments.get_mut(&segment) {
            known.draws += draws;
        } else if self.segments.len() < KEPT {
            self.segments.insert(segment, Suspicion { what, draws });
        } else {
            self.more += 1;
        }
    }

    fn add_row(&mut self, key: ObjectKey, what: (Item, u64)) {
        if let Some(known) = self.rows.get_mut(&key) {
            known.draws += 1;
        } else if self.rows.len() < KEPT {
            self.rows.insert(key, Suspicion { what, draws: 1 });
        } else {
            self.more += 1;
        }
    }
}

impl SecondAudit {
    fn name(&mut self, key: &ObjectKey, detail: &str) {
        self.add(SecondDamage {
            key: key.as_str().to_owned(),
            detail: detail.to_owned(),
        });
    }
}
