//! Building a checkpoint: from frozen entries to packed objects and new roots.
//!
//! Entries are packed by directory: the data of a directory's files, then all their inodes together, so that a walk that
//! only looks (`ls -l`, `find`) and one that reads both find what they need side by side in the log.

use super::{CheckpointError, Packer, packer::ToPack};
use crate::{
    damage::LostRanges,
    extents::{Extent, ExtentMap},
    inode::INLINE_BYTES,
    journal::Journal,
    state::{Content, DirectoryPage, FrozenEntry, FrozenPages, PagePlace},
    tree::{self, Update},
};
use bytes::{Bytes, BytesMut};
use firn_format::{Child, INODE_MAP, Kind, ORPHAN_MAP, Place, Pointer, TreeRoot};
use std::{collections::BTreeMap, sync::Arc};

/// Blocks assembled and sealed together: 1 MiB at the default block size, enough to use every core, little enough to hold.
const BATCH_BYTES: usize = 1 << 20;

/// Inode objects held back until their directory is done; a huge directory is cut here.
const INODES_HELD: usize = 4096;

/// What was built of one entry: its new content and how many bytes hold data.
pub type Built = (u64, Content, u64);

/// The new state of the volume, packed but not yet committed.
pub struct BuiltCheckpoint {
    pub inode_map: Option<TreeRoot>,
    pub orphans: Option<TreeRoot>,
    /// Where each unlinked but open inode is.
    pub orphan_pointers: BTreeMap<u64, Pointer>,
    pub entries: Vec<Built>,
    /// What to add to the sum of used bytes that was estimated when the entries were frozen.
    pub used_correction: i64,
}

/// Packs everything that changed.
///
/// # Errors
/// If old data that a change builds on cannot be read.
pub async fn build(
    packer: &mut Packer,
    journal: Option<&Journal>,
    block_bytes: u64,
    inode_map: Option<TreeRoot>,
    mut frozen: Vec<FrozenEntry>,
    mut orphans: BTreeMap<u64, Pointer>,
) -> Result<BuiltCheckpoint, CheckpointError> {
    frozen.sort_by_key(|entry| (locality(entry), entry.number));
    let mut entries = Vec::with_capacity(frozen.len());
    let mut map_changes = BTreeMap::new();
    let mut used_correction = 0;
    let mut held: Vec<(FrozenEntry, Content, u64)> = Vec::new();
    let mut group = None;
    for mut entry in frozen {
        let here = locality(&entry);
        if group != Some(here) || held.len() >= INODES_HELD {
            pack_inodes(packer, &mut held, &mut map_changes, &mut orphans, &mut entries).await?;
            group = Some(here);
        }
        match &entry.inode {
            None => {
                map_changes.insert(entry.number, None);
                release_orphan(packer, orphans.remove(&entry.number), entry.number);
                release_map(packer, &entry);
                entries.push((entry.number, Content::Empty, 0));
            }
            Some(_) => {
                let pages = std::mem::take(&mut entry.pages);
                let (content, used_bytes) = Source {
                    packer,
                    journal,
                    block_bytes,
                    entry: &entry,
                }
                .build(pages)
                .await?;
                used_correction += used_bytes as i64 - entry.layer.used_bytes as i64;
                held.push((entry, content, used_bytes));
            }
        }
    }
    pack_inodes(packer, &mut held, &mut map_changes, &mut orphans, &mut entries).await?;
    let change = Update {
        leaves: map_changes,
        keep_below: u64::MAX,
        lost_below: u64::MAX,
    };
    let inode_map = tree::update(packer, INODE_MAP, inode_map, change).await?.root;
    // Few inodes are unlinked and open at one time: their tree is written anew each time.
    let leaves = orphans
        .iter()
        .map(|(number, pointer)| (*number, Some(*pointer)))
        .collect();
    let change = Update {
        leaves,
        keep_below: u64::MAX,
        lost_below: 0,
    };
    let orphan_map = tree::update(packer, ORPHAN_MAP, None, change).await?.root;
    Ok(BuiltCheckpoint {
        inode_map,
        orphans: orphan_map,
        orphan_pointers: orphans,
        entries,
        used_correction,
    })
}

/// Groups a directory with what is in it.
fn locality(entry: &FrozenEntry) -> u64 {
    entry.inode.as_ref().map_or(entry.number, |inode| {
        if inode.is_directory() {
            inode.number
        } else {
            inode.parent
        }
    })
}

