//! Listings of `.snapshots`, and of a root directory that shows it.

use super::{SNAPSHOTS_DIRECTORY, SnapshotNames};
use crate::{state::Snapshot, volume::Inner};
use bytes::Bytes;
use firn_vfs::{Caller, DirectoryEntry, DirectoryPage, VfsError};

/// The cookie of `.snapshots` in a listing of the root: below the keys of names (multiples of 16), above `..`.
const ROOT_COOKIE: u64 = 3;

/// Cookies of the first snapshot in a listing: behind `.` and `..`.
const FIRST_COOKIE: u64 = 3;

impl Inner {
    pub(crate) async fn list_snapshots(
        &self,
        (cookie, limit): (u64, u32),
        with_attributes: bool,
        names: SnapshotNames,
    ) -> Result<DirectoryPage, VfsError> {
        let directory = self.snapshots_attributes()?;
        // A cookie is the snapshot's time, and its place among those of the same millisecond, so it stays valid when others go.
        let mut all: Vec<(u64, Snapshot)> = Vec::new();
        for snapshot in names.listed(self.lock().snapshots()) {
            let base = (snapshot.created_ms.max(0) as u64 + FIRST_COOKIE) << 10 | snapshot.id & 0x3ff;
            all.push((base, snapshot));
        }
        all.sort_by_key(|(cookie, snapshot)| (*cookie, snapshot.id));
        let mut last = 0;
        for (cookie, _) in &mut all {
            last = (*cookie).max(last + 1);
            *cookie = last;
        }
        let limit = (limit as usize).clamp(1, 4096);
        let root = self.root();
        let mut entries = Vec::new();
        for (name, handle, at) in [(&b"."[..], self.snapshots_handle(), 1), (b"..", root, 2)] {
            if cookie >= at {
                continue;
            }
            let attributes = match with_attributes {
                false => None,
                true if handle == root => Some(self.read_view().see(root).await?),
                true => Some(directory.clone()),
            };
            entries.push(DirectoryEntry {
                name: Bytes::from_static(name),
                handle,
                cookie: at,
                attributes,
            });
        }
        all.retain(|(at, _)| *at > cookie);
        let end = entries.len() + all.len() <= limit;
        all.truncate(limit.saturating_sub(entries.len()));
        entries.truncate(limit);
        for (at, snapshot) in all {
            let attributes = if with_attributes {
                match self.see_snapshot(&snapshot).await {
                    Ok((_, attributes)) => Some(attributes),
                    // Deleted meanwhile.
                    Err(VfsError::Stale) => None,
                    Err(error) => return Err(error),
                }
            } else {
                None
            };
            entries.push(DirectoryEntry {
                handle: self.snapshot_root(&snapshot),
                name: snapshot.name,
                cookie: at,
                attributes,
            });
        }
        Ok(DirectoryPage {
            entries,
            end,
            directory,
        })
    }

    /// A page of the root directory with `.snapshots` in it.
    pub(crate) async fn list_root(
        &self,
        caller: &Caller,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        let mut page = self
            .read_view()
            .list_directory(caller, self.root(), cookie, limit, with_attributes)
            .await?;
        if cookie >= ROOT_COOKIE {
            return Ok(page);
        }
        let entry = DirectoryEntry {
            name: Bytes::from_static(SNAPSHOTS_DIRECTORY.as_bytes()),
            handle: self.snapshots_handle(),
            cookie: ROOT_COOKIE,
            attributes: if with_attributes {
                Some(self.snapshots_attributes()?)
            } else {
                None
            },
        };
        let at = page.entries.partition_point(|entry| entry.cookie < ROOT_COOKIE);
        page.entries.insert(at, entry);
        if page.entries.len() > (limit as usize).max(1) {
            page.entries.pop();
            page.end = false;
        }
        Ok(page)
    }
}
