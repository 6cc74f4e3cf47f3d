//! Holes of a file: where data begins and ends (SEEK_DATA, SEEK_HOLE).
//!
//! What was written since the last checkpoint is known to the byte; what is committed by blocks, since a block of zeros is none. Committed
//! content is asked of the nodes of the block map alone: no block is read, and what lies below a missing node is passed over at once.

use crate::{
    extents::ExtentMap,
    read_view::{ReadView, read_failed},
    state::{Content, FileLayer},
    tree,
};
use firn_format::TreeRoot;
use firn_vfs::{Caller, FileHandle, FileKind, SeekTo, VfsError, rules};

/// Extents that are looked at under one lock, at some 20 ns each.
const EXTENTS_AT_ONCE: usize = 16_384;
/// Leaves of the block map that are looked at in one step: 128 MiB of a file at the default block size.
const LEAVES_AT_ONCE: usize = 4096;
/// Looks at the state in one call: an end to a race with a writer that is faster.
const LOOKS_MAX: usize = 100_000;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Hole,
    Data,
    /// What the block map says.
    Committed(TreeRoot),
}

/// Stretches of one kind, by their ends, from where the walk began.
struct Walk {
    found: Vec<(u64, Kind)>,
    extents_left: usize,
}

impl Walk {
    fn is_over(&self) -> bool {
        self.extents_left == 0
    }

    fn push(&mut self, start: u64, end: u64, kind: Kind) {
        if start >= end {
            return;
        }
        match self.found.last_mut() {
            Some((last, same)) if *same == kind => *last = end,
            _ => self.found.push((end, kind)),
        }
    }

    /// As [`crate::read`] looks down: where a layer is open, the one below it counts.
    fn descend(&mut self, layers: &[&FileLayer], content: &Content, start: u64, end: u64) {
        let Some((top, below)) = layers.split_first() else {
            return self.committed(content, start, end);
        };
        let mut at = start;
        for (from, to) in covered(&top.extents, start, end) {
            self.gap(top, (below, content), at, from);
            if self.is_over() {
                return;
            }
            self.push(from, to, Kind::Data);
            self.extents_left -= 1;
            at = to;
            if self.is_over() {
                return;
            }
        }
        self.gap(top, (below, content), at, end);
    }

    fn gap(&mut self, top: &FileLayer, (below, content): (&[&FileLayer], &Content), from: u64, to: u64) {
        if from >= to {
            return;
        }
        let open_to = to.min(top.base_below).max(from);
        let below = match firn_env::planted!("volume.seek_passes_what_is_being_committed") {
            true => &[],
            false => below,
        };
        if from < open_to {
            self.descend(below, content, from, open_to);
        }
        if !self.is_over() {
            self.push(open_to, to, Kind::Hole);
        }
    }

    fn committed(&mut self, content: &Content, start: u64, end: u64) {
        match content {
            Content::Empty => self.push(start, end, Kind::Hole),
            Content::Inline(bytes) => {
                let inline_end = end.min(bytes.len() as u64).max(start);
                self.push(start, inline_end, Kind::Data);
                self.push(inline_end, end, Kind::Hole);
            }
            Content::Map(root) => self.push(start, end, Kind::Committed(*root)),
        }
    }
}

fn covered(extents: &ExtentMap, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    extents
        .touching(start, end)
        .map(move |(from, extent)| (from.max(start), (from + extent.length).min(end)))
}

impl ReadView<'_> {
    /// See [`firn_vfs::Vfs::seek`].
    pub async fn seek(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        let number = self.number(file)?;
        let mut at = offset;
        for _ in 0..LOOKS_MAX {
            let (size, found) = self
                .ask(|state| {
                    let seen = state.see(number)?;
                    rules::may_read(seen.subject(), &caller.credentials)?;
                    if seen.attributes.kind != FileKind::Regular {
                        return Err(VfsError::InvalidArgument.into());
                    }
                    let size = seen.attributes.size_bytes;
                    let entry = state.entry(number)?.ok_or(VfsError::Stale)?;
                    let mut walk = Walk {
                        found: Vec::new(),
                        extents_left: EXTENTS_AT_ONCE,
                    };
                    if at < size {
                        match &entry.frozen {
                            Some(frozen) => walk.descend(&[&entry.active, frozen], &entry.content, at, size),
                            None => walk.descend(&[&entry.active], &entry.content, at, size),
                        }
                    }
                    Ok((size, walk.found))
                })
                .await?;
            if at >= size {
                // The end of a file is a hole, if there is something before it.
                return Ok((to == SeekTo::Hole && offset < size).then_some(size));
            }
            for (end, kind) in found {
                let here = match (kind, to) {
                    (Kind::Hole, SeekTo::Hole) | (Kind::Data, SeekTo::Data) => Some(at),
                    (Kind::Hole, SeekTo::Data) | (Kind::Data, SeekTo::Hole) => None,
                    (Kind::Committed(root), to) => self.seek_committed(number, &root, (at, end), to).await?,
                };
                if here.is_some() {
                    return Ok(here);
                }
                at = end;
            }
        }
        Err(VfsError::TryAgain {
            reason: "the file is changed faster than it can be looked through",
        })
    }

    async fn seek_committed(
        &self,
        inode: u64,
        root: &TreeRoot,
        (start, end): (u64, u64),
        to: SeekTo,
    ) -> Result<Option<u64>, VfsError> {
        let (mut next, last) = (start / self.block_bytes, (end - 1) / self.block_bytes);
        let limit = match to {
            SeekTo::Data => 1,
            SeekTo::Hole => LEAVES_AT_ONCE,
        };
        while next <= last {
            let leaves = tree::range(self.objects, inode, root, next, last + 1, limit)
                .await
                .map_err(read_failed)?;
            let beginning = |block: u64| Some((block * self.block_bytes).max(start));
            if to == SeekTo::Data {
                return Ok(leaves.first().and_then(|(index, _)| beginning(*index)));
            }
            for (index, _) in &leaves {
                if *index != next {
                    return Ok(beginning(next));
                }
                next += 1;
            }
            if leaves.len() < limit {
                return Ok(beginning(next).filter(|_| next <= last));
            }
        }
        Ok(None)
    }
}
