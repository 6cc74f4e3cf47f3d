//! Pagination of queries, for the engines that walk sorted items.

use crate::{Item, MAX_PAGE_BYTES, Page, limits::item_bytes};
use std::ops::Bound;

/// Where a walk over sort keys begins so that it sees what starts with `prefix` and comes after `after`.
pub(crate) fn start<'a>(prefix: &'a str, after: Option<&'a str>) -> Bound<&'a str> {
    match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    }
}

/// Collects items until the page is full.
pub(crate) struct PageBuilder {
    page: Page,
    bytes: usize,
    limit: usize,
}

impl PageBuilder {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            page: Page::default(),
            bytes: 0,
            limit,
        }
    }

    /// Takes the next item, unless the page is full: then it says so and remembers that there is more.
    pub(crate) fn push(&mut self, item: Item) -> bool {
        if self.page.items.len() >= self.limit || self.bytes >= MAX_PAGE_BYTES {
            self.page.next = self.page.items.last().map(|last| last.key.sort.clone());
            return false;
        }
        self.bytes += item_bytes(&item.key, item.value.len());
        self.page.items.push(item);
        true
    }

    pub(crate) fn finish(self) -> Page {
        self.page
    }
}
