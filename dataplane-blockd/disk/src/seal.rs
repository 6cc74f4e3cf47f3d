//! Sealing on the client: nodes store what they cannot read.
//!
//! | unit                                             | sealed with | a node that lies can                                        |
//! |--------------------------------------------------|-------------|-------------------------------------------------------------|
//! | log entries, checkpoints, dirty-region log pages | AES-256-GCM | withhold; show an older one of the same place, which        |
//! |                                                  |             | recovery refuses by its name                                |
//! | blocks in place                                  | AES-256-XTS | withhold; put back an older content; garble                 |
//!
//! ```text
//! with room  = format u8 (1) | incarnation u64 | sequence u64 | ciphertext (kind of body u8, body) | tag 16     little-endian
//! in place   = ciphertext, as long as the content; zeroes are a tombstone and say no more than that
//! ```
//!
//! The name (incarnation, sequence) and the place are authenticated. Each attach has a key of its own, derived from the disk's
//! key and its incarnation; the nonce is kind and sequence. An attach gives each sequence to one content, and no two attaches
//! share an incarnation, so a nonce is used twice only to seal the same bytes again for another replica (I5). That holds for a table
//! that was restored from a backup too: half of an incarnation is random, and an attach under a fence that was used is refused.

use crate::{
    replicas::Stored,
    types::{Body, Incarnation, Unit, Version},
    xts::Xts,
};
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_codec::{Codec, Reader, Writer};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use zeroize::Zeroizing;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 17;
const TAG_BYTES: usize = 16;
/// Derived keys kept: a log has entries of few attaches, and deriving one again costs some microseconds.
const ATTACHES_MAX: usize = 64;
/// What sealing with room adds to a content.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + 1 + TAG_BYTES;

/// The bytes were not sealed by this disk's key, as this name, for this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content is not authentic")]
pub struct NotAuthentic;

/// What stands before a seal, as its reader sees it.
struct Head;

impl Codec for Head {
    type Error = NotAuthentic;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> NotAuthentic {
        NotAuthentic
    }
}

/// Seals and opens the units of one disk.
pub struct Sealer {
    key: Zeroizing<[u8; 32]>,
    blocks: Xts,
    /// Keys of attaches that were derived already; forgotten all at once when there are too many.
    attaches: Mutex<BTreeMap<Incarnation, Arc<LessSafeKey>>>,
}

/// What a node is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// A block in place that reads as zeroes.
    Tombstone,
    /// Anything else.
    Bytes(Bytes),
}

struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        32
    }
}

impl Sealer {
    /// From the disk's key, which never leaves the client.
    pub fn new(key: [u8; 32]) -> Self {
        let key = Zeroizing::new(key);
        let blocks = Xts::new(
            &derive_key(&key, &[b"firn disk block data"]),
            &derive_key(&key, &[b"firn disk block tweak"]),
        );
        Self {
            key,
            blocks,
            attaches: Mutex::default(),
        }
    }

    /// Seals a unit's content.
    pub fn seal(&self, unit: Unit, version: Version, body: &Body) -> Sealed {
        if let Unit::Block(number) = unit {
            return match body {
                Body::Zero => Sealed::Tombstone,
                Body::Data(data) => {
                    let mut sealed = BytesMut::with_capacity(data.len());
                    self.seal_block(number, data, &mut sealed);
                    Sealed::Bytes(sealed.freeze())
                }
            };
        }
        let mut plain = BytesMut::new();
        match body {
            Body::Zero => plain.put_u8(0),
            Body::Data(data) => {
                plain.reserve(1 + data.len());
                plain.put_u8(1);
                plain.put_slice(data);
            }
        }
        let tag = self
            .aead(version.incarnation)
            .seal_in_place_separate_tag(nonce(unit, version), Aad::from(place(unit)), &mut plain)
            .expect("units are far shorter than what AES-GCM can seal");
        let mut sealed = Writer::with_capacity(HEAD_BYTES + plain.len() + TAG_BYTES);
        sealed.u8(FORMAT);
        sealed.u64(version.incarnation.0);
        sealed.u64(version.sequence);
        sealed.raw(&plain);
        sealed.raw(tag.as_ref());
        Sealed::Bytes(sealed.finish().into())
    }

