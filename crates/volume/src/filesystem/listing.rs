//! Directory listings: pages of entries in the order of their cookies.

use crate::{
    read_view::ReadView,
    state::{State, Stop},
};
use bytes::Bytes;
use firn_vfs::{Caller, DirectoryEntry, DirectoryPage, FileHandle, VfsError, rules};
use futures::future::join_all;

/// The cookie of `..`.
pub(super) const PARENT_COOKIE: u64 = 2;

/// Entries returned in one page at most, whatever the caller asks.
const ENTRIES_MAX: usize = 4096;

/// Inodes loaded side by side for one directory page.
const LOADS_AT_ONCE: usize = 64;

impl ReadView<'_> {
    pub async fn list_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        let number = self.number(directory)?;
        let limit = (limit as usize).clamp(1, ENTRIES_MAX);
        if cookie > i64::MAX as u64 {
            return Err(VfsError::BadCookie);
        }
        let mut page = self
            .ask(|state| {
                let seen = state.see(number)?;
                rules::may_list(seen.subject(), &caller.credentials)?;
                let parent = state.inode(number)?.ok_or(VfsError::Stale)?.parent;
                let (entries, end) = entries_after(state, number, parent, cookie, limit)?;
                Ok(DirectoryPage {
                    entries,
                    end,
                    directory: seen.attributes,
                })
            })
            .await?;
        if with_attributes {
            for entries in page.entries.chunks_mut(LOADS_AT_ONCE) {
                let seen = join_all(entries.iter().map(|entry| self.see(entry.handle))).await;
                for (entry, seen) in entries.iter_mut().zip(seen) {
                    entry.attributes = match seen {
                        Ok(attributes) => Some(attributes),
                        // Removed meanwhile: the entry was there when the page was read.
                        Err(VfsError::Stale) => None,
                        Err(error) => return Err(error),
                    };
                }
            }
        }
        Ok(page)
    }
}

/// Entries after `cookie`, at most `limit`, and whether they include the last. `.` and `..` have cookies 1 and 2; all others
/// their key.
fn entries_after(
    state: &mut State,
    directory: u64,
    parent: u64,
    cookie: u64,
    limit: usize,
) -> Result<(Vec<DirectoryEntry>, bool), Stop> {
    let file_system = state.file_system;
    let entry = |name: Bytes, inode: u64, cookie: u64| DirectoryEntry {
        name,
        handle: FileHandle { file_system, inode },
        cookie,
        attributes: None,
    };
    let mut entries = Vec::new();
    for (name, inode, at) in [(&b"."[..], directory, 1), (b"..", parent, PARENT_COOKIE)] {
        if cookie < at {
            entries.push(entry(Bytes::from_static(name), inode, at));
        }
    }
    let mut key = cookie.max(PARENT_COOKIE) + 1;
    loop {
        if entries.len() >= limit {
            entries.truncate(limit);
            return Ok((entries, false));
        }
        if key > i64::MAX as u64 {
            return Ok((entries, true));
        }
        let room = limit - entries.len();
        let (place, page) = match state.page(directory, key) {
            Ok(found) => found,
            // What was gathered is a good answer; the caller comes back for the rest.
            Err(_) if entries.len() > 2 => return Ok((entries, false)),
            Err(missing) => return Err(missing.into()),
        };
        entries.extend(
            page.entries
                .range(key..)
                .take(room)
                .map(|(key, named)| entry(Bytes::copy_from_slice(&named.name), named.inode, *key)),
        );
        if entries.len() < limit {
            key = place.end();
        } else {
            let last = entries.last().expect("the limit is at least one").cookie;
            let more = page.entries.range(last + 1..).next().is_some() || place.end() <= i64::MAX as u64;
            return Ok((entries, !more));
        }
    }
}
