//! Paths of what a verification found damaged, by reading the directories of the same tree once more.

use super::{
    Walk, leaf_of,
    leaves::{Leaves, Step, readable},
    place_of,
};
use crate::{
    objects::ReadError,
    read_view::decode_inode,
    state::{Content, DirectoryPage},
};
use firn_format::{INODE_MAP, ROOT_DIRECTORY, TreeRoot};
use std::collections::{BTreeMap, BTreeSet};

/// The longest path that is put together.
const PATH_BYTES_MAX: usize = 64 << 10;

type Names = BTreeMap<u64, (u64, String)>;

impl Walk<'_> {
    /// Finds paths for the files of this tree that were found damaged.
    pub(super) async fn name_damages(&mut self, root: &TreeRoot) -> Result<(), ReadError> {
        let ours = self
            .report
            .damages
            .iter()
            .filter(|damage| damage.snapshot == self.snapshot);
        let mut wanted: BTreeSet<u64> = ours
            .map(|damage| damage.inode)
            .filter(|inode| *inode >= ROOT_DIRECTORY)
            .collect();
        let mut names = Names::new();
        // Each round names the parents that the round before found, up to the root.
        while wanted.iter().any(|inode| *inode != ROOT_DIRECTORY) {
            let found = self.names_of(root, &wanted).await?;
            wanted = found
                .values()
                .map(|(parent, _)| *parent)
                .filter(|parent| *parent != ROOT_DIRECTORY && !names.contains_key(parent))
                .collect();
            let before = names.len();
            names.extend(found);
            if names.len() == before {
                break;
            }
        }
        let snapshot = self.snapshot.clone();
        for damage in &mut self.report.damages {
            if damage.snapshot != snapshot {
                continue;
            }
            damage.path = path(&names, damage.inode).map(|path| match &snapshot {
                Some(name) => format!("/.snapshots/{name}{}", path.trim_end_matches('/')),
                None => path,
            });
        }
        Ok(())
    }

    async fn names_of(&self, root: &TreeRoot, wanted: &BTreeSet<u64>) -> Result<Names, ReadError> {
        let mut names = Names::new();
        // What cannot be read here was reported by the walk before.
        let mut inodes = Leaves::of(self.objects, INODE_MAP, root, None).await?;
        while let Some(step) = inodes.next().await? {
            let Step::Leaf {
                index: number,
                pointer,
                ..
            } = step
            else {
                continue;
            };
            let Some(object) = readable(self.objects.get(&pointer, leaf_of(INODE_MAP, number)).await)? else {
                continue;
            };
            (self.progress)(&self.report);
            let Ok((inode, Content::Map(map))) = decode_inode(&object) else {
                continue;
            };
            if !inode.is_directory() {
                continue;
            }
            let mut pages = Leaves::of(self.objects, number, &map, None).await?;
            while let Some(step) = pages.next().await? {
                let Step::Leaf { index, pointer, .. } = step else {
                    continue;
                };
                let Some(object) = readable(self.objects.get(&pointer, leaf_of(number, index)).await)? else {
                    continue;
                };
                let Ok(page) = DirectoryPage::decode(object.payload.clone(), place_of(index)) else {
                    continue;
                };
                for entry in page
                    .entries
                    .values()
                    .filter(|entry| wanted.contains(&entry.inode))
                {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    names.insert(entry.inode, (number, name));
                }
            }
        }
        Ok(names)
    }
}

/// The path of an inode by what was found: from the root, or as much of its end as could be read.
fn path(names: &Names, inode: u64) -> Option<String> {
    let mut path = String::new();
    let mut here = inode;
    while let Some((parent, name)) = names.get(&here) {
        path = format!("/{name}{path}");
        here = *parent;
        if here == ROOT_DIRECTORY || path.len() > PATH_BYTES_MAX {
            break;
        }
    }
    match (inode, here) {
        (ROOT_DIRECTORY, _) => Some("/".into()),
        (_, ROOT_DIRECTORY) => Some(path),
        (_, _) if path.is_empty() => None,
        (_, _) => Some(format!("…{path}")),
    }
}
