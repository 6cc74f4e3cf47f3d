//! Online verification: reads every object of the committed state from the store, and checks that the file system they make
//! is whole.
//!
//! Checked are: each object's hash and seal (by reading it), that every name has an inode, that every inode has as many names
//! as it says, and that every directory counts its entries right. The volume serves meanwhile: what is committed never
//! changes, so the walk is of one moment. Damage does not stop the walk; each is reported with the path of its file.

use crate::{
    inode::Inode,
    objects::{Objects, ReadError},
    read_view::decode_inode,
    state::{Content, DirectoryPage, MAX_DEPTH, PagePlace},
    tree,
    volume::Volume,
};
use firn_format::{INODE_MAP, ORPHAN_MAP, Place, Pointer, ROOT_DIRECTORY, TreeRoot};
use std::collections::{BTreeMap, BTreeSet};

/// Inodes or blocks looked at in one step.
const STEP: usize = 1024;

/// Damages reported one by one; further ones are counted.
const DAMAGES_MAX: usize = 1000;

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file's inode.
    pub inode: u64,
    /// One of its paths, as far as its directories can be read.
    pub path: Option<String>,
    /// What is wrong.
    pub detail: String,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Inodes that could be read.
    pub inodes: u64,
    /// Data blocks and directory pages that could be read.
    pub blocks: u64,
    /// Their bytes, opened.
    pub bytes: u64,
    /// What is wrong, at most a thousand.
    pub damages: Vec<Damage>,
    /// How many more there are.
    pub more_damages: u64,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty() && self.more_damages == 0
    }
}

struct Walk<'a> {
    objects: &'a Objects,
    report: VerifyReport,
    /// Names found for each inode, and links it says it has: 0 once they agree, so that only disagreement is kept.
    links: BTreeMap<u64, i64>,
    progress: &'a (dyn Fn(&VerifyReport) + Send + Sync),
}

impl Volume {
    /// Verifies the committed state; `progress` is called now and then. Memory grows by about 50 bytes an inode.
    ///
    /// # Errors
    /// If the store is out of reach; damage is no error but is in the report.
    pub async fn verify(
        &self,
        progress: &(dyn Fn(&VerifyReport) + Send + Sync),
    ) -> Result<VerifyReport, ReadError> {
        let objects = self.inner.objects.uncached();
        let (inode_map, orphans) = {
            // Held by a checkpoint from freeze to install: what is read here belongs to one commit.
            let checkpointer = self.inner.checkpointer.lock().await;
            (self.inner.lock().inode_map, checkpointer.orphan_pointers.clone())
        };
        let mut walk = Walk {
            objects: &objects,
            report: VerifyReport::default(),
            links: BTreeMap::new(),
            progress,
        };
        if let Some(root) = &inode_map {
            walk.inodes(root).await?;
        }
        for (number, pointer) in orphans {
            // An orphan has no names and says so.
            walk.inode(
                Place {
                    inode: ORPHAN_MAP,
                    level: 0,
                    index: number,
                },
                &pointer,
            )
            .await?;
        }
        // The root directory has no name of its own.
        *walk.links.entry(ROOT_DIRECTORY).or_default() += 1;
        let wrong: Vec<_> = walk
            .links
            .iter()
            .filter(|(_, sum)| **sum != 0)
            .map(|(n, s)| (*n, *s))
            .collect();
        for (number, sum) in wrong {
            walk.damage(
                number,
                format!("its link count is off by {} from its names", -sum),
            );
        }
        if !walk.report.damages.is_empty()
            && let Some(root) = &inode_map
        {
            walk.name_damages(root).await?;
        }
        Ok(walk.report)
    }
}

