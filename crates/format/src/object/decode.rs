//! Reading objects: well-formed, then verified.

use super::{
    AUTHENTICATED_START, CHECKSUM_BYTES, CHILD_BYTES, Codec, EncodedObject, Kind, MAGIC, MAX_CHILDREN,
    MAX_PAYLOAD_BYTES, MAX_PLAIN_BYTES, MAX_SEALED_BYTES, OBJECT_VERSION, OLDEST_VERSION, ObjectHeader,
    SEAL_TAG_BYTES, SealHeader,
};
use crate::{
    Child, Features, FormatError, KeyEpoch, Location, MAX_LEVEL, Place, Pointer, Uid, Version, What,
    cursor::Cursor, radix,
};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;

/// An object that is well-formed. Nothing vouches for what it says yet.
#[derive(Debug, Clone)]
pub struct FetchedObject {
    header: ObjectHeader,
    sealed: Range<usize>,
    encoded: Bytes,
}

/// How every object begins.
struct Opening {
    sealed_bytes: usize,
    kind: Kind,
    features: Features,
    level: u8,
}

fn opening(cursor: &mut Cursor<'_>) -> Result<Opening, FormatError> {
    cursor.magic(MAGIC)?;
    let sealed_bytes = bounded(
        cursor,
        "sealed_bytes",
        MAX_SEALED_BYTES,
        "at most 1 MiB and a tag",
    )?;
    cursor.version(OLDEST_VERSION, OBJECT_VERSION)?;
    let kind = cursor.u8()?;
    let kind = Kind::from_byte(kind).ok_or_else(|| cursor.invalid("kind", 1, u64::from(kind), "1 to 4"))?;
    Ok(Opening {
        sealed_bytes,
        kind,
        features: cursor.features()?,
        level: cursor.u8()?,
    })
}

/// What an object claims to be, by its first [`MIN_OBJECT_BYTES`](crate::MIN_OBJECT_BYTES) bytes or more, and the place at
/// which it claims to stand. Nothing vouches for it.
///
/// # Errors
/// If no object begins so.
pub fn claimed_place(beginning: &[u8]) -> Result<(Kind, Place), FormatError> {
    let mut cursor = Cursor::new(What::Object, beginning);
    let Opening { kind, level, .. } = opening(&mut cursor)?;
    // Codec and the number of children are of no interest here.
    cursor.take(3)?;
    let (inode, index) = (cursor.u64()?, cursor.u64()?);
    Ok((kind, Place { inode, level, index }))
}

/// Decodes exactly one object.
///
/// # Errors
/// If the bytes are not one whole object that this build can read.
pub fn decode_object(bytes: Bytes) -> Result<FetchedObject, FormatError> {
    let mut cursor = Cursor::new(What::Object, &bytes);
    let Opening {
        sealed_bytes,
        kind,
        features,
        level,
    } = opening(&mut cursor)?;
    let level_expected = match kind {
        Kind::Node => "1 to 10 for a node",
        Kind::Block | Kind::Inode | Kind::Checkpoint => "0 for anything but a node",
    };
    if level > MAX_LEVEL || (level > 0) != (kind == Kind::Node) {
        return Err(cursor.invalid("level", 1, u64::from(level), level_expected));
    }
    let codec = cursor.u8()?;
    let codec =
        Codec::from_byte(codec).ok_or_else(|| cursor.invalid("codec", 1, u64::from(codec), "0 to 2"))?;
    let child_count = usize::from(cursor.u16()?);
    if child_count > MAX_CHILDREN {
        return Err(cursor.invalid("child_count", 2, child_count as u64, "at most 8192"));
    }
    let inode = cursor.u64()?;
    let index = cursor.u64()?;
    let birth = Version(cursor.u64()?);
    let key_epoch = KeyEpoch(cursor.u32()?);
    let slot = cursor.u32()?;
    let opened_bytes = bounded(&mut cursor, "opened_bytes", MAX_PAYLOAD_BYTES, "at most 1 MiB")? as u32;
    let plain_bytes = bounded(&mut cursor, "plain_bytes", MAX_PLAIN_BYTES, "at most 1 MiB")?;
    let salt = cursor.array()?;

    // All that is still to come is checked to be there before anything is allocated for it.
    cursor.require(
        plain_bytes + child_count * (CHILD_BYTES + Location::BYTES) + sealed_bytes + CHECKSUM_BYTES,
    )?;
    let plain = bytes.slice_ref(cursor.take(plain_bytes)?);
    let mut children: Vec<Child> = Vec::with_capacity(child_count);
    for _ in 0..child_count {
        let slot = cursor.u16()?;
        if children.last().is_some_and(|last| last.slot >= slot) {
            return Err(cursor.invalid("child slot", 2, u64::from(slot), "more than the slot before"));
        }
        if kind == Kind::Node && slot >= radix::FANOUT {
            return Err(cursor.invalid("child slot", 2, u64::from(slot), "less than 128 in a node"));
        }
        let pointer = Pointer {
            uid: Uid(cursor.array()?),
            location: Location::UNKNOWN,
        };
        children.push(Child { slot, pointer });
    }
    let sealed = cursor.offset()..cursor.offset() + sealed_bytes;
    cursor.take(sealed_bytes)?;
    let locations = cursor.offset();
    for child in &mut children {
        child.pointer.location = Location::read(&mut cursor)?;
    }
    let checksum = crc32c::crc32c(&bytes[locations..cursor.offset()]);
    cursor.crc32c("child locations", checksum)?;
    cursor.end()?;

    let header = ObjectHeader {
        kind,
        features,
        place: Place { inode, level, index },
        birth,
        seal: SealHeader {
            key_epoch,
            salt,
            slot,
            codec,
            opened_bytes,
        },
        plain,
        children,
    };
    Ok(FetchedObject {
        header,
        sealed,
        encoded: bytes,
    })
}

