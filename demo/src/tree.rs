//! The tree that is copied: real files of this machine, sources first, in an order that is the same every time.
//!
//! Trees are taken whole, directory by directory, until there are enough files and bytes. Only if the machine has too little
//! of its own is the rest made up, from a counter, and the demonstration says so.

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// At least so many files are copied,
const FILES_MIN: usize = 6_000;
/// and so many bytes.
const BYTES_MIN: u64 = 120 << 20;
/// Larger files would make it a copy of one file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Files made up if the machine has too few.
const MADE_UP_BYTES: u64 = 24 << 10;

/// Where a file's bytes come from.
#[derive(Clone, Debug)]
pub enum Content {
    /// A file of this machine.
    File(PathBuf),
    /// Bytes that follow from a number.
    MadeUp(u64),
    /// The target of a symbolic link.
    Link(Vec<u8>),
}

/// One file or link of the tree.
#[derive(Clone, Debug)]
pub struct Item {
    /// Index of its directory in [`Tree::directories`].
    pub directory: usize,
    /// Its name there.
    pub name: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// What it holds.
    pub content: Content,
}

/// A directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Index of its parent; the root is its own.
    pub parent: usize,
    /// Its name there.
    pub name: Vec<u8>,
}

/// What is copied.
#[derive(Debug)]
pub struct Tree {
    /// Parents before children; the first is the root.
    pub directories: Vec<Directory>,
    /// Files and links.
    pub items: Vec<Item>,
    /// All bytes.
    pub bytes: u64,
    /// Where it comes from.
    pub sources: BTreeSet<PathBuf>,
    /// How many files were made up.
    pub made_up: usize,
}

impl Item {
    /// The bytes of the item.
    pub fn read(&self) -> Result<Vec<u8>> {
        match &self.content {
            Content::File(path) => fs::read(path).with_context(|| format!("reading {}", path.display())),
            Content::MadeUp(number) => {
                let mut bytes = vec![0; self.bytes as usize];
                blake3::Hasher::new()
                    .update(&number.to_le_bytes())
                    .finalize_xof()
                    .fill(&mut bytes);
                Ok(bytes)
            }
            Content::Link(target) => Ok(target.clone()),
        }
    }
}

impl Tree {
    /// Finds enough on this machine.
    pub fn gather() -> Result<Self> {
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
        let candidates = [
            cargo.join("registry/src"),
            PathBuf::from("/usr/src"),
            PathBuf::from("/usr/include"),
            PathBuf::from("/usr/lib/python3"),
            PathBuf::from("/usr/share"),
        ];
        let mut tree = Self {
            directories: vec![Directory {
                parent: 0,
                name: Vec::new(),
            }],
            items: Vec::new(),
            bytes: 0,
            sources: BTreeSet::new(),
            made_up: 0,
        };
        for candidate in candidates {
            if tree.is_enough() {
                break;
            }
            if candidate.is_dir() {
                let name = candidate.to_string_lossy().trim_matches('/').replace('/', "-");
                let before = tree.items.len();
                let directory = tree.directory(0, name.into_bytes());
                tree.take(&candidate, directory);
                if tree.items.len() > before {
                    tree.sources.insert(candidate);
                }
            }
        }
        tree.make_up();
        Ok(tree)
    }

    /// Files, links not counted.
    pub fn files(&self) -> usize {
        let is_file = |item: &&Item| !matches!(item.content, Content::Link(_));
        self.items.iter().filter(is_file).count()
    }

    /// The path of an item within the tree.
    pub fn path(&self, item: &Item) -> String {
        let mut path = String::from_utf8_lossy(&item.name).into_owned();
        let mut here = item.directory;
        while here != 0 {
            let directory = &self.directories[here];
            path = format!("{}/{path}", String::from_utf8_lossy(&directory.name));
            here = directory.parent;
        }
        path
    }

    fn is_enough(&self) -> bool {
        self.items.len() >= FILES_MIN && self.bytes >= BYTES_MIN
    }

    fn directory(&mut self, parent: usize, name: Vec<u8>) -> usize {
        self.directories.push(Directory { parent, name });
        self.directories.len() - 1
    }

    /// Takes what can be read of `path`; what cannot is left out.
    fn take(&mut self, path: &Path, directory: usize) {
        let mut entries: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if self.is_enough() {
                return;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let (name, path) = (entry.file_name().as_bytes().to_vec(), entry.path());
            if metadata.is_dir() {
                let made = self.directory(directory, name);
                self.take(&path, made);
                continue;
            }
            let content = if metadata.is_symlink() {
                match fs::read_link(&path) {
                    Ok(target) => Content::Link(target.as_os_str().as_bytes().to_vec()),
                    Err(_) => continue,
                }
            } else if metadata.is_file() && metadata.len() <= FILE_BYTES_MAX && fs::File::open(&path).is_ok()
            {
                Content::File(path)
            } else {
                continue;
            };
            self.bytes += metadata.len();
            self.items.push(Item {
                directory,
                name,
                mode: metadata.permissions().mode() & 0o777,
                bytes: metadata.len(),
                content,
            });
        }
    }

    fn make_up(&mut self) {
        if self.is_enough() {
            return;
        }
        let directory = self.directory(0, b"made-up".to_vec());
        while !self.is_enough() {
            let number = self.made_up as u64;
            self.items.push(Item {
                directory,
                name: format!("file-{number:06}").into_bytes(),
                mode: 0o644,
                bytes: MADE_UP_BYTES,
                content: Content::MadeUp(number),
            });
            self.bytes += MADE_UP_BYTES;
            self.made_up += 1;
        }
    }
}