async fn pack_inodes(
    packer: &mut Packer,
    held: &mut Vec<(FrozenEntry, Content, u64)>,
    map_changes: &mut BTreeMap<u64, Option<Pointer>>,
    orphans: &mut BTreeMap<u64, Pointer>,
    entries: &mut Vec<Built>,
) -> Result<(), CheckpointError> {
    let mut batch = Vec::with_capacity(held.len());
    for (entry, content, used_bytes) in held.iter() {
        let mut inode = entry.inode.clone().expect("only existing inodes are held");
        inode.used_bytes = *used_bytes;
        let map = if entry.orphan { ORPHAN_MAP } else { INODE_MAP };
        let place = Place {
            inode: map,
            level: 0,
            index: entry.number,
        };
        batch.push(inode_object(place, &inode, content));
    }
    let pointers = packer.pack_all(batch).await?;
    for ((entry, content, used_bytes), pointer) in held.drain(..).zip(pointers) {
        if entry.orphan {
            map_changes.insert(entry.number, None);
            release_orphan(packer, orphans.insert(entry.number, pointer), entry.number);
        } else {
            map_changes.insert(entry.number, Some(pointer));
            release_orphan(packer, orphans.remove(&entry.number), entry.number);
        }
        entries.push((entry.number, content, used_bytes));
    }
    Ok(())
}

/// Notes that an unlinked inode's object is no longer where it was.
fn release_orphan(packer: &mut Packer, was: Option<Pointer>, number: u64) {
    if let Some(was) = was {
        let place = Place {
            inode: ORPHAN_MAP,
            level: 0,
            index: number,
        };
        packer.usage().release(place, was.location);
    }
}

/// Notes that the committed map of an entry is dropped.
fn release_map(packer: &mut Packer, entry: &FrozenEntry) {
    if let Content::Map(root) = &entry.content {
        packer
            .usage()
            .release_map(entry.number, root, entry.committed_used_bytes);
    }
}

/// An inode object. Its plain section is the level of its map's root, so that the cleaner can find a place in it.
fn inode_object(place: Place, inode: &crate::inode::Inode, content: &Content) -> ToPack {
    let (inline, plain, children) = match content {
        Content::Empty => (None, Bytes::from_static(&[0]), Vec::new()),
        Content::Inline(bytes) => (Some(&bytes[..]), Bytes::from_static(&[0]), Vec::new()),
        Content::Map(root) => (
            None,
            Bytes::copy_from_slice(&[root.level]),
            vec![Child {
                slot: 0,
                pointer: root.pointer,
            }],
        ),
    };
    ToPack {
        kind: Kind::Inode,
        place,
        plain,
        children,
        payload: inode.encode(inline),
    }
}

/// One entry being built.
struct Source<'a> {
    packer: &'a mut Packer,
    journal: Option<&'a Journal>,
    block_bytes: u64,
    entry: &'a FrozenEntry,
}

