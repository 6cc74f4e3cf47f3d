//! An entry of the journal as bytes.
//!
//! ```text
//! file   = magic "FIRNDJ01" | disk [16] | file number u64 | first entry u64 | began u64 | salt [32] | entry*
//!          began: the entry with which this journaling began; 0 if nothing before the file's first entry can be missing
//! entry  = sealed bytes u32 | entry number u64 | sealed (kind u8 | fields) | tag 16           little-endian
//! kind   1 data: first block u64 | whole blocks        2 zero: first block u64 | blocks u64
//!        3 flush                                       4 ready: what the disk had not made durable is all before this
//! ```
//!
//! Each file has a key of its own, derived from the disk's key and the file's head with its random salt, so a head that was
//! damaged or belongs to another file opens nothing. The nonce is the entry's number: within a file a number names one content,
//! and no file is ever written on after the process that began it has ended.

use crate::{
    fields::{Fields, Truncated},
    seal::derive_key,
    types::Change,
};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use firn_codec::{Reader, Writer};

const MAGIC: [u8; 8] = *b"FIRNDJ01";
/// Bytes of a file's head.
pub(super) const FILE_HEAD_BYTES: usize = 80;
/// Bytes in front of an entry's sealed part.
pub(super) const ENTRY_HEAD_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// Data of one entry at most; a longer write is several entries.
pub(super) const ENTRY_DATA_MAX: usize = 1 << 20;
/// What an entry may be at most: nothing that a damaged length says is believed beyond.
pub(super) const SEALED_MAX: usize = ENTRY_DATA_MAX + 64;

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The user's change.
    Change(Change),
    /// See the module.
    Ready,
}

impl Entry {
    /// Blocks that it zeroes without having a byte for each.
    pub(super) fn zeroed_blocks(&self) -> u64 {
        match self {
            Self::Change(Change::Zero { blocks }) => blocks.end - blocks.start,
            Self::Change(Change::Data { .. } | Change::Flush) | Self::Ready => 0,
        }
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) disk: [u8; 16],
    pub(super) file: u64,
    pub(super) first: u64,
    pub(super) began: u64,
    pub(super) salt: [u8; 32],
}

impl FileHead {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = Writer::with_capacity(FILE_HEAD_BYTES);
        bytes.raw(&MAGIC);
        bytes.raw(&self.disk);
        bytes.u64(self.file);
        bytes.u64(self.first);
        bytes.u64(self.began);
        bytes.raw(&self.salt);
        bytes.finish().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(Fields, bytes);
        let mut read = || -> Result<_, Truncated> {
            let magic = fields.array()?;
            let head = Self {
                disk: fields.array()?,
                file: fields.u64()?,
                first: fields.u64()?,
                began: fields.u64()?,
                salt: fields.array()?,
            };
            Ok((magic == MAGIC).then_some(head))
        };
        read().ok().flatten()
    }
}

/// Seals and opens the entries of one file.
pub(super) struct FileKey(LessSafeKey);

impl FileKey {
    pub(super) fn new(disk_key: &[u8; 32], head: &FileHead) -> Self {
        let key = derive_key(disk_key, &[b"firn disk journal", &head.encode()]);
        let key = UnboundKey::new(&AES_256_GCM, &*key).expect("the key has the right length");
        Self(LessSafeKey::new(key))
    }

