//! Paths of inodes: which file an object belongs to whose place is all that is known of it.
//!
//! An inode remembers the directory it was last linked into, so its path is found from the file upwards, by reading the
//! directories on the way. If the inode itself is what is damaged, the directories in memory are looked through: whoever met
//! the damage has just looked the name up.

use crate::{
    objects::{DamageKind, KnownDamage},
    volume::{Inner, Volume},
};
use firn_format::{INODE_MAP, ORPHAN_MAP, Place, ROOT_DIRECTORY};
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc};

/// Directories above each other that are followed: more than any path of 4,096 bytes is likely to have.
const DEPTH_MAX: usize = 256;

/// Pages of one directory that are read for a name: some 150,000 entries.
const PAGES_MAX: usize = 4096;

/// The end of the key space of a directory.
const KEY_END: u64 = 1 << crate::state::KEY_BITS;

/// Gives every newly found damage its path, and says it in the log once. Runs as long as the volume serves.
pub(crate) async fn name_damages(inner: Arc<Inner>) {
    let damages = inner.objects.damages().clone();
    loop {
        while let Some(damage) = damages.without_path() {
            let path = what(&inner, &damage).await;
            let what = path.as_deref().unwrap_or("a file whose path cannot be read");
            let kind = match damage.kind {
                DamageKind::Damaged => "damaged",
                DamageKind::Missing => "missing",
            };
            tracing::error!(
                path = what,
                inode = damage.inode(),
                segment = %damage.segment,
                "{what} is {kind} in the store ({}); all other files are served. Bring the object back from the bucket's versions, or the file from a snapshot",
                damage.detail
            );
            damages.name(&damage.place, path);
        }
        let ended = pin!(inner.serving.ended());
        let committed = pin!(inner.checkpointer.committed());
        let found = pin!(damages.found());
        let news = select(found, committed);
        if let Either::Right(_) = select(news, ended).await {
            return;
        }
        // A commit may have removed damaged files.
        forget_gone(&inner).await;
    }
}

/// What an object belongs to, in words for people: a path, or a part of the volume itself.
async fn what(inner: &Inner, damage: &KnownDamage) -> Option<String> {
    let place = &damage.place;
    match (place.inode, place.level) {
        (INODE_MAP, 1..) => Some(format!(
            "the inode map (the way to inodes {} and on)",
            place.index << (7 * u32::from(place.level))
        )),
        (ORPHAN_MAP, _) => Some("a file that was removed while it was open".into()),
        _ => path_of(inner, damage.inode()).await,
    }
}

impl Volume {
    /// The path of an inode, from the root of the volume; `None` if its directories cannot be read or it has no name.
    pub async fn path_of(&self, inode: u64) -> Option<String> {
        path_of(&self.inner, inode).await
    }
}

/// The path of an inode, from the root of the volume; `None` if its directories cannot be read or it has no name.
pub(crate) async fn path_of(inner: &Inner, inode: u64) -> Option<String> {
    let mut path = String::new();
    let mut here = inode;
    for _ in 0..DEPTH_MAX {
        if here == ROOT_DIRECTORY {
            return Some(if path.is_empty() { "/".into() } else { path });
        }
        let (parent, name) = match named_by_parent(inner, here).await {
            Some(found) => found,
            None => inner.lock().named_in_memory(here)?,
        };
        path = format!("/{}{path}", String::from_utf8_lossy(&name));
        here = parent;
    }
    None
}

async fn named_by_parent(inner: &Inner, inode: u64) -> Option<(u64, Box<[u8]>)> {
    let asked = inner.ask(|state| Ok(state.inode(inode)?.map(|inode| inode.parent)));
    let directory = asked.await.ok()??;
    let mut key = 0;
    for _ in 0..PAGES_MAX {
        let asked = inner.ask(|state| {
            // Loads the directory itself first, and refuses one that is gone.
            if state.inode(directory)?.is_none() {
                return Ok(None);
            }
            let (place, page) = state.page(directory, key)?;
            let name = page.entries.values().find(|entry| entry.inode == inode);
            Ok(Some((name.map(|entry| entry.name.clone()), place.end())))
        });
        let (found, end) = asked.await.ok()??;
        if let Some(name) = found {
            return Some((directory, name));
        }
        if end >= KEY_END {
            return None;
        }
        key = end;
    }
    None
}

/// Forgets damages of files that are not there any more, or have that place no longer.
async fn forget_gone(inner: &Inner) {
    let (known, _) = inner.objects.damages().known();
    for damage in known {
        if matches!(
            damage.place,
            Place {
                inode: INODE_MAP | ORPHAN_MAP,
                level: 1..,
                ..
            }
        ) {
            continue;
        }
        let inode = damage.inode();
        let gone = inner.ask(|state| Ok(state.inode(inode)?.is_none())).await;
        if matches!(gone, Ok(true) | Err(firn_vfs::VfsError::Stale)) {
            inner.objects.damages().forget(&damage.place);
        }
    }
}
