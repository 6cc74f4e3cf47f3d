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

use crate::{seal::derive_key, types::Change};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bytes::{Buf, BufMut, Bytes, BytesMut};

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
        let mut bytes = BytesMut::with_capacity(FILE_HEAD_BYTES);
        bytes.put_slice(&MAGIC);
        bytes.put_slice(&self.disk);
        bytes.put_u64_le(self.file);
        bytes.put_u64_le(self.first);
        bytes.put_u64_le(self.began);
        bytes.put_slice(&self.salt);
        bytes.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(..FILE_HEAD_BYTES)?;
        let mut magic = [0; 8];
        rest.copy_to_slice(&mut magic);
        let mut head = Self {
            disk: [0; 16],
            file: 0,
            first: 0,
            began: 0,
            salt: [0; 32],
        };
        rest.copy_to_slice(&mut head.disk);
        head.file = rest.get_u64_le();
        head.first = rest.get_u64_le();
        head.began = rest.get_u64_le();
        rest.copy_to_slice(&mut head.salt);
        (magic == MAGIC).then_some(head)
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
        let mut plain = BytesMut::new();
        match entry {
            Entry::Change(Change::Data { first, data }) => {
                assert!(data.len() <= ENTRY_DATA_MAX, "long writes are several entries");
                plain.reserve(9 + data.len());
                plain.put_u8(1);
                plain.put_u64_le(*first);
                plain.put_slice(data);
            }
            Entry::Change(Change::Zero { blocks }) => {
                plain.put_u8(2);
                plain.put_u64_le(blocks.start);
                plain.put_u64_le(blocks.end - blocks.start);
            }
            Entry::Change(Change::Flush) => plain.put_u8(3),
            Entry::Ready => plain.put_u8(4),
        }
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut plain)
            .expect("entries are far shorter than what AES-GCM can seal");
        let sealed_bytes = plain.len() + TAG_BYTES;
        let mut bytes = BytesMut::with_capacity(ENTRY_HEAD_BYTES + sealed_bytes);
        bytes.put_u32_le(u32::try_from(sealed_bytes).expect("entries are bounded"));
        bytes.put_u64_le(number);
        bytes.put_slice(&plain);
        bytes.put_slice(tag.as_ref());
        bytes.freeze()
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
        let mut rest = buffer.freeze();
        if rest.is_empty() {
            return None;
        }
        let kind = rest.get_u8();
        match (kind, rest.len()) {
            (1, 9..) => {
                let first = rest.get_u64_le();
                Some(Entry::Change(Change::Data { first, data: rest }))
            }
            (2, 16) => {
                let first = rest.get_u64_le();
                let end = first.checked_add(rest.get_u64_le())?;
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
    let mut rest = bytes.get(..ENTRY_HEAD_BYTES)?;
    let sealed_bytes = usize::try_from(rest.get_u32_le()).ok()?;
    let number = rest.get_u64_le();
    (sealed_bytes > TAG_BYTES && sealed_bytes <= SEALED_MAX).then_some((sealed_bytes, number))
}

#[cfg(test)]
mod tests {
    use super::*;

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
