//! A whole file system read through [`Vfs`], as a value that can be compared.

use crate::outcome::near;
use bytes::Bytes;
use firn_vfs::{Caller, Credentials, FileHandle, FileKind, Name, Timestamp, Vfs, VfsError};
use std::collections::BTreeMap;

/// Bytes of a read.
const READ_BYTES: u32 = 128 << 10;
/// Entries listed at once.
const PAGE_ENTRIES: u32 = 101;

/// One file, without what differs between two equal file systems.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in Attributes")]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub links: u32,
    pub owner: (u32, u32),
    pub size_bytes: u64,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub born: Timestamp,
    /// Of content or link target.
    pub hash: [u8; 32],
    pub xattrs: Vec<(Bytes, Bytes)>,
    pub acls: String,
    /// The first path of the same file.
    pub first_name: Vec<u8>,
}

impl Node {
    fn equals(&self, other: &Self) -> bool {
        let same = |one: &Self| Self {
            changed: one.born,
            ..one.clone()
        };
        near(self.changed, other.changed) && same(self) == same(other)
    }

    fn differs_from(&self, expected: &Self) -> String {
        let mut parts = Vec::new();
        let mut compare = |what: &str, found: String, expected: String| {
            if found != expected {
                parts.push(format!("{what} {found} instead of {expected}"));
            }
        };
        compare("kind", format!("{:?}", self.kind), format!("{:?}", expected.kind));
        compare(
            "mode",
            format!("{:04o}", self.mode),
            format!("{:04o}", expected.mode),
        );
        compare("links", self.links.to_string(), expected.links.to_string());
        compare(
            "owner",
            format!("{:?}", self.owner),
            format!("{:?}", expected.owner),
        );
        compare(
            "size",
            self.size_bytes.to_string(),
            expected.size_bytes.to_string(),
        );
        compare(
            "modified",
            format!("{:?}", self.modified),
            format!("{:?}", expected.modified),
        );
        compare(
            "changed",
            format!("{:?}", self.changed),
            format!("{:?}", expected.changed),
        );
        compare("born", format!("{:?}", self.born), format!("{:?}", expected.born));
        compare("content", hex(&self.hash), hex(&expected.hash));
        let keys = |node: &Self| {
            format!(
                "{:?}",
                node.xattrs
                    .iter()
                    .map(|(name, value)| (name, value.len()))
                    .collect::<Vec<_>>()
            )
        };
        compare("xattrs", keys(self), keys(expected));
        compare("acls", self.acls.clone(), expected.acls.clone());
        let name = |node: &Self| String::from_utf8_lossy(&node.first_name).into_owned();
        compare("same file as", name(self), name(expected));
        parts.join(", ")
    }
}

fn hex(hash: &[u8; 32]) -> String {
    data_encoding::HEXLOWER.encode(&hash[..4])
}

/// Every path with its file.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// By path; the root is empty.
    pub nodes: BTreeMap<Vec<u8>, (FileHandle, Node)>,
}

impl Tree {
    /// Reads all of it. A caller that meets `TryAgain` reads again.
    ///
    /// # Errors
    /// The first one met, with its path.
    pub async fn read(vfs: &dyn Vfs) -> Result<Self, (String, VfsError)> {
        let mut tree = Self::default();
        let mut first_names = BTreeMap::new();
        let mut open = vec![(Vec::new(), vfs.root())];
        while let Some((path, handle)) = open.pop() {
            let named = |error| (String::from_utf8_lossy(&path).into_owned(), error);
            let node = read_node(vfs, handle, &path, &mut first_names)
                .await
                .map_err(named)?;
            if node.kind == FileKind::Directory {
                let mut below = list(vfs, handle).await.map_err(named)?;
                // In order of name, since "first name" must not depend on cookies.
                below.sort();
                for (name, entry) in below.into_iter().rev() {
                    let mut inner = path.clone();
                    inner.push(b'/');
                    inner.extend_from_slice(&name);
                    open.push((inner, entry));
                }
            }
            tree.nodes.insert(path, (handle, node));
        }
        Ok(tree)
    }

    /// What is at a path and below, with paths from there. The content of a file is told with each of its names.
    #[must_use]
    pub fn below(&self, path: &[u8]) -> Self {
        let mut below = Self::default();
        for (full, (handle, node)) in &self.nodes {
            let Some(rest) = full.strip_prefix(path) else {
                continue;
            };
            if rest.is_empty() || rest.starts_with(b"/") {
                let mut node = node.clone();
                if let Some((_, first)) = self.nodes.get(&node.first_name) {
                    node.hash = first.hash;
                }
                below.nodes.insert(rest.to_vec(), (*handle, node));
            }
        }
        below
    }

