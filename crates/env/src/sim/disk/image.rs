//! Crash images of a simulated disk: which pages survive, and how they are chosen.

use crate::sim::seeded::Seeded;
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

/// The unit of storage and of space accounting, as ext4's.
pub(super) const PAGE_BYTES: usize = 4096;

pub(super) type Page = [u8; PAGE_BYTES];

/// The bytes from `offset` to `end`; where there is no page, zeros.
pub(super) fn read_pages(pages: &BTreeMap<u64, Arc<Page>>, offset: u64, end: u64) -> Bytes {
    if offset >= end {
        return Bytes::new();
    }
    let mut out = BytesMut::zeroed((end - offset) as usize);
    let first = offset / PAGE_BYTES as u64;
    for (number, page) in pages.range(first..end.div_ceil(PAGE_BYTES as u64)) {
        let page_start = number * PAGE_BYTES as u64;
        let from = offset.max(page_start);
        let to = end.min(page_start + PAGE_BYTES as u64);
        out[(from - offset) as usize..(to - offset) as usize]
            .copy_from_slice(&page[(from - page_start) as usize..(to - page_start) as usize]);
    }
    out.freeze()
}

/// Which of the unsynced changes survive a crash. All of these happen to real disks; the interesting ones are rare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// None: a power cut with a volatile cache.
    Nothing,
    /// All: the kernel had written everything back.
    Everything,
    /// Those made up to this moment (a sequence number of the disk).
    Prefix(u64),
    /// Each one on its own with this probability in percent; lost sectors show any content they had since the last sync.
    Each(u8),
}

impl Survival {
    /// Draws one; `sequence` is the disk's newest.
    pub(crate) fn draw(sequence: u64, random: &mut Seeded) -> Self {
        match random.below(8) {
            0 | 1 => Self::Nothing,
            2 => Self::Everything,
            3 => Self::Prefix(random.below(sequence.saturating_add(1))),
            4 => Self::Each(90),
            5 => Self::Each(10),
            _ => Self::Each(50),
        }
    }

    /// Picks among `older` contents (made at `made(index)`, the first durable) and the current one, made at `last`: the
    /// index of an older one, or `None` for the current.
    pub(super) fn choose(
        self,
        older: usize,
        made: impl Fn(usize) -> u64,
        last: u64,
        random: &mut Seeded,
    ) -> Option<usize> {
        match self {
            Self::Nothing => Some(0),
            Self::Everything => None,
            Self::Prefix(until) if last <= until => None,
            Self::Prefix(until) => Some((1..older).rev().find(|index| made(*index) <= until).unwrap_or(0)),
            Self::Each(percent) if random.chance(u64::from(percent), 100) => None,
            Self::Each(_) => Some(random.index(older)),
        }
    }

    /// Whether a single change, made at `sequence`, survives.
    pub(super) fn keeps(self, sequence: u64, random: &mut Seeded) -> bool {
        self.choose(1, |_| 0, sequence, random).is_none()
    }
}

/// One file of a [`DiskImage`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FileImage {
    pub(super) pages: BTreeMap<u64, Arc<Page>>,
    pub(super) length: u64,
}

impl FileImage {
    /// A file with this content.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut pages = BTreeMap::new();
        for (number, chunk) in bytes.chunks(PAGE_BYTES).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                let mut page = [0; PAGE_BYTES];
                page[..chunk.len()].copy_from_slice(chunk);
                pages.insert(number as u64, Arc::new(page));
            }
        }
        Self {
            pages,
            length: bytes.len() as u64,
        }
    }

    /// Its content.
    pub fn to_bytes(&self) -> Bytes {
        read_pages(&self.pages, 0, self.length)
    }

    /// Its length.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// Directories and files of a quiesced disk: everything durable, nothing pending.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DiskImage {
    /// All but the root.
    pub directories: BTreeSet<String>,
    /// By path.
    pub files: BTreeMap<String, FileImage>,
}

impl DiskImage {
    /// Reads a real directory tree.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_from(root: &Path) -> io::Result<Self> {
        let mut image = Self::default();
        let mut open = vec![String::new()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(root.join(&directory))? {
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let path = if directory.is_empty() {
                    name
                } else {
                    format!("{directory}/{name}")
                };
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    image.directories.insert(path.clone());
                    open.push(path);
                } else if kind.is_file() {
                    image
                        .files
                        .insert(path, FileImage::from_bytes(&std::fs::read(entry.path())?));
                }
            }
        }
        Ok(image)
    }

    /// Writes the tree below a real directory, which must exist and should be empty.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_to(&self, root: &Path) -> io::Result<()> {
        for directory in &self.directories {
            std::fs::create_dir_all(root.join(directory))?;
        }
        for (path, file) in &self.files {
            std::fs::write(root.join(path), file.to_bytes())?;
        }
        Ok(())
    }
}
