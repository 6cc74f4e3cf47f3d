//! The input: a tree of real source files on this machine, or as many of them as are wanted.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// One thing in the tree; directories stand before what is in them.
pub enum Item {
    Directory,
    File { size_bytes: u64 },
    Symlink { target: String },
}

/// Items by path from the tree's top, in the order in which an archive holds them.
pub struct Tree {
    pub top: PathBuf,
    pub items: Vec<(String, Item)>,
    pub files: u64,
    pub bytes: u64,
}

impl Tree {
    /// Reads the names under `top`. If there are more than `files_max` files, those in `wanted` are taken and filled up with
    /// others in order.
    pub fn read(top: &Path, files_max: usize, wanted: &BTreeSet<String>) -> Result<Self> {
        let mut all = Vec::new();
        walk(top, "", &mut all).with_context(|| format!("cannot read {}", top.display()))?;
        let files = |items: &[(String, Item)]| {
            items
                .iter()
                .filter(|(_, item)| matches!(item, Item::File { .. }))
                .count()
        };
        if files(&all) > files_max {
            let is_wanted =
                |(path, item): &(String, Item)| matches!(item, Item::File { .. }) && wanted.contains(path);
            let mut fill = files_max.saturating_sub(all.iter().filter(|item| is_wanted(item)).count());
            let mut chosen = BTreeSet::new();
            let mut directories = BTreeSet::new();
            for entry in &all {
                let take = match entry.1 {
                    Item::File { .. } if is_wanted(entry) => true,
                    Item::File { .. } if fill > 0 => {
                        fill -= 1;
                        true
                    }
                    Item::Symlink { .. } => wanted.contains(&entry.0),
                    Item::File { .. } | Item::Directory => false,
                };
                if take {
                    chosen.insert(entry.0.clone());
                    let mut at = entry.0.as_str();
                    while let Some((directory, _)) = at.rsplit_once('/') {
                        directories.insert(directory.to_owned());
                        at = directory;
                    }
                }
            }
            all.retain(|(path, item)| match item {
                Item::Directory => directories.contains(path),
                Item::File { .. } | Item::Symlink { .. } => chosen.contains(path),
            });
        }
        let bytes = all
            .iter()
            .map(|(_, item)| match item {
                Item::File { size_bytes } => *size_bytes,
                Item::Directory | Item::Symlink { .. } => 0,
            })
            .sum();
        let files = files(&all) as u64;
        ensure!(files > 0, "no files under {}", top.display());
        Ok(Self {
            top: top.to_owned(),
            items: all,
            files,
            bytes,
        })
    }

    /// A file's content.
    pub fn content(&self, path: &str) -> Result<Bytes> {
        let path = self.top.join(path);
        let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(content.into())
    }
}

fn walk(top: &Path, directory: &str, items: &mut Vec<(String, Item)>) -> Result<()> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(top.join(directory))? {
        let entry = entry?;
        // A name that is not text is none of a source tree's.
        if let Ok(name) = entry.file_name().into_string() {
            entries.push((name, entry.file_type()?));
        }
    }
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for (name, kind) in entries {
        let path = match directory {
            "" => name,
            directory => format!("{directory}/{name}"),
        };
        if kind.is_dir() {
            items.push((path.clone(), Item::Directory));
            walk(top, &path, items)?;
        } else if kind.is_symlink() {
            let target = std::fs::read_link(top.join(&path))?
                .to_string_lossy()
                .into_owned();
            items.push((path, Item::Symlink { target }));
        } else if kind.is_file() {
            let size_bytes = std::fs::metadata(top.join(&path))?.len();
            items.push((path, Item::File { size_bytes }));
        }
    }
    Ok(())
}