impl Source<'_> {
    async fn build(mut self, pages: FrozenPages) -> Result<(Content, u64), CheckpointError> {
        let inode = self.entry.inode.as_ref().expect("only existing inodes are built");
        if inode.is_directory() {
            return self.build_directory(pages).await.map(|content| (content, 0));
        }
        if self.entry.layer.is_transparent() {
            return Ok((self.entry.content.clone(), self.entry.committed_used_bytes));
        }
        let size_bytes = inode.size_bytes;
        if size_bytes <= INLINE_BYTES {
            let (content, lost) = self.assemble(0, size_bytes).await?;
            if lost.is_empty() {
                release_map(self.packer, self.entry);
                return Ok(if content.iter().all(|byte| *byte == 0) {
                    (Content::Empty, 0)
                } else {
                    (Content::Inline(content), size_bytes)
                });
            }
        }
        self.build_map(size_bytes).await
    }

    /// Rewrites the pages that changed, and the map above them. Pages are let go of as they are packed.
    async fn build_directory(&mut self, pages: FrozenPages) -> Result<Content, CheckpointError> {
        let mut leaves: BTreeMap<u64, Option<Pointer>> =
            pages.removed.iter().map(|place| (place.index(), None)).collect();
        let mut changed = pages.changed.into_iter();
        loop {
            let batch = some_pages(self.entry.number, &mut changed);
            if batch.is_empty() {
                break;
            }
            let indices: Vec<u64> = batch.iter().map(|one| one.place.index).collect();
            let pointers = self.packer.pack_all(batch).await?;
            leaves.extend(indices.into_iter().zip(pointers.into_iter().map(Some)));
        }
        if leaves.is_empty() {
            return Ok(self.entry.content.clone());
        }
        let change = Update {
            leaves,
            keep_below: u64::MAX,
            lost_below: u64::MAX,
        };
        let updated = tree::update(self.packer, self.entry.number, self.map_root(), change).await?;
        Ok(updated.root.map_or(Content::Empty, Content::Map))
    }

    fn map_root(&self) -> Option<TreeRoot> {
        match self.entry.content {
            Content::Map(root) => Some(root),
            Content::Empty | Content::Inline(_) => None,
        }
    }

    /// Rewrites the blocks that changed, and the map above them.
    async fn build_map(&mut self, size_bytes: u64) -> Result<(Content, u64), CheckpointError> {
        let block_bytes = self.block_bytes;
        let layer = self.entry.layer.clone();
        let keep_below = match layer.base_below {
            u64::MAX => u64::MAX,
            cut => cut.div_ceil(block_bytes),
        };
        let mut blocks = changed_blocks(&layer.extents, block_bytes);
        // The block that a truncation cut through still has the old bytes behind the cut.
        if layer.base_below != u64::MAX && !layer.base_below.is_multiple_of(block_bytes) {
            blocks.push(layer.base_below / block_bytes);
        }
        if matches!(self.entry.content, Content::Inline(_)) {
            blocks.push(0);
        }
        blocks.sort_unstable();
        blocks.dedup();
        if firn_env::planted!("volume.drop_last_block") && blocks.len() > 1 {
            blocks.pop();
        }
        let mut leaves = BTreeMap::new();
        let per_batch = (BATCH_BYTES / block_bytes as usize).max(1);
        for some in blocks.chunks(per_batch) {
            let mut batch = Vec::with_capacity(some.len());
            for &index in some {
                let start = index * block_bytes;
                let end = (start + block_bytes).min(size_bytes);
                if start >= end {
                    continue;
                }
                let (payload, lost) = self.assemble(start, end).await?;
                // A block of zeros is a hole, and holes cost nothing.
                if lost.is_empty() && payload.iter().all(|byte| *byte == 0) {
                    leaves.insert(index, None);
                    continue;
                }
                let place = Place {
                    inode: self.entry.number,
                    level: 0,
                    index,
                };
                let (plain, children) = (lost.encode(), Vec::new());
                batch.push(ToPack {
                    kind: Kind::Block,
                    place,
                    plain,
                    children,
                    payload,
                });
            }
            let places: Vec<u64> = batch.iter().map(|one| one.place.index).collect();
            let pointers = self.packer.pack_all(batch).await?;
            leaves.extend(places.into_iter().zip(pointers.into_iter().map(Some)));
            let packed_to = (some[some.len() - 1] + 1) * block_bytes;
            self.release_packed(&layer.extents, some[0] * block_bytes, packed_to);
        }
        let old = self.map_root();
        let used_before = match (&self.entry.content, layer.base_below) {
            (Content::Map(_), u64::MAX) => self.entry.committed_used_bytes,
            (Content::Map(_), cut) => self
                .entry
                .committed_used_bytes
                .min(cut.next_multiple_of(block_bytes)),
            (Content::Empty | Content::Inline(_), _) => 0,
        };
        let change = Update {
            leaves,
            keep_below,
            lost_below: size_bytes.div_ceil(block_bytes),
        };
        let updated = tree::update(self.packer, self.entry.number, old, change).await?;
        let used = (used_before + updated.added * block_bytes)
            .saturating_sub(updated.removed * block_bytes)
            .min(size_bytes.next_multiple_of(crate::BLOCK_BYTES_MIN));
        Ok(match updated.root {
            None => (Content::Empty, 0),
            Some(root) => (Content::Map(root), used),
        })
    }

    /// Lets go of the memory of extents that end in what was just packed: nothing needs them there but reads, which find them
    /// in the journal until the commit. One that goes on behind it is still to be packed.
    fn release_packed(&self, extents: &ExtentMap, from: u64, to: u64) {
        let Some(journal) = self.journal else { return };
        for (start, extent) in extents.touching(from, to) {
            if start + extent.length <= to && journal.is_written(&extent.buffer.record) {
                extent.buffer.drop_memory();
            }
        }
    }

    /// The bytes of `start..end` as the frozen state shows them, and what of them is lost; the range lies in one block (or in
    /// a small file) and starts where the block starts.
    async fn assemble(&mut self, start: u64, end: u64) -> Result<(Bytes, LostRanges), CheckpointError> {
        let extents = self.entry.layer.extents.overlapping(start, end);
        if let [(only_start, extent)] = &extents[..]
            && *only_start == start
            && extent.length == end - start
        {
            return Ok((self.extent_bytes(extent).await?, LostRanges::default()));
        }
        let mut buffer = BytesMut::zeroed((end - start) as usize);
        let mut lost = LostRanges::default();
        let covered: u64 = extents.iter().map(|(_, extent)| extent.length).sum();
        if covered < end - start {
            let (base, base_lost) = self.base(start, end.min(self.entry.layer.base_below)).await?;
            let length = base.len().min(buffer.len());
            buffer[..length].copy_from_slice(&base[..length]);
            lost = base_lost;
        }
        for (at, extent) in &extents {
            let bytes = self.extent_bytes(extent).await?;
            let at = (at - start) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
            lost.heal(at as u32, (at + bytes.len()) as u32);
        }
        Ok((buffer.freeze(), lost))
    }

    async fn extent_bytes(&self, extent: &Extent) -> Result<Bytes, CheckpointError> {
        let range = extent.skip..extent.skip + extent.length as usize;
        if let Some(bytes) = extent.buffer.bytes() {
            return Ok(bytes.slice(range));
        }
        let journal = self
            .journal
            .expect("without a journal all data is kept in memory");
        let payload = journal.read(&extent.buffer.record).await?;
        let from = extent.buffer.payload_offset;
        Ok(payload.slice(from + range.start..from + range.end))
    }

    /// What the committed content shows at `start..end`, possibly shorter where it ends, and what of it is lost.
    async fn base(&mut self, start: u64, end: u64) -> Result<(Bytes, LostRanges), CheckpointError> {
        let whole = |bytes: Bytes| Ok((bytes, LostRanges::default()));
        if start >= end {
            return whole(Bytes::new());
        }
        match &self.entry.content {
            Content::Empty => whole(Bytes::new()),
            Content::Inline(bytes) => {
                let from = bytes.len().min(start as usize);
                whole(bytes.slice(from..bytes.len().min(end as usize)))
            }
            Content::Map(root) => {
                let number = self.entry.number;
                let index = start / self.block_bytes;
                let place = Place {
                    inode: number,
                    level: 0,
                    index,
                };
                let packer = &*self.packer;
                let length = (end - start) as u32;
                let block = packer.patiently(|| async {
                    match tree::lookup(packer.objects(), number, root, index).await? {
                        Some(pointer) => packer.objects().get(&pointer, place).await.map(Some),
                        None => Ok(None),
                    }
                });
                let block = match block.await {
                    Ok(Some(block)) => block,
                    Ok(None) => return whole(Bytes::new()),
                    Err(error) => {
                        tracing::error!(inode = number, index, %error, "part of a changed block is lost");
                        return Ok((Bytes::new(), LostRanges::one(0, length)));
                    }
                };
                let mut lost = LostRanges::decode(&block.header.plain)
                    .unwrap_or_else(|| LostRanges::one(0, block.payload.len() as u32));
                lost.truncate(length);
                Ok((
                    block.payload.slice(..block.payload.len().min(length as usize)),
                    lost,
                ))
            }
        }
    }
}

