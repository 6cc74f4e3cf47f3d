//! Reads two file systems whole, through the [`Vfs`] trait alone, and says where they differ.
//!
//! Names, kinds, modes, owners, links, sizes, contents, link targets, extended attributes and ACLs are compared; times on
//! request. Inode numbers and cookies are each file system's own: files are paired by path, and one file under two names
//! must be one file on the other side too. Each side must also agree with itself: listing without a name twice, listing
//! and lookup naming the same file, `..` leading back.

use crate::{
    Attributes, Caller, Credentials, DirectoryEntry, FileHandle, FileKind, Name, SeekTo, Vfs, VfsError,
};
use bytes::Bytes;
use std::{collections::BTreeMap, fmt};

/// Entries per `read_directory`: odd and small, so that a comparison also tests how a scan goes on.
const PAGE_ENTRIES: u32 = 61;
/// Bytes per `read`.
const CHUNK_BYTES: u64 = 256 << 10;
/// Holes of one file that are looked at.
const STRETCHES_MAX: usize = 32;
/// Directories deeper than this are taken for a cycle.
const DEPTH_MAX: usize = 10_000;

/// What is compared.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Also modification and change times, which differ unless both sides had the same clock.
    pub times: bool,
    /// Of a longer file, only this many bytes at its beginning and at its end are read.
    pub content_bytes_max: u64,
    /// After so many differences the rest is not looked at.
    pub differences_max: usize,
}

impl Default for Compare {
    fn default() -> Self {
        Self {
            times: false,
            content_bytes_max: 64 << 20,
            differences_max: 100,
        }
    }
}

/// One difference between two trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, from the root.
    pub path: String,
    /// What each side has.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.what)
    }
}

/// Compares two whole file systems; empty if they are the same.
pub async fn compare_trees(left: &dyn Vfs, right: &dyn Vfs, compare: &Compare) -> Vec<Difference> {
    let mut comparison = Comparison {
        left,
        right,
        compare,
        pairs: BTreeMap::new(),
        reverse: BTreeMap::new(),
        differences: Vec::new(),
    };
    let mut open = vec![(String::from("/"), left.root(), right.root(), 0)];
    while let Some((path, left, right, depth)) = open.pop() {
        if comparison.differences.len() >= compare.differences_max {
            break;
        }
        comparison.node(&path, left, right).await;
        let below = comparison.directory(&path, left, right).await;
        if depth < DEPTH_MAX {
            open.extend(
                below
                    .into_iter()
                    .map(|(path, left, right)| (path, left, right, depth + 1)),
            );
        } else {
            comparison.found(&path, "nested too deep");
        }
    }
    comparison.differences
}

/// Whether two files differ in mode, size or content.
pub(super) async fn file_differs(
    left: (&dyn Vfs, FileHandle),
    right: (&dyn Vfs, FileHandle),
    compare: &Compare,
) -> bool {
    let (Ok(a), Ok(b)) = (left.0.attributes(left.1).await, right.0.attributes(right.1).await) else {
        return true;
    };
    if (a.kind, a.mode, a.size_bytes) != (b.kind, b.mode, b.size_bytes) {
        return true;
    }
    first_content_difference(left, right, a.size_bytes, compare)
        .await
        .is_some()
}

/// What is wrong with what a file calls holes and data: holes read as zeros, and the two alternate up to the end.
async fn wrong_holes(vfs: &dyn Vfs, file: FileHandle, size_bytes: u64) -> Option<String> {
    let caller = root_caller();
    let mut at = 0;
    for _ in 0..STRETCHES_MAX {
        let data = match vfs.seek(&caller, file, at, SeekTo::Data).await {
            Ok(data) => data,
            Err(error) => return Some(format!("no data is found from {at} on: {error}")),
        };
        let end = data.unwrap_or(size_bytes);
        if end < at || end > size_bytes {
            return Some(format!("data behind {at} begins at {end} of {size_bytes}"));
        }
        // Its beginning and its end.
        let tail = at.max(end.saturating_sub(CHUNK_BYTES));
        for from in [at, tail] {
            let length = (end - from).min(CHUNK_BYTES) as u32;
            let read = vfs.read(&caller, file, from, length).await;
            let is_zero = |part: &Bytes| part.iter().all(|byte| *byte == 0);
            match read {
                Ok(read) if read.data.iter().all(is_zero) => {}
                Ok(_) => return Some(format!("there is data in the hole {at}..{end}")),
                Err(error) => return Some(format!("the hole {at}..{end} cannot be read: {error}")),
            }
        }
        let data = data?;
        at = match vfs.seek(&caller, file, data, SeekTo::Hole).await {
            Ok(Some(hole)) if hole > data && hole <= size_bytes => hole,
            other => {
                return Some(format!(
                    "the hole behind {data} of {size_bytes} begins at {other:?}"
                ));
            }
        };
        if at >= size_bytes {
            return None;
        }
    }
    None
}

