//! Writing objects.

use super::{
    AUTHENTICATED_START, CHECKSUM_BYTES, Kind, MAGIC, MAX_CHILDREN, MAX_PAYLOAD_BYTES, MAX_PLAIN_BYTES,
    MAX_SEALED_BYTES, OBJECT_VERSION, ObjectHeader, SEAL_TAG_BYTES,
};
use crate::{Location, MAX_LEVEL, Uid, radix};
use bytes::{BufMut, Bytes, BytesMut};

/// An object as it goes into a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedObject {
    /// Its hash.
    pub uid: Uid,
    /// What was encoded.
    pub header: ObjectHeader,
    /// The whole object.
    pub bytes: Bytes,
}

impl EncodedObject {
    /// The tag of its seal; `None` if it has no room for one.
    pub fn seal_tag(&self) -> Option<[u8; SEAL_TAG_BYTES]> {
        let locations_bytes = self.header.children.len() * Location::BYTES + CHECKSUM_BYTES;
        let hashed_bytes = self.bytes.len().checked_sub(locations_bytes)?;
        self.bytes[..hashed_bytes].last_chunk().copied()
    }
}

/// The data that a seal authenticates beside the payload: kind, place, birth, seal header, plain section, and slots and
/// uids of the children, as they stand in the encoded object; not the children's locations, which may change.
///
/// # Panics
/// As [`ObjectDraft::new`].
pub fn authenticated_bytes(header: &ObjectHeader) -> Vec<u8> {
    let mut prefix = BytesMut::with_capacity(header.prefix_bytes());
    put_prefix(&mut prefix, header, 0);
    prefix[AUTHENTICATED_START..].to_vec()
}

/// Encodes an object around a payload that is sealed already (one copy of it; [`ObjectDraft`] saves that one).
///
/// # Panics
/// As [`ObjectDraft::new`].
pub fn encode_object(header: ObjectHeader, sealed_payload: &[u8]) -> EncodedObject {
    let mut draft = ObjectDraft::new(header, sealed_payload.len());
    draft.parts().1.copy_from_slice(sealed_payload);
    draft.finish()
}

/// An object being written: its prefix is there, and room in which a payload is sealed in place.
pub struct ObjectDraft {
    header: ObjectHeader,
    bytes: BytesMut,
    prefix_bytes: usize,
}

impl ObjectDraft {
    /// Lays out an object with room for `sealed_bytes`.
    ///
    /// # Panics
    /// If a size exceeds its bound, children are not strictly increasing by slot, a node is at level 0 (or anything
    /// else above it) or points past its slots: the engine's own mistakes, which must not reach a segment.
    pub fn new(header: ObjectHeader, sealed_bytes: usize) -> Self {
        assert!(
            sealed_bytes <= MAX_SEALED_BYTES,
            "sealed payload of {sealed_bytes} bytes"
        );
        assert!(
            header.seal.opened_bytes as usize <= MAX_PAYLOAD_BYTES,
            "payload too large"
        );
        assert!(header.plain.len() <= MAX_PLAIN_BYTES, "plain section too large");
        assert!(header.children.len() <= MAX_CHILDREN, "too many children");
        assert!(
            header.children.is_sorted_by(|left, right| left.slot < right.slot),
            "children out of order"
        );
        assert!(
            header.place.level <= MAX_LEVEL,
            "level {} does not exist",
            header.place.level
        );
        assert_eq!(
            header.kind == Kind::Node,
            header.place.level > 0,
            "nodes, and only nodes, stand above leaves"
        );
        if let (Kind::Node, Some(last)) = (header.kind, header.children.last()) {
            assert!(last.slot < radix::FANOUT, "node has no slot {}", last.slot);
        }

        let mut bytes = BytesMut::with_capacity(header.encoded_bytes(sealed_bytes));
        put_prefix(&mut bytes, &header, sealed_bytes as u32);
        let prefix_bytes = bytes.len();
        bytes.put_bytes(0, sealed_bytes);
        Self {
            header,
            bytes,
            prefix_bytes,
        }
    }

    /// The data the seal must authenticate, and the room for the sealed payload.
    pub fn parts(&mut self) -> (&[u8], &mut [u8]) {
        let (prefix, sealed) = self.bytes.split_at_mut(self.prefix_bytes);
        (&prefix[AUTHENTICATED_START..], sealed)
    }

    /// Hashes what was written and appends the children's locations.
    pub fn finish(mut self) -> EncodedObject {
        let uid = Uid(*blake3::hash(&self.bytes).as_bytes());
        let locations = self.bytes.len();
        for child in &self.header.children {
            self.bytes.put_slice(&child.pointer.location.to_bytes());
        }
        let checksum = crc32c::crc32c(&self.bytes[locations..]);
        self.bytes.put_u32_le(checksum);
        debug_assert_eq!(
            self.bytes.len() - locations,
            self.header.children.len() * Location::BYTES + CHECKSUM_BYTES
        );
        EncodedObject {
            uid,
            header: self.header,
            bytes: self.bytes.freeze(),
        }
    }
}

fn put_prefix(bytes: &mut BytesMut, header: &ObjectHeader, sealed_bytes: u32) {
    let ObjectHeader {
        kind,
        features,
        place,
        birth,
        seal,
        plain,
        children,
    } = header;
    bytes.put_slice(MAGIC);
    bytes.put_u32_le(sealed_bytes);
    bytes.put_u8(OBJECT_VERSION);
    bytes.put_u8(*kind as u8);
    bytes.put_u16_le(features.0);
    bytes.put_u8(place.level);
    bytes.put_u8(seal.codec as u8);
    bytes.put_u16_le(children.len() as u16);
    bytes.put_u64_le(place.inode);
    bytes.put_u64_le(place.index);
    bytes.put_u64_le(birth.0);
    bytes.put_u32_le(seal.key_epoch.0);
    bytes.put_u32_le(seal.slot);
    bytes.put_u32_le(seal.opened_bytes);
    bytes.put_u32_le(plain.len() as u32);
    bytes.put_slice(&seal.salt);
    bytes.put_slice(plain);
    for child in children {
        bytes.put_u16_le(child.slot);
        bytes.put_slice(&child.pointer.uid.0);
    }
}
