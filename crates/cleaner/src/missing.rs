//! Missing segments: those that the heads' usage maps count bytes of, that the bucket does not have, and that nobody retired.
//!
//! ```text
//! heads read → window of the log listed → leaves of the usage maps in that window → live bytes, not listed
//!            → asked for by name → asked for in the table of retirements → needed by the newest heads, too → missing: reported
//! ```
//!
//! A listing cannot show what is gone; the maps can. They are hints, so a figure that is wrong for a segment that was retired long ago
//! and forgotten would be a false alarm, which costs somebody a `firn-edge verify`; and a segment that only a snapshot needs is
//! counted by no map, so this is no proof that the bucket is whole. Nothing is done about what is found: whatever is missing is left to
//! people, and judged as before.

use crate::{
    CleanError, Report,
    branches::{self, Branch},
    objects::Objects,
    victims::Window,
};
use firn_env::Monotonic;
use firn_format::{
    Kind, MAX_LEVEL, Place, Pointer, SegmentId, TreeRoot, USAGE_MAP, USAGE_SEGMENTS, UsageLeaf, radix,
    usage_segment, usage_slot,
};
use firn_store::{ObjectKey, StoreError};
use std::collections::BTreeMap;

/// Segments asked for by name in a run: $0.0004 and a few seconds. Beyond it they are counted only.
const LOOKED_MAX: usize = 1000;

/// Segments of the maps that are held against the listing in a run; a window has fewer.
const SUSPECTS_MAX: usize = 65_536;

/// Looks for what the window should have shown, and reports what is not there.
pub(crate) async fn report_missing(
    objects: &mut Objects,
    branches: &[Branch],
    after: Option<SegmentId>,
    window: &Window,
    deadline: Monotonic,
    report: &mut Report,
) -> Result<(), CleanError> {
    let range = Range {
        after,
        until: window.next,
    };
    let suspects = suspects_of(objects, branches, range, window).await?;
    let mut missing = BTreeMap::new();
    for (looked, (segment, live_bytes)) in suspects.into_iter().enumerate() {
        if looked >= LOOKED_MAX || !objects.env.now().since(deadline).is_zero() {
            report.not_looked_for += 1;
        } else if is_missing(objects, segment).await? {
            missing.insert(segment, live_bytes);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // Heads went on while this run looked: what the newest do not need any more may be retired, deleted and forgotten.
    let newest = branches::load(objects).await?;
    let still = suspects_of(objects, &newest, range, window).await?;
    for (segment, live_bytes) in missing {
        if still.contains_key(&segment) {
            report.missing.add(format!(
                "segment {segment}: {live_bytes} bytes of it are needed, and it is neither in the bucket nor retired"
            ));
        }
    }
    Ok(())
}

/// What the heads need in this range and the window does not show, with the bytes.
async fn suspects_of(
    objects: &mut Objects,
    branches: &[Branch],
    range: Range,
    window: &Window,
) -> Result<BTreeMap<SegmentId, u64>, CleanError> {
    let mut suspects = BTreeMap::new();
    for branch in branches {
        let Some(usage) = branch.head.as_ref().and_then(|head| head.trees.usage) else {
            continue;
        };
        collect(objects, usage, range, window, &mut suspects).await?;
    }
    Ok(suspects)
}

/// A part of the log, as a window lists it.
#[derive(Clone, Copy)]
struct Range {
    after: Option<SegmentId>,
    until: Option<SegmentId>,
}

impl Range {
    fn contains(self, segment: SegmentId) -> bool {
        self.after.is_none_or(|after| segment > after) && self.until.is_none_or(|until| segment <= until)
    }

    /// The leaves of a usage map that tell of it.
    fn leaves(self) -> (u64, u64) {
        let leaf = |segment| usage_slot(segment).map(|(index, _)| index);
        // What no map can name comes behind all that it can.
        (
            self.after.map_or(0, |after| leaf(after).unwrap_or(u64::MAX)),
            self.until.and_then(leaf).unwrap_or(u64::MAX),
        )
    }
}

/// Adds what a head needs in this range and the window does not show.
async fn collect(
    objects: &mut Objects,
    tree: TreeRoot,
    range: Range,
    window: &Window,
    suspects: &mut BTreeMap<SegmentId, u64>,
) -> Result<(), CleanError> {
    let (first, last) = range.leaves();
    let mut waiting: Vec<(Pointer, u8, u64)> = vec![(tree.pointer, tree.level.min(MAX_LEVEL), 0)];
    while let Some((pointer, level, index)) = waiting.pop() {
        let place = Place {
            inode: USAGE_MAP,
            level,
            index,
        };
        let object = match objects.get(&pointer, place).await {
            Ok(object) => object,
            // A damaged hint is no hint; whoever judges by it says so.
            Err(CleanError::Damaged(_)) => continue,
            Err(error) => return Err(error),
        };
        if level == 0 {
            let Ok(leaf) = UsageLeaf::from_verified(&object) else {
                continue;
            };
            for slot in 0..USAGE_SEGMENTS {
                let segment = usage_segment(index, slot);
                let live_bytes = u64::from(leaf.live_bytes[slot]);
                let is_seen = live_bytes == 0 || window.shown.contains(&segment) || !range.contains(segment);
                if !is_seen && suspects.len() < SUSPECTS_MAX {
                    *suspects.entry(segment).or_default() += live_bytes;
                }
            }
            continue;
        }
        if object.header.kind != Kind::Node {
            continue;
        }
        for child in object.header.children.iter().rev() {
            let below = (index << 7) | u64::from(child.slot);
            let (from, to) = (
                radix::first_leaf(below, level - 1),
                radix::first_leaf(below, level - 1).saturating_add(radix::last_leaf(level - 1)),
            );
            if to >= first && from <= last {
                waiting.push((child.pointer, level - 1, below));
            }
        }
    }
    Ok(())
}

async fn is_missing(objects: &Objects, segment: SegmentId) -> Result<bool, CleanError> {
    let key = ObjectKey::new(&segment.key(&objects.anchor.family()));
    match objects.store.head(&key).await {
        Ok(_) => return Ok(false),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if firn_env::planted!("cleaner.retired_is_missing") {
        return Ok(true);
    }
    // Asked only now: what is gone was retired before it was deleted.
    Ok(objects.anchor.retired(segment).await?.is_none())
}
