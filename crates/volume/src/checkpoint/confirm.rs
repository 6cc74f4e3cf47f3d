//! Confirmation of level 2: whether the store has what it acknowledged.
//!
//! A store can acknowledge a put and drop it: a gateway's cache that died, a lifecycle rule, an administrator with the wrong
//! prefix. Reads find out months later. So each segment is read back a minute later ([`super::read_back`]), and whoever is promised
//! that everything is in the cloud now (`sync`, `drain`) costs one LIST of a thousand names:
//!
//! ```text
//! uploaded ─ listed with its length ─────────────────────────────────→ confirmed
//!          └ not listed, nor found by itself ─ retired by a cleaner ─→ confirmed
//!                                            └ put again, if it is pinned or whole in our cache
//!                                              └ in view within seconds → confirmed
//!                                                └ lost: said, counted, never called level 2
//! ```
//!
//! A retired segment's objects are elsewhere, which its forwarding record says. Not every store shows at once what it has taken, so
//! nothing is called lost that it may show a moment later.

use super::{LostSegments, PackerContext};
use crate::objects::Objects;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::Backoff;
use firn_format::{FamilyId, ForwardingRecord, SegmentId, WriterId, decode_segment};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

/// How long a store may take to show what it has acknowledged. Those of today show it at once; older ones took seconds.
const IN_VIEW_WITHIN: Duration = Duration::from_secs(6);
/// Between two looks for it.
const LOOK_AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Names in one answer of a LIST.
const LIST_NAMES: usize = 1000;

/// Why it is not certain that everything is at level 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    /// The store does not answer, or does not let itself be listed. Trying again is right.
    #[error("the store cannot say whether it has what it acknowledged: {0}")]
    Unasked(#[from] StoreError),
    /// It has not.
    #[error("{0}")]
    Lost(LostSegments),
}

fn segment(writer: WriterId, sequence: u64) -> SegmentId {
    SegmentId { writer, sequence }
}

/// Asks the store for everything uploaded before this call; puts again what it lost and this machine still has.
///
/// # Errors
/// See [`ConfirmError`].
pub(crate) async fn confirm(context: &PackerContext) -> Result<(), ConfirmError> {
    let uploads = &context.progress.uploads;
    let asked = uploads.doubtful();
    let mut lost = absent(context, unlisted(context, asked.clone()).await?).await?;
    for (id, bytes) in &lost {
        put_again(context, *id, *bytes).await?;
    }
    let (began, mut looks) = (context.env.now(), 0);
    while !lost.is_empty() && context.env.now().since(began) < IN_VIEW_WITHIN {
        looks += 1;
        LOOK_AGAIN.wait(&context.env, looks).await;
        lost = unlisted(context, lost).await?;
    }
    lost = absent(context, lost).await?;
    uploads.settle(&asked, lost);
    match uploads.not_there(&context.family) {
        None => Ok(()),
        Some(lost) => {
            tracing::error!(count = lost.count, first = lost.keys.first(), "{lost}");
            Err(ConfirmError::Lost(lost))
        }
    }
}

/// Those that are not there even when they are asked for by name, though they are needed.
async fn absent(
    context: &PackerContext,
    mut doubtful: BTreeMap<SegmentId, u64>,
) -> Result<BTreeMap<SegmentId, u64>, StoreError> {
    let mut absent = BTreeMap::new();
    while let Some((id, bytes)) = doubtful.pop_first() {
        if !is_there(context, id, bytes).await? {
            absent.insert(id, bytes);
        }
    }
    Ok(absent)
}

/// Those that a listing does not show with their length.
async fn unlisted(
    context: &PackerContext,
    mut wanted: BTreeMap<SegmentId, u64>,
) -> Result<BTreeMap<SegmentId, u64>, StoreError> {
    let mut by_writer: BTreeMap<WriterId, RangeInclusive<u64>> = BTreeMap::new();
    for id in wanted.keys() {
        by_writer
            .entry(id.writer)
            .and_modify(|range| {
                *range = id.sequence.min(*range.start())..=id.sequence.max(*range.end());
            })
            .or_insert(id.sequence..=id.sequence);
    }
    for (writer, range) in by_writer {
        list_segments(&*context.store, context.family, writer, range, |id, bytes| {
            if wanted.get(&id) == Some(&bytes) {
                wanted.remove(&id);
            }
        })
        .await?;
    }
    Ok(wanted)
}