/// The next pages of a directory, as many as are sealed together.
fn some_pages(
    directory: u64,
    changed: &mut impl Iterator<Item = (PagePlace, Arc<DirectoryPage>)>,
) -> Vec<ToPack> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES
        && let Some((place, page)) = changed.next()
    {
        let payload = page.encode();
        bytes += payload.len();
        batch.push(ToPack {
            kind: Kind::Block,
            place: Place {
                inode: directory,
                level: 0,
                index: place.index(),
            },
            plain: Bytes::new(),
            children: Vec::new(),
            payload,
        });
    }
    batch
}

/// Indices of the blocks that extents touch.
fn changed_blocks(extents: &ExtentMap, block_bytes: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = Vec::new();
    for (start, extent) in extents.iter() {
        let first = start / block_bytes;
        let last = (start + extent.length - 1) / block_bytes;
        let next = blocks.last().map_or(first, |seen| first.max(seen + 1));
        blocks.extend(next..=last);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::{BATCH_BYTES, some_pages};
    use crate::state::{DirectoryPage, NamedInode, PagePlace};
    use std::sync::Arc;

    #[test]
    fn a_huge_directory_is_packed_in_batches_and_its_pages_are_let_go_of() {
        let depth = 10;
        let pages: Vec<_> = (0..1_u64 << depth)
            .map(|number| {
                let place = PagePlace::at(depth, (1 << depth) - 1 + number);
                let mut page = DirectoryPage::default();
                for entry in 0..60 {
                    let name = format!("a-name-of-some-length-{number}-{entry}")
                        .into_bytes()
                        .into();
                    page.insert(place.start + entry * 16, NamedInode { name, inode: entry });
                }
                (place, Arc::new(page))
            })
            .collect();
        let watched = Arc::downgrade(&pages[0].1);
        let count = pages.len();
        let mut pages = pages.into_iter();
        let (mut batches, mut packed) = (0, 0);
        loop {
            let batch = some_pages(7, &mut pages);
            if batch.is_empty() {
                break;
            }
            assert!(watched.upgrade().is_none(), "a page that is packed is not held");
            let bytes: usize = batch.iter().map(|one| one.payload.len()).sum();
            assert!(bytes < BATCH_BYTES + (8 << 10), "{bytes} bytes in one batch");
            batches += 1;
            packed += batch.len();
        }
        assert_eq!(packed, count);
        assert!(batches > 2, "{batches}");
    }
}
