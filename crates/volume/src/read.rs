//! Reading file data: looking down through the layers, fetching what is committed.
//!
//! What a read shows is decided under the lock, in one instant; the bytes themselves come afterwards, from memory, the
//! journal or the cache and cloud. That is safe because none of them changes: extents and blocks are immutable.

use crate::{
    damage::LostRanges,
    extents::Extent,
    journal::JournalError,
    objects::Object,
    read_view::{ReadView, read_failed},
    state::{Content, FileLayer},
    tree,
};
use bytes::Bytes;
use firn_format::{Place, Pointer, TreeRoot};
use firn_vfs::{Caller, FileHandle, ReadReply, VfsError, rules};

/// One read or write; what NFS clients ask for at most by default.
pub(crate) const IO_BYTES_MAX: u32 = 1 << 20;

/// Plans of one read: each but the last met a checkpoint that moved its data from the journal to the log.
const READ_PLANS_MAX: usize = 16;

/// Zeros for holes, shared by all readers.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A part of what a read shows.
enum Piece {
    /// A hole.
    Zeros(u64),
    /// Written since the last commit.
    Extent(Extent),
    /// In the inode.
    Inline(Bytes),
    /// In the block map, from this file offset on.
    Committed { root: TreeRoot, start: u64, length: u64 },
}

/// What `start..end` of a file shows: the active layer, where it is open the frozen one, where that is open the committed
/// content.
fn plan(layers: &[&FileLayer], content: &Content, start: u64, end: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    descend(layers, content, start, end, &mut pieces);
    pieces
}

fn descend(layers: &[&FileLayer], content: &Content, start: u64, end: u64, pieces: &mut Vec<Piece>) {
    if start >= end {
        return;
    }
    let Some((top, below)) = layers.split_first() else {
        return committed(content, start, end, pieces);
    };
    let gap = |from: u64, to: u64, pieces: &mut Vec<Piece>| {
        let open_to = to.min(top.base_below).max(from);
        descend(below, content, from, open_to, pieces);
        zeros(to - open_to, pieces);
    };
    let mut at = start;
    for (extent_start, extent) in top.extents.overlapping(start, end) {
        gap(at, extent_start, pieces);
        at = extent_start + extent.length;
        pieces.push(Piece::Extent(extent));
    }
    gap(at, end, pieces);
}

fn committed(content: &Content, start: u64, end: u64, pieces: &mut Vec<Piece>) {
    match content {
        Content::Empty => zeros(end - start, pieces),
        Content::Inline(bytes) => {
            let length = bytes.len() as u64;
            let (from, to) = (start.min(length), end.min(length));
            if from < to {
                pieces.push(Piece::Inline(bytes.slice(from as usize..to as usize)));
            }
            zeros((end - start) - (to - from), pieces);
        }
        Content::Map(root) => pieces.push(Piece::Committed {
            root: *root,
            start,
            length: end - start,
        }),
    }
}

fn zeros(length: u64, pieces: &mut Vec<Piece>) {
    if length > 0 {
        pieces.push(Piece::Zeros(length));
    }
}

/// Why planned pieces have no bytes.
enum Unresolved {
    /// They were committed and left the journal since they were planned: plan again.
    Moved,
    /// They cannot be read.
    Failed(VfsError),
}

impl From<VfsError> for Unresolved {
    fn from(error: VfsError) -> Self {
        Self::Failed(error)
    }
}