    /// Appends the content of a block in place, sealed.
    pub fn seal_block(&self, number: u64, content: &[u8], sealed: &mut BytesMut) {
        let start = sealed.len();
        sealed.extend_from_slice(content);
        self.blocks.encrypt(number, &mut sealed[start..]);
    }

    /// Appends the content of a block in place, opened.
    pub fn open_block(&self, number: u64, sealed: &[u8], content: &mut BytesMut) {
        let start = content.len();
        content.extend_from_slice(sealed);
        self.blocks.decrypt(number, &mut content[start..]);
    }

    /// Opens what a node returned. `kept` is the version by which the node knows it; only for blocks in place does it count.
    ///
    /// # Errors
    /// [`NotAuthentic`].
    pub fn open(&self, unit: Unit, kept: Version, sealed: &Sealed) -> Result<Stored, NotAuthentic> {
        match (unit, sealed) {
            (Unit::Block(_), Sealed::Tombstone) => Ok(Stored {
                version: kept,
                body: Body::Zero,
            }),
            (Unit::Block(number), Sealed::Bytes(bytes)) => {
                if bytes.is_empty() || !bytes.len().is_multiple_of(16) {
                    return Err(NotAuthentic);
                }
                let mut opened = BytesMut::from(&bytes[..]);
                self.blocks.decrypt(number, &mut opened);
                Ok(Stored {
                    version: kept,
                    body: Body::Data(opened.freeze()),
                })
            }
            (_, Sealed::Tombstone) => Err(NotAuthentic),
            (_, Sealed::Bytes(bytes)) => self.open_with_room(unit, bytes),
        }
    }

    fn open_with_room(&self, unit: Unit, bytes: &[u8]) -> Result<Stored, NotAuthentic> {
        let mut fields = Reader::new(Head, bytes);
        let format = fields.u8()?;
        let version = Version {
            incarnation: Incarnation(fields.u64()?),
            sequence: fields.u64()?,
        };
        let rest = fields.rest();
        if format != FORMAT || rest.len() < 1 + TAG_BYTES {
            return Err(NotAuthentic);
        }
        let mut buffer = BytesMut::from(rest);
        self.aead(version.incarnation)
            .open_in_place(nonce(unit, version), Aad::from(place(unit)), &mut buffer)
            .map_err(|_| NotAuthentic)?;
        buffer.truncate(rest.len() - TAG_BYTES);
        let opened = buffer.freeze();
        let body = match opened[0] {
            0 => Body::Zero,
            _ => Body::Data(opened.slice(1..)),
        };
        Ok(Stored { version, body })
    }

    fn aead(&self, incarnation: Incarnation) -> Arc<LessSafeKey> {
        let mut attaches = self.attaches.lock().expect("no panic under this lock");
        if let Some(key) = attaches.get(&incarnation) {
            return key.clone();
        }
        if attaches.len() >= ATTACHES_MAX {
            attaches.clear();
        }
        let key = derive_key(&self.key, &[b"firn disk attach", &incarnation.0.to_le_bytes()]);
        let key = UnboundKey::new(&AES_256_GCM, &*key).expect("the key has the right length");
        let key = Arc::new(LessSafeKey::new(key));
        attaches.insert(incarnation, key.clone());
        key
    }
}

/// A key for one use, from the disk's key: HKDF-SHA256. No two uses share `info`.
pub fn derive_key(key: &[u8; 32], info: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut derived = Zeroizing::new([0; 32]);
    Salt::new(HKDF_SHA256, b"firn disk")
        .extract(key)
        .expand(info, Length)
        .and_then(|okm| okm.fill(&mut *derived))
        .expect("32 bytes are within what HKDF-SHA256 can give");
    derived
}

fn kind(unit: Unit) -> (u8, u64) {
    match unit {
        Unit::Block(number) => (1, number),
        Unit::Intent(page) => (2, page),
        Unit::Log(physical) => (3, physical),
        Unit::Checkpoint(slot) => (4, slot.into()),
    }
}

