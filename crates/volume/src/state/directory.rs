//! Directories: entries ordered by a keyed hash of their names, cut into pages.
//!
//! ```text
//! key    = keyed hash of the name (59 bits) | ordinal (4 bits)      63 bits; also the readdir cookie, valid for ever
//! page   = all entries whose key starts with some prefix            at depth d: 2^d pages would cover the key space
//! index  = 2^d - 1 + prefix                                         the page's place in the directory's block map
//! ```
//!
//! Pages form the leaves of a binary trie. A page that outgrows [`PAGE_BYTES`] is replaced by its two children; two small
//! siblings are merged again. Because hashes are uniform, all leaves lie within a few depths of each other, and the inode
//! keeps the bounds ([`DirectoryShape`](crate::inode::DirectoryShape)), so finding a page costs a lookup or two in the
//! block map and a million entries never load or rewrite more than the pages they touch. The hash is keyed per volume, so
//! that nobody outside can aim names at one page.

use crate::codec::{DecodeError, Decoder, Encoder};
use bytes::Bytes;
use std::collections::BTreeMap;

pub(crate) const VERSION: u8 = 1;

/// A page is split beyond this. Small, because random names touch random pages: at a checkpoint every touched page is
/// rewritten whole, so a create in a huge directory costs about this many bytes of upload.
pub const PAGE_BYTES: usize = 4096;

/// Two siblings are merged below this together; a quarter of a page, so that split and merge do not alternate.
const MERGE_BYTES: usize = PAGE_BYTES / 4;

/// Keys have 63 bits, so that they fit a signed 64-bit cookie.
pub const KEY_BITS: u8 = 63;

/// Names with one hash are told apart by this many low bits.
const ORDINAL_BITS: u8 = 4;

/// A trie deeper than this would have pages of one hash value only.
pub const MAX_DEPTH: u8 = 40;

/// Cookies below are `.` and `..`, and the start.
const FIRST_KEY: u64 = 1 << ORDINAL_BITS;

/// The first of the keys that `name` can have in a directory of the volume with this key.
pub fn base_key(hash_key: &[u8; 32], name: &[u8]) -> u64 {
    let hash = blake3::keyed_hash(hash_key, name);
    let number = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"));
    (number >> 1 & !(FIRST_KEY - 1)).max(FIRST_KEY)
}

/// Which page: a prefix of the key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PagePlace {
    /// The first key it covers.
    pub start: u64,
    /// How many leading bits its keys share.
    pub depth: u8,
}

impl PagePlace {
    /// The one page of a small directory.
    pub const ROOT: Self = Self { start: 0, depth: 0 };

    /// The place at `depth` that covers `key`.
    pub fn covering(key: u64, depth: u8) -> Self {
        assert!(depth <= MAX_DEPTH, "no page is this deep");
        Self {
            start: key & !(Self { start: 0, depth }.span() - 1),
            depth,
        }
    }

    /// The place at `depth` with this index in the directory's block map.
    pub fn at(depth: u8, index: u64) -> Self {
        let prefix = (index + 1) & ((1 << depth) - 1);
        Self {
            start: prefix << (KEY_BITS - depth),
            depth,
        }
    }

    /// How many keys it covers.
    pub fn span(self) -> u64 {
        1 << (KEY_BITS - self.depth)
    }

    /// The first key behind it.
    pub fn end(self) -> u64 {
        self.start + self.span()
    }

    pub fn contains(self, key: u64) -> bool {
        (self.start..self.end()).contains(&key)
    }

    /// Its index in the directory's block map.
    pub fn index(self) -> u64 {
        (1 << self.depth) - 1 + (self.start >> (KEY_BITS - self.depth))
    }

    fn children(self) -> [Self; 2] {
        let depth = self.depth + 1;
        [
            Self {
                start: self.start,
                depth,
            },
            Self {
                start: self.start + self.span() / 2,
                depth,
            },
        ]
    }

    fn parent(self) -> Option<Self> {
        (self.depth > 0).then(|| Self::covering(self.start, self.depth - 1))
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As small as can be: a huge directory has very many in memory.
    pub name: Box<[u8]>,
    pub inode: u64,
}

/// The entries of one page.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DirectoryPage {
    pub entries: BTreeMap<u64, Entry>,
    bytes: usize,
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.name.len() + 20
}

impl DirectoryPage {
    /// The entry of `name`, whose keys start at `base`.
    pub fn find(&self, base: u64, name: &[u8]) -> Option<(u64, u64)> {
        self.entries
            .range(base..base + FIRST_KEY)
            .find(|(_, entry)| *entry.name == *name)
            .map(|(key, entry)| (*key, entry.inode))
    }

    /// The key that a new entry with this base gets; `None` if sixteen names share its hash.
    pub fn free_key(&self, base: u64) -> Option<u64> {
        (base..base + FIRST_KEY).find(|key| !self.entries.contains_key(key))
    }

