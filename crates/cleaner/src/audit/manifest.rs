//! A volume's manifest held against the bucket: segments that must exist, whether or not a tree needs anything of them.
//!
//! ```text
//! manifest, leaf by leaf ─┬─ a listing of the log, side by side: which are not there with their length
//!                         └─ each of n slots draws one by its bytes ─▶ its index, and an object by its index, read and compared
//! ```
//!
//! A listing is the store's word and proves nothing, but one that does not show a segment tells for certain what was lost, for half a cent a TiB. What
//! is shown and is not right is found by the draws, whose hashes are those of the manifest: the index by the entry, the object by the index. A
//! segment of some blocks is read whole instead.
//!
//! What is missing counts only if the newest manifest and the rounds after it still say so once it was found missing.

use super::{
    budget::Budget,
    draws::Draws,
    must_exist::Reader,
    newest::{Failures, branches_now},
    report::{GatheringAudit, ManifestAudit, VolumeAudit},
};
use crate::{CleanError, branches::Branch, objects::Objects};
use bytes::Bytes;
use firn_format::{
    FOOTER_BYTES, GatheringStage, ListedSegment, ManifestEntry, SegmentId, SegmentIndexEntry, VolumeId,
    WHOLE_SEGMENT_BYTES, WriterId, decode_footer, decode_object,
};
use firn_store::{ObjectKey, StoreError, Usage};
use futures::future::join_all;
use std::collections::{BTreeMap, VecDeque};

/// Up to here a segment is read whole: it costs what an index and an object cost.
const WHOLE_BYTES: u32 = WHOLE_SEGMENT_BYTES;
/// Read for an index: of 239 objects at least. One that is longer takes another request.
const INDEX_BYTES: u32 = 16 << 10;
/// Challenges under way at a time.
const TOGETHER: usize = 16;
/// Segments found wrong that are looked at again; where there are more, some of them are enough to know.
const KEPT: usize = 1024;

/// What a group of leaves takes at most: 64 leaves, and 8192 names of a listing with as many others between.
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

/// What is wrong with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    Missing,
    Altered,
}

/// Checks the manifest of an audited volume, if it has one.
pub(super) async fn check(
    objects: &mut Objects,
    branch: &Branch,
    (seed, challenges, drawn): (&[u8; 32], usize, &[SegmentId]),
    budget: &Budget,
    failures: &mut Failures,
    report: &mut VolumeAudit,
) -> Result<(), CleanError> {
    let Some(mut reader) = Reader::open(objects, branch).await? else {
        return Ok(());
    };
    let mut audit = ManifestAudit {
        asked: challenges as u64,
        gathering: reader.not_whole().map(|gathering| GatheringAudit {
            segments: gathering.segments,
            lost: gathering.lost,
            unreadable: gathering.unreadable,
            has_gaps: gathering.stage == GatheringStage::Gaps,
        }),
        ..ManifestAudit::default()
    };
    let mut coverage = Coverage::new(drawn);
    let stream = [b"manifest", &branch.volume.0[..]].concat();
    let mut draws: Draws<ListedSegment> = Draws::new(seed, &stream, challenges);
    let mut listing = Listing::default();
    let mut doubtful: BTreeMap<SegmentId, Doubt> = BTreeMap::new();
    let mut is_whole = reader.has_all_rounds;
    loop {
        if !budget.allows(&GROUP_USAGE) {
            is_whole = false;
            break;
        }
        let Some(group) = reader.next(objects).await? else {
            break;
        };
        for listed in group
            .into_iter()
            .skip(usize::from(firn_env::planted!("cleaner.audit_forgets_an_entry")))
        {
            audit.segments += 1;
            coverage.meet(listed.segment);
            audit.bytes += u64::from(listed.entry.length);
            draws.meet(listed, listed.entry.length.max(1));
            let doubt = match listing.size_of(objects, listed.segment).await? {
                None => Some(Doubt::Missing),
                Some(bytes) if listed.entry.is_read() && bytes != u64::from(listed.entry.length) => {
                    Some(Doubt::Altered)
                }
                Some(_) => None,
            };
            match doubt {
                Some(doubt) if doubtful.len() < KEPT => drop(doubtful.insert(listed.segment, doubt)),
                Some(_) => audit.more += 1,
                None => audit.shown += 1,
            }
        }
    }
    if is_whole {
        coverage.end(objects, branch, &mut audit).await?;
    }
    is_whole &= reader.lost.is_empty();
    for failure in std::mem::take(&mut reader.lost) {
        failures.add(failure);
    }
    is_whole &= challenge(objects, draws.end(), seed, budget, &mut audit, &mut doubtful).await?;
    audit.is_complete = is_whole;
    settle(objects, branch.volume, doubtful, &mut audit, report).await?;
    report.is_complete &= audit.is_complete;
    report.manifest = Some(audit);
    Ok(())
}