fn place(unit: Unit) -> [u8; 9] {
    let (kind, index) = kind(unit);
    let mut place = [kind; 9];
    place[1..].copy_from_slice(&index.to_le_bytes());
    place
}

fn nonce(unit: Unit, version: Version) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[0] = kind(unit).0;
    nonce[4..].copy_from_slice(&version.sequence.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version(incarnation: u64, sequence: u64) -> Version {
        Version {
            incarnation: Incarnation(incarnation),
            sequence,
        }
    }

    #[test]
    fn what_is_sealed_is_opened_in_its_place_and_nowhere_else() {
        let sealer = Sealer::new([7; 32]);
        let body = Body::Data(Bytes::from(vec![9; 4096]));
        for unit in [Unit::Log(3), Unit::Checkpoint(1), Unit::Intent(0)] {
            for body in [&body, &Body::Zero] {
                let sealed = sealer.seal(unit, version(4, 5), body);
                let opened = sealer.open(unit, Version::default(), &sealed).unwrap();
                assert_eq!(
                    opened,
                    Stored {
                        version: version(4, 5),
                        body: body.clone()
                    }
                );
                assert_eq!(
                    sealer.open(Unit::Log(4), Version::default(), &sealed),
                    Err(NotAuthentic)
                );
                assert_eq!(
                    Sealer::new([8; 32]).open(unit, Version::default(), &sealed),
                    Err(NotAuthentic)
                );
            }
        }
        let unit = Unit::Block(12);
        let sealed = sealer.seal(unit, version(4, 5), &body);
        let Sealed::Bytes(bytes) = &sealed else {
            panic!("data is no tombstone")
        };
        assert!(bytes.len() == 4096 && bytes[..] != [9; 4096][..]);
        assert_eq!(sealer.open(unit, version(4, 5), &sealed).unwrap().body, body);
        assert_ne!(
            sealer.open(Unit::Block(13), version(4, 5), &sealed).unwrap().body,
            body
        );
        assert_eq!(sealer.seal(unit, version(4, 5), &Body::Zero), Sealed::Tombstone);
    }

    #[test]
    fn two_attaches_under_one_fence_seal_with_different_keys() {
        let sealer = Sealer::new([7; 32]);
        let body = Body::Data(Bytes::from(vec![9; 4096]));
        let sealed = |salt| {
            let version = Version {
                incarnation: Incarnation::new(3, salt),
                sequence: 5,
            };
            match sealer.seal(Unit::Log(3), version, &body) {
                Sealed::Bytes(bytes) => bytes.slice(HEAD_BYTES..),
                Sealed::Tombstone => panic!("log entries have bytes"),
            }
        };
        assert_ne!(sealed(1), sealed(2));
        assert_eq!(sealed(1), sealed(1), "the same bytes for another replica");
        assert!(
            Incarnation::new(3, u32::MAX) < Incarnation::new(4, 0),
            "later attaches are greater"
        );
        assert!(
            Incarnation(u64::from(u32::MAX)) < Incarnation::new(1, 0),
            "also than those of the version before"
        );
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_noticed(at in 0..200_usize, flip in 1..=255_u8, cut in 0..200_usize) {
            let sealer = Sealer::new([7; 32]);
            let body = Body::Data(Bytes::from(vec![9; 100]));
            let Sealed::Bytes(bytes) = sealer.seal(Unit::Log(3), version(4, 5), &body) else { panic!("log entries have bytes") };
            let mut changed = bytes.to_vec();
            let at = at % changed.len();
            changed[at] ^= flip;
            let open = |bytes: Vec<u8>| sealer.open(Unit::Log(3), version(4, 5), &Sealed::Bytes(bytes.into()));
            prop_assert_eq!(open(changed.clone()), Err(NotAuthentic));
            let cut = cut % bytes.len();
            prop_assert_eq!(open(bytes[..cut].to_vec()), Err(NotAuthentic));
        }
    }
}
