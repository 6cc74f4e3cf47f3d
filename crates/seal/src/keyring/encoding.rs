//! Bytes of a key ring.
//!
//! ```text
//! ring = body | Ed25519 signature [64] over "firn 1 key ring signature" | body
//!
//! body       0  magic "FIRNKEYS"
//!            8  version u8 | reserved u8 | features u16
//!           12  recipient_count u32
//!           16  epoch_count u32
//!           20  family [16]
//!           36  generation u64
//!           44  BLAKE3 of the ring before [32]          zeros in the first
//!           76  volume [16]                             since version 2; zeros: not bound to one
//!           92  recipient × recipient_count
//!            …  epoch × epoch_count                      strictly increasing; the last is current
//!
//! recipient  0  kind u8 | name_bytes u8
//!            2  public [32]
//!           34  name [name_bytes]                        UTF-8
//!
//! epoch      0  epoch u32
//!            4  commitment [32]
//!           36  envelope × recipient_count: encapsulated [32] | sealed key [48]
//! ```

use super::{
    Draft, Epoch, KeyRing, KeyRingError, MAX_EPOCHS, MAX_RECIPIENTS, Recipient, RecipientKind,
    check_recipients, envelope::Envelope,
};
use crate::{RecipientPublic, TenantSigningKey};
use bytes::{BufMut, Bytes, BytesMut};
use firn_format::{Cursor, FamilyId, Features, FormatError, FormatVersions, KeyEpoch, VolumeId, What};

/// The version of the key ring format that this build writes.
const VERSION: u8 = 2;
const OLDEST_VERSION: u8 = 1;
/// The versions of key rings.
pub const FORMATS: [FormatVersions; 1] = [FormatVersions::new("key ring", OLDEST_VERSION, VERSION)];
/// From this version on a ring names its volume.
const BOUND_VERSION: u8 = 2;

const MAGIC: &[u8; 8] = b"FIRNKEYS";
/// No volume has it: ids are drawn.
pub(super) const UNBOUND: VolumeId = VolumeId([0; 16]);
pub(super) const SIGNATURE_BYTES: usize = 64;
const SIGNATURE_LABEL: &[u8] = b"firn 1 key ring signature";
const FIXED_RECIPIENT_BYTES: usize = 34;
const FIXED_EPOCH_BYTES: usize = 36;

pub(super) fn encode(ring: &Draft, signer: &TenantSigningKey) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_slice(MAGIC);
    bytes.put_u8(VERSION);
    bytes.put_u8(0);
    bytes.put_u16_le(Features::NONE.0);
    bytes.put_u32_le(ring.recipients.len() as u32);
    bytes.put_u32_le(ring.epochs.len() as u32);
    bytes.put_slice(&ring.family.0);
    bytes.put_u64_le(ring.generation);
    bytes.put_slice(&ring.previous);
    bytes.put_slice(&ring.volume.unwrap_or(UNBOUND).0);
    for recipient in &ring.recipients {
        bytes.put_u8(recipient.kind as u8);
        bytes.put_u8(recipient.name.len() as u8);
        bytes.put_slice(&recipient.public.to_bytes());
        bytes.put_slice(recipient.name.as_bytes());
    }
    for epoch in &ring.epochs {
        bytes.put_u32_le(epoch.epoch.0);
        bytes.put_slice(&epoch.commitment);
        for envelope in &epoch.envelopes {
            bytes.put_slice(&envelope.to_bytes());
        }
    }
    let signature = signer.sign(&signed_message(&bytes));
    bytes.put_slice(&signature);
    bytes.freeze()
}

/// What the tenant signs: labelled, so that a signature made for another purpose is none for a ring.
pub(super) fn signed_message(body: &[u8]) -> Vec<u8> {
    [SIGNATURE_LABEL, body].concat()
}

pub(super) fn split_signature(encoded: &[u8]) -> (&[u8], &[u8]) {
    encoded.split_at(encoded.len() - SIGNATURE_BYTES)
}

pub(super) fn decode(bytes: Bytes) -> Result<KeyRing, KeyRingError> {
    let mut cursor = Cursor::new(What::KeyRing, &bytes);
    cursor.magic(MAGIC)?;
    let version = cursor.version(OLDEST_VERSION, VERSION)?;
    cursor.reserved::<1>()?;
    cursor.features()?;
    let recipient_count = cursor.u32()? as usize;
    if !(1..=MAX_RECIPIENTS).contains(&recipient_count) {
        return Err(cursor
            .invalid("recipient_count", 4, recipient_count as u64, "1 to 1024")
            .into());
    }
    let epoch_count = cursor.u32()? as usize;
    if !(1..=MAX_EPOCHS).contains(&epoch_count) {
        return Err(cursor
            .invalid("epoch_count", 4, epoch_count as u64, "1 to 1024")
            .into());
    }
    let epoch_bytes = FIXED_EPOCH_BYTES + recipient_count * Envelope::BYTES;
    let family = FamilyId(cursor.array()?);
    let generation = cursor.u64()?;
    let previous = cursor.array()?;
    let volume = if version >= BOUND_VERSION {
        Some(VolumeId(cursor.array()?)).filter(|volume| *volume != UNBOUND)
    } else {
        None
    };

    cursor.require(recipient_count * FIXED_RECIPIENT_BYTES + epoch_count * epoch_bytes)?;
    let mut recipients = Vec::with_capacity(recipient_count);
    for _ in 0..recipient_count {
        recipients.push(read_recipient(&mut cursor)?);
    }
    check_recipients(&recipients)?;
    cursor.require(epoch_count * epoch_bytes + SIGNATURE_BYTES)?;
    let mut epochs: Vec<Epoch> = Vec::with_capacity(epoch_count);
    for _ in 0..epoch_count {
        let epoch = KeyEpoch(cursor.u32()?);
        if epochs.last().is_some_and(|last| last.epoch >= epoch) {
            return Err(cursor
                .invalid("epoch", 4, u64::from(epoch.0), "more than the epoch before")
                .into());
        }
        let commitment = cursor.array()?;
        let mut envelopes = Vec::with_capacity(recipient_count);
        for _ in 0..recipient_count {
            envelopes.push(Envelope::read(&mut cursor)?);
        }
        epochs.push(Epoch {
            epoch,
            commitment,
            envelopes,
        });
    }
    cursor.take(SIGNATURE_BYTES)?;
    cursor.end()?;
    Ok(KeyRing {
        family,
        volume,
        generation,
        previous,
        recipients,
        epochs,
        encoded: bytes,
    })
}

fn read_recipient(cursor: &mut Cursor<'_>) -> Result<Recipient, FormatError> {
    let kind = cursor.u8()?;
    let kind =
        RecipientKind::from_byte(kind).ok_or_else(|| cursor.invalid("kind", 1, u64::from(kind), "1 to 3"))?;
    let name_bytes = usize::from(cursor.u8()?);
    let public = cursor.array()?;
    let public = RecipientPublic::from_bytes(&public).map_err(|_| FormatError::Invalid {
        what: What::KeyRing,
        field: "public key",
        offset: cursor.offset() - 32,
        found: u64::from(public[0]),
        expected: "an X25519 key",
    })?;
    let name = std::str::from_utf8(cursor.take(name_bytes)?)
        .map_err(|_| cursor.invalid("name", name_bytes, name_bytes as u64, "UTF-8"))?
        .to_owned();
    Ok(Recipient { name, kind, public })
}