fn bounded(
    cursor: &mut Cursor<'_>,
    field: &'static str,
    limit: usize,
    expected: &'static str,
) -> Result<usize, FormatError> {
    let found = cursor.u32()?;
    if found as usize > limit {
        return Err(cursor.invalid(field, 4, u64::from(found), expected));
    }
    Ok(found as usize)
}

impl FetchedObject {
    /// What the object says of itself, for messages and statistics only.
    pub fn unverified_header(&self) -> &ObjectHeader {
        &self.header
    }

    /// The tag of its seal, by which it is told from every other object that was sealed under the same keys; `None` if it has no room for one.
    pub fn seal_tag(&self) -> Option<[u8; SEAL_TAG_BYTES]> {
        self.encoded[self.sealed.clone()].last_chunk().copied()
    }

    /// What opening it needs, as of [`VerifiedObject::into_sealed`], of an object that nobody has hashed: what comes of it is to be believed only if
    /// it opens, and only by who knows which tag it must have.
    pub fn into_sealed(self) -> (ObjectHeader, Vec<u8>, Bytes) {
        let authenticated = self.encoded[AUTHENTICATED_START..self.sealed.start].to_vec();
        let sealed_payload = self.encoded.slice(self.sealed.clone());
        let mut header = self.header;
        header.plain = Bytes::copy_from_slice(&header.plain);
        (header, authenticated, sealed_payload)
    }

    /// The hash of what was fetched.
    pub fn uid(&self) -> Uid {
        Uid(*blake3::hash(&self.encoded[..self.sealed.end]).as_bytes())
    }

    /// Checks that this is the object a trusted pointer names, and that it stands where it was reached (if that is
    /// known).
    ///
    /// # Errors
    /// If it is another object, or the right one at a wrong place.
    pub fn verify(
        self,
        expected: &Uid,
        expected_place: Option<Place>,
    ) -> Result<VerifiedObject, FormatError> {
        let uid = self.uid();
        let place = self.header.place;
        if uid != *expected {
            return Err(FormatError::WrongUid {
                place: expected_place.unwrap_or(place),
                expected: *expected,
                found: uid,
            });
        }
        if let Some(expected) = expected_place
            && expected != place
        {
            return Err(FormatError::WrongPlace {
                uid,
                expected,
                found: place,
            });
        }
        Ok(VerifiedObject {
            uid,
            sealed_payload: self.encoded.slice(self.sealed.clone()),
            header: self.header,
            encoded: self.encoded,
            sealed_start: self.sealed.start,
        })
    }
}

/// An object known to be the one that a trusted pointer names. Only [`FetchedObject::verify`] makes one.
#[derive(Debug, Clone)]
pub struct VerifiedObject {
    uid: Uid,
    /// What it says of itself.
    pub header: ObjectHeader,
    /// Its payload, still sealed.
    pub sealed_payload: Bytes,
    /// The whole object, as it goes into a cache or another segment.
    pub encoded: Bytes,
    sealed_start: usize,
}

impl VerifiedObject {
    /// Its hash.
    pub fn uid(&self) -> Uid {
        self.uid
    }

    /// The data its seal authenticates beside the payload: [`super::authenticated_bytes`] without a copy.
    pub fn authenticated(&self) -> &[u8] {
        &self.encoded[AUTHENTICATED_START..self.sealed_start]
    }

    /// What opening it needs: the header, the data its seal authenticates beside the payload, and the payload, still sealed.
    /// If nobody else held this object's bytes, nobody else holds the payload's now, so it may be opened where it lies.
    pub fn into_sealed(self) -> (ObjectHeader, Vec<u8>, Bytes) {
        let authenticated = self.authenticated().to_vec();
        let mut header = self.header;
        header.plain = Bytes::copy_from_slice(&header.plain);
        (header, authenticated, self.sealed_payload)
    }

    /// The same object as something to put into a segment: moving it needs no key.
    pub fn into_encoded(self) -> EncodedObject {
        EncodedObject {
            uid: self.uid,
            header: self.header,
            bytes: self.encoded,
        }
    }
}

/// The same object with its children at the places that `relocated` gives; nothing hashed changes, so neither does the
/// uid.
pub fn relocate_children(
    object: &EncodedObject,
    mut relocated: impl FnMut(&Child) -> Location,
) -> EncodedObject {
    let mut header = object.header.clone();
    let tail_bytes = header.children.len() * Location::BYTES + CHECKSUM_BYTES;
    let hashed = &object.bytes[..object.bytes.len() - tail_bytes];
    let mut bytes = BytesMut::with_capacity(object.bytes.len());
    bytes.put_slice(hashed);
    for child in &mut header.children {
        child.pointer.location = relocated(child);
        bytes.put_slice(&child.pointer.location.to_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[hashed.len()..]);
    bytes.put_u32_le(checksum);
    EncodedObject {
        uid: object.uid,
        header,
        bytes: bytes.freeze(),
    }
}