    pub fn insert(&mut self, key: u64, entry: Entry) {
        self.bytes += entry_bytes(&entry);
        let replaced = self.entries.insert(key, entry);
        assert!(
            replaced.is_none(),
            "a directory entry is removed before its key is used again"
        );
    }

    pub fn remove(&mut self, key: u64) {
        let entry = self
            .entries
            .remove(&key)
            .expect("callers found the entry under the same lock");
        self.bytes -= entry_bytes(&entry);
    }

    fn must_split(&self, place: PagePlace) -> bool {
        self.bytes > PAGE_BYTES && place.depth < MAX_DEPTH
    }

    pub fn encode(&self) -> Bytes {
        let mut out = Encoder::new(VERSION);
        out.u32(self.entries.len() as u32);
        for (key, entry) in &self.entries {
            out.u64(*key).u64(entry.inode).bytes(&entry.name);
        }
        out.finish()
    }

    pub fn decode(payload: Bytes, place: PagePlace) -> Result<Self, DecodeError> {
        let mut input = Decoder::new(&payload, VERSION, "directory page")?;
        let count = input.count(20)?;
        let mut page = Self::default();
        for _ in 0..count {
            let (key, inode) = (input.u64()?, input.u64()?);
            // Copied, so that one entry does not keep the whole fetched buffer alive.
            let name = input.bytes()?[..].into();
            if !place.contains(key) || page.entries.contains_key(&key) {
                return Err(input.error());
            }
            page.insert(key, Entry { name, inode });
        }
        input.finish()?;
        Ok(page)
    }
}

/// A page in memory.
#[derive(Clone)]
pub struct LoadedPage {
    pub depth: u8,
    pub page: std::sync::Arc<DirectoryPage>,
    /// Changed since the last freeze.
    pub dirty: bool,
    /// Used since the last sweep.
    pub referenced: bool,
}

/// The pages of one directory that are in memory, by first key.
#[derive(Clone, Default)]
pub struct LoadedPages {
    pages: BTreeMap<u64, LoadedPage>,
    /// Places that had a page in the last frozen state and no longer have one.
    removed: std::collections::BTreeSet<PagePlace>,
}

impl LoadedPages {
    /// The name under which an inode stands in a loaded page.
    pub fn name_of(&self, inode: u64) -> Option<Box<[u8]>> {
        let mut entries = self
            .pages
            .values()
            .flat_map(|loaded| loaded.page.entries.values());
        entries
            .find(|entry| entry.inode == inode)
            .map(|entry| entry.name.clone())
    }

    /// The one empty page of a new directory.
    pub fn new_directory() -> Self {
        let mut pages = Self::default();
        pages.put(PagePlace::ROOT, DirectoryPage::default(), true);
        pages
    }

    fn put(&mut self, place: PagePlace, page: DirectoryPage, dirty: bool) {
        self.removed.remove(&place);
        self.pages.insert(
            place.start,
            LoadedPage {
                depth: place.depth,
                page: std::sync::Arc::new(page),
                dirty,
                referenced: true,
            },
        );
    }

    /// Adds a page as committed, unless one that covers it is in memory already.
    pub fn install(&mut self, place: PagePlace, page: DirectoryPage) {
        if self.covering(place.start).is_none() {
            self.put(place, page, false);
        }
    }

    /// The page that covers `key`, if it is in memory.
    pub fn covering(&self, key: u64) -> Option<(PagePlace, &DirectoryPage)> {
        let (start, loaded) = self.pages.range(..=key).next_back()?;
        let place = PagePlace {
            start: *start,
            depth: loaded.depth,
        };
        place.contains(key).then_some((place, &*loaded.page))
    }

    /// Marks the page that covers `key` as used.
    pub fn reference(&mut self, key: u64) {
        if let Some((_, loaded)) = self.pages.range_mut(..=key).next_back() {
            loaded.referenced = true;
        }
    }

    /// The page at `place`, to change.
    pub fn page_mut(&mut self, place: PagePlace) -> &mut DirectoryPage {
        let loaded = self
            .pages
            .get_mut(&place.start)
            .expect("callers found the page under the same lock");
        loaded.dirty = true;
        std::sync::Arc::make_mut(&mut loaded.page)
    }

