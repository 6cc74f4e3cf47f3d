//! The bytes of a snapshot. All integers are little-endian.
//!
//! ```text
//! root   = magic "FBDS" | version u8 (1) | reserved [3] | disk [16] | size_bytes u64 | tract_bytes u32 | reserved [4]
//!          | taken_unix_ms i64 | settings length u16, text | pages u32, uid [32] × pages       a page: 4096 tracts, in order
//! page   = count u16 | (tract within the page u16, uid [32]) × count, ascending                others are zeroes
//! tract  = a bit for each 4096 bytes, low bits first: it holds something | those 4096 bytes each
//! ```
//!
//! A page without any tract has the uid of all zeroes and no object; nor has a tract of zeroes. The last tract of a disk
//! may be shorter.

use crate::fields::{Fields, head};
use bytes::{BufMut, Bytes, BytesMut};
use data_encoding::HEXLOWER;
use firn_blockd_nbd::Piece;
use firn_blockd_protocol::DiskId;
use firn_codec::{Reader, Writer};
use std::fmt;

const MAGIC: [u8; 4] = *b"FBDS";
const VERSION: u8 = 1;
/// Tracts of one index page: 32 GiB of the disk in at most 136 KiB.
pub(crate) const PAGE_TRACTS: usize = 4096;
/// Pages of a root at most: 1 PiB in tracts of 8 MiB. A root is at most 1 MiB.
pub(crate) const PAGES_MAX: usize = 1 << 15;
/// Bytes that a bit of a tract stands for.
const GRAIN_BYTES: usize = 4096;

/// The name of a tract, a page or a root: a keyed hash of what it holds, and the epoch in which it was stored.
///
/// ```text
/// uid = the first 24 bytes of the hash | epoch u64, big-endian
/// ```
///
/// Each deletion of a snapshot begins an epoch. What an earlier epoch stored is never relied upon by its name again, only by way
/// of a snapshot that has it: so what a deletion found to be needed by nobody stays so ([decision 0067]).
///
/// [decision 0067]: ../../../docs/decisions/0067-deletions-begin-epochs.md
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub [u8; 32]);

impl Uid {
    pub(crate) const NONE: Self = Self([0; 32]);
    const HASH_BYTES: usize = 24;

    pub(crate) fn new(hash: &[u8; 32], epoch: u64) -> Self {
        let mut bytes = *hash;
        bytes[Self::HASH_BYTES..].copy_from_slice(&epoch.to_be_bytes());
        Self(bytes)
    }

    /// Of the same content, whenever it was stored.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.0[..Self::HASH_BYTES] == other.0[..Self::HASH_BYTES]
    }

    pub(crate) fn epoch(&self) -> u64 {
        let mut epoch = [0; 8];
        epoch.copy_from_slice(&self.0[Self::HASH_BYTES..]);
        u64::from_be_bytes(epoch)
    }

    /// From an object's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", HEXLOWER.encode_display(&self.0))
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Whose content.
    pub disk: DiskId,
    /// Its size at the instant.
    pub size_bytes: u64,
    /// Bytes of a tract.
    pub tract_bytes: u32,
    /// The instant, by the client's calendar, in milliseconds since 1970.
    pub taken_unix_ms: i64,
    /// The disk's settings, as they stood in the table.
    pub settings: String,
    /// Its index pages; [`Uid::NONE`] for one of zeroes.
    pub(crate) pages: Vec<Uid>,
}

impl Root {
    /// Tracts of the disk.
    pub fn tracts(&self) -> u64 {
        self.size_bytes.div_ceil(self.tract_bytes.into())
    }

    /// Bytes of a tract: the last one may be shorter.
    pub(crate) fn length(&self, tract: u64) -> usize {
        let tract_bytes = u64::from(self.tract_bytes);
        (self.size_bytes - tract * tract_bytes).min(tract_bytes) as usize
    }