struct Comparison<'a> {
    left: &'a dyn Vfs,
    right: &'a dyn Vfs,
    compare: &'a Compare,
    /// Left inode → right inode.
    pairs: BTreeMap<u64, u64>,
    /// Right inode → left inode.
    reverse: BTreeMap<u64, u64>,
    differences: Vec<Difference>,
}

impl Comparison<'_> {
    fn found(&mut self, path: &str, what: impl Into<String>) {
        self.differences.push(Difference {
            path: path.to_owned(),
            what: what.into(),
        });
    }

    fn unequal<T: PartialEq + fmt::Debug>(&mut self, path: &str, what: &str, left: &T, right: &T) {
        if left != right {
            self.found(path, format!("{what} {left:?} against {right:?}"));
        }
    }

    /// Compares two files without what is below them. Each pair is read once.
    async fn node(&mut self, path: &str, left: FileHandle, right: FileHandle) {
        let known = self.pairs.insert(left.inode, right.inode);
        let known_back = self.reverse.insert(right.inode, left.inode);
        if known.is_some() || known_back.is_some() {
            if (known, known_back) != (Some(right.inode), Some(left.inode)) {
                self.found(path, "is the same file as another name on one side only");
            }
            return;
        }
        let (a, b) = match (
            self.left.attributes(left).await,
            self.right.attributes(right).await,
        ) {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => {
                self.found(path, format!("attributes {:?} against {:?}", a.err(), b.err()));
                return;
            }
        };
        self.attributes(path, &a, &b);
        if a.kind != b.kind {
            return;
        }
        let caller = root_caller();
        if a.kind == FileKind::Regular && a.size_bytes == b.size_bytes {
            let sides = ((self.left, left), (self.right, right));
            let difference = first_content_difference(sides.0, sides.1, a.size_bytes, self.compare).await;
            if let Some(difference) = difference {
                self.found(path, difference);
            }
            for (side, (vfs, file)) in [("left", sides.0), ("right", sides.1)] {
                if let Some(wrong) = wrong_holes(vfs, file, a.size_bytes).await {
                    self.found(path, format!("on the {side} {wrong}"));
                }
            }
        }
        if a.kind == FileKind::Symlink {
            let target = |read: Result<(Bytes, Attributes), VfsError>| read.map(|(target, _)| target);
            let a = target(self.left.read_link(&caller, left).await);
            let b = target(self.right.read_link(&caller, right).await);
            self.unequal(path, "link target", &a, &b);
        }
        let a = all_xattrs(self.left, left).await;
        let b = all_xattrs(self.right, right).await;
        self.unequal(path, "extended attributes", &a, &b);
        let a = self.left.get_acl(&caller, left).await;
        let b = self.right.get_acl(&caller, right).await;
        self.unequal(path, "ACLs", &a, &b);
    }

    fn attributes(&mut self, path: &str, a: &Attributes, b: &Attributes) {
        self.unequal(path, "kind", &a.kind, &b.kind);
        self.unequal(path, "mode", &Octal(a.mode), &Octal(b.mode));
        self.unequal(path, "links", &a.links, &b.links);
        self.unequal(path, "owner", &(a.uid, a.gid), &(b.uid, b.gid));
        if a.kind != FileKind::Directory {
            self.unequal(path, "size", &a.size_bytes, &b.size_bytes);
        }
        if self.compare.times {
            self.unequal(path, "modified", &a.modified, &b.modified);
            self.unequal(path, "changed", &a.changed, &b.changed);
        }
    }

    /// Compares the entries of two directories; returns the directories below, after comparing the rest.
    async fn directory(
        &mut self,
        path: &str,
        left: FileHandle,
        right: FileHandle,
    ) -> Vec<(String, FileHandle, FileHandle)> {
        let a = self.list("left", self.left, path, left).await;
        let b = self.list("right", self.right, path, right).await;
        let mut below = Vec::new();
        for (name, entry) in &a {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            let Some(other) = b.get(name) else {
                self.found(&path, "only on the left");
                continue;
            };
            let both_directories =
                is_directory(self.left, *entry).await && is_directory(self.right, *other).await;
            if both_directories {
                below.push((format!("{path}/"), *entry, *other));
            } else {
                self.node(&path, *entry, *other).await;
            }
        }
        for name in b.keys().filter(|name| !a.contains_key(*name)) {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            self.found(&path, "only on the right");
        }
        below
    }

    /// All entries but `.` and `..`, checked against lookups.
    async fn list(
        &mut self,
        side: &str,
        vfs: &dyn Vfs,
        path: &str,
        directory: FileHandle,
    ) -> BTreeMap<Bytes, FileHandle> {
        let caller = root_caller();
        let mut entries = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let page = match vfs
                .read_directory(&caller, directory, cookie, PAGE_ENTRIES, false)
                .await
            {
                Ok(page) => page,
                Err(error) => {
                    self.found(path, format!("listing on the {side}: {error}"));
                    return entries;
                }
            };
            let stuck = page.entries.is_empty() && !page.end;
            for entry in page.entries {
                if entry.cookie <= cookie {
                    self.found(path, format!("cookies on the {side} do not rise"));
                    return entries;
                }
                cookie = entry.cookie;
                self.entry(side, vfs, path, directory, entry, &mut entries).await;
            }
            if stuck {
                self.found(path, format!("an empty page on the {side} before the end"));
            }
            if page.end || stuck {
                return entries;
            }
        }
    }

    async fn entry(
        &mut self,
        side: &str,
        vfs: &dyn Vfs,
        path: &str,
        directory: FileHandle,
        entry: DirectoryEntry,
        entries: &mut BTreeMap<Bytes, FileHandle>,
    ) {
        let caller = root_caller();
        let expected = match &entry.name[..] {
            b"." => Ok(directory),
            b".." => vfs.parent(&caller, directory).await.map(|found| found.0),
            _ => match Name::new(entry.name.clone()) {
                Ok(name) => vfs.lookup(&caller, directory, &name).await.map(|found| found.0),
                Err(error) => Err(error),
            },
        };
        let shown = String::from_utf8_lossy(&entry.name);
        if expected.as_ref() != Ok(&entry.handle) {
            let what = format!(
                "{shown} is listed as {:?} on the {side}, looked up as {expected:?}",
                entry.handle
            );
            self.found(path, what);
        }
        if matches!(&entry.name[..], b"." | b"..") {
            return;
        }
        if entries.insert(entry.name.clone(), entry.handle).is_some() {
            self.found(path, format!("{shown} is listed twice on the {side}"));
        }
    }
}

