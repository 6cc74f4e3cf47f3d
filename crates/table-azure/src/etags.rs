//! Cache of entity tags: which tag Azure gave the version of an item that was last read or written here.
//!
//! A commit changes an item that its caller has read, so with the tag at hand it is one request. A tag that is over costs a refused write
//! and a read, never a wrong one: Azure compares it. When the cache is full it begins anew.

use firn_table::{ItemKey, ItemVersion};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// Items of which a tag is held: some hundred bytes each.
const ITEMS: usize = 4096;

#[derive(Default)]
pub(crate) struct EntityTags(Mutex<HashMap<ItemKey, (ItemVersion, String)>>);

impl EntityTags {
    fn lock(&self) -> MutexGuard<'_, HashMap<ItemKey, (ItemVersion, String)>> {
        self.0.lock().expect("no panic under this lock")
    }

    pub(crate) fn learn(&self, key: &ItemKey, version: ItemVersion, tag: &str) {
        let mut held = self.lock();
        if held.len() >= ITEMS && !held.contains_key(key) {
            held.clear();
        }
        held.insert(key.clone(), (version, tag.to_owned()));
    }

    pub(crate) fn forget(&self, key: &ItemKey) {
        self.lock().remove(key);
    }

    pub(crate) fn of(&self, key: &ItemKey, version: ItemVersion) -> Option<String> {
        let held = self.lock();
        let (of, tag) = held.get(key)?;
        (*of == version).then(|| tag.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_that_of_its_version_and_the_cache_is_bounded() {
        let tags = EntityTags::default();
        let key = ItemKey::new("p", "s");
        tags.learn(&key, ItemVersion(1), "one");
        assert_eq!(tags.of(&key, ItemVersion(1)).as_deref(), Some("one"));
        assert_eq!(tags.of(&key, ItemVersion(2)), None);
        tags.forget(&key);
        assert_eq!(tags.of(&key, ItemVersion(1)), None);
        for number in 0..3 * ITEMS {
            tags.learn(&ItemKey::new("p", number.to_string()), ItemVersion(1), "x");
            assert!(tags.lock().len() <= ITEMS);
        }
    }
}
