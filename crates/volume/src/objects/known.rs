//! Objects that this process knows by the tag of their seal: it has sealed them, or has verified them by their uid before.
//!
//! Hashing an object again each time it is read from the disk cache takes as long as opening it. But who has seen that the object of this uid carries
//! this tag needs no second hash: what carries the tag and opens is that object, since without the key nobody makes another one that does, and
//! every object is sealed under a nonce of its own (decision 0237). What is known is remembered in memory alone, so what an earlier process left on the disk is
//! hashed when it is read first.
//!
//! ```text
//! location ──> first 16 bytes of BLAKE3(uid, tag)
//! ```
//!
//! The uid is part of it, since a pointer of another uid to the same place must not find the object. Bounded: beyond [`OBJECTS_MAX`] the segments
//! noted first are forgotten, and their objects are hashed again.

use firn_format::{Location, SEAL_TAG_BYTES, SegmentId, Uid};
use std::collections::{BTreeMap, VecDeque};

/// Objects below this take less to hash than to look up and to remember.
const LEAST_BYTES: u32 = 16 << 10;

/// Objects remembered, of 20 bytes each: 8 MiB, for 12 GiB of blocks of 32 KiB.
const OBJECTS_MAX: usize = 400_000;

type Fingerprint = [u8; 16];

/// See the module.
#[derive(Default)]
pub(super) struct KnownObjects {
    /// By offset, which is also the order in which most are noted.
    segments: BTreeMap<SegmentId, Vec<(u32, Fingerprint)>>,
    /// The segment noted first stands first.
    order: VecDeque<SegmentId>,
    count: usize,
}

fn fingerprint(uid: &Uid, tag: &[u8; SEAL_TAG_BYTES]) -> Fingerprint {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&uid.0).update(tag);
    let mut fingerprint = Fingerprint::default();
    hasher.finalize_xof().fill(&mut fingerprint);
    fingerprint
}

impl KnownObjects {
    /// Whether one of this length is worth it.
    pub(super) fn takes(location: &Location) -> bool {
        location.length >= LEAST_BYTES
    }

    /// The object of this uid, at this place, has this tag.
    pub(super) fn note(&mut self, location: &Location, uid: &Uid, tag: &[u8; SEAL_TAG_BYTES]) {
        if !Self::takes(location) {
            return;
        }
        let objects = self.segments.entry(location.segment).or_insert_with(|| {
            self.order.push_back(location.segment);
            Vec::new()
        });
        let one = (location.offset, fingerprint(uid, tag));
        match objects.binary_search_by_key(&location.offset, |known| known.0) {
            Ok(at) => objects[at] = one,
            Err(at) => {
                objects.insert(at, one);
                self.count += 1;
            }
        }
        while self.count > OBJECTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.count -= self.segments.remove(&oldest).map_or(0, |objects| objects.len());
        }
    }

    /// Whether that was noted.
    pub(super) fn has(&self, location: &Location, uid: &Uid, tag: &[u8; SEAL_TAG_BYTES]) -> bool {
        let Some(objects) = self.segments.get(&location.segment) else {
            return false;
        };
        let at = objects.binary_search_by_key(&location.offset, |known| known.0);
        at.is_ok_and(|at| {
            objects[at].1 == fingerprint(uid, tag) || firn_env::planted!("volume.any_tag_is_known")
        })
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{KnownObjects, LEAST_BYTES, OBJECTS_MAX};
    use firn_format::{Location, SegmentId, Uid, WriterId};

    fn location(sequence: u64, offset: u32) -> Location {
        let writer = WriterId(1);
        Location {
            segment: SegmentId { writer, sequence },
            offset,
            length: LEAST_BYTES,
        }
    }

    #[test]
    fn an_object_is_known_by_place_uid_and_tag_together() {
        let mut known = KnownObjects::default();
        let (here, uid, tag) = (location(1, 4096), Uid([1; 32]), [2; 16]);
        known.note(&here, &uid, &tag);
        assert!(known.has(&here, &uid, &tag));
        assert!(!known.has(&location(1, 4097), &uid, &tag));
        assert!(!known.has(&location(2, 4096), &uid, &tag));
        assert!(!known.has(&here, &Uid([3; 32]), &tag));
        assert!(!known.has(&here, &uid, &[3; 16]));
        let small = Location {
            length: LEAST_BYTES - 1,
            ..location(1, 0)
        };
        known.note(&small, &uid, &tag);
        assert!(!known.has(&small, &uid, &tag));
        known.clear();
        assert!(!known.has(&here, &uid, &tag));
    }

    #[test]
    fn the_segments_noted_first_are_forgotten_first() {
        let mut known = KnownObjects::default();
        let (uid, tag) = (Uid([1; 32]), [2; 16]);
        for number in 0..OBJECTS_MAX as u64 + 1 {
            known.note(&location(number / 100, (number % 100) as u32), &uid, &tag);
        }
        assert_eq!(known.count, OBJECTS_MAX + 1 - 100);
        assert_eq!(known.order.len(), known.segments.len());
        assert!(!known.has(&location(0, 99), &uid, &tag));
        assert!(known.has(&location(1, 0), &uid, &tag));
        // Noted again it is one and the same.
        known.note(&location(1, 0), &uid, &tag);
        assert_eq!(known.count, OBJECTS_MAX + 1 - 100);
    }
}
