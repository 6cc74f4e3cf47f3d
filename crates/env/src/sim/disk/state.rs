//! The disk model itself: names, contents, and which of both would survive. It has no clock and never fails by chance,
//! so that a recorded run can be replayed on it step by step.
//!
//! Names changed since their directory was last synced are kept as a list of operations in order; a crash applies any
//! subset of them to the durable names. A rename is one operation: its file is never lost, only found at either name.

use super::{
    content::Content,
    image::{DiskImage, Survival},
};
use crate::{DirectoryEntry, DiskError, EntryKind, FileStatus, WallTime, sim::seeded::Seeded};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// A file, named or only open.
pub(crate) struct Node {
    content: Content,
    handles: usize,
    /// Visible names.
    links: usize,
    modified: WallTime,
}

pub(crate) type NodeRef = Arc<Mutex<Node>>;

#[derive(Clone)]
enum NameOperation {
    CreateDirectory { path: String },
    Link { path: String, node: NodeRef },
    Unlink { path: String },
    Rename { from: String, to: String, node: NodeRef },
}

impl NameOperation {
    fn directories(&self) -> Vec<&str> {
        match self {
            Self::CreateDirectory { path } | Self::Link { path, .. } | Self::Unlink { path } => {
                vec![parent(path)]
            }
            Self::Rename { from, to, .. } => vec![parent(from), parent(to)],
        }
    }
}

#[derive(Clone, Default)]
struct Names {
    directories: BTreeSet<String>,
    files: BTreeMap<String, NodeRef>,
}

