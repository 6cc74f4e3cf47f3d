//! Sealing the records of one local file: the journal above all, other sealed state beside it.
//!
//! A [`RecordSealer`] is made for a new file and draws a salt for it, which the file's header carries. A file that is
//! found later can only be opened ([`RecordOpener`]): its last record may be torn, and sealing another in its slot would
//! use a nonce twice. So no constructor takes a salt and seals.

use crate::{
    Keys, SealError,
    derive::{DerivedKey, check_size, hedged_salt},
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_format::{
    FamilyId, Framing, JournalFileHeader, JournalUse, KeyEpoch, MAX_RECORD_BYTES, RECORD_HEAD_BYTES,
    RECORD_OVERHEAD_BYTES, SEAL_TAG_BYTES, VolumeId, WriterId,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that sealing adds to a record.
pub const SEALED_OVERHEAD_BYTES: usize = SEAL_TAG_BYTES;

/// Which file records belong to: a record opens only in the file it was sealed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordContext {
    purpose: &'static str,
    volume: VolumeId,
    writer: WriterId,
    number: u64,
}

impl RecordContext {
    /// A file of a volume's journal.
    pub fn journal(volume: VolumeId, writer: WriterId, number: u64) -> Self {
        Self::local("firn 1 journal", volume, writer, number)
    }

    /// Another local file; `purpose` tells its kind apart from all others and is part of the format.
    pub fn local(purpose: &'static str, volume: VolumeId, writer: WriterId, number: u64) -> Self {
        Self {
            purpose,
            volume,
            writer,
            number,
        }
    }

    /// The file that a journal header was read from.
    pub fn of_journal(header: &JournalFileHeader) -> Self {
        Self::journal(header.volume, header.writer, header.number)
    }

    /// What a record's seal authenticates beside the payload.
    fn authenticated(&self, family: &FamilyId, slot: u32) -> [u8; AUTHENTICATED_BYTES] {
        let mut bytes = [0; AUTHENTICATED_BYTES];
        bytes[..16].copy_from_slice(&family.0);
        bytes[16..32].copy_from_slice(&self.volume.0);
        bytes[32..40].copy_from_slice(&self.writer.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..52].copy_from_slice(&slot.to_le_bytes());
        bytes
    }
}

const AUTHENTICATED_BYTES: usize = 52;

/// Opens the records of one file. It cannot seal:
///
/// ```compile_fail,E0599
/// # fn resume(found: &firn_seal::RecordOpener) {
/// found.seal(7, &[b"over a torn record"]);
/// # }
/// ```
pub struct RecordOpener {
    family: FamilyId,
    key: DerivedKey,
    context: RecordContext,
}

impl RecordOpener {
    /// Opens records of a file found on disk; key epoch and salt are in its header.
    ///
    /// # Errors
    /// If the key is not at hand.
    pub fn new(
        keys: &Keys,
        key_epoch: KeyEpoch,
        salt: [u8; 32],
        context: RecordContext,
    ) -> Result<Self, SealError> {
        let family = keys.family();
        Ok(Self {
            family,
            key: DerivedKey::new(&keys.epoch(key_epoch)?, &salt, context.purpose, &family),
            context,
        })
    }

    /// Opens records of a journal file found on disk.
    ///
    /// # Errors
    /// If the key is not at hand.
    pub fn of_journal(keys: &Keys, header: &JournalFileHeader) -> Result<Self, SealError> {
        Self::new(
            keys,
            header.key_epoch,
            header.salt,
            RecordContext::of_journal(header),
        )
    }

    /// Opens a record: in place if nothing else refers to its bytes, else in a copy.
    ///
    /// # Errors
    /// If it was altered, or sealed for another file or slot.
    pub fn open(&self, slot: u32, sealed: Bytes) -> Result<Bytes, SealError> {
        let not_authentic = SealError::RecordNotAuthentic { slot };
        let opened_bytes = sealed.len().checked_sub(SEAL_TAG_BYTES).ok_or(not_authentic)?;
        let authenticated = self.context.authenticated(&self.family, slot);
        match sealed.try_into_mut() {
            Ok(mut buffer) => {
                self.key
                    .open_in_place(slot, &authenticated, &mut buffer)
                    .map_err(|_| not_authentic)?;
                buffer.truncate(opened_bytes);
                Ok(buffer.freeze())
            }
            Err(shared) => {
                let mut opened = BytesMut::zeroed(opened_bytes);
                self.key
                    .open_into(slot, &authenticated, &shared, &mut opened)
                    .map_err(|_| not_authentic)?;
                Ok(opened.freeze())
            }
        }
    }
}

/// Seals the records of one new file.
pub struct RecordSealer {
    opener: RecordOpener,
    key_epoch: KeyEpoch,
    salt: [u8; 32],
    /// Of a journal file.
    usage: JournalUse,
    /// The lowest slot not spent; slots only rise.
    next_slot: AtomicU64,
}

impl RecordSealer {
    /// Draws a salt for a new file and derives its key from the family's current one.
    ///
    /// `fresh_entropy` must be drawn for this call; the file's name hedges it. The salt is *not* the entropy: the file's
    /// header must carry [`RecordSealer::salt`].
    pub fn new(keys: &Keys, fresh_entropy: [u8; 32], context: RecordContext) -> Self {
        let family = keys.family();
        let name = [
            &context.volume.0[..],
            &context.writer.0.to_le_bytes(),
            &context.number.to_le_bytes(),
        ];
        let salt = hedged_salt(&fresh_entropy, context.purpose, &family, &name);
        let keys = keys.now();
        let key = DerivedKey::new(keys.current_key(), &salt, context.purpose, &family);
        Self {
            opener: RecordOpener { family, key, context },
            key_epoch: keys.current(),
            salt,
            usage: JournalUse::First,
            next_slot: AtomicU64::new(0),
        }
    }

    /// The same for a journal file in which something else stood before, before anything is sealed.
    #[must_use]
    pub fn in_place_of(mut self, usage: JournalUse) -> Self {
        self.usage = usage;
        self
    }

    /// How the records of a journal file are framed.
    pub fn framing(&self) -> Framing {
        Framing::new(self.usage, &self.salt)
    }

    /// The salt that was drawn.
    pub fn salt(&self) -> [u8; 32] {
        self.salt
    }

    /// The key the file is sealed under.
    pub fn key_epoch(&self) -> KeyEpoch {
        self.key_epoch
    }

    /// The header to write before the first record of a journal file.
    pub fn journal_header(&self) -> JournalFileHeader {
        let context = &self.opener.context;
        JournalFileHeader {
            volume: context.volume,
            writer: context.writer,
            number: context.number,
            key_epoch: self.key_epoch,
            salt: self.salt,
            usage: self.usage,
        }
    }

    /// Seals the concatenation of `parts` (one copy, sealed in place).
    ///
    /// # Errors
    /// If the slot is not above all before it, or the record would be too large.
    pub fn seal(&self, slot: u32, parts: &[&[u8]]) -> Result<Bytes, SealError> {
        let mut buffer = BytesMut::with_capacity(total_bytes(parts) + SEAL_TAG_BYTES);
        for part in parts {
            buffer.put_slice(part);
        }
        self.seal_in_place(slot, &mut buffer)?;
        Ok(buffer.freeze())
    }

    /// Seals all of `buffer` in place and appends the tag.
    ///
    /// # Errors
    /// As [`RecordSealer::seal`]; then the buffer is as it was.
    pub fn seal_in_place(&self, slot: u32, buffer: &mut BytesMut) -> Result<(), SealError> {
        check_size(buffer.len() + SEAL_TAG_BYTES, MAX_RECORD_BYTES)?;
        self.spend(slot)?;
        buffer.put_bytes(0, SEAL_TAG_BYTES);
        let authenticated = self.opener.context.authenticated(&self.opener.family, slot);
        self.opener.key.seal_in_place(slot, &authenticated, buffer);
        Ok(())
    }

    /// Appends a whole framed record to `group`; see [`RecordSealer::seal_framed`].
    ///
    /// # Errors
    /// As [`RecordSealer::seal`]; then the buffer is as it was.
    pub fn append_framed(&self, slot: u32, parts: &[&[u8]], group: &mut BytesMut) -> Result<(), SealError> {
        let start = group.len();
        group.resize(start + framed_bytes(parts), 0);
        let sealed = self.seal_framed(slot, parts, &mut group[start..]);
        if sealed.is_err() {
            group.truncate(start);
        }
        sealed
    }

    /// Seals the concatenation of `parts` where it will be written from: all of `room` becomes the framed record. The last part is
    /// sealed from where it is, without a copy: of a large record, that is the data.
    ///
    /// # Errors
    /// As [`RecordSealer::seal`].
    ///
    /// # Panics
    /// If `room` has not [`framed_bytes`] of the parts.
    pub fn seal_framed(&self, slot: u32, parts: &[&[u8]], room: &mut [u8]) -> Result<(), SealError> {
        assert_eq!(room.len(), framed_bytes(parts), "room for exactly the record");
        check_size(total_bytes(parts) + SEAL_TAG_BYTES, MAX_RECORD_BYTES)?;
        self.spend(slot)?;
        let (head, rest) = room.split_at_mut(RECORD_HEAD_BYTES);
        let (sealed, checksum) = rest.split_at_mut(total_bytes(parts) + SEAL_TAG_BYTES);
        let (tail, copied) = parts
            .split_last()
            .map_or((&[][..], parts), |(tail, copied)| (*tail, copied));
        let mut at = 0;
        for part in copied {
            sealed[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let authenticated = self.opener.context.authenticated(&self.opener.family, slot);
        self.opener
            .key
            .seal_with_tail(slot, &authenticated, sealed, at, tail);
        let frame = self.framing().frame(slot, sealed);
        head.copy_from_slice(&frame.head);
        checksum.copy_from_slice(&frame.tail);
        Ok(())
    }

    /// Opens a record of this file, as [`RecordOpener::open`].
    ///
    /// # Errors
    /// If it was altered, or sealed for another file or slot.
    pub fn open(&self, slot: u32, sealed: Bytes) -> Result<Bytes, SealError> {
        self.opener.open(slot, sealed)
    }

    fn spend(&self, slot: u32) -> Result<(), SealError> {
        self.next_slot
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (u64::from(slot) >= next).then_some(u64::from(slot) + 1)
            })
            .map(drop)
            .map_err(|_| SealError::SlotSpent { slot })
    }
}

/// What the framed record of these parts takes.
pub fn framed_bytes(parts: &[&[u8]]) -> usize {
    total_bytes(parts) + SEAL_TAG_BYTES + RECORD_OVERHEAD_BYTES
}

fn total_bytes(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
