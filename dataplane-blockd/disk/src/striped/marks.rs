//! Which regions may differ between replicas.
//!
//! A page of marks is a unit like any other, on all replicas. It is written when a region has to be marked and one write of
//! the page is under way at most; whatever has to be marked meanwhile goes with the next. The page then also leaves out
//! regions that have come to rest, once more than [`MARKED_MAX`] are marked; with twice as many it is written for that alone.

use crate::types::{Body, ReplicaSet};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Blocks of a region: 4 MiB. Smaller ones mean more pages written, larger ones a longer attach after a crash.
pub const REGION_BLOCKS: u64 = 1024;
/// Regions in one page: 512 bytes.
const PAGE_REGIONS: u64 = 4096;
/// Marked regions of a page that are kept although nothing is under way in them, since writes come back to where they were.
const MARKED_MAX: usize = 64;
/// Marked regions of a page from which on those at rest are dropped by a write of the page that nothing else asks for: a large
/// range that was zeroed leaves so many.
const CROWDED_MIN: usize = 2 * MARKED_MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Page {
    /// Marked durably, and still so after the write under way.
    durable: BTreeSet<u64>,
    /// To be marked.
    wanted: BTreeSet<u64>,
    under_way: Option<(u64, BTreeSet<u64>, ReplicaSet)>,
    /// So many regions are marked and at rest that a page without them is worth a write: an attach after a crash would have to
    /// go through them all.
    crowded: bool,
}

/// The marks of one attach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Marks {
    replicas: usize,
    region_blocks: u64,
    pages: BTreeMap<u64, Page>,
    /// Pieces not yet durable, by region.
    busy: BTreeMap<u64, u64>,
}

/// A page to be stored.
pub(super) struct PageWrite {
    pub(super) page: u64,
    pub(super) body: Body,
}

