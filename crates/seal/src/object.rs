//! Sealing objects, and opening them.
//!
//! One [`ObjectSealer`] serves one segment: it draws a salt, derives a key, and hands out slots, each of which seals once.
//! The seal authenticates, beside the payload, the family and all that the object says of itself but its children's
//! locations. So a payload opens only as the kind it was, at its place, with its birth and its children.
//!
//! Payloads are compressed first where that saves at least a sixteenth; a block that does not shrink is stored as it is,
//! and reading it then costs no decompression. Neither way is a byte copied that is not also transformed.

use crate::{
    Keys, SealError,
    derive::{DerivedKey, check_size, hedged_salt, opened_bytes},
};
use bytes::{Bytes, BytesMut};
use firn_format::{
    Child, Codec, EncodedObject, FamilyId, Features, FetchedObject, KeyEpoch, Kind, MAX_PAYLOAD_BYTES,
    ObjectDraft, ObjectHeader, Place, SEAL_TAG_BYTES, SealHeader, SegmentId, VerifiedObject, Version,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

const PURPOSE: &str = "firn 1 object";

/// Whether payloads are compressed before they are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Never.
    None,
    /// With LZ4, where it saves at least a sixteenth.
    #[default]
    Lz4,
}

/// Seals the objects of one segment. May be shared by threads that seal in parallel.
pub struct ObjectSealer {
    family: FamilyId,
    key_epoch: KeyEpoch,
    salt: [u8; 32],
    key: DerivedKey,
    slots: Mutex<Slots>,
}

/// Which nonces were handed out and not used yet.
#[derive(Default)]
struct Slots {
    next: u32,
    reserved: BTreeSet<u32>,
}

impl ObjectSealer {
    /// Draws a salt for a segment and derives its key from the family's current one.
    ///
    /// `fresh_entropy` must be drawn for this call; the segment's name hedges it, as no name is used twice.
    pub fn new(keys: &Keys, fresh_entropy: [u8; 32], hedge: &SegmentId) -> Self {
        let family = keys.family();
        let name = [&hedge.writer.0.to_le_bytes()[..], &hedge.sequence.to_le_bytes()];
        let salt = hedged_salt(&fresh_entropy, PURPOSE, &family, &name);
        // One view of the keys: an epoch adopted in between must not come with the key of another.
        let keys = keys.now();
        Self {
            family,
            key_epoch: keys.current(),
            salt,
            key: DerivedKey::new(keys.current_key(), &salt, PURPOSE, &family),
            slots: Mutex::default(),
        }
    }

    /// The salt that was drawn; every object sealed here carries it.
    pub fn salt(&self) -> [u8; 32] {
        self.salt
    }

    /// Hands out a slot for one object. Reserving in the order of the objects, before sealing in parallel, makes the
    /// bytes independent of which thread is faster.
    ///
    /// # Panics
    /// If 2^32 slots were handed out; a segment holds some hundred objects.
    pub fn reserve_slot(&self) -> u32 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.next;
        slots.next = slot.checked_add(1).expect("a segment holds fewer objects");
        slots.reserved.insert(slot);
        slot
    }

    fn spend(&self, slot: u32) -> Result<(), SealError> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.reserved.remove(&slot) {
            Ok(())
        } else {
            Err(SealError::SlotSpent { slot })
        }
    }

    /// Compresses, seals and encodes an object. Its header says how to undo it.
    ///
    /// # Errors
    /// If the slot is not a reserved one (or was used), or the payload exceeds 1 MiB.
    ///
    /// # Panics
    /// As [`ObjectDraft::new`]: if the object is one no decoder would accept.
    #[expect(
        clippy::too_many_arguments,
        reason = "an object has this many independent parts"
    )]
    pub fn seal(
        &self,
        slot: u32,
        kind: Kind,
        place: Place,
        birth: Version,
        plain: Bytes,
        children: Vec<Child>,
        payload: &[u8],
        compression: Compression,
    ) -> Result<EncodedObject, SealError> {
        check_size(payload.len(), MAX_PAYLOAD_BYTES)?;
        self.spend(slot)?;
        let compressed = match compression {
            Compression::None => None,
            Compression::Lz4 => compress(payload),
        };
        let (codec, to_seal) = match &compressed {
            None => (Codec::Raw, payload),
            Some(smaller) => (Codec::Lz4, &smaller[..]),
        };
        let header = ObjectHeader {
            kind,
            features: Features::NONE,
            place,
            birth,
            seal: SealHeader {
                key_epoch: self.key_epoch,
                salt: self.salt,
                slot,
                codec,
                opened_bytes: payload.len() as u32,
            },
            plain,
            children,
        };
        let mut draft = ObjectDraft::new(header, to_seal.len() + SEAL_TAG_BYTES);
        let (authenticated, sealed) = draft.parts();
        let authenticated = with_family(&self.family, authenticated);
        self.key.seal_into(slot, &authenticated, to_seal, sealed);
        Ok(draft.finish())
    }
}