#[derive(PartialEq)]
struct Octal(u32);

impl fmt::Debug for Octal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04o}", self.0)
    }
}

fn root_caller() -> Caller {
    Caller::new(Credentials::root())
}

async fn is_directory(vfs: &dyn Vfs, file: FileHandle) -> bool {
    vfs.attributes(file)
        .await
        .is_ok_and(|attributes| attributes.kind == FileKind::Directory)
}

async fn all_xattrs(vfs: &dyn Vfs, file: FileHandle) -> Result<BTreeMap<Bytes, Bytes>, VfsError> {
    let caller = root_caller();
    let mut xattrs = BTreeMap::new();
    for name in vfs.list_xattrs(&caller, file).await? {
        let value = vfs.get_xattr(&caller, file, &name).await?;
        xattrs.insert(name, value);
    }
    Ok(xattrs)
}

/// Where and how two regular files of the same size first differ.
async fn first_content_difference(
    left: (&dyn Vfs, FileHandle),
    right: (&dyn Vfs, FileHandle),
    size_bytes: u64,
    compare: &Compare,
) -> Option<String> {
    let most = compare.content_bytes_max;
    let mut offset = 0;
    while offset < size_bytes {
        if offset >= most && offset < size_bytes.saturating_sub(most) {
            offset = size_bytes - most;
        }
        let length = CHUNK_BYTES.min(size_bytes - offset);
        let a = read_exactly(left.0, left.1, offset, length).await;
        let b = read_exactly(right.0, right.1, offset, length).await;
        match (a, b) {
            (Ok(a), Ok(b)) => {
                if let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) {
                    let (a, b) = (a[at], b[at]);
                    return Some(format!(
                        "byte {} is {a:#04x} against {b:#04x}",
                        offset + at as u64
                    ));
                }
            }
            (a, b) => {
                return Some(format!(
                    "reading at {offset}: {:?} against {:?}",
                    a.err(),
                    b.err()
                ));
            }
        }
        offset += length;
    }
    None
}

async fn read_exactly(
    vfs: &dyn Vfs,
    file: FileHandle,
    offset: u64,
    length_bytes: u64,
) -> Result<Vec<u8>, VfsError> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < length_bytes {
        let left = length_bytes - bytes.len() as u64;
        let asked = left.min(u64::from(u32::MAX)) as u32;
        let reply = vfs
            .read(&root_caller(), file, offset + bytes.len() as u64, asked)
            .await?;
        if reply.data.iter().all(Bytes::is_empty) {
            return Err(VfsError::Io(format!(
                "a read ended after {} bytes of {length_bytes}",
                bytes.len()
            )));
        }
        reply.data.iter().for_each(|part| bytes.extend_from_slice(part));
    }
    bytes.truncate(length_bytes as usize);
    Ok(bytes)
}