impl Marks {
    pub(super) fn new(replicas: usize, region_blocks: u64) -> Self {
        Self {
            replicas,
            region_blocks,
            pages: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    fn regions_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start / self.region_blocks..blocks.end.div_ceil(self.region_blocks)
    }

    /// A piece in these blocks' regions waits or is under way.
    pub(super) fn begin(&mut self, blocks: &Range<u64>) {
        for region in self.regions_of(blocks) {
            *self.busy.entry(region).or_default() += 1;
        }
    }

    /// It is durable.
    pub(super) fn end(&mut self, blocks: &Range<u64>) {
        for region in self.regions_of(blocks) {
            if let Some(count) = self.busy.get_mut(&region) {
                *count -= 1;
                if *count == 0 {
                    self.busy.remove(&region);
                    let page = self.pages.entry(region / PAGE_REGIONS).or_default();
                    page.crowded |= page.durable.len() > CROWDED_MIN;
                }
            }
        }
    }

    /// Whether these blocks may be written; if not, their regions will be marked.
    pub(super) fn are_marked(&mut self, blocks: &Range<u64>) -> bool {
        let mut all = true;
        for region in self.regions_of(blocks) {
            let page = self.pages.entry(region / PAGE_REGIONS).or_default();
            if page.durable.contains(&region) {
                continue;
            }
            all = false;
            // A mark that is on its way need not be asked for again.
            if !page
                .under_way
                .as_ref()
                .is_some_and(|(_, next, _)| next.contains(&region))
            {
                page.wanted.insert(region);
            }
        }
        all
    }

    /// The pages to be written now, each as the given sequence.
    pub(super) fn writes(&mut self, mut sequence: impl FnMut() -> u64) -> Vec<(u64, PageWrite)> {
        let mut writes = Vec::new();
        for (number, page) in &mut self.pages {
            if (page.wanted.is_empty() && !page.crowded) || page.under_way.is_some() {
                continue;
            }
            page.crowded = false;
            let mut next: BTreeSet<u64> = page.durable.union(&page.wanted).copied().collect();
            if next.len() > MARKED_MAX {
                next.retain(|region| self.busy.contains_key(region) || page.wanted.contains(region));
            }
            page.wanted.clear();
            // From the moment the page goes out, what it leaves out is unmarked.
            page.durable.retain(|region| next.contains(region));
            let sequence = sequence();
            let body = encode(*number, &next);
            page.under_way = Some((sequence, next, ReplicaSet::all(self.replicas)));
            writes.push((sequence, PageWrite { page: *number, body }));
        }
        writes
    }

    /// The pages that leave out every resting region, for a clean end.
    pub(super) fn rest(&mut self, mut sequence: impl FnMut() -> u64) -> Vec<(u64, PageWrite)> {
        let mut writes = Vec::new();
        for (number, page) in &mut self.pages {
            if page.durable.is_empty() || page.under_way.is_some() {
                continue;
            }
            let next: BTreeSet<u64> = page
                .durable
                .iter()
                .copied()
                .filter(|region| self.busy.contains_key(region))
                .collect();
            page.durable.clone_from(&next);
            let sequence = sequence();
            let body = encode(*number, &next);
            page.under_way = Some((sequence, next, ReplicaSet::all(self.replicas)));
            writes.push((sequence, PageWrite { page: *number, body }));
        }
        writes
    }

    /// Whether no page marks anything, on any replica.
    pub(super) fn are_clear(&self) -> bool {
        let clear =
            |page: &Page| page.durable.is_empty() && page.wanted.is_empty() && page.under_way.is_none();
        self.pages.values().all(clear)
    }

    /// A replica has a page; whether regions became marked by that.
    pub(super) fn stored(&mut self, page: u64, sequence: u64, replica: usize) -> bool {
        let Some(page) = self.pages.get_mut(&page) else {
            return false;
        };
        let Some((at, _, missing)) = &mut page.under_way else {
            return false;
        };
        if *at != sequence {
            return false;
        }
        missing.remove(replica);
        if !missing.is_empty() {
            return false;
        }
        if let Some((_, next, _)) = page.under_way.take() {
            page.durable = next;
        }
        true
    }
}

/// How many pages a disk has.
pub(super) fn pages(blocks: u64, region_blocks: u64) -> u64 {
    blocks.div_ceil(region_blocks).div_ceil(PAGE_REGIONS)
}

/// All regions of a page.
pub(super) fn regions(page: u64, blocks: u64, region_blocks: u64) -> std::ops::Range<u64> {
    let end = blocks.div_ceil(region_blocks);
    page * PAGE_REGIONS..end.min((page + 1) * PAGE_REGIONS)
}

fn encode(page: u64, regions: &BTreeSet<u64>) -> Body {
    if regions.is_empty() {
        return Body::Zero;
    }
    let mut bits = vec![0_u8; (PAGE_REGIONS / 8) as usize];
    for region in regions {
        let bit = region - page * PAGE_REGIONS;
        bits[(bit / 8) as usize] |= 1 << (bit % 8);
    }
    Body::Data(Bytes::from(bits))
}

/// The regions marked in a page's content.
pub(super) fn decode(page: u64, body: &Body) -> BTreeSet<u64> {
    let Body::Data(bits) = body else {
        return BTreeSet::new();
    };
    let all = (0_u64..).zip(bits.iter().take((PAGE_REGIONS / 8) as usize));
    all.flat_map(|(byte, bits)| {
        (0..8)
            .filter(move |bit| bits >> bit & 1 == 1)
            .map(move |bit| byte * 8 + bit)
    })
    .map(|bit| page * PAGE_REGIONS + bit)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_back() {
        let regions: BTreeSet<u64> = [4096, 4100, 8191].into();
        assert_eq!(decode(1, &encode(1, &regions)), regions);
        assert_eq!(decode(3, &Body::Zero), BTreeSet::new());
    }

    #[test]
    fn resting_regions_lose_their_marks_before_the_page_that_says_so_is_durable() {
        let mut marks = Marks::new(1, 1);
        for block in 0..=MARKED_MAX as u64 {
            let blocks = block..block + 1;
            marks.begin(&blocks);
            assert!(!marks.are_marked(&blocks));
            let (sequence, _) = marks.writes(|| block).remove(0);
            assert!(marks.stored(0, sequence, 0) && marks.are_marked(&blocks));
            marks.end(&blocks);
        }
        marks.begin(&(100..101));
        assert!(!marks.are_marked(&(100..101)));
        let (sequence, _) = marks.writes(|| 1000).remove(0);
        assert!(!marks.are_marked(&(0..1)), "its mark is on its way out");
        assert!(marks.stored(0, sequence, 0) && marks.are_marked(&(100..101)));
        assert!(!marks.are_marked(&(0..1)));
    }

    #[test]
    fn a_range_is_marked_whole_in_one_write_of_the_page_and_leaves_no_crowd_behind() {
        let mut marks = Marks::new(1, 4);
        let blocks = 2..4 * (CROWDED_MIN as u64 + 10);
        marks.begin(&blocks);
        assert!(!marks.are_marked(&blocks));
        let (sequence, write) = marks.writes(|| 1).remove(0);
        assert_eq!(decode(0, &write.body).len(), CROWDED_MIN + 10);
        assert!(!marks.are_marked(&blocks), "not durable yet");
        assert!(marks.stored(0, sequence, 0) && marks.are_marked(&blocks));
        assert!(marks.writes(|| 2).is_empty());
        marks.end(&blocks);
        let (sequence, write) = marks.writes(|| 3).remove(0);
        assert_eq!(write.body, Body::Zero, "all of them are at rest");
        assert!(marks.stored(0, sequence, 0) && marks.are_clear());
    }
}
