//! The paths that a journal's records touched: for the report of a salvage, so that people find again what they wrote.
//!
//! Names are noted as the records say them, and files whose content or attributes changed by their numbers; both become paths in the tree
//! in which all records are applied. What cannot be named there (a directory that is gone) is left out, since what it was in is named.

use crate::{
    objects::Objects,
    record::Operation,
    replay::load_for_replay,
    state::{KEY_BITS, State, Stop},
};
use bytes::Bytes;
use firn_format::ROOT_DIRECTORY;
use std::collections::BTreeSet;

/// Names and numbers that are noted: some 2 MiB.
const NOTED_MAX: usize = 16_384;
/// Paths in a report.
const PATHS_MAX: usize = 1_000;
/// Directories above each other.
const DEPTH_MAX: usize = 256;
/// Pages of one directory that are read for a name.
const PAGES_MAX: usize = 4_096;
/// Loads for one look.
const LOADS_MAX: usize = 1_024;

/// See the module.
#[derive(Default)]
pub(crate) struct Touched {
    names: BTreeSet<(u64, Bytes)>,
    numbers: BTreeSet<u64>,
    more: u64,
}

impl Touched {
    pub fn note(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { directory, name, .. }
            | Operation::Link { directory, name, .. }
            | Operation::Unlink { directory, name, .. } => self.name(*directory, name),
            Operation::Rename {
                from_directory,
                from_name,
                to_directory,
                to_name,
                ..
            } => {
                self.name(*from_directory, from_name);
                self.name(*to_directory, to_name);
            }
            Operation::SetAttributes { inode, .. }
            | Operation::Write { inode, .. }
            | Operation::SetXattr { inode, .. }
            | Operation::SetAcl { inode, .. } => {
                if self.has_room() {
                    self.numbers.insert(*inode);
                } else if !self.numbers.contains(inode) {
                    self.more += 1;
                }
            }
            Operation::FreeOrphan { .. }
            | Operation::CreateSnapshot { .. }
            | Operation::DeleteSnapshot { .. }
            | Operation::ProtectSnapshot { .. } => {}
        }
    }

    fn has_room(&self) -> bool {
        self.names.len() + self.numbers.len() < NOTED_MAX
    }

    fn name(&mut self, directory: u64, name: &Bytes) {
        if self.has_room() {
            self.names.insert((directory, name.clone()));
        } else {
            self.more += 1;
        }
    }

    /// The paths, and how many there are beyond them.
    pub async fn paths(self, state: &mut State, objects: &Objects) -> (Vec<String>, u64) {
        let mut paths = BTreeSet::new();
        for (directory, name) in self.names {
            if let Some(above) = path_of(state, objects, directory).await {
                let above = above.trim_end_matches('/');
                paths.insert(format!("{above}/{}", String::from_utf8_lossy(&name)));
            }
        }
        for number in self.numbers {
            paths.extend(path_of(state, objects, number).await);
        }
        let more = paths.len().saturating_sub(PATHS_MAX) as u64 + self.more;
        (paths.into_iter().take(PATHS_MAX).collect(), more)
    }
}

async fn path_of(state: &mut State, objects: &Objects, inode: u64) -> Option<String> {
    let mut path = String::new();
    let mut here = inode;
    for _ in 0..DEPTH_MAX {
        if here == ROOT_DIRECTORY {
            return Some(if path.is_empty() { "/".into() } else { path });
        }
        let look = |state: &mut State| Ok(state.inode(here)?.map(|inode| inode.parent));
        let parent = see(state, objects, look).await??;
        let name = name_in(state, objects, parent, here).await?;
        path = format!("/{}{path}", String::from_utf8_lossy(&name));
        here = parent;
    }
    None
}

async fn name_in(state: &mut State, objects: &Objects, directory: u64, inode: u64) -> Option<Box<[u8]>> {
    let mut key = 0;
    for _ in 0..PAGES_MAX {
        let look = |state: &mut State| {
            if state.inode(directory)?.is_none() {
                return Ok(None);
            }
            let (place, page) = state.page(directory, key)?;
            let name = page.entries.values().find(|entry| entry.inode == inode);
            Ok(Some((name.map(|entry| entry.name.clone()), place.end())))
        };
        let (found, end) = see(state, objects, look).await??;
        if found.is_some() {
            return found;
        }
        if end >= 1 << KEY_BITS {
            return None;
        }
        key = end;
    }
    None
}

async fn see<T>(
    state: &mut State,
    objects: &Objects,
    mut look: impl FnMut(&mut State) -> Result<T, Stop>,
) -> Option<T> {
    for _ in 0..LOADS_MAX {
        match look(state) {
            Ok(seen) => return Some(seen),
            Err(Stop::Refused(_)) => return None,
            Err(Stop::Missing(missing)) => load_for_replay(state, objects, missing).await.ok()?,
        }
    }
    None
}