/// Goes through a writer's segments in this range, in order.
async fn list_segments(
    store: &dyn Store,
    family: FamilyId,
    writer: WriterId,
    range: RangeInclusive<u64>,
    mut each: impl FnMut(SegmentId, u64),
) -> Result<(), StoreError> {
    let key = |sequence| ObjectKey::new(&segment(writer, sequence).key(&family));
    let first = key(*range.start());
    let prefix = first
        .as_str()
        .rsplit_once('/')
        .map_or("", |(writer, _)| writer)
        .to_owned()
        + "/";
    let mut after = range.start().checked_sub(1).map(key);
    loop {
        let page = store.list(&prefix, after.as_ref()).await?;
        let mut reached = None;
        for listed in &page.objects {
            if let Some((_, id)) = SegmentId::parse_key(listed.key.as_str()) {
                reached = Some(id.sequence);
                each(id, listed.size_bytes);
            }
        }
        after = page.objects.last().map(|listed| listed.key.clone());
        if !page.more || after.is_none() || reached >= Some(*range.end()) {
            return Ok(());
        }
    }
}

/// The keys of a writer's segments up to `last` that are not in the store, nor were retired. Whoever was told that `last` is
/// there was told that all before it are.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn unlisted_up_to(
    store: &dyn Store,
    anchor: &Anchor,
    family: FamilyId,
    last: SegmentId,
) -> Result<Vec<String>, StoreError> {
    let mut listed = BTreeSet::new();
    list_segments(store, family, last.writer, 0..=last.sequence, |id, _| {
        listed.insert(id.sequence);
    })
    .await?;
    let mut missing = Vec::new();
    let absent = (0..=last.sequence).filter(|sequence| !listed.contains(sequence));
    // Each costs a request: a cleaner retires segments, and then most of them are.
    for sequence in absent.take(LIST_NAMES) {
        let id = segment(last.writer, sequence);
        if !is_retired(store, anchor, family, id).await? {
            missing.push(id.key(&family));
        }
    }
    Ok(missing)
}

/// Whether nobody needs it under its name any more.
pub(crate) async fn is_retired(
    store: &dyn Store,
    anchor: &Anchor,
    family: FamilyId,
    id: SegmentId,
) -> Result<bool, StoreError> {
    let records = ForwardingRecord::prefix(&family, id);
    // Who moved nothing out of a segment left no record.
    match anchor.retired(id).await {
        Ok(Some(_)) => return Ok(true),
        Ok(None) => {}
        Err(error) if !error.is_transient() => {
            tracing::warn!(%error, %id, "the table does not say whether a segment was retired");
        }
        Err(error) => {
            let key = ObjectKey::new(&id.key(&family));
            return Err(StoreError::unavailable("retirement", &key, error.to_string()));
        }
    }
    Ok(!store.list(&records, None).await?.objects.is_empty())
}

/// Whether it is there though no listing showed it, or is not needed there any more.
async fn is_there(context: &PackerContext, id: SegmentId, bytes: u64) -> Result<bool, StoreError> {
    let key = ObjectKey::new(&id.key(&context.family));
    match context.store.head(&key).await {
        Ok(found) if found.size_bytes == bytes => return Ok(true),
        Ok(_) | Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    is_retired(&*context.store, &context.anchor, context.family, id).await
}

/// Puts a segment that the store does not show once more, from the pin or the cache; `false` if neither has it whole.
pub(super) async fn put_again(
    context: &PackerContext,
    id: SegmentId,
    bytes: u64,
) -> Result<bool, StoreError> {
    let Some(whole) = kept_here(&context.objects, id, bytes).await else {
        return Ok(false);
    };
    match decode_segment(whole.clone()) {
        Ok(found) if found.id == id && found.family == context.family => {}
        Ok(_) | Err(_) => return Ok(false),
    }
    let key = ObjectKey::new(&id.key(&context.family));
    tracing::warn!(%key, "the store acknowledged this segment and does not show it; put again from the local disk");
    match context.store.put(&key, vec![whole], PutMode::Create).await {
        // It has it and will show it, or another object is in its place, whose length tells.
        Ok(()) | Err(StoreError::AlreadyExists { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// A segment from the pin or the cache, not verified.
pub(crate) async fn kept_here(objects: &Objects, id: SegmentId, bytes: u64) -> Option<Bytes> {
    if let Some(pinned) = objects.pinned_segment(id).await {
        return Some(pinned);
    }
    objects.cached_segment(id, u32::try_from(bytes).ok()?).await
}