    pub(crate) fn encode(&self) -> Bytes {
        let room = 64 + self.settings.len() + 32 * self.pages.len();
        let mut fields = Writer::with_capacity(room);
        fields.raw(&MAGIC);
        fields.raw(&[VERSION, 0, 0, 0]);
        fields.raw(&self.disk.0);
        fields.u64(self.size_bytes);
        fields.u32(self.tract_bytes);
        fields.u32(0);
        fields.i64(self.taken_unix_ms);
        fields.u16(u16::try_from(self.settings.len()).expect("settings are at most 16 KiB"));
        fields.raw(self.settings.as_bytes());
        fields.u32(u32::try_from(self.pages.len()).expect("at most 32 768"));
        self.pages.iter().for_each(|page| fields.raw(&page.0));
        fields.finish().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Reader::new(Fields, bytes);
        head(&mut fields, MAGIC, VERSION, "it is no root")?;
        let disk = DiskId(fields.array()?);
        let size_bytes = fields.u64()?;
        let tract_bytes = fields.u32()?;
        fields.skip(4)?;
        let taken_unix_ms = fields.i64()?;
        let length = fields.u16()?;
        let settings =
            std::str::from_utf8(fields.take(length.into())?).map_err(|_| "its settings are no text")?;
        let count = fields.u32()? as usize;
        if tract_bytes == 0 || !(tract_bytes as usize).is_multiple_of(GRAIN_BYTES) || size_bytes == 0 {
            return Err("its sizes cannot be");
        }
        let tracts = size_bytes.div_ceil(tract_bytes.into());
        if count > PAGES_MAX || tracts.div_ceil(PAGE_TRACTS as u64) != count as u64 {
            return Err("its pages do not cover the disk");
        }
        if fields.remaining() != 32 * count || !size_bytes.is_multiple_of(GRAIN_BYTES as u64) {
            return Err("its length does not fit");
        }
        Ok(Self {
            disk,
            size_bytes,
            tract_bytes,
            taken_unix_ms,
            settings: settings.to_owned(),
            pages: (0..count)
                .map(|_| fields.array().map(Uid))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// A page of tracts; nothing if all of them are zeroes.
pub(crate) fn encode_page(tracts: &[Uid]) -> Option<Bytes> {
    let stored = || (0_u16..).zip(tracts).filter(|(_, uid)| **uid != Uid::NONE);
    let count = u16::try_from(stored().count()).expect("a page has 4096 tracts");
    if count == 0 {
        return None;
    }
    let mut fields = Writer::with_capacity(2 + 34 * usize::from(count));
    fields.u16(count);
    for (tract, uid) in stored() {
        fields.u16(tract);
        fields.raw(&uid.0);
    }
    Some(fields.finish().into())
}

/// The tracts of a page, as many as asked for.
pub(crate) fn decode_page(bytes: &[u8], tracts: usize) -> Result<Vec<Uid>, &'static str> {
    let mut fields = Reader::new(Fields, bytes);
    let count = fields.u16()?;
    if fields.remaining() != 34 * usize::from(count) {
        return Err("its length does not fit");
    }
    let mut found = vec![Uid::NONE; tracts];
    let mut least = 0;
    for _ in 0..count {
        let tract = usize::from(fields.u16()?);
        let uid = Uid(fields.array()?);
        if tract < least {
            return Err("its tracts are out of order");
        }
        *found.get_mut(tract).ok_or("it names a tract beyond the disk")? = uid;
        least = tract + 1;
    }
    Ok(found)
}

/// A tract's content; nothing if it is all zeroes. The pieces cover whole grains together.
pub(crate) fn encode_tract(pieces: &[Piece]) -> Option<Bytes> {
    let length: u64 = pieces.iter().map(Piece::length_bytes).sum();
    let grains = length as usize / GRAIN_BYTES;
    let mut bytes = BytesMut::zeroed(grains.div_ceil(8));
    let mut grain = BytesMut::with_capacity(GRAIN_BYTES);
    let mut number = 0;
    let mut full = |grain: &mut BytesMut, number: &mut usize| {
        if grain.iter().any(|byte| *byte != 0) {
            bytes[*number / 8] |= 1 << (*number % 8);
            bytes.put_slice(grain);
        }
        grain.clear();
        *number += 1;
    };
    for piece in pieces {
        let mut left = piece.length_bytes() as usize;
        let mut at = 0;
        while left > 0 {
            let now = left.min(GRAIN_BYTES - grain.len());
            match piece {
                Piece::Data(data) => grain.put_slice(&data[at..at + now]),
                Piece::Zeroes(_) => grain.put_bytes(0, now),
            }
            at += now;
            left -= now;
            if grain.len() == GRAIN_BYTES {
                full(&mut grain, &mut number);
            }
        }
    }
    assert!(grain.is_empty(), "tracts are of whole grains");
    (bytes.len() > grains.div_ceil(8)).then(|| bytes.freeze())
}

/// What a tract of `length` bytes holds, as runs: where, and what.
pub(crate) fn decode_tract(bytes: &Bytes, length: usize) -> Result<Vec<(u64, Bytes)>, &'static str> {
    let grains = length / GRAIN_BYTES;
    let map_bytes = grains.div_ceil(8);
    let map = bytes.get(..map_bytes).ok_or("it is too short")?;
    let holds = |grain: usize| map[grain / 8] >> (grain % 8) & 1 == 1;
    if (grains..8 * map_bytes).any(holds) {
        return Err("it names a part beyond the tract");
    }
    let count = (0..grains).filter(|grain| holds(*grain)).count();
    if bytes.len() != map_bytes + GRAIN_BYTES * count {
        return Err("its length does not fit");
    }
    let (mut runs, mut at, mut grain) = (Vec::new(), map_bytes, 0);
    while grain < grains {
        let end = (grain..grains).find(|next| !holds(*next)).unwrap_or(grains);
        if end > grain {
            let run = GRAIN_BYTES * (end - grain);
            runs.push(((grain * GRAIN_BYTES) as u64, bytes.slice(at..at + run)));
            at += run;
        }
        grain = end + 1;
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn root(pages: Vec<Uid>) -> Root {
        Root {
            disk: DiskId([3; 16]),
            size_bytes: pages.len() as u64 * PAGE_TRACTS as u64 * 8192,
            tract_bytes: 8192,
            taken_unix_ms: -5,
            settings: "{\"version\":1}".into(),
            pages,
        }
    }

    proptest! {
        #[test]
        fn roots_pages_and_tracts_are_read_back(
            pages in proptest::collection::vec(any::<[u8; 32]>().prop_map(Uid), 1..5),
            tracts in proptest::collection::vec(prop_oneof![Just(Uid::NONE), any::<[u8; 32]>().prop_map(Uid)], 0..50),
            grains in proptest::collection::vec(0..3_u8, 1..40),
        ) {
            let root = root(pages);
            prop_assert_eq!(Root::decode(&root.encode()), Ok(root));
            let decoded = encode_page(&tracts).map(|page| decode_page(&page, tracts.len()));
            prop_assert_eq!(decoded.unwrap_or_else(|| Ok(vec![Uid::NONE; tracts.len()])), Ok(tracts));
            let pieces: Vec<Piece> = grains
                .iter()
                .map(|grain| match grain {
                    0 => Piece::Zeroes(GRAIN_BYTES as u64),
                    byte => Piece::Data(vec![*byte - 1; GRAIN_BYTES].into()),
                })
                .collect();
            let mut content = vec![0; grains.len() * GRAIN_BYTES];
            if let Some(tract) = encode_tract(&pieces) {
                for (at, run) in decode_tract(&tract, content.len()).expect("it is whole") {
                    content[at as usize..at as usize + run.len()].copy_from_slice(&run);
                }
            }
            let wanted: Vec<u8> = grains.iter().flat_map(|grain| vec![grain.saturating_sub(1); GRAIN_BYTES]).collect();
            prop_assert_eq!(content, wanted);
        }

        #[test]
        fn nothing_from_outside_panics(bytes in proptest::collection::vec(any::<u8>(), 0..9000), tracts in 0..5000_usize) {
            let _ = Root::decode(&bytes);
            let _ = decode_page(&bytes, tracts);
            let _ = decode_tract(&bytes.clone().into(), tracts * GRAIN_BYTES);
            let mut headed = root(vec![Uid::NONE]).encode()[..40].to_vec();
            headed.extend(bytes);
            let _ = Root::decode(&headed);
        }
    }

    /// The bytes of version 1, for ever.
    #[test]
    fn golden_bytes() {
        let one = Root {
            size_bytes: 4096,
            tract_bytes: 4096,
            settings: "s".into(),
            taken_unix_ms: 1,
            disk: DiskId([0xaa; 16]),
            pages: vec![Uid([0xbb; 32])],
        };
        let hex = HEXLOWER.encode(&one.encode());
        assert_eq!(
            hex,
            format!(
                "4642445301000000{}00100000000000000010000000000000010000000000000001007301000000{}",
                "aa".repeat(16),
                "bb".repeat(32)
            )
        );
        let page = encode_page(&[Uid::NONE, Uid([1; 32])]).expect("it holds something");
        assert_eq!(page[..5], [1, 0, 1, 0, 1]);
        let tract = encode_tract(&[Piece::Zeroes(4096), Piece::Data(vec![9; 4096].into())]);
        assert_eq!(tract.expect("it holds something")[..2], [2, 9]);
    }
}
