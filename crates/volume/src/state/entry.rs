//! One loaded inode with its layers of data.

use super::directory::{DirectoryPage, LoadedPages, PagePlace};
use crate::{extents::ExtentMap, inode::Inode, journal::Sequence};
use bytes::Bytes;
use firn_format::TreeRoot;
use std::sync::Arc;

/// Where the committed content of an inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nowhere: empty, or all holes, or never committed.
    Empty,
    /// In the inode object itself.
    Inline(Bytes),
    /// In a block map.
    Map(TreeRoot),
}

/// Changes of a file's data on top of what is below.
#[derive(Clone)]
pub struct FileLayer {
    pub extents: ExtentMap,
    /// Bytes at and beyond this offset show nothing of the layers below: the smallest size since the layer began.
    pub base_below: u64,
    /// The inode's `used_bytes` when the layer was frozen.
    pub used_bytes: u64,
}

impl Default for FileLayer {
    fn default() -> Self {
        Self {
            extents: ExtentMap::default(),
            base_below: u64::MAX,
            used_bytes: 0,
        }
    }
}

impl FileLayer {
    /// Whether the data below shows through unchanged.
    pub fn is_transparent(&self) -> bool {
        self.extents.is_empty() && self.base_below == u64::MAX
    }
}

/// A loaded inode, or the tombstone of a removed one.
pub struct Entry {
    /// `None`: removed, but the committed map still has it.
    pub inode: Option<Inode>,
    pub content: Content,
    /// Bytes that hold data in the committed content.
    pub committed_used_bytes: u64,
    pub active: FileLayer,
    /// What the checkpoint under way has taken.
    pub frozen: Option<Arc<FileLayer>>,
    pub pages: LoadedPages,
    /// Changed since the last freeze.
    pub dirty: bool,
    /// The record that changed it last, while it is dirty or frozen.
    pub changed_by: Sequence,
    /// Used since the last sweep.
    pub referenced: bool,
}

impl Entry {
    pub fn committed(inode: Inode, content: Content) -> Self {
        let mut pages = LoadedPages::default();
        if inode.is_directory() && content == Content::Empty {
            pages = LoadedPages::new_directory();
            // A directory committed without pages is empty; its one page is as committed as it can be.
            let _ = pages.freeze();
        }
        Self {
            committed_used_bytes: inode.used_bytes,
            inode: Some(inode),
            content,
            active: FileLayer::default(),
            frozen: None,
            pages,
            dirty: false,
            changed_by: Sequence(0),
            referenced: true,
        }
    }

    /// A new inode, made by this record.
    pub fn created(inode: Inode, created_by: Sequence) -> Self {
        let pages = if inode.is_directory() {
            LoadedPages::new_directory()
        } else {
            LoadedPages::default()
        };
        Self {
            inode: Some(inode),
            content: Content::Empty,
            committed_used_bytes: 0,
            active: FileLayer::default(),
            frozen: None,
            pages,
            dirty: true,
            changed_by: created_by,
            referenced: true,
        }
    }

    pub(super) fn freeze(&mut self, number: u64, orphan: bool) -> FrozenEntry {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        self.dirty = false;
        let mut layer = std::mem::take(&mut self.active);
        layer.used_bytes = self.inode.as_ref().map_or(0, |inode| inode.used_bytes);
        let layer = Arc::new(layer);
        self.frozen = Some(layer.clone());
        let (changed, removed) = self.pages.freeze();
        FrozenEntry {
            number,
            orphan,
            inode: self.inode.clone(),
            content: self.content.clone(),
            committed_used_bytes: self.committed_used_bytes,
            layer,
            pages: FrozenPages { changed, removed },
        }
    }
}

/// Pages of a directory that a checkpoint must write or clear.
#[derive(Clone, Default)]
pub struct FrozenPages {
    pub changed: Vec<(PagePlace, Arc<DirectoryPage>)>,
    pub removed: Vec<PagePlace>,
}

/// One inode as a checkpoint sees it.
#[derive(Clone)]
pub struct FrozenEntry {
    pub number: u64,
    /// Unlinked but retained.
    pub orphan: bool,
    /// `None`: removed.
    pub inode: Option<Inode>,
    /// What is committed.
    pub content: Content,
    pub committed_used_bytes: u64,
    pub layer: Arc<FileLayer>,
    pub pages: FrozenPages,
}
