//! Answers of the volume, and whether the model could have given them.

use crate::{
    operation::Operation,
    outcome::{Outcome, Pairing, short},
    tree::Tree,
};
use firn_vfs::{Caller, FileHandle, MemoryVfs, Stability, VfsError};
use futures::FutureExt;
use std::collections::BTreeMap;

/// The model answers without waiting.
pub fn answer(model: &MemoryVfs, caller: &Caller, operation: &Operation) -> Outcome {
    operation
        .make(model, caller)
        .now_or_never()
        .expect("the model never waits")
}

/// Reads a whole model.
pub fn read_model(model: &MemoryVfs) -> Tree {
    Tree::read(model)
        .now_or_never()
        .expect("the model never waits")
        .expect("the model can be read")
}

/// Errors by which the edge says that it cannot serve now, or no more: nothing is promised by them.
pub fn is_trouble(error: &VfsError) -> bool {
    matches!(
        error,
        VfsError::TryAgain { .. }
            | VfsError::Fenced
            | VfsError::NotInCloud
            | VfsError::Unanswered
            | VfsError::Io(_)
    )
}

/// Whether the answer promises that the change survives.
pub fn is_stable(outcome: &Outcome) -> bool {
    match outcome {
        Ok(reply) => reply.stability != Some(Stability::Unstable),
        Err(_) => false,
    }
}

/// Entries there all the time must be listed once; entries there at no time must not.
pub fn listed(outcome: &Outcome, possible: &[(usize, Outcome)], pairing: &mut Pairing) -> Result<(), String> {
    let Ok(found) = outcome else { return Ok(()) };
    let lists: Vec<BTreeMap<_, _>> = possible
        .iter()
        .filter_map(|(_, outcome)| outcome.as_ref().ok())
        .map(|reply| reply.entries.iter().cloned().collect())
        .collect();
    if lists.len() < possible.len() && lists.is_empty() {
        return Err(format!(
            "listed, where the model answers {}",
            short(&possible[0].1)
        ));
    }
    let mut seen = BTreeMap::new();
    for (name, handle) in &found.entries {
        if let Some(earlier) = seen.insert(name.clone(), *handle)
            && lists.iter().all(|list| list.get(name) == lists[0].get(name))
        {
            return Err(format!("{name:?} was listed twice: {earlier:?}, {handle:?}"));
        }
        let there: Vec<&FileHandle> = lists.iter().filter_map(|list| list.get(name)).collect();
        let Some(first) = there.first() else {
            return Err(format!("{name:?} was listed, but never there"));
        };
        if there.iter().all(|handle| handle == first) {
            pairing.pair(handle.inode, first.inode)?;
        }
    }
    for (name, handle) in &lists[0] {
        if lists.iter().all(|list| list.get(name) == Some(handle)) && !seen.contains_key(name) {
            return Err(format!("{name:?} was there all the time, but not listed"));
        }
    }
    Ok(())
}
