//! Parts of a block that are lost: what a change does to a block whose old content cannot be read.
//!
//! A write of part of a block builds on the block's old bytes. If those are damaged in the store, neither may the write be
//! lost (it was acknowledged) nor may the unreadable bytes turn into zeros (that would be silent damage). So the new block
//! keeps what is known and lists what is not in its plain section; reading a lost byte is an error, reading any other works,
//! and overwriting a lost byte heals it.
//!
//! ```text
//! plain = (from u32 | to u32)*        offsets within the block, in order, disjoint, not empty
//! ```

use bytes::{BufMut, Bytes, BytesMut};

/// Lost ranges of one block, as offsets within it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LostRanges(Vec<(u32, u32)>);

impl LostRanges {
    /// One range, if it is not empty.
    pub fn one(from: u32, to: u32) -> Self {
        Self(if from < to { vec![(from, to)] } else { Vec::new() })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any lost byte is in `from..to`.
    pub fn touch(&self, from: u32, to: u32) -> bool {
        self.0
            .iter()
            .any(|(lost_from, lost_to)| *lost_from < to && from < *lost_to)
    }

    /// Takes `from..to` out: it has new content.
    pub fn heal(&mut self, from: u32, to: u32) {
        let old = std::mem::take(&mut self.0);
        for (lost_from, lost_to) in old {
            self.0.extend(Self::one(lost_from, lost_to.min(from)).0);
            self.0.extend(Self::one(lost_from.max(to), lost_to).0);
        }
    }

    /// Cuts off everything at and beyond `end`.
    pub fn truncate(&mut self, end: u32) {
        self.heal(end, u32::MAX);
    }

    /// The plain section of the block.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.0.len() * 8);
        for (from, to) in &self.0 {
            out.put_u32_le(*from);
            out.put_u32_le(*to);
        }
        out.freeze()
    }

    /// From a block's plain section; `None` if it is none.
    pub fn decode(plain: &[u8]) -> Option<Self> {
        if !plain.len().is_multiple_of(8) {
            return None;
        }
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let ranges: Vec<_> = plain
            .chunks_exact(8)
            .map(|pair| (number(&pair[..4]), number(&pair[4..])))
            .collect();
        let mut end = 0;
        for (from, to) in &ranges {
            if *from < end || from >= to {
                return None;
            }
            end = *to;
        }
        Some(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwriting_heals_exactly_what_it_covers() {
        let mut lost = LostRanges::one(100, 200);
        lost.heal(120, 130);
        assert_eq!(lost, LostRanges(vec![(100, 120), (130, 200)]));
        assert!(lost.touch(110, 111) && !lost.touch(120, 130) && !lost.touch(200, 300));
        lost.heal(0, 125);
        lost.truncate(150);
        assert_eq!(lost, LostRanges(vec![(130, 150)]));
        lost.heal(130, 150);
        assert!(lost.is_empty());
    }

    #[test]
    fn ranges_round_trip_and_nonsense_is_refused() {
        let lost = LostRanges(vec![(0, 5), (9, 4096)]);
        assert_eq!(LostRanges::decode(&lost.encode()), Some(lost));
        assert_eq!(LostRanges::decode(&[1, 2, 3]), None);
        assert_eq!(
            LostRanges::decode(&LostRanges(vec![(5, 9), (3, 4)]).encode()),
            None
        );
        assert_eq!(LostRanges::decode(&LostRanges(vec![(5, 5)]).encode()), None);
    }
}
