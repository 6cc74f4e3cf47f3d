//! Online verification: reads every object of the committed state from the store, the snapshots' included, and checks that the
//! file system they make is whole.
//!
//! Checked are: each object's hash and seal (by reading it), that every name has an inode, that every inode has as many names
//! as it says, and that every directory counts its entries right. The volume serves meanwhile: what is committed never
//! changes, so the walk is of one moment. Damage does not stop the walk; each is reported with the path of its file, and what
//! lies behind a lost node of a tree is reported once. Of a snapshot only what differs from the next newer one (the newest:
//! from the volume) is read, for the rest was read before.

mod leaves;
mod names;

use crate::{
    error::VolumeError,
    inode::Inode,
    objects::{Objects, ReadError},
    read_view::decode_inode,
    state::{Content, DirectoryPage, MAX_DEPTH, PagePlace, Retained},
    tree_diff::map_of,
    volume::Volume,
};
use firn_format::{
    INODE_MAP, KeyEpoch, MANIFEST, ORPHAN_MAP, Place, Pointer, ROOT_DIRECTORY, SegmentId, TreeRoot, USAGE_MAP,
};
use leaves::{Leaves, Step, readable};
use std::collections::{BTreeMap, BTreeSet};

/// Damages reported one by one; further ones are counted.
const DAMAGES_MAX: usize = 1000;

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file's inode.
    pub inode: u64,
    /// The snapshot in which it is, if it is not (only) in the volume as it is now.
    pub snapshot: Option<String>,
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
    /// Snapshots gone through.
    pub snapshots: u64,
    /// Segments that are not in the store.
    pub missing_segments: u64,
    /// Inodes of the volume, as its checkpoint counts them.
    pub files: u64,
    /// Of them, those whose own object was met, whole or not. The way to the others is lost: a part of the inode map.
    pub reached: u64,
    /// Directories of the volume, parts of whose names are lost: what was only in them can be opened by no path.
    pub lost_directories: u64,
    /// Objects of the volume as it is now, by the epoch of the key that opens them.
    pub live_epochs: BTreeMap<KeyEpoch, u64>,
    /// The same of what only snapshots have.
    pub snapshot_epochs: BTreeMap<KeyEpoch, u64>,
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

    /// The epochs of all keys that open what was read, the oldest first.
    pub fn epochs(&self) -> Vec<u32> {
        let read = self.live_epochs.keys().chain(self.snapshot_epochs.keys());
        let epochs: BTreeSet<u32> = read.map(|epoch| epoch.0).collect();
        epochs.into_iter().collect()
    }

    /// Files of the volume that cannot be reached at all.
    pub fn unreachable(&self) -> u64 {
        self.files.saturating_sub(self.reached)
    }
}

/// What is called now and then with what was found so far.
pub type Progress<'a> = &'a (dyn Fn(&VerifyReport) + Send + Sync);

struct Walk<'a> {
    objects: &'a Objects,
    /// Only blocks of these segments are looked at, besides all nodes, inodes and directories; `None`: all.
    only: Option<&'a BTreeSet<SegmentId>>,
    report: VerifyReport,
    /// Names found for each inode, and links it says it has: 0 once they agree, so that only disagreement is kept.
    links: BTreeMap<u64, i64>,
    /// The snapshot that is gone through; `None`: the volume itself.
    snapshot: Option<String>,
    progress: Progress<'a>,
}

impl Volume {
    /// Verifies the committed state and the snapshots; `progress` is called after each object. Memory grows by about 50 bytes an
    /// inode.
    ///
    /// # Errors
    /// If the store is out of reach, or the volume is detached; damage is no error but is in the report.
    pub async fn verify(&self, progress: Progress<'_>) -> Result<VerifyReport, VolumeError> {
        self.walk(self.inner.objects.uncached(), None, progress).await
    }

    /// Names what is damaged for whoever repairs: reads nodes, inodes and directories as readers do, and of the data only what lies in these
    /// segments.
    ///
    /// # Errors
    /// Those of [`Volume::verify`].
    pub async fn name_files_of(&self, segments: &BTreeSet<SegmentId>) -> Result<VerifyReport, VolumeError> {
        self.walk(self.inner.objects.past_the_caches(), Some(segments), &|_| ())
            .await
    }