/// Reads what was drawn; whether the money was enough.
async fn challenge(
    objects: &Objects,
    drawn: Vec<ListedSegment>,
    seed: &[u8; 32],
    budget: &Budget,
    audit: &mut ManifestAudit,
    doubtful: &mut BTreeMap<SegmentId, Doubt>,
) -> Result<bool, CleanError> {
    // Small segments that were read whole, and right.
    let mut right: BTreeMap<SegmentId, ()> = BTreeMap::new();
    for (number, group) in drawn.chunks(TOGETHER).enumerate() {
        let more = Usage {
            ranged_gets: 3 * group.len() as u64,
            bytes_down: group.len() as u64 * u64::from(WHOLE_BYTES),
            ..Usage::default()
        };
        if !budget.allows(&more) {
            return Ok(false);
        }
        let known = |segment: &SegmentId| right.contains_key(segment) || doubtful.contains_key(segment);
        let mut asked: BTreeMap<SegmentId, Vec<(usize, ListedSegment)>> = BTreeMap::new();
        for (at, listed) in group.iter().enumerate() {
            match known(&listed.segment) {
                true => audit.intact += u64::from(right.contains_key(&listed.segment)),
                false => asked
                    .entry(listed.segment)
                    .or_default()
                    .push((number * TOGETHER + at, *listed)),
            }
        }
        let reads = asked.values().flat_map(|of_one| {
            // A segment that is read whole is read once.
            let is_whole = is_read_whole(&of_one[0].1.entry);
            of_one[..if is_whole { 1 } else { of_one.len() }]
                .iter()
                .map(|(slot, listed)| ask(objects, listed, position(seed, *slot)))
        });
        let read = join_all(reads).await;
        let mut read = read.into_iter();
        for (segment, of_one) in asked {
            let is_whole = is_read_whole(&of_one[0].1.entry);
            let count = if is_whole { 1 } else { of_one.len() };
            let mut doubt = None;
            for answer in read.by_ref().take(count) {
                doubt = doubt.or(answer?);
            }
            match doubt {
                Some(doubt) => drop(doubtful.insert(segment, doubt)),
                None => {
                    audit.intact += of_one.len() as u64;
                    if is_whole {
                        right.insert(segment, ());
                    }
                }
            }
        }
    }
    Ok(true)
}

/// How much of what the trees need the manifest says: the draws of data, each looked for by its segment.
struct Coverage {
    draws: BTreeMap<SegmentId, u64>,
    covered: u64,
}

impl Coverage {
    fn new(drawn: &[SegmentId]) -> Self {
        let mut draws = BTreeMap::new();
        for segment in drawn {
            *draws.entry(*segment).or_default() += 1;
        }
        Self { draws, covered: 0 }
    }

    /// The manifest has it.
    fn meet(&mut self, segment: SegmentId) {
        self.covered += self.draws.remove(&segment).unwrap_or(0);
    }