impl ReadView<'_> {
    /// Reads up to [`IO_BYTES_MAX`] of a file.
    pub async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        let number = self.number(file)?;
        for _ in 0..READ_PLANS_MAX {
            let (attributes, end, pieces) = self
                .ask(|state| {
                    let seen = state.see(number)?;
                    rules::may_read(seen.subject(), &caller.credentials)?;
                    let size = seen.attributes.size_bytes;
                    let start = offset.min(size);
                    let end = offset
                        .saturating_add(u64::from(length_bytes.min(IO_BYTES_MAX)))
                        .min(size)
                        .max(start);
                    let entry = state.entry(number)?.ok_or(VfsError::Stale)?;
                    let pieces = match &entry.frozen {
                        Some(frozen) => plan(&[&entry.active, frozen], &entry.content, start, end),
                        None => plan(&[&entry.active], &entry.content, start, end),
                    };
                    Ok((seen.attributes, end, pieces))
                })
                .await?;
            match self.resolve(number, pieces).await {
                Ok(data) => {
                    return Ok(ReadReply {
                        data,
                        end_of_file: end >= attributes.size_bytes,
                        attributes,
                    });
                }
                Err(Unresolved::Moved) => {}
                Err(Unresolved::Failed(error)) => return Err(error),
            }
        }
        Err(VfsError::TryAgain {
            reason: "the file is changed and committed faster than it can be read",
        })
    }

    /// The bytes of the pieces, in order.
    async fn resolve(&self, inode: u64, pieces: Vec<Piece>) -> Result<Vec<Bytes>, Unresolved> {
        let mut data = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                Piece::Zeros(length) => push_zeros(length, &mut data),
                Piece::Inline(bytes) => data.push(bytes),
                Piece::Extent(extent) => data.push(self.extent_bytes(&extent).await?),
                Piece::Committed { root, start, length } => {
                    self.committed_bytes(inode, &root, start, length, &mut data)
                        .await?;
                }
            }
        }
        Ok(data)
    }

    async fn extent_bytes(&self, extent: &Extent) -> Result<Bytes, Unresolved> {
        let range = extent.skip..extent.skip + extent.length as usize;
        if let Some(bytes) = extent.buffer.bytes() {
            return Ok(bytes.slice(range));
        }
        let payload = self.journal.read(&extent.buffer.record).await;
        let payload = payload.map_err(|error: JournalError| match error {
            JournalError::Trimmed { .. } => Unresolved::Moved,
            error => Unresolved::Failed(VfsError::Io(error.to_string())),
        })?;
        let from = extent.buffer.payload_offset;
        Ok(payload.slice(from + range.start..from + range.end))
    }

    /// Committed blocks, read side by side; the caller bounds the length.
    async fn committed_bytes(
        &self,
        inode: u64,
        root: &TreeRoot,
        start: u64,
        length: u64,
        data: &mut Vec<Bytes>,
    ) -> Result<(), VfsError> {
        let end = start + length;
        let (first, last) = (start / self.block_bytes, (end - 1) / self.block_bytes);
        let file = (self.file_system, inode);
        let passed = self.read_ahead.note(self.objects, file, root, start..end);
        let leaves = tree::range(self.objects, inode, root, first, last + 1, usize::MAX)
            .await
            .map_err(read_failed)?;
        let wanted: Vec<(Pointer, Place)> = leaves
            .into_iter()
            .map(|(index, pointer)| {
                (
                    pointer,
                    Place {
                        inode,
                        level: 0,
                        index,
                    },
                )
            })
            .collect();
        let kept_from = wanted.partition_point(|(_, place)| place.index < passed);
        let blocks = self.objects.get_all_keeping(&wanted, kept_from).await;
        let blocks = blocks.map_err(read_failed)?;
        let mut blocks = blocks.into_iter().peekable();
        for index in first..=last {
            let block_start = index * self.block_bytes;
            let from = start.max(block_start) - block_start;
            let to = end.min(block_start + self.block_bytes) - block_start;
            match blocks.next_if(|block| block.header.place.index == index) {
                Some(block) => block_bytes(inode, &block, (from, to), data)?,
                None => push_zeros(to - from, data),
            }
        }
        Ok(())
    }
}

/// The bytes `range` of one block.
fn block_bytes(inode: u64, block: &Object, range: (u64, u64), data: &mut Vec<Bytes>) -> Result<(), VfsError> {
    let (from, to) = range;
    if !block.header.plain.is_empty() {
        let lost = LostRanges::decode(&block.header.plain);
        if lost.is_none_or(|lost| lost.touch(from as u32, to as u32)) {
            let index = block.header.place.index;
            let detail = format!("bytes of block {index} were already lost when it was last changed");
            return Err(VfsError::Corrupt { inode, detail });
        }
    }
    let have = block.payload.len() as u64;
    let (have_from, have_to) = (from.min(have), to.min(have));
    if have_from < have_to {
        data.push(block.payload.slice(have_from as usize..have_to as usize));
    }
    push_zeros((to - from) - (have_to - have_from), data);
    Ok(())
}

fn push_zeros(mut length: u64, data: &mut Vec<Bytes>) {
    while length > 0 {
        let some = length.min(ZEROS.len() as u64);
        data.push(Bytes::from_static(&ZEROS[..some as usize]));
        length -= some;
    }
}
