//! The dirty-region log of a disk (a write-intent bitmap): which regions may differ between replicas after a crash.
//!
//! A page of it is a unit like any other, on all replicas. It is written when a region has to be marked and one write of
//! the page is under way at most; whatever has to be marked meanwhile goes with the next. Regions that became idle stay
//! marked, since writes come back to where they were, but for those that have been idle longest once there are more than
//! [`Regions::idle_kept`] in all: they are left out when their page is written next, and with twice as many it is written for that
//! alone. So what an attach after a crash has to compare is bounded for the whole disk.

use crate::types::{Body, ReplicaSet};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

/// Regions in one page: 512 bytes.
const PAGE_REGIONS: u64 = 4096;

/// How finely, and how long, a disk remembers where its replicas may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Regions {
    /// Blocks of a region. Smaller ones mean more pages written, larger ones a longer attach after a crash.
    pub blocks: u64,
    /// Marked regions that are kept although nothing is under way in them. Fewer mean more pages written, more a longer attach
    /// after a crash.
    pub idle_kept: usize,
}

impl Default for Regions {
    /// 4 MiB each; 1 GiB of them idle, and at most as much again that waits to be dropped.
    fn default() -> Self {
        Self {
            blocks: 1024,
            idle_kept: 256,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Page {
    /// Marked durably, and still so after the write under way.
    durable: BTreeSet<u64>,
    /// To be marked.
    wanted: BTreeSet<u64>,
    under_way: Option<(u64, BTreeSet<u64>, ReplicaSet)>,
    /// Marked, and left out by the next write of the page, since they have been idle longest.
    leaving: BTreeSet<u64>,
}

/// The dirty-region log of one attach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DirtyRegionLog {
    replicas: usize,
    regions: Regions,
    pages: BTreeMap<u64, Page>,
    /// Pieces not yet durable, by region.
    busy: BTreeMap<u64, u64>,
    /// Regions that are marked and in which nothing is under way, least recently idle first.
    idle: VecDeque<u64>,
    /// Regions of all pages that are leaving.
    leaving: usize,
}

/// A page to be stored.
pub(super) struct PageWrite {
    pub(super) page: u64,
    pub(super) body: Body,
}

impl DirtyRegionLog {
    pub(super) fn new(replicas: usize, regions: Regions) -> Self {
        assert!(regions.blocks > 0, "a region has a block at least");
        Self {
            replicas,
            regions,
            pages: BTreeMap::new(),
            busy: BTreeMap::new(),
            idle: VecDeque::new(),
            leaving: 0,
        }
    }

    fn regions_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start / self.regions.blocks..blocks.end.div_ceil(self.regions.blocks)
    }

    /// A piece in these blocks' regions waits or is under way.
    pub(super) fn begin(&mut self, blocks: &Range<u64>) {
        for region in self.regions_of(blocks) {
            let count = self.busy.entry(region).or_default();
            *count += 1;
            if *count > 1 || firn_env::planted!("disk.drop_busy_marks") {
                continue;
            }
            // Writes come back to where they just were: from the end it is soon found.
            if let Some(place) = self.idle.iter().rposition(|idle| *idle == region) {
                self.idle.remove(place);
            } else if let Some(page) = self.pages.get_mut(&(region / PAGE_REGIONS))
                && page.leaving.remove(&region)
            {
                self.leaving -= 1;
            }
        }
    }

    /// It is durable.
    pub(super) fn end(&mut self, blocks: &Range<u64>) {
        for region in self.regions_of(blocks) {
            let Some(count) = self.busy.get_mut(&region) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.busy.remove(&region);
                self.idle.push_back(region);
            }
        }
        while self.idle.len() > self.regions.idle_kept
            && let Some(region) = self.idle.pop_front()
        {
            let page = self.pages.entry(region / PAGE_REGIONS).or_default();
            self.leaving += usize::from(page.leaving.insert(region));
        }
    }

    /// Whether these blocks may be written; if not, their regions will be marked.
    pub(super) fn are_logged(&mut self, blocks: &Range<u64>) -> bool {
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
        let crowded = self.leaving > self.regions.idle_kept;
        let mut writes = Vec::new();
        for (number, page) in &mut self.pages {
            let waits = !page.wanted.is_empty() || (crowded && !page.leaving.is_empty());
            if !waits || page.under_way.is_some() {
                continue;
            }
            // From the moment the page goes out, what it leaves out is unmarked.
            page.durable.retain(|region| !page.leaving.contains(region));
            self.leaving -= page.leaving.len();
            page.leaving.clear();
            let next: BTreeSet<u64> = page.durable.union(&page.wanted).copied().collect();
            page.wanted.clear();
            let sequence = sequence();
            let body = encode(*number, &next);
            page.under_way = Some((sequence, next, ReplicaSet::all(self.replicas)));
            writes.push((sequence, PageWrite { page: *number, body }));
        }
        writes
    }