    async fn end(
        mut self,
        objects: &mut Objects,
        branch: &Branch,
        audit: &mut ManifestAudit,
    ) -> Result<(), CleanError> {
        if let Some(root) = &branch.tuple.root {
            // That of the root's own checkpoint is in no manifest: whoever has the root knows its name.
            self.meet(root.location.segment);
        }
        let mut missed = 0;
        for (segment, draws) in self.draws {
            // What was moved is elsewhere, which its forwarding record says, and is no draw of this.
            if !objects.is_retired(segment).await? {
                missed += draws;
            }
        }
        (audit.covered, audit.looked_for) = (self.covered, self.covered + missed);
        Ok(())
    }
}

/// Whether a challenge reads all of a segment. One that was gathered by its index is asked for by it.
fn is_read_whole(entry: &ManifestEntry) -> bool {
    entry.length <= WHOLE_BYTES && entry.has_segment_hash()
}

/// Which byte of a segment's objects a slot asks for, as a fraction of 2^64.
pub(super) fn position(seed: &[u8; 32], slot: usize) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("firn 1 audit manifest objects");
    hasher.update(seed).update(&(slot as u64).to_le_bytes());
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    u64::from_le_bytes(number)
}

/// What is wrong with a segment, as far as one challenge finds out.
pub(super) async fn ask(
    objects: &Objects,
    listed: &ListedSegment,
    position: u64,
) -> Result<Option<Doubt>, CleanError> {
    let ListedSegment { segment, entry } = listed;
    if !entry.is_read() {
        let read = objects.store.head(&key(objects, *segment)).await;
        return there(read.map(drop)).map(|there| there.is_none().then_some(Doubt::Missing));
    }
    if is_read_whole(entry) {
        // One byte more, to see that there is none.
        let Some(bytes) = range(objects, *segment, 0, entry.length + 1).await? else {
            return Ok(Some(Doubt::Missing));
        };
        let is_right = *blake3::hash(&bytes).as_bytes() == entry.segment_hash
            || firn_env::planted!("cleaner.audit_believes_the_listing");
        return Ok((!is_right).then_some(Doubt::Altered));
    }
    let Some(index) = index(objects, *segment, entry).await? else {
        return Ok(Some(Doubt::Missing));
    };
    let Some(index) = index else {
        return Ok(Some(Doubt::Altered));
    };
    let Some(object) = at(&index, position) else {
        return Ok(None);
    };
    let Some(bytes) = range(objects, *segment, object.offset, object.length).await? else {
        return Ok(Some(Doubt::Missing));
    };
    let is_right = decode_object(bytes)
        .and_then(|fetched| fetched.verify(&object.uid, Some(object.place)))
        .is_ok();
    Ok((!is_right).then_some(Doubt::Altered))
}

/// The index of a segment; the outer `None`: it is not there, the inner: it is not the one of the manifest.
async fn index(
    objects: &Objects,
    segment: SegmentId,
    entry: &ManifestEntry,
) -> Result<Option<Option<Vec<SegmentIndexEntry>>>, CleanError> {
    let first = entry.length - INDEX_BYTES.min(entry.length);
    let Some(mut end) = range(objects, segment, first, entry.length - first).await? else {
        return Ok(None);
    };
    let Some(footer) = end
        .len()
        .checked_sub(FOOTER_BYTES)
        .and_then(|at| decode_footer(&end[at..]).ok())
    else {
        return Ok(Some(None));
    };
    if footer.segment_bytes() != entry.length as usize {
        return Ok(Some(None));
    }
    if footer.index_offset < first {
        let Some(whole) = range(
            objects,
            segment,
            footer.index_offset,
            entry.length - footer.index_offset,
        )
        .await?
        else {
            return Ok(None);
        };
        end = whole;
    } else {
        end = end.slice((footer.index_offset - first) as usize..);
    }
    if *blake3::hash(&end).as_bytes() != entry.index_hash {
        return Ok(Some(None));
    }
    let index = end.get(..footer.index_bytes());
    Ok(Some(index.and_then(|index| footer.decode_index(index).ok())))
}

