//! Reading of many objects at once: what lies side by side in a segment comes with one request.

use crate::{
    CleanError, Damage,
    lookup::{Copies, step},
    objects::Objects,
};
use bytes::Bytes;
use firn_format::{Location, MAX_OBJECT_BYTES, Place, Pointer, VerifiedObject, decode_object};
use firn_store::{ObjectKey, StoreError};
use futures::future::join_all;
use std::sync::Arc;

/// Bytes between two objects that are read with them. Over the internet 4 KiB cost as much as a request, and within a region
/// nothing.
const GAP_BYTES: u64 = 4 << 10;
/// The longest run.
const RUN_BYTES: u64 = 1 << 20;
/// Runs read at a time.
const READ_TOGETHER: usize = 16;

/// A range of a segment, and which of the wanted objects lie in it.
struct Run {
    at: Location,
    members: Vec<(Location, usize)>,
}

/// Reads each object wherever it is now, verified. The inner error: it is lost or damaged.
pub(crate) async fn read_together(
    objects: &mut Objects,
    wanted: &[(Pointer, Place)],
    copies: Copies,
) -> Result<Vec<Result<Arc<VerifiedObject>, Damage>>, CleanError> {
    let mut found: Vec<Option<Arc<VerifiedObject>>> = Vec::with_capacity(wanted.len());
    let mut waiting = Vec::new();
    for (ordinal, (pointer, place)) in wanted.iter().enumerate() {
        found.push(objects.cached(pointer, *place, copies));
        if found[ordinal].is_none()
            && let Some(location) = objects.settle(&pointer.location).await?
            && location != Location::UNKNOWN
            && location.length as usize <= MAX_OBJECT_BYTES
        {
            waiting.push((location, ordinal));
        }
    }
    waiting.sort_unstable();
    for group in runs(&waiting).chunks(READ_TOGETHER) {
        let read = join_all(group.iter().map(|run| read(objects, run.at))).await;
        for (run, bytes) in group.iter().zip(read) {
            let Some(bytes) = bytes? else { continue };
            for (location, ordinal) in &run.members {
                let start = (location.offset - run.at.offset) as usize;
                let Some(slice) = bytes.get(start..start + location.length as usize) else {
                    continue;
                };
                let (pointer, place) = &wanted[*ordinal];
                // Copied: kept, a slice would keep the whole run.
                let decoded = decode_object(Bytes::copy_from_slice(slice));
                if let Ok(object) = decoded.and_then(|object| object.verify(&pointer.uid, Some(*place))) {
                    found[*ordinal] = Some(objects.take(pointer.location, object));
                }
            }
        }
    }
    let mut read = Vec::with_capacity(wanted.len());
    for (found, (pointer, place)) in found.into_iter().zip(wanted) {
        read.push(match found {
            Some(object) => Ok(object),
            // Alone, by whatever record leads there.
            None => match step(objects, pointer, *place, copies).await {
                Ok(object) => Ok(object),
                Err(CleanError::Damaged(damage)) => Err(damage),
                Err(error) => return Err(error),
            },
        });
    }
    Ok(read)
}

/// Joins what lies close together; `waiting` is in order.
fn runs(waiting: &[(Location, usize)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (location, ordinal) in waiting {
        if let Some(last) = runs.last_mut()
            && last.at.segment == location.segment
            && u64::from(location.offset) <= last.at.end() + GAP_BYTES
            && location.end() - u64::from(last.at.offset) <= RUN_BYTES
        {
            let end = last.at.end().max(location.end());
            last.at.length = (end - u64::from(last.at.offset)) as u32;
            last.members.push((*location, *ordinal));
            continue;
        }
        runs.push(Run {
            at: *location,
            members: vec![(*location, *ordinal)],
        });
    }
    runs
}

/// `None`: the segment is gone.
async fn read(objects: &Objects, at: Location) -> Result<Option<Bytes>, CleanError> {
    let key = ObjectKey::new(&at.segment.key(&objects.anchor.family()));
    let range = objects
        .store
        .get_range(&key, u64::from(at.offset), u64::from(at.length));
    match range.await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_format::{SegmentId, WriterId};

    fn at(sequence: u64, offset: u32, length: u32) -> Location {
        Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence,
            },
            offset,
            length,
        }
    }

    #[test]
    fn neighbours_are_one_run_and_what_is_far_or_elsewhere_is_another() {
        let waiting = [
            (at(1, 52, 100), 3),
            (at(1, 152, 100), 0),
            (at(1, 4000, 50), 1),
            (at(1, 9000, 50), 4),
            (at(2, 9050, 50), 2),
        ];
        let ranges: Vec<_> = runs(&waiting)
            .iter()
            .map(|run| {
                (
                    run.at.segment.sequence,
                    run.at.offset,
                    run.at.length,
                    run.members.len(),
                )
            })
            .collect();
        assert_eq!(ranges, [(1, 52, 3998, 3), (1, 9000, 50, 1), (2, 9050, 50, 1)]);
    }

    #[test]
    fn a_run_has_an_end_and_overlapping_places_are_within_it() {
        let half = (RUN_BYTES / 2) as u32;
        let waiting = [
            (at(1, 0, half), 0),
            (at(1, 10, 10), 1),
            (at(1, half, half), 2),
            (at(1, 2 * half, 1), 3),
        ];
        let lengths: Vec<u32> = runs(&waiting).iter().map(|run| run.at.length).collect();
        assert_eq!(lengths, [2 * half, 1]);
    }
}