    /// Splits or merges around `place` after a change; returns the depth of the page that now covers its start.
    pub fn rebalance(&mut self, place: PagePlace) -> u8 {
        let loaded = &self.pages[&place.start];
        if loaded.page.must_split(place) {
            let page = self.take(place);
            let [low, high] = place.children();
            let (mut left, mut right) = (DirectoryPage::default(), DirectoryPage::default());
            for (key, entry) in page.entries {
                if low.contains(key) { &mut left } else { &mut right }.insert(key, entry);
            }
            self.put(low, left, true);
            self.put(high, right, true);
            return self.rebalance(low).max(self.rebalance(high));
        }
        if loaded.page.bytes < MERGE_BYTES
            && let Some(parent) = place.parent()
        {
            let [low, high] = parent.children();
            let at = |half: PagePlace| {
                self.pages
                    .get(&half.start)
                    .filter(|loaded| loaded.depth == half.depth)
                    .map(|loaded| &loaded.page)
            };
            if let (Some(left), Some(right)) = (at(low), at(high))
                && left.bytes + right.bytes < MERGE_BYTES
            {
                let mut merged = self.take(low);
                for (key, entry) in self.take(high).entries {
                    merged.insert(key, entry);
                }
                self.put(parent, merged, true);
                return self.rebalance(parent);
            }
        }
        place.depth
    }

    fn take(&mut self, place: PagePlace) -> DirectoryPage {
        let loaded = self
            .pages
            .remove(&place.start)
            .expect("callers found the page under the same lock");
        self.removed.insert(place);
        std::sync::Arc::unwrap_or_clone(loaded.page)
    }

    /// The changes since the last freeze: pages to write, places to clear. Nothing counts as changed afterwards.
    pub fn freeze(&mut self) -> (Vec<(PagePlace, std::sync::Arc<DirectoryPage>)>, Vec<PagePlace>) {
        let mut changed = Vec::new();
        for (start, loaded) in &mut self.pages {
            if loaded.dirty {
                loaded.dirty = false;
                changed.push((
                    PagePlace {
                        start: *start,
                        depth: loaded.depth,
                    },
                    loaded.page.clone(),
                ));
            }
        }
        (changed, std::mem::take(&mut self.removed).into_iter().collect())
    }

    /// Drops pages that are unchanged and were not used since the last sweep.
    pub fn sweep(&mut self) {
        self.pages
            .retain(|_, loaded| loaded.dirty || std::mem::take(&mut loaded.referenced));
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry {
            name: format!("file-{number}").into_bytes().into(),
            inode: number,
        }
    }

    #[test]
    fn indices_of_different_places_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for depth in 0..=6 {
            for prefix in 0..1_u64 << depth {
                let place = PagePlace {
                    start: prefix << (KEY_BITS - depth),
                    depth,
                };
                assert!(seen.insert(place.index()));
                assert_eq!(PagePlace::at(depth, place.index()), place);
            }
        }
        assert_eq!(seen.len(), 127);
    }

    #[test]
    fn a_growing_directory_splits_and_a_shrinking_one_merges_back_to_one_page() {
        let hash_key = [7; 32];
        let mut pages = LoadedPages::new_directory();
        for number in 0..3000 {
            let entry = entry(number);
            let base = base_key(&hash_key, &entry.name);
            let place = pages.covering(base).expect("all pages are loaded").0;
            let key = pages.covering(base).unwrap().1.free_key(base).unwrap();
            pages.page_mut(place).insert(key, entry);
            pages.rebalance(place);
        }
        assert!(pages.pages.len() > 20);
        assert!(pages.pages.values().all(|loaded| loaded.page.bytes <= PAGE_BYTES));
        for number in 0..3000 {
            let entry = entry(number);
            let base = base_key(&hash_key, &entry.name);
            let (place, page) = pages.covering(base).unwrap();
            let (key, inode) = page.find(base, &entry.name).expect("nothing was lost in splits");
            assert_eq!(inode, number);
            pages.page_mut(place).remove(key);
            pages.rebalance(place);
        }
        assert_eq!(pages.pages.len(), 1, "empty siblings merge up to the root");
    }

    #[test]
    fn names_with_one_hash_get_ordinals_and_a_seventeenth_is_refused() {
        let mut page = DirectoryPage::default();
        for number in 0..16 {
            let key = page.free_key(FIRST_KEY).expect("sixteen ordinals");
            page.insert(key, entry(number));
        }
        assert_eq!(page.free_key(FIRST_KEY), None);
        assert_eq!(page.find(FIRST_KEY, b"file-15").map(|(_, inode)| inode), Some(15));
        page.remove(FIRST_KEY + 3);
        assert_eq!(page.free_key(FIRST_KEY), Some(FIRST_KEY + 3));
        assert_eq!(
            page.find(FIRST_KEY, b"file-15"),
            Some((FIRST_KEY + 15, 15)),
            "others keep their cookie"
        );
    }

    #[test]
    fn a_page_round_trips_and_a_foreign_key_is_refused() {
        let mut page = DirectoryPage::default();
        page.insert(FIRST_KEY, entry(1));
        let encoded = page.encode();
        assert_eq!(
            DirectoryPage::decode(encoded.clone(), PagePlace::ROOT).unwrap(),
            page
        );
        let elsewhere = PagePlace {
            start: 1 << 62,
            depth: 1,
        };
        assert!(DirectoryPage::decode(encoded, elsewhere).is_err());
    }
}