    async fn walk(
        &self,
        objects: Objects,
        only: Option<&BTreeSet<SegmentId>>,
        progress: Progress<'_>,
    ) -> Result<VerifyReport, VolumeError> {
        let checkpointer = self.inner.checkpointer.owned()?;
        let (inode_map, orphans, files, snapshots, usage, manifest) = {
            // Held by a checkpoint from freeze to install: what is read here belongs to one commit.
            let checkpointer = checkpointer.lock().await;
            let state = self.inner.lock();
            let snapshots: Vec<(String, Retained)> = state
                .snapshots()
                .iter()
                .filter_map(|one| Some((String::from_utf8_lossy(&one.name).into_owned(), one.retained?)))
                .collect();
            (
                state.inode_map,
                checkpointer.orphan_pointers.clone(),
                checkpointer.files,
                snapshots,
                checkpointer.usage.root,
                checkpointer.manifest.root(),
            )
        };
        let mut walk = Walk {
            objects: &objects,
            only,
            report: VerifyReport {
                files,
                ..VerifyReport::default()
            },
            links: BTreeMap::new(),
            snapshot: None,
            progress,
        };
        if let Some(root) = &inode_map {
            walk.inodes(root, None).await?;
        }
        for (number, pointer) in orphans {
            // An orphan has no names and says so.
            let place = leaf_of(ORPHAN_MAP, number);
            walk.inode(place, &pointer, None).await?;
        }
        if let Some(usage) = &usage {
            walk.map(USAGE_MAP, usage).await?;
        }
        if let Some(manifest) = &manifest {
            walk.map(MANIFEST, manifest).await?;
        }
        if only.is_none() {
            walk.check_links();
        }
        if let Some(root) = &inode_map {
            walk.name_damages(root).await?;
        }
        let mut newer = inode_map;
        for (name, retained) in snapshots.into_iter().rev() {
            walk.snapshot = Some(name);
            walk.inodes(&retained.inode_map, newer).await?;
            walk.name_damages(&retained.inode_map).await?;
            walk.report.snapshots += 1;
            newer = Some(retained.inode_map);
        }
        walk.report.missing_segments = objects.absent_segments();
        Ok(walk.report)
    }
}