/// What the seal authenticates: which key space, and all that the object says of itself.
fn with_family(family: &FamilyId, authenticated: &[u8]) -> Vec<u8> {
    [&family.0[..], authenticated].concat()
}

/// The compressed payload, if it saves at least a sixteenth: less would not pay for decompressing at every read.
fn compress(payload: &[u8]) -> Option<Vec<u8>> {
    let mut compressed = vec![0; lz4_flex::block::get_maximum_output_size(payload.len())];
    let compressed_bytes = lz4_flex::block::compress_into(payload, &mut compressed).ok()?;
    compressed.truncate(compressed_bytes);
    (compressed_bytes <= payload.len() - payload.len().div_ceil(16)).then_some(compressed)
}

/// An object whose payload is authentic and readable.
#[derive(Debug, Clone)]
pub struct OpenedObject {
    /// What the object says of itself; the seal vouches for it.
    pub header: ObjectHeader,
    /// Its payload.
    pub payload: Bytes,
}

/// Derived keys kept at hand: as many segments as a cold walk through a tree touches at a time. A key is derived anew in
/// some microseconds, so a small number will do.
const CACHED_KEYS: usize = 1024;

/// Opens objects of a family. May be shared by threads.
pub struct ObjectOpener {
    keys: Keys,
    derived: Mutex<DerivedKeys>,
}

/// Derived keys by epoch and salt; the one derived first is dropped first.
#[derive(Default)]
struct DerivedKeys {
    by_salt: BTreeMap<(KeyEpoch, [u8; 32]), Arc<DerivedKey>>,
    order: VecDeque<(KeyEpoch, [u8; 32])>,
}

impl DerivedKeys {
    fn insert(&mut self, name: (KeyEpoch, [u8; 32]), key: &Arc<DerivedKey>) {
        if self.by_salt.insert(name, key.clone()).is_none() {
            self.order.push_back(name);
        }
        while self.order.len() > CACHED_KEYS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_salt.remove(&oldest);
        }
    }
}

