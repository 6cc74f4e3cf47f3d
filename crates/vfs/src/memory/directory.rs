//! The entries of a directory, by name and by cookie.
//!
//! An entry's cookie is a hash of its name, moved up to the next free number on a collision. It stays with the name until
//! the name is removed (a rename onto it keeps it), so a scan that goes on after a cookie meets every entry that was
//! there all the time exactly once, whatever happened to the others.

use bytes::Bytes;
use std::collections::BTreeMap;

/// Cookies of `.` and `..`.
pub(super) const SELF_COOKIE: u64 = 1;
pub(super) const PARENT_COOKIE: u64 = 2;
/// Cookies have 63 bits, since some clients keep them in a signed `off_t`.
pub(super) const COOKIE_MAX: u64 = i64::MAX as u64;
const FIRST_COOKIE: u64 = 3;

#[derive(Clone, Copy)]
struct Slot {
    inode: u64,
    cookie: u64,
}

#[derive(Clone)]
pub(super) struct Directory {
    pub(super) parent: u64,
    by_name: BTreeMap<Bytes, Slot>,
    by_cookie: BTreeMap<u64, Bytes>,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        Self {
            parent,
            by_name: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|slot| slot.inode)
    }

    /// Names `inode` `name`, in the place of what had that name.
    pub(super) fn set(&mut self, name: &Bytes, inode: u64, cookie_bits: u32) {
        if let Some(slot) = self.by_name.get_mut(name) {
            slot.inode = inode;
            return;
        }
        let mut cookie = preferred_cookie(name, cookie_bits);
        while self.by_cookie.contains_key(&cookie) {
            cookie = if cookie == COOKIE_MAX {
                FIRST_COOKIE
            } else {
                cookie + 1
            };
        }
        self.by_cookie.insert(cookie, name.clone());
        self.by_name.insert(name.clone(), Slot { inode, cookie });
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(slot) = self.by_name.remove(name) {
            self.by_cookie.remove(&slot.cookie);
        }
    }

    /// Entries after `cookie`, in cookie order: cookie, name, inode.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Bytes, u64)> {
        self.by_cookie
            .range(cookie.saturating_add(1)..)
            .map(|(cookie, name)| (*cookie, name, self.by_name[name].inode))
    }
}

/// FNV-1a with a final mix, in `bits` bits (fewer than 63 only in tests, to have collisions).
fn preferred_cookie(name: &[u8], bits: u32) -> u64 {
    let mut hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash >>= 64 - bits;
    hash.clamp(FIRST_COOKIE, COOKIE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colliding_names_get_different_cookies_and_keep_them() {
        let mut directory = Directory::new(1);
        let name = |number: u32| Bytes::from(number.to_string());
        for number in 0..100 {
            directory.set(&name(number), u64::from(number), 4);
        }
        let before: Vec<_> = directory
            .after(PARENT_COOKIE)
            .map(|(c, n, _)| (n.clone(), c))
            .collect();
        assert_eq!(before.len(), 100);
        for number in (0..100).step_by(2) {
            directory.remove(&name(number));
        }
        directory.set(&name(1), 1000, 4);
        for (cookie, entry, _) in directory.after(PARENT_COOKIE) {
            assert!(before.contains(&(entry.clone(), cookie)));
        }
        assert_eq!(directory.len(), 50);
        assert_eq!(directory.get(&name(1)), Some(1000));
    }
}