impl Names {
    fn apply(&mut self, operation: &NameOperation) {
        match operation {
            NameOperation::CreateDirectory { path } => {
                self.directories.insert(path.clone());
            }
            NameOperation::Link { path, node } => {
                self.files.insert(path.clone(), node.clone());
            }
            NameOperation::Unlink { path } => {
                self.files.remove(path);
            }
            NameOperation::Rename { from, to, node } => {
                if self.files.get(from).is_some_and(|there| Arc::ptr_eq(there, node)) {
                    self.files.remove(from);
                }
                self.files.insert(to.clone(), node.clone());
            }
        }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

fn is_within(names: &Names, directory: &str) -> bool {
    directory.is_empty() || (names.directories.contains(directory) && is_within(names, parent(directory)))
}

/// A disk's state.
pub(crate) struct DiskState {
    current: Names,
    durable: Names,
    pending: Vec<(u64, NameOperation)>,
    used_bytes: u64,
    pub(crate) capacity_bytes: u64,
    writes_through: bool,
    sequence: u64,
}

impl DiskState {
    pub(crate) fn new(image: &DiskImage, capacity_bytes: u64) -> Self {
        let mut used_bytes = 0;
        let files = image
            .files
            .iter()
            .map(|(path, file)| {
                let content = Content::from_image(file);
                used_bytes += content.charged_bytes();
                let node = Node {
                    content,
                    handles: 0,
                    links: 1,
                    modified: WallTime::default(),
                };
                (path.clone(), Arc::new(Mutex::new(node)))
            })
            .collect();
        let names = Names {
            directories: image.directories.clone(),
            files,
        };
        Self {
            durable: names.clone(),
            current: names,
            pending: Vec::new(),
            used_bytes,
            capacity_bytes,
            writes_through: false,
            sequence: 0,
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.current.files.keys().cloned().collect()
    }

    fn tick(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Whether changes are durable at once from now on; those of names made before become so too.
    pub(crate) fn set_writes_through(&mut self, on: bool) {
        self.writes_through = on;
        if on {
            for (_, operation) in self.pending.drain(..) {
                self.durable.apply(&operation);
            }
        }
    }

    fn change(&mut self, operation: NameOperation) {
        let sequence = self.tick();
        self.current.apply(&operation);
        if self.writes_through {
            self.durable.apply(&operation);
        } else {
            self.pending.push((sequence, operation));
        }
    }

    /// A file's content was changed.
    fn changed(&self, node: &mut Node, sequence: u64) {
        if self.writes_through {
            node.content.sync(sequence);
        }
    }

    pub(crate) fn check_directory(&self, path: &str, directory: &str) -> Result<(), DiskError> {
        if is_within(&self.current, directory) {
            Ok(())
        } else {
            Err(DiskError::NotFound {
                path: path.to_owned(),
            })
        }
    }

    fn find(&self, path: &str) -> Result<NodeRef, DiskError> {
        self.current
            .files
            .get(path)
            .cloned()
            .ok_or_else(|| DiskError::NotFound {
                path: path.to_owned(),
            })
    }

    pub(crate) fn open(&mut self, path: &str) -> Result<NodeRef, DiskError> {
        let node = self.find(path)?;
        lock(&node).handles += 1;
        Ok(node)
    }

    pub(crate) fn create(&mut self, path: &str, now: WallTime) -> Result<NodeRef, DiskError> {
        self.check_directory(path, parent(path))?;
        if self.current.files.contains_key(path) || self.current.directories.contains(path) {
            return Err(DiskError::AlreadyExists {
                path: path.to_owned(),
            });
        }
        let node = Arc::new(Mutex::new(Node {
            content: Content::default(),
            handles: 1,
            links: 1,
            modified: now,
        }));
        self.change(NameOperation::Link {
            path: path.to_owned(),
            node: node.clone(),
        });
        Ok(node)
    }

    pub(crate) fn close(&mut self, node: &NodeRef) {
        let mut node = lock(node);
        node.handles = node.handles.saturating_sub(1);
        if node.links == 0 && node.handles == 0 {
            self.used_bytes = self.used_bytes.saturating_sub(node.content.charged_bytes());
        }
    }

    fn unlinked(&mut self, node: &NodeRef) {
        let mut node = lock(node);
        node.links = node.links.saturating_sub(1);
        if node.links == 0 && node.handles == 0 {
            self.used_bytes = self.used_bytes.saturating_sub(node.content.charged_bytes());
        }
    }

    pub(crate) fn create_directory(&mut self, path: &str) {
        let mut at = 0;
        while at < path.len() {
            let end = path[at..].find('/').map_or(path.len(), |found| at + found);
            if end > 0 && !self.current.directories.contains(&path[..end]) {
                self.change(NameOperation::CreateDirectory {
                    path: path[..end].to_owned(),
                });
            }
            at = end + 1;
        }
    }

    pub(crate) fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.check_directory(directory, directory)?;
        let prefix = if directory.is_empty() {
            String::new()
        } else {
            format!("{directory}/")
        };
        Ok(self
            .current
            .files
            .range(prefix.clone()..)
            .map_while(|(path, _)| path.strip_prefix(&prefix))
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect())
    }

    pub(crate) fn remove(&mut self, path: &str) -> Result<(), DiskError> {
        let node = self.find(path)?;
        self.change(NameOperation::Unlink {
            path: path.to_owned(),
        });
        self.unlinked(&node);
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let node = self.find(from)?;
        self.check_directory(to, parent(to))?;
        let replaced = self.current.files.get(to).cloned();
        if replaced.as_ref().is_some_and(|there| Arc::ptr_eq(there, &node)) {
            // Two names of one file: POSIX leaves both.
            return Ok(());
        }
        self.change(NameOperation::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            node,
        });
        if let Some(replaced) = replaced {
            self.unlinked(&replaced);
        }
        Ok(())
    }

    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let node = self.find(from)?;
        self.check_directory(to, parent(to))?;
        if self.current.files.contains_key(to) || self.current.directories.contains(to) {
            return Err(DiskError::AlreadyExists { path: to.to_owned() });
        }
        lock(&node).links += 1;
        self.change(NameOperation::Link {
            path: to.to_owned(),
            node,
        });
        Ok(())
    }

    pub(crate) fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        if is_within(&self.current, path) {
            return Ok(FileStatus {
                kind: EntryKind::Directory,
                length_bytes: 0,
                modified: WallTime::default(),
            });
        }
        let node = self.find(path)?;
        let node = lock(&node);
        Ok(FileStatus {
            kind: EntryKind::File,
            length_bytes: node.content.length(),
            modified: node.modified,
        })
    }

    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        let prefix = if directory.is_empty() {
            String::new()
        } else {
            format!("{directory}/")
        };
        let mut entries: Vec<DirectoryEntry> = self
            .list(directory)?
            .into_iter()
            .map(|name| DirectoryEntry {
                name,
                kind: EntryKind::File,
            })
            .collect();
        entries.extend(
            self.current
                .directories
                .range(prefix.clone()..)
                .map_while(|path| path.strip_prefix(&prefix))
                .filter(|name| !name.contains('/'))
                .map(|name| DirectoryEntry {
                    name: name.to_owned(),
                    kind: EntryKind::Directory,
                }),
        );
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Makes the name operations of a directory up to `sequence` durable, with whatever they build on.
    pub(crate) fn sync_directory(&mut self, path: &str, sequence: u64) {
        let mut directories = BTreeSet::from([path.to_owned()]);
        let mut chosen = vec![false; self.pending.len()];
        for (index, (made, operation)) in self.pending.iter().enumerate().rev() {
            let touched = operation.directories();
            if *made <= sequence && touched.iter().any(|touched| directories.contains(*touched)) {
                chosen[index] = true;
                directories.extend(touched.into_iter().map(str::to_owned));
            }
        }
        let mut index = 0;
        let durable = &mut self.durable;
        self.pending.retain(|(_, operation)| {
            let now_durable = chosen[index];
            index += 1;
            if now_durable {
                durable.apply(operation);
            }
            !now_durable
        });
    }

