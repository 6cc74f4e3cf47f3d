//! From the segments that a step met to the manifest's entries.
//!
//! ```text
//! known to the manifest ─▶ nothing
//! retired               ─▶ where its forwarding records lead, instead
//! there, up to 256 KiB  ─▶ read whole: length and both hashes
//! there, longer         ─▶ its index: length and the index's hash; pointers into it must be in the index
//! not there, or another ─▶ an entry that is unread: it must exist, and audits name it
//! ```

use super::walk::Found;
use crate::{manifest::Manifest, volume::Inner};
use bytes::Bytes;
use firn_format::{
    FOOTER_BYTES, FamilyId, ListedSegment, MAX_SEGMENT_BYTES, ManifestEntry, Pointer, SegmentId, Version,
    WHOLE_SEGMENT_BYTES, decode_footer, decode_segment,
};
use firn_store::{ObjectKey, Store, StoreError};
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};

/// Read for an index: of 239 objects at least. One that is longer takes another request.
const INDEX_BYTES: u64 = 16 << 10;

/// Segments read at a time.
const TOGETHER: usize = 8;

/// What a step's segments are.
#[derive(Default)]
pub(super) struct Entered {
    pub entries: Vec<ListedSegment>,
    /// Those of them that are not there, or not right.
    pub lost: Vec<SegmentId>,
    pub read_bytes: u64,
}

/// Why nothing can be said now.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotNow {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Anchor(#[from] firn_anchor::AnchorError),
    #[error("{0}")]
    Manifest(String),
}

/// What became of a segment.
enum Outcome {
    Known,
    Retired,
    Entry(ManifestEntry, u64),
}

/// Makes entries of what was found; nothing is left of it that the manifest has already.
pub(super) async fn enter(inner: &Inner, manifest: &Manifest, found: Found) -> Result<Entered, NotNow> {
    let mut entered = Entered::default();
    let mut seen: BTreeSet<SegmentId> = found.keys().copied().collect();
    let mut waiting: Found = found;
    while !waiting.is_empty() {
        let some: BTreeMap<_, _> = (0..TOGETHER).map_while(|_| waiting.pop_first()).collect();
        let outcomes = some
            .iter()
            .map(|(segment, references)| outcome(inner, manifest, *segment, references));
        for (outcome, segment) in join_all(outcomes).await.into_iter().zip(some.keys().copied()) {
            match outcome? {
                Outcome::Known => {}
                Outcome::Retired => {
                    // Whatever was needed of it: in the whole family, so this volume's, too.
                    for next in inner.objects.forwarded_to(segment).await? {
                        if seen.insert(next) {
                            waiting.entry(next).or_default();
                        }
                    }
                }
                Outcome::Entry(entry, read_bytes) => {
                    entered.read_bytes += read_bytes;
                    entered.entries.push(ListedSegment { segment, entry });
                    if !entry.is_read() {
                        entered.lost.push(segment);
                    }
                }
            }
        }
    }
    Ok(entered)
}

async fn outcome(
    inner: &Inner,
    manifest: &Manifest,
    segment: SegmentId,
    references: &BTreeSet<Pointer>,
) -> Result<Outcome, NotNow> {
    let known = manifest.has(&inner.objects, segment).await;
    if known.map_err(|error| NotNow::Manifest(error.to_string()))? {
        return Ok(Outcome::Known);
    }
    let is_blind = firn_env::planted!("volume.gathering_keeps_retired");
    if !is_blind && inner.anchor.retired(segment).await?.is_some() {
        return Ok(Outcome::Retired);
    }
    let packer = &inner.checkpointer.packer;
    match read(&*packer.store, packer.family, segment, references).await? {
        Some((entry, read_bytes)) => Ok(Outcome::Entry(entry, read_bytes)),
        // The table forgets what was retired once nothing leads there; who goes by an older tree finds the record.
        None if !inner.objects.forwarded_to(segment).await?.is_empty() => Ok(Outcome::Retired),
        None if firn_env::planted!("volume.gathering_believes_the_listing") => Ok(Outcome::Known),
        None => Ok(Outcome::Entry(ManifestEntry::unread(Version(0)), 0)),
    }
}

/// The entry of a segment, and the bytes that it took; `None`: it is not there, or is not what the trees say.
async fn read(
    store: &dyn Store,
    family: FamilyId,
    segment: SegmentId,
    references: &BTreeSet<Pointer>,
) -> Result<Option<(ManifestEntry, u64)>, StoreError> {
    let key = ObjectKey::new(&segment.key(&family));
    let there = |read: Result<Bytes, StoreError>| match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let length = match store.head(&key).await {
        Ok(found) => found.size_bytes,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if length < FOOTER_BYTES as u64 || length > MAX_SEGMENT_BYTES as u64 {
        return Ok(None);
    }
    if length <= u64::from(WHOLE_SEGMENT_BYTES) {
        let Some(bytes) = there(store.get(&key).await)? else {
            return Ok(None);
        };
        let is_it =
            decode_segment(bytes.clone()).is_ok_and(|found| (found.id, found.family) == (segment, family));
        let entry = ManifestEntry::of_bytes(&bytes, Version(0)).filter(|_| is_it);
        return Ok(entry.map(|entry| (entry, length)));
    }
    let first = length.saturating_sub(INDEX_BYTES);
    let Some(mut end) = there(store.get_range(&key, first, length - first).await)? else {
        return Ok(None);
    };
    let mut read_bytes = length - first;
    let footer = end
        .len()
        .checked_sub(FOOTER_BYTES)
        .and_then(|at| decode_footer(&end[at..]).ok());
    let Some(footer) = footer.filter(|footer| {
        (footer.id, footer.family) == (segment, family) && footer.segment_bytes() as u64 == length
    }) else {
        return Ok(None);
    };
    let begins = u64::from(footer.index_offset);
    if begins < first {
        let Some(whole) = there(store.get_range(&key, begins, length - begins).await)? else {
            return Ok(None);
        };
        read_bytes += length - begins;
        end = whole;
    } else {
        end = end.slice((begins - first) as usize..);
    }
    let index = end
        .get(..footer.index_bytes())
        .and_then(|bytes| footer.decode_index(bytes).ok());
    let Some(index) = index else { return Ok(None) };
    let is_in = |pointer: &Pointer| {
        let location = &pointer.location;
        index.iter().any(|entry| {
            (entry.uid, entry.offset, entry.length) == (pointer.uid, location.offset, location.length)
        })
    };
    let is_right = references.iter().all(is_in);
    Ok(is_right.then(|| (ManifestEntry::of_index(length as u32, &end), read_bytes)))
}