    /// The entry as it stands in the file.
    pub(super) fn seal(&self, number: u64, entry: &Entry) -> Bytes {
        let mut plain = Writer::default();
        match entry {
            Entry::Change(Change::Data { first, data }) => {
                assert!(data.len() <= ENTRY_DATA_MAX, "long writes are several entries");
                plain = Writer::with_capacity(9 + data.len());
                plain.u8(1);
                plain.u64(*first);
                plain.raw(data);
            }
            Entry::Change(Change::Zero { blocks }) => {
                plain.u8(2);
                plain.u64(blocks.start);
                plain.u64(blocks.end - blocks.start);
            }
            Entry::Change(Change::Flush) => plain.u8(3),
            Entry::Ready => plain.u8(4),
        }
        let mut sealed = plain.finish();
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut sealed)
            .expect("entries are far shorter than what AES-GCM can seal");
        let sealed_bytes = sealed.len() + TAG_BYTES;
        let mut bytes = Writer::with_capacity(ENTRY_HEAD_BYTES + sealed_bytes);
        bytes.u32(u32::try_from(sealed_bytes).expect("entries are bounded"));
        bytes.u64(number);
        bytes.raw(&sealed);
        bytes.raw(tag.as_ref());
        bytes.finish().into()
    }

    /// The entry that the sealed part of `number` holds; nothing if it is not authentic.
    pub(super) fn open(&self, number: u64, sealed: &[u8]) -> Option<Entry> {
        let mut buffer = BytesMut::from(sealed);
        let length = self
            .0
            .open_in_place(nonce(number), Aad::empty(), &mut buffer)
            .ok()?
            .len();
        buffer.truncate(length);
        let mut fields = Reader::new(Fields, buffer.freeze());
        let kind = fields.u8().ok()?;
        match (kind, fields.remaining()) {
            (1, 9..) => Some(Entry::Change(Change::Data {
                first: fields.u64().ok()?,
                data: fields.rest(),
            })),
            (2, 16) => {
                let first = fields.u64().ok()?;
                let end = first.checked_add(fields.u64().ok()?)?;
                Some(Entry::Change(Change::Zero { blocks: first..end }))
            }
            (3, 0) => Some(Entry::Change(Change::Flush)),
            (4, 0) => Some(Entry::Ready),
            _ => None,
        }
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// An entry's head: how many sealed bytes follow, and its number. Nothing if no entry can be like that.
pub(super) fn entry_head(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut fields = Reader::new(Fields, bytes);
    let sealed_bytes = usize::try_from(fields.u32().ok()?).ok()?;
    let number = fields.u64().ok()?;
    (sealed_bytes > TAG_BYTES && sealed_bytes <= SEALED_MAX).then_some((sealed_bytes, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: [&str; 4] = [
        "290000000700000000000000adb431622326cbf890fa97089476e17aa8ab28c1b20acf0c3e72136a9560da3231f4c6ca4a863d31ab",
        "210000000700000000000000aebf31622326cbf8908ffe70e013841488474d6ad4c66512644d3f3e803fab0ed6",
        "110000000700000000000000afa369d6e8ebf638be6bc69ead5787afbe",
        "110000000700000000000000a8d68ecefb8dd144d26bf9009bac84287e",
    ];

    /// The bytes of version 1, for ever.
    #[test]
    fn golden_bytes() {
        let head = FileHead {
            disk: [1; 16],
            file: 3,
            first: 7,
            began: 5,
            salt: [9; 32],
        };
        let words = [3, 7, 5].map(u64::to_le_bytes).concat();
        assert_eq!(
            head.encode(),
            [b"FIRNDJ01", &[1; 16][..], &words, &[9; 32]].concat()
        );
        let key = FileKey::new(&[5; 32], &head);
        let data = Bytes::from_static(b"sixteen bytes!!!");
        let entries = [
            Entry::Change(Change::Data { first: 8, data }),
            Entry::Change(Change::Zero { blocks: 3..9 }),
            Entry::Change(Change::Flush),
            Entry::Ready,
        ];
        let sealed = entries.map(|entry| data_encoding::HEXLOWER.encode(&key.seal(7, &entry)));
        assert_eq!(sealed, GOLDEN);
    }

    #[test]
    fn entries_are_read_back_from_their_own_place_with_their_own_key_only() {
        let head = FileHead {
            disk: [1; 16],
            file: 3,
            first: 7,
            began: 5,
            salt: [9; 32],
        };
        assert_eq!(FileHead::decode(&head.encode()), Some(head.clone()));
        let key = FileKey::new(&[5; 32], &head);
        let other = FileKey::new(
            &[5; 32],
            &FileHead {
                file: 4,
                ..head.clone()
            },
        );
        let data = Change::Data {
            first: 8,
            data: Bytes::from(vec![3; 4096]),
        };
        for entry in [
            Entry::Change(data),
            Entry::Change(Change::Zero { blocks: 3..9 }),
            Entry::Change(Change::Flush),
            Entry::Ready,
        ] {
            let bytes = key.seal(7, &entry);
            let (sealed_bytes, number) = entry_head(&bytes).expect("it has a head");
            let sealed = &bytes[ENTRY_HEAD_BYTES..];
            assert_eq!((sealed.len(), number), (sealed_bytes, 7));
            assert_eq!(key.open(7, sealed), Some(entry));
            assert_eq!(key.open(8, sealed), None, "another number");
            assert_eq!(other.open(7, sealed), None, "another file");
        }
        for nonsense in [&[0_u8; 12][..], &[255; 12], &[40; 3]] {
            assert_eq!(entry_head(nonsense), None);
        }
    }
}
