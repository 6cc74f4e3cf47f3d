//! Crash states of the model: which a crash may leave, and which of them a recovered file system shows.

use super::{Compare, Difference, MemoryVfs, compare::file_differs, compare_trees, state::State};
use crate::{Caller, Credentials, FileHandle, Name, Vfs};
use std::collections::BTreeMap;

/// Which unstable writes may survive while others are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossOrder {
    /// Of each file by itself, all from some write on are lost: what RFC 1813 lets a server do.
    PerFile,
    /// Of the whole file system, all from some write on are lost, except those of files committed since: what a journal
    /// that is written in order does.
    Global,
}

/// A file with writes that a crash may lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstableFile {
    /// The file.
    pub handle: FileHandle,
    /// Its unstable writes, oldest first, as their place among all unstable writes of the file system.
    pub writes: Vec<u64>,
}

impl MemoryVfs {
    /// The files that a crash may change.
    pub fn unstable_files(&self) -> Vec<UnstableFile> {
        let state = self.state();
        let files = state.inodes.iter().map(|(number, inode)| UnstableFile {
            handle: state.handle(*number),
            writes: inode.unstable_writes(),
        });
        files.filter(|file| !file.writes.is_empty()).collect()
    }

    /// Crashes and restarts: `kept` is asked for each file with how many unstable writes it has, and says how many of the
    /// first ones survive. Retained files without a name are gone, the write verifier is another.
    pub fn crash(&self, kept: impl FnMut(FileHandle, usize) -> usize) {
        let mut state = self.state();
        *state = state.after_crash(kept);
    }

    /// Goes to the state after a crash that `recovered` shows, keeping as many unstable writes as explain it.
    ///
    /// # Errors
    /// How `recovered` differs from the nearest state a crash may leave, if it shows none of them; the model then stays as
    /// it was.
    pub async fn adopt_crash(
        &self,
        recovered: &dyn Vfs,
        order: LossOrder,
        compare: &Compare,
    ) -> Result<(), Vec<Difference>> {
        let mut explained = Vec::new();
        for file in self.unstable_files() {
            let explanations = self.explanations(&file, recovered, compare).await;
            explained.push((file, explanations));
        }
        let kept = match order {
            LossOrder::PerFile => explained
                .iter()
                .map(|(file, explanations)| (file.handle, explanations.last().copied()))
                .collect(),
            LossOrder::Global => last_cut(&explained),
        };
        let after = self.fork();
        // What nothing explains is kept whole and shows as a difference.
        after.crash(|file, writes| kept.get(&file).copied().flatten().unwrap_or(writes));
        let differences = compare_trees(&after, recovered, compare).await;
        if differences.is_empty() {
            self.restore(&after.snapshot());
            Ok(())
        } else {
            Err(differences)
        }
    }

    /// The numbers of kept writes, ascending, with which the file would be as `recovered` has it.
    async fn explanations(&self, file: &UnstableFile, recovered: &dyn Vfs, compare: &Compare) -> Vec<usize> {
        let path = path_to(&self.state(), file.handle.inode);
        let all = 0..=file.writes.len();
        let Some(path) = path else {
            // It has no name, so nothing of it is left to see.
            return all.collect();
        };
        let Some(found) = walk(recovered, &path).await else {
            return Vec::new();
        };
        let mut explanations = Vec::new();
        for kept in all {
            let candidate = self.fork();
            candidate.crash(|handle, writes| if handle == file.handle { kept } else { writes });
            if !file_differs((&candidate, file.handle), (recovered, found), compare).await {
                explanations.push(kept);
            }
        }
        explanations
    }
}

/// For each file the writes kept by the latest point in the order of all writes that explains every file.
fn last_cut(explained: &[(UnstableFile, Vec<usize>)]) -> BTreeMap<FileHandle, Option<usize>> {
    let mut cuts: Vec<u64> = explained
        .iter()
        .flat_map(|(file, _)| file.writes.iter().map(|place| place + 1))
        .chain([0])
        .collect();
    cuts.sort_unstable();
    let kept_at = |file: &UnstableFile, cut: u64| file.writes.iter().filter(|place| **place < cut).count();
    let fits = |cut: &u64| {
        explained
            .iter()
            .all(|(file, explanations)| explanations.contains(&kept_at(file, *cut)))
    };
    let cut = cuts.into_iter().rev().find(fits);
    explained
        .iter()
        .map(|(file, _)| (file.handle, cut.map(|cut| kept_at(file, cut))))
        .collect()
}

/// Names that lead from the root to a file.
fn path_to(state: &State, inode: u64) -> Option<Vec<Name>> {
    let mut path = Vec::new();
    let mut at = inode;
    while at != super::state::ROOT_INODE {
        let (directory, name) = state.inodes.iter().find_map(|(number, candidate)| {
            let entries = candidate.directory()?;
            let (_, name, _) = entries.after(0).find(|(_, _, inode)| *inode == at)?;
            Some((*number, name.clone()))
        })?;
        path.push(Name::new(name).ok()?);
        at = directory;
    }
    path.reverse();
    Some(path)
}

async fn walk(vfs: &dyn Vfs, path: &[Name]) -> Option<FileHandle> {
    let root = Caller::new(Credentials::root());
    let mut at = vfs.root();
    for name in path {
        at = vfs.lookup(&root, at, name).await.ok()?.0;
    }
    Some(at)
}