impl ObjectOpener {
    /// Opens with these keys; after a rotation, make another opener with the new ones.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            derived: Mutex::default(),
        }
    }

    /// Opens and decompresses an object's payload: where it lies, if nobody else holds the object's bytes.
    ///
    /// # Errors
    /// If its key is not at hand, it was altered or sealed for another family, or its codec is not known.
    pub fn open(&self, object: VerifiedObject) -> Result<OpenedObject, SealError> {
        self.open_parts(object.into_sealed())
    }

    /// The same of an object that nobody has hashed, for who knows by its tag which one it is: one with this tag and another content, or another header but
    /// for the places of its children, does not open.
    ///
    /// # Errors
    /// As [`ObjectOpener::open`]; and if it has another tag.
    pub fn open_tagged(
        &self,
        object: FetchedObject,
        tag: [u8; SEAL_TAG_BYTES],
    ) -> Result<OpenedObject, SealError> {
        if object.seal_tag() != Some(tag) {
            let place = object.unverified_header().place;
            return Err(SealError::ObjectNotAuthentic { place });
        }
        self.open_parts(object.into_sealed())
    }

    fn open_parts(
        &self,
        (header, authenticated, sealed): (ObjectHeader, Vec<u8>, Bytes),
    ) -> Result<OpenedObject, SealError> {
        let (seal, place) = (&header.seal, header.place);
        let opened = self.open_payload(seal, place, &authenticated, sealed)?;
        let size_error = SealError::DoesNotDecompress {
            place,
            opened_bytes: seal.opened_bytes,
        };
        let payload = match seal.codec {
            Codec::Raw if opened.len() == seal.opened_bytes as usize => opened.freeze(),
            Codec::Raw => return Err(size_error),
            Codec::Lz4 => {
                // At most 1 MiB: the decoder of the header saw to it.
                let mut decompressed = BytesMut::zeroed(seal.opened_bytes as usize);
                match lz4_flex::block::decompress_into(&opened, &mut decompressed) {
                    Ok(bytes) if bytes == decompressed.len() => decompressed.freeze(),
                    Ok(_) | Err(_) => return Err(size_error),
                }
            }
            codec @ Codec::Zstd => return Err(SealError::UnsupportedCodec { place, codec }),
        };
        Ok(OpenedObject { header, payload })
    }

    fn open_payload(
        &self,
        seal: &SealHeader,
        place: Place,
        authenticated: &[u8],
        sealed: Bytes,
    ) -> Result<BytesMut, SealError> {
        let not_authentic = SealError::ObjectNotAuthentic { place };
        let compressed_bytes = opened_bytes(sealed.len()).ok_or(not_authentic)?;
        let key = self.derived_key(seal)?;
        let authenticated = with_family(&self.keys.family(), authenticated);
        let mut opened;
        let result = match sealed.try_into_mut() {
            Ok(buffer) => {
                opened = buffer;
                let result = key.open_in_place(seal.slot, &authenticated, &mut opened);
                opened.truncate(compressed_bytes);
                result
            }
            Err(shared) => {
                opened = BytesMut::zeroed(compressed_bytes);
                key.open_into(seal.slot, &authenticated, &shared, &mut opened)
            }
        };
        result
            .map(|()| opened)
            .map_err(|_| SealError::ObjectNotAuthentic { place })
    }

    fn derived_key(&self, seal: &SealHeader) -> Result<Arc<DerivedKey>, SealError> {
        let name = (seal.key_epoch, seal.salt);
        let cached = self.lock().by_salt.get(&name).cloned();
        if let Some(key) = cached {
            return Ok(key);
        }
        let epoch_key = self.keys.epoch(seal.key_epoch)?;
        let key = Arc::new(DerivedKey::new(
            &epoch_key,
            &seal.salt,
            PURPOSE,
            &self.keys.family(),
        ));
        self.lock().insert(name, &key);
        Ok(key)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DerivedKeys> {
        self.derived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_derived_keys_is_bounded_and_drops_the_oldest() {
        let key = Arc::new(DerivedKey::new(
            &crate::EpochKey::from_bytes([1; 32]),
            &[0; 32],
            PURPOSE,
            &FamilyId([1; 16]),
        ));
        let name = |number: usize| {
            let mut salt = [0; 32];
            salt[..8].copy_from_slice(&number.to_le_bytes());
            (KeyEpoch(1), salt)
        };
        let mut derived = DerivedKeys::default();
        for number in 0..CACHED_KEYS + 10 {
            derived.insert(name(number), &key);
            // What two threads derive at a time is kept once.
            derived.insert(name(number), &key);
        }
        assert_eq!(
            (derived.by_salt.len(), derived.order.len()),
            (CACHED_KEYS, CACHED_KEYS)
        );
        assert!(!derived.by_salt.contains_key(&name(9)));
        assert!(derived.by_salt.contains_key(&name(10)));
    }
}