    pub(crate) fn read(node: &NodeRef, offset: u64, length: usize) -> Bytes {
        lock(node).content.read(offset, length)
    }

    pub(crate) fn length(node: &NodeRef) -> u64 {
        lock(node).content.length()
    }

    fn reserve(&mut self, path: &str, node: &Node, offset: u64, end: u64) -> Result<(), DiskError> {
        let needed = node.content.needed_bytes(offset, end);
        if needed > self.free_bytes() {
            return Err(DiskError::Full {
                path: path.to_owned(),
            });
        }
        self.used_bytes += needed;
        Ok(())
    }

    pub(crate) fn write(
        &mut self,
        path: &str,
        node: &NodeRef,
        offset: u64,
        parts: &[Bytes],
        now: WallTime,
    ) -> Result<(), DiskError> {
        let sequence = self.tick();
        let mut node = lock(node);
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.reserve(path, &node, offset, offset + length)?;
        node.content.write(offset, parts, sequence);
        self.changed(&mut node, sequence);
        node.modified = now;
        Ok(())
    }

    pub(crate) fn allocate(&mut self, path: &str, node: &NodeRef, length: u64) -> Result<(), DiskError> {
        let sequence = self.tick();
        let mut node = lock(node);
        self.reserve(path, &node, 0, length)?;
        node.content.allocate(length, sequence);
        self.changed(&mut node, sequence);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, node: &NodeRef, length: u64, now: WallTime) {
        let sequence = self.tick();
        let mut node = lock(node);
        let before = node.content.charged_bytes();
        node.content.truncate(length, sequence);
        self.changed(&mut node, sequence);
        let after = node.content.charged_bytes();
        node.modified = now;
        self.used_bytes = (self.used_bytes + after).saturating_sub(before);
    }

    pub(crate) fn sync(node: &NodeRef, sequence: u64) {
        lock(node).content.sync(sequence);
    }

    pub(crate) fn abandon(node: &NodeRef, sequence: u64) {
        lock(node).content.abandon(sequence);
    }

    pub(crate) fn flip(&self, path: &str, offset: u64, bit: u8) -> Result<(), DiskError> {
        lock(&self.find(path)?).content.flip(offset, bit);
        Ok(())
    }

    /// What a crash now would leave.
    pub(crate) fn survivor(&self, survival: Survival, random: &mut Seeded) -> DiskImage {
        let mut names = self.durable.clone();
        for (sequence, operation) in &self.pending {
            if survival.keeps(*sequence, random) {
                names.apply(operation);
            }
        }
        DiskImage {
            directories: names
                .directories
                .iter()
                .filter(|directory| is_within(&names, directory))
                .cloned()
                .collect(),
            files: names
                .files
                .iter()
                .filter(|(path, _)| is_within(&names, parent(path)))
                .map(|(path, node)| (path.clone(), lock(node).content.survivor(&survival, random)))
                .collect(),
        }
    }

    /// What programs see now.
    pub(crate) fn visible(&self) -> DiskImage {
        let mut random = Seeded::new(0, 0);
        DiskImage {
            directories: self.current.directories.clone(),
            files: self
                .current
                .files
                .iter()
                .map(|(path, node)| {
                    let file = lock(node).content.survivor(&Survival::Everything, &mut random);
                    (path.clone(), file)
                })
                .collect(),
        }
    }
}

fn lock(node: &NodeRef) -> std::sync::MutexGuard<'_, Node> {
    node.lock().expect("no panic under a file's lock")
}
