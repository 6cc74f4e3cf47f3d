//! Names of files as clients used them last: a bounded cache of file to directory and name, from which paths are put together without I/O.
//!
//! Whoever uses a file has looked its name up before, so the cache knows it; what it does not know (a handle from before a start, or of long
//! ago) the engine is asked for later. Two generations instead of a list of uses: what is not used while the younger one fills is forgotten.

use crate::event::Located;
use bytes::Bytes;
use firn_vfs::{FileHandle, Name};
use std::{collections::HashMap, hash::Hash};

/// Names in a generation; both take some 8 MiB with names of 30 bytes.
const GENERATION_MAX: usize = 16_384;
/// Directories above each other that are followed, which also ends circles of names that are out of date.
const DEPTH_MAX: usize = 128;
/// Linux's PATH_MAX: what is longer loses its beginning.
const PATH_BYTES_MAX: usize = 4096;

struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Clone + Eq + Hash, V: Clone> Generations<K, V> {
    fn new() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.remove(key)?;
        self.insert(key.clone(), value.clone());
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION_MAX && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

/// See the module.
pub(crate) struct Names {
    by_file: Generations<FileHandle, (FileHandle, Bytes)>,
    by_name: Generations<(FileHandle, Bytes), FileHandle>,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self {
            by_file: Generations::new(),
            by_name: Generations::new(),
        }
    }

    /// `file` was found or made under this name.
    pub(crate) fn learn(&mut self, file: FileHandle, directory: FileHandle, name: Bytes) {
        self.by_file.insert(file, (directory, name.clone()));
        self.by_name.insert((directory, name), file);
    }

    /// What had the first name has the second one.
    pub(crate) fn renamed(&mut self, from: (FileHandle, &Name), to: (FileHandle, &Name)) {
        if let Some(file) = self.by_name.remove(&(from.0, from.1.bytes())) {
            self.learn(file, to.0, to.1.bytes());
        }
    }

    /// The name stands for nothing any more. The file keeps it: who has it open goes on under that path.
    pub(crate) fn removed(&mut self, directory: FileHandle, name: &Name) {
        self.by_name.remove(&(directory, name.bytes()));
    }

    /// The file a name stood for when it was used last.
    pub(crate) fn file(&mut self, directory: FileHandle, name: &Name) -> Option<FileHandle> {
        self.by_name.get(&(directory, name.bytes()))
    }

    /// The path of `file` below `root`, with `name` in it if there is one.
    pub(crate) fn locate(&mut self, root: FileHandle, file: FileHandle, name: Option<&Name>) -> Located {
        let mut parts: Vec<Bytes> = name.map(Name::bytes).into_iter().collect();
        let mut bytes: usize = parts.iter().map(|part| part.len() + 1).sum();
        let mut here = file;
        for _ in 0..DEPTH_MAX {
            if here == root || bytes > PATH_BYTES_MAX {
                break;
            }
            let Some((directory, name)) = self.by_file.get(&here) else {
                break;
            };
            bytes += name.len() + 1;
            parts.push(name);
            here = directory;
        }
        let mut below = String::with_capacity(bytes);
        for part in parts.iter().rev() {
            below.push('/');
            below.push_str(&String::from_utf8_lossy(part));
        }
        Located {
            above: (here != root).then_some(here),
            below,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileHandle {
        FileHandle {
            file_system: 1,
            inode,
        }
    }

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes().to_vec()).expect("a name")
    }

    fn path(names: &mut Names, inode: u64) -> (Option<u64>, String) {
        let located = names.locate(file(1), file(inode), None);
        (located.above.map(|file| file.inode), located.below)
    }

    #[test]
    fn a_path_follows_renames_of_any_directory_above_it() {
        let mut names = Names::new();
        names.learn(file(2), file(1), "a".into());
        names.learn(file(3), file(2), "b".into());
        assert_eq!(path(&mut names, 3), (None, "/a/b".into()));
        names.renamed((file(1), &name("a")), (file(1), &name("c")));
        assert_eq!(path(&mut names, 3), (None, "/c/b".into()));
        assert_eq!(names.file(file(1), &name("a")), None);
        assert_eq!(path(&mut names, 1), (None, String::new()));
        assert_eq!(names.locate(file(1), file(2), Some(&name("new"))).below, "/c/new");
    }

    #[test]
    fn what_is_not_known_is_named_by_the_file_above_it_and_circles_end() {
        let mut names = Names::new();
        names.learn(file(3), file(2), "b".into());
        assert_eq!(path(&mut names, 3), (Some(2), "/b".into()));
        names.learn(file(2), file(3), "a".into());
        assert!(path(&mut names, 3).0.is_some());
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut names = Names::new();
        names.learn(file(2), file(1), "kept".into());
        for inode in 10..10 + 5 * GENERATION_MAX as u64 {
            names.learn(file(inode), file(1), inode.to_string().into());
            assert_eq!(path(&mut names, 2).1, "/kept");
        }
        assert!(names.by_file.young.len() + names.by_file.old.len() <= 2 * GENERATION_MAX);
        assert!(names.by_name.young.len() + names.by_name.old.len() <= 2 * GENERATION_MAX);
        assert_eq!(path(&mut names, 10), (Some(10), String::new()));
    }
}