/// The object at a fraction of the bytes of all.
fn at(index: &[SegmentIndexEntry], position: u64) -> Option<&SegmentIndexEntry> {
    let (first, last) = (index.first()?, index.last()?);
    let bytes = u128::from(last.offset + last.length - first.offset);
    let byte = first.offset + ((u128::from(position) * bytes) >> 64) as u32;
    index.iter().find(|entry| byte < entry.offset + entry.length)
}

pub(super) fn key(objects: &Objects, segment: SegmentId) -> ObjectKey {
    ObjectKey::new(&segment.key(&objects.anchor.family()))
}

fn there<T>(read: Result<T, StoreError>) -> Result<Option<T>, CleanError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn range(
    objects: &Objects,
    segment: SegmentId,
    offset: u32,
    length: u32,
) -> Result<Option<Bytes>, CleanError> {
    let key = key(objects, segment);
    there(
        objects
            .store
            .get_range(&key, u64::from(offset), u64::from(length))
            .await,
    )
}

/// Judges what was found wrong by the newest manifest, and writes it into the reports.
async fn settle(
    objects: &mut Objects,
    volume: VolumeId,
    doubtful: BTreeMap<SegmentId, Doubt>,
    audit: &mut ManifestAudit,
    report: &mut VolumeAudit,
) -> Result<(), CleanError> {
    if doubtful.is_empty() {
        return Ok(());
    }
    let branches = branches_now(objects).await?;
    let branch = branches.iter().find(|branch| branch.volume == volume);
    let newest = match branch {
        Some(branch) => Reader::open(objects, branch).await?,
        None => None,
    };
    for (segment, doubt) in doubtful {
        let is_needed = match &newest {
            Some(newest) => newest.has(objects, segment).await?,
            None => Some(false),
        };
        match is_needed {
            Some(true) => audit.add(segment, doubt == Doubt::Missing, report),
            Some(false) => audit.released += 1,
            None => audit.is_complete = false,
        }
    }
    // Those beyond are of the same kind as these.
    if audit.lost + audit.altered == 0 && audit.more > 0 {
        audit.is_complete = false;
    }
    Ok(())
}

/// A listing of the log, read as far as it is asked for, in order.
#[derive(Default)]
pub(super) struct Listing {
    page: VecDeque<(SegmentId, u64)>,
    after: Option<ObjectKey>,
    is_over: bool,
}

impl Listing {
    /// The bytes of a segment that is shown; those asked for come in order.
    pub async fn size_of(&mut self, objects: &Objects, wanted: SegmentId) -> Result<Option<u64>, CleanError> {
        loop {
            while let Some((segment, bytes)) = self.page.front().copied() {
                if segment > wanted {
                    return Ok(None);
                }
                self.page.pop_front();
                if segment == wanted {
                    return Ok(Some(bytes));
                }
            }
            if self.is_over {
                return Ok(None);
            }
            // What lies between is not listed.
            let before = match (wanted.sequence.checked_sub(1), wanted.writer.0.checked_sub(1)) {
                (Some(sequence), _) => Some(SegmentId { sequence, ..wanted }),
                (None, Some(writer)) => Some(SegmentId {
                    writer: WriterId(writer),
                    sequence: u64::MAX,
                }),
                (None, None) => None,
            };
            let before = before.map(|before| key(objects, before));
            let after = self.after.clone().max(before);
            let own = wanted.key(&objects.anchor.family());
            let prefix = own
                .split_once("/log/")
                .map_or("", |(family, _)| family)
                .to_owned()
                + "/log/";
            let page = objects.store.list(&prefix, after.as_ref()).await?;
            self.is_over = !page.more || page.objects.is_empty();
            self.after = page.objects.last().map(|listed| listed.key.clone()).max(after);
            self.page = page
                .objects
                .iter()
                .filter_map(|listed| {
                    let (_, segment) = SegmentId::parse_key(listed.key.as_str())?;
                    Some((segment, listed.size_bytes))
                })
                .collect();
        }
    }
}