    /// How a copy of this tree differs from it in what copies have of their originals, at most `most` lines. Birth and change
    /// times are a copy's own, and so are the names that a file has outside of the tree.
    pub fn copied_wrong(&self, copy: &Self, most: usize) -> Vec<String> {
        let comparable = |tree: &Self| {
            let mut inodes: BTreeMap<u64, (u32, Vec<u8>)> = BTreeMap::new();
            for (path, (handle, _)) in &tree.nodes {
                inodes.entry(handle.inode).or_insert((0, path.clone())).0 += 1;
            }
            let mut comparable = tree.clone();
            for (handle, node) in comparable.nodes.values_mut() {
                let (links, first_name) = inodes[&handle.inode].clone();
                let is_directory = node.kind == FileKind::Directory;
                node.links = if is_directory { node.links } else { links };
                node.first_name = first_name;
                (node.changed, node.born) = (node.modified, node.modified);
            }
            comparable
        };
        comparable(copy).differences(&comparable(self), most)
    }

    /// How this one differs from what was expected, at most `most` lines; empty if it does not.
    pub fn differences(&self, expected: &Self, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, (_, node)) in &self.nodes {
            let shown = String::from_utf8_lossy(path);
            match expected.nodes.get(path) {
                None => lines.push(format!("{shown}: should not be there")),
                Some((_, other)) if !node.equals(other) => {
                    lines.push(format!("{shown}: {}", node.differs_from(other)));
                }
                Some(_) => {}
            }
        }
        for path in expected
            .nodes
            .keys()
            .filter(|path| !self.nodes.contains_key(*path))
        {
            lines.push(format!("{}: is missing", String::from_utf8_lossy(path)));
        }
        lines.truncate(most);
        lines
    }

    /// Whether both are the same.
    pub fn equals(&self, other: &Self) -> bool {
        self.nodes.len() == other.nodes.len()
            && self
                .nodes
                .iter()
                .zip(&other.nodes)
                .all(|((path, (_, node)), (other_path, (_, other)))| path == other_path && node.equals(other))
    }
}

fn root() -> Caller {
    Caller::new(Credentials::root())
}

async fn read_node(
    vfs: &dyn Vfs,
    handle: FileHandle,
    path: &[u8],
    first_names: &mut BTreeMap<u64, Vec<u8>>,
) -> Result<Node, VfsError> {
    let attributes = vfs.attributes(handle).await?;
    let first_name = first_names
        .entry(handle.inode)
        .or_insert_with(|| path.to_vec())
        .clone();
    let hash = match attributes.kind {
        FileKind::Regular if first_name == path => hash_content(vfs, handle).await?,
        FileKind::Symlink => *blake3::hash(&vfs.read_link(&root(), handle).await?.0).as_bytes(),
        _ => [0; 32],
    };
    let mut xattrs = Vec::new();
    for name in vfs.list_xattrs(&root(), handle).await? {
        let value = vfs.get_xattr(&root(), handle, &name).await?;
        xattrs.push((name, value));
    }
    let acls = vfs.get_acl(&root(), handle).await?;
    Ok(Node {
        kind: attributes.kind,
        mode: attributes.mode,
        links: attributes.links,
        owner: (attributes.uid, attributes.gid),
        size_bytes: match attributes.kind {
            FileKind::Directory => 0,
            _ => attributes.size_bytes,
        },
        modified: attributes.modified,
        changed: attributes.changed,
        born: attributes.born,
        hash,
        xattrs,
        acls: format!("{acls:?}"),
        first_name,
    })
}

async fn hash_content(vfs: &dyn Vfs, handle: FileHandle) -> Result<[u8; 32], VfsError> {
    let mut hasher = blake3::Hasher::new();
    let mut offset = 0;
    loop {
        let reply = vfs.read(&root(), handle, offset, READ_BYTES).await?;
        for part in &reply.data {
            hasher.update(part);
            offset += part.len() as u64;
        }
        if reply.end_of_file {
            return Ok(*hasher.finalize().as_bytes());
        }
        if reply.data.iter().all(Bytes::is_empty) {
            return Err(VfsError::Io(format!("nothing read at {offset}, before the end")));
        }
    }
}

async fn list(vfs: &dyn Vfs, directory: FileHandle) -> Result<Vec<(Bytes, FileHandle)>, VfsError> {
    let mut entries: Vec<(Bytes, FileHandle)> = Vec::new();
    let mut cookie = 0;
    loop {
        let page = vfs
            .read_directory(&root(), directory, cookie, PAGE_ENTRIES, false)
            .await?;
        let stuck = page.entries.is_empty() && !page.end;
        for entry in page.entries {
            if entry.cookie <= cookie || stuck {
                return Err(VfsError::Io(format!("cookie {} after {cookie}", entry.cookie)));
            }
            cookie = entry.cookie;
            let Ok(name) = Name::new(entry.name.clone()) else {
                continue;
            };
            let (found, _) = vfs.lookup(&root(), directory, &name).await?;
            if found != entry.handle {
                return Err(VfsError::Io(format!(
                    "{:?} is listed as another file",
                    entry.name
                )));
            }
            entries.push((entry.name, entry.handle));
        }
        if page.end || stuck {
            return Ok(entries);
        }
    }
}