    /// The pages that leave out every idle region, for a clean end.
    pub(super) fn drop_idle(&mut self, mut sequence: impl FnMut() -> u64) -> Vec<(u64, PageWrite)> {
        let mut writes = Vec::new();
        for (number, page) in &mut self.pages {
            if page.durable.is_empty() || page.under_way.is_some() {
                continue;
            }
            page.durable.retain(|region| self.busy.contains_key(region));
            self.leaving -= page.leaving.len();
            page.leaving.clear();
            let next = page.durable.clone();
            let sequence = sequence();
            let body = encode(*number, &next);
            page.under_way = Some((sequence, next, ReplicaSet::all(self.replicas)));
            writes.push((sequence, PageWrite { page: *number, body }));
        }
        let pages = &self.pages;
        self.idle.retain(|region| {
            let page = pages.get(&(region / PAGE_REGIONS));
            page.is_some_and(|page| page.durable.contains(region))
        });
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
pub(super) fn pages(blocks: u64, regions: Regions) -> u64 {
    blocks.div_ceil(regions.blocks).div_ceil(PAGE_REGIONS)
}

/// All regions of a page.
pub(super) fn regions(page: u64, blocks: u64, regions: Regions) -> Range<u64> {
    let end = blocks.div_ceil(regions.blocks);
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

    /// Regions of so many blocks.
    fn log(blocks: u64, idle_kept: usize) -> DirtyRegionLog {
        DirtyRegionLog::new(1, Regions { blocks, idle_kept })
    }

    /// Marks blocks dirty with the write of a page that has this sequence, and returns what it logged.
    fn mark(log: &mut DirtyRegionLog, blocks: Range<u64>, sequence: u64) -> BTreeSet<u64> {
        log.begin(&blocks);
        assert!(!log.are_logged(&blocks));
        let (sequence, write) = log.writes(|| sequence).remove(0);
        assert!(!log.are_logged(&blocks), "not durable yet");
        assert!(log.stored(0, sequence, 0) && log.are_logged(&blocks));
        decode(0, &write.body)
    }

    #[test]
    fn the_regions_that_were_idle_longest_leave_the_log_before_the_page_that_says_so_is_durable() {
        let mut log = log(1, 3);
        for block in 0..4 {
            mark(&mut log, block..block + 1, block);
            log.end(&(block..block + 1));
        }
        assert!(log.writes(|| 10).is_empty(), "one too many is not worth a page");
        log.begin(&(100..101));
        assert!(!log.are_logged(&(100..101)));
        let (sequence, _) = log.writes(|| 11).remove(0);
        assert!(!log.are_logged(&(0..1)), "its mark is on its way out");
        assert!(log.are_logged(&(1..4)));
        assert!(log.stored(0, sequence, 0) && log.are_logged(&(100..101)));
        assert!(!log.are_logged(&(0..1)));
    }

    #[test]
    fn a_region_that_is_written_again_keeps_its_mark() {
        let mut log = log(1, 1);
        for block in 0..2 {
            mark(&mut log, block..block + 1, block);
            log.end(&(block..block + 1));
        }
        // 0 is leaving, 1 idle; both are written once more before a page goes out.
        log.begin(&(0..2));
        assert!(log.are_logged(&(0..2)));
        assert_eq!(mark(&mut log, 7..8, 7), [0, 1, 7].into());
        log.end(&(0..2));
        log.end(&(7..8));
        assert_eq!(
            mark(&mut log, 8..9, 8),
            [7, 8].into(),
            "the last idle one is left"
        );
    }

    #[test]
    fn a_range_is_marked_whole_in_one_write_of_the_page_and_leaves_no_crowd_behind() {
        let mut log = log(4, 5);
        let blocks = 2..4 * 20;
        assert_eq!(mark(&mut log, blocks.clone(), 1).len(), 20);
        assert!(log.writes(|| 2).is_empty());
        log.end(&blocks);
        let (sequence, write) = log.writes(|| 3).remove(0);
        assert_eq!(decode(0, &write.body).len(), 5, "as many are kept as may be");
        assert!(log.stored(0, sequence, 0) && !log.are_clear());
        let (sequence, write) = log.drop_idle(|| 4).remove(0);
        assert_eq!(write.body, Body::Zero);
        assert!(log.stored(0, sequence, 0) && log.are_clear());
    }

    #[test]
    fn a_crowd_of_many_pages_leaves_each() {
        let mut log = log(1, 2);
        for page in 0..6 {
            let block = page * PAGE_REGIONS;
            log.begin(&(block..block + 1));
            assert!(!log.are_logged(&(block..block + 1)));
        }
        for (sequence, write) in log.writes(|| 1) {
            assert!(log.stored(write.page, sequence, 0));
        }
        for page in 0..6 {
            let block = page * PAGE_REGIONS;
            log.end(&(block..block + 1));
        }
        let writes = log.writes(|| 2);
        assert_eq!(writes.len(), 4, "two of six may rest");
        assert!(writes.iter().all(|(_, write)| write.body == Body::Zero));
    }
}