impl Walk<'_> {
    fn damage(&mut self, inode: u64, detail: String) {
        if self.report.damages.len() < DAMAGES_MAX {
            self.report.damages.push(Damage {
                inode,
                path: None,
                detail,
            });
        } else {
            self.report.more_damages += 1;
        }
    }

    /// Reports damage and goes on; only an unreachable store ends the walk.
    fn check<T>(&mut self, inode: u64, found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
        match found {
            Ok(value) => Ok(Some(value)),
            Err(error @ ReadError::Unavailable { .. }) => Err(error),
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
                self.damage(inode, error.to_string());
                Ok(None)
            }
        }
    }

    async fn inodes(&mut self, root: &TreeRoot) -> Result<(), ReadError> {
        let mut from = 0;
        loop {
            let found = tree::range(self.objects, INODE_MAP, root, from, u64::MAX, STEP).await;
            let Some(step) = self.check(INODE_MAP, found)? else {
                return Ok(());
            };
            let Some((last, _)) = step.last() else {
                return Ok(());
            };
            from = last + 1;
            for (number, pointer) in step {
                self.inode(
                    Place {
                        inode: INODE_MAP,
                        level: 0,
                        index: number,
                    },
                    &pointer,
                )
                .await?;
            }
            (self.progress)(&self.report);
        }
    }

    async fn inode(&mut self, place: Place, pointer: &Pointer) -> Result<(), ReadError> {
        let number = place.index;
        let found = self.objects.get(pointer, place).await;
        let Some(object) = self.check(number, found)? else {
            return Ok(());
        };
        let (inode, content) = match decode_inode(&object) {
            Ok(decoded) => decoded,
            Err(detail) => {
                self.damage(number, detail);
                return Ok(());
            }
        };
        self.report.inodes += 1;
        let names = if inode.is_directory() {
            // One that was removed while it is open has none.
            i64::from(inode.links > 0)
        } else {
            i64::from(inode.links)
        };
        *self.links.entry(number).or_default() -= names;
        self.content(&inode, &content).await
    }

    async fn content(&mut self, inode: &Inode, content: &Content) -> Result<(), ReadError> {
        let mut entries = 0;
        let mut subdirectories_unknown = false;
        if let Content::Map(root) = content {
            let mut from = 0;
            loop {
                let found = tree::range(self.objects, inode.number, root, from, u64::MAX, STEP).await;
                let Some(step) = self.check(inode.number, found)? else {
                    return Ok(());
                };
                let Some((last, _)) = step.last() else { break };
                from = last + 1;
                for (index, pointer) in step {
                    let place = Place {
                        inode: inode.number,
                        level: 0,
                        index,
                    };
                    let found = self.objects.get(&pointer, place).await;
                    let Some(object) = self.check(inode.number, found)? else {
                        subdirectories_unknown = true;
                        continue;
                    };
                    self.report.blocks += 1;
                    self.report.bytes += object.payload.len() as u64;
                    if inode.is_directory() {
                        match DirectoryPage::decode(object.payload.clone(), place_of(index)) {
                            Ok(page) => {
                                entries += page.entries.len() as u64;
                                for entry in page.entries.values() {
                                    self.name(entry.inode);
                                }
                            }
                            Err(error) => {
                                subdirectories_unknown = true;
                                self.damage(inode.number, error.to_string());
                            }
                        }
                    }
                }
            }
        }
        if inode.is_directory() && !subdirectories_unknown && entries != inode.directory.entries {
            let detail = format!(
                "the directory has {entries} entries but counts {}",
                inode.directory.entries
            );
            self.damage(inode.number, detail);
        }
        Ok(())
    }

    fn name(&mut self, inode: u64) {
        let sum = self.links.entry(inode).or_default();
        *sum += 1;
        if *sum == 0 {
            self.links.remove(&inode);
        }
    }

    /// Finds paths for the damaged files, by reading all directories once more.
    async fn name_damages(&mut self, root: &TreeRoot) -> Result<(), ReadError> {
        let mut wanted: BTreeSet<u64> = self.report.damages.iter().map(|damage| damage.inode).collect();
        let mut names: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        // Each round names the parents that the round before found, up to the root.
        while !wanted.is_empty() {
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
        for damage in &mut self.report.damages {
            let mut path = String::new();
            let mut here = damage.inode;
            while let Some((parent, name)) = names.get(&here) {
                path = format!("/{name}{path}");
                here = *parent;
                if here == ROOT_DIRECTORY || path.len() > 64 << 10 {
                    break;
                }
            }
            damage.path = match (damage.inode, here) {
                (ROOT_DIRECTORY, _) => Some("/".into()),
                (_, ROOT_DIRECTORY) => Some(path),
                (_, _) if path.is_empty() => None,
                (_, _) => Some(format!("…{path}")),
            };
        }
        Ok(())
    }

    async fn names_of(
        &self,
        root: &TreeRoot,
        wanted: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, (u64, String)>, ReadError> {
        let mut names = BTreeMap::new();
        let mut from = 0;
        loop {
            // What cannot be read here was reported by the walk before.
            let step = readable(tree::range(self.objects, INODE_MAP, root, from, u64::MAX, STEP).await)?;
            let step = step.unwrap_or_default();
            let Some((last, _)) = step.last() else {
                return Ok(names);
            };
            from = last + 1;
            for (number, pointer) in step {
                let place = Place {
                    inode: INODE_MAP,
                    level: 0,
                    index: number,
                };
                let Some(object) = readable(self.objects.get(&pointer, place).await)? else {
                    continue;
                };
                let Ok((inode, Content::Map(map))) = decode_inode(&object) else {
                    continue;
                };
                if !inode.is_directory() {
                    continue;
                }
                let all = tree::range(self.objects, number, &map, 0, u64::MAX, usize::MAX).await;
                for (index, pointer) in readable(all)?.unwrap_or_default() {
                    let place = Place {
                        inode: number,
                        level: 0,
                        index,
                    };
                    let Some(object) = readable(self.objects.get(&pointer, place).await)? else {
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
        }
    }
}

fn readable<T>(found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(error @ ReadError::Unavailable { .. }) => Err(error),
        Err(ReadError::Corrupt { .. } | ReadError::Missing { .. }) => Ok(None),
    }
}

/// The place of the directory page with this index.
fn place_of(index: u64) -> PagePlace {
    let depth = (index + 1).ilog2() as u8;
    PagePlace::at(depth.min(MAX_DEPTH), index)
}