impl Walk<'_> {
    fn damage(&mut self, inode: u64, detail: String) {
        if self.report.damages.len() < DAMAGES_MAX {
            self.report.damages.push(Damage {
                inode,
                snapshot: self.snapshot.clone(),
                path: None,
                detail,
            });
        } else {
            self.report.more_damages += 1;
        }
        self.note_progress();
    }

    fn note_progress(&mut self) {
        self.report.missing_segments = self.objects.absent_segments();
        (self.progress)(&self.report);
    }

    /// Reports damage and goes on; only an unreachable store ends the walk.
    fn check<T>(&mut self, inode: u64, found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
        match found {
            Ok(value) => Ok(Some(value)),
            Err(error @ (ReadError::Unavailable { .. } | ReadError::KeyNotAtHand { .. })) => Err(error),
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Missing { .. })) => {
                self.damage(inode, error.to_string());
                Ok(None)
            }
        }
    }

    /// Whether it is the volume that is gone through, and not a snapshot of it.
    fn is_head(&self) -> bool {
        self.snapshot.is_none()
    }

    /// All inodes of a tree but for those that `newer` has at the same place.
    async fn inodes(&mut self, root: &TreeRoot, newer: Option<TreeRoot>) -> Result<(), ReadError> {
        let mut leaves = Leaves::of(self.objects, INODE_MAP, root, newer).await?;
        while let Some(step) = leaves.next().await? {
            match step {
                Step::Leaf {
                    index,
                    pointer,
                    other,
                } => {
                    self.inode(leaf_of(INODE_MAP, index), &pointer, other).await?;
                }
                Step::Lost { from, to, error } => {
                    let detail = format!("the inode map is lost from inode {from} to {to}: {error}");
                    self.damage(INODE_MAP, detail);
                }
            }
        }
        self.count_epochs(leaves.epochs);
        Ok(())
    }

    /// The usage map or the manifest, of which only the keys are of interest: what is lost of the one is counted anew, and the other is an
    /// auditor's.
    async fn map(&mut self, inode: u64, root: &TreeRoot) -> Result<(), ReadError> {
        let mut leaves = Leaves::of(self.objects, inode, root, None).await?;
        while let Some(step) = leaves.next().await? {
            if let Step::Leaf { index, pointer, .. } = step {
                let leaf = self.objects.get(&pointer, leaf_of(inode, index)).await;
                if let Some(leaf) = readable(leaf)? {
                    self.count_epochs([(leaf.header.seal.key_epoch, 1)]);
                }
            }
        }
        self.count_epochs(leaves.epochs);
        Ok(())
    }

    fn count_epochs(&mut self, counted: impl IntoIterator<Item = (KeyEpoch, u64)>) {
        let epochs = if self.is_head() {
            &mut self.report.live_epochs
        } else {
            &mut self.report.snapshot_epochs
        };
        for (epoch, objects) in counted {
            *epochs.entry(epoch).or_default() += objects;
        }
    }

    async fn inode(
        &mut self,
        place: Place,
        pointer: &Pointer,
        newer: Option<Pointer>,
    ) -> Result<(), ReadError> {
        let number = place.index;
        if self.is_head() && place.inode == INODE_MAP {
            self.report.reached += 1;
        }
        let found = self.objects.get(pointer, place).await;
        let Some(object) = self.check(number, found)? else {
            return Ok(());
        };
        self.count_epochs([(object.header.seal.key_epoch, 1)]);
        let (inode, content) = match decode_inode(&object) {
            Ok(decoded) => decoded,
            Err(detail) => {
                self.damage(number, detail);
                return Ok(());
            }
        };
        self.report.inodes += 1;
        self.note_progress();
        if self.is_head() {
            let names = if inode.is_directory() {
                // One that was removed while it is open has none.
                i64::from(inode.links > 0)
            } else {
                i64::from(inode.links)
            };
            *self.links.entry(number).or_default() -= names;
        }
        let newer = match newer {
            Some(pointer) => readable(self.objects.get(&pointer, place).await)?,
            None => None,
        };
        self.content(&inode, &content, newer.and_then(|newer| map_of(&newer)))
            .await
    }

    async fn content(
        &mut self,
        inode: &Inode,
        content: &Content,
        newer: Option<TreeRoot>,
    ) -> Result<(), ReadError> {
        let mut entries = 0;
        // Where pages are lost or were not read, what is missing cannot be counted.
        let mut is_counted = self.is_head();
        let mut is_lost = false;
        if let Content::Map(root) = content {
            let mut leaves = Leaves::of(self.objects, inode.number, root, newer).await?;
            while let Some(step) = leaves.next().await? {
                let (index, pointer) = match step {
                    Step::Leaf { index, pointer, .. } => (index, pointer),
                    Step::Lost { from, to, error } => {
                        is_lost = true;
                        self.damage(inode.number, format!("blocks {from} to {to}: {error}"));
                        continue;
                    }
                };
                let segment = pointer.location.segment;
                if !inode.is_directory() && self.only.is_some_and(|only| !only.contains(&segment)) {
                    continue;
                }
                let found = self.objects.get(&pointer, leaf_of(inode.number, index)).await;
                let Some(object) = self.check(inode.number, found)? else {
                    is_lost = true;
                    continue;
                };
                self.count_epochs([(object.header.seal.key_epoch, 1)]);
                self.report.blocks += 1;
                self.report.bytes += object.payload.len() as u64;
                self.note_progress();
                if inode.is_directory() {
                    match DirectoryPage::decode(object.payload.clone(), place_of(index)) {
                        Ok(page) => {
                            entries += page.entries.len() as u64;
                            for entry in page.entries.values().filter(|_| self.snapshot.is_none()) {
                                name(&mut self.links, entry.inode);
                            }
                        }
                        Err(error) => {
                            is_lost = true;
                            self.damage(inode.number, error.to_string());
                        }
                    }
                }
            }
            self.count_epochs(leaves.epochs);
        }
        is_counted &= !is_lost;
        if inode.is_directory() && is_lost && self.is_head() {
            self.report.lost_directories += 1;
        }
        if inode.is_directory() && is_counted && entries != inode.directory.entries {
            let detail = format!(
                "the directory has {entries} entries but counts {}",
                inode.directory.entries
            );
            self.damage(inode.number, detail);
        }
        Ok(())
    }

    /// Names and link counts against each other. Where names or inodes are lost, what lacks a counterpart says nothing new.
    fn check_links(&mut self) {
        // The root directory has no name of its own.
        name(&mut self.links, ROOT_DIRECTORY);
        let names_lost = self.report.lost_directories > 0;
        let inodes_lost = !self.report.damages.is_empty();
        let wrong: Vec<_> = std::mem::take(&mut self.links)
            .into_iter()
            .filter(|(_, sum)| (*sum < 0 && !names_lost) || (*sum > 0 && !inodes_lost))
            .collect();
        for (number, sum) in wrong {
            self.damage(
                number,
                format!("its link count is off by {} from its names", -sum),
            );
        }
    }
}

/// One more name of an inode.
fn name(links: &mut BTreeMap<u64, i64>, inode: u64) {
    let sum = links.entry(inode).or_default();
    *sum += 1;
    if *sum == 0 {
        links.remove(&inode);
    }
}

fn leaf_of(inode: u64, index: u64) -> Place {
    Place {
        inode,
        level: 0,
        index,
    }
}

/// The place of the directory page with this index.
fn place_of(index: u64) -> PagePlace {
    let depth = (index + 1).ilog2() as u8;
    PagePlace::at(depth.min(MAX_DEPTH), index)
}
