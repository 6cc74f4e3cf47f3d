//! The leases that a planned change needs: every inode that it changes, and the shape lease for a directory that goes to another parent.
//!
//! A new inode needs none: its number is of the own home, and nobody else knows it before it is published. The journal's records are judged by the same,
//! and by the inodes that they made.

use crate::{
    record::Operation,
    state::{Missing, State},
};
use firn_anchor::SHAPE_LEASE;

/// See the module; in no order.
///
/// # Errors
/// [`Missing`]: planned with everything in memory under the same lock, so never of a plan that was just made.
pub(super) fn needs(state: &mut State, operation: &Operation) -> Result<Vec<u64>, Missing> {
    let mut needs = changed(operation);
    if let Some(inode) = goes_to_another_parent(operation)
        && state.inode(inode)?.is_some_and(|inode| inode.is_directory())
        && !firn_env::planted!("volume.directories_move_without_shape")
    {
        needs.push(SHAPE_LEASE);
    }
    Ok(needs)
}

/// Everything that a record touches: what it needed, and the inode that it made.
pub(super) fn touched(operation: &Operation, is_directory: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut touched = changed(operation);
    if let Operation::Create { inode, .. } = operation {
        touched.push(inode.number);
    }
    if goes_to_another_parent(operation).is_some_and(is_directory) {
        touched.push(SHAPE_LEASE);
    }
    touched
}

/// The inode that a rename takes into another directory.
pub(super) fn goes_to_another_parent(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Rename {
            from_directory,
            to_directory,
            inode,
            ..
        } => Some(*inode).filter(|_| from_directory != to_directory),
        _ => None,
    }
}

/// The inodes that an operation changes and that were there before.
fn changed(operation: &Operation) -> Vec<u64> {
    match operation {
        Operation::Create { directory, .. } => vec![*directory],
        Operation::Link { inode, directory, .. } | Operation::Unlink { inode, directory, .. } => {
            vec![*inode, *directory]
        }
        Operation::Rename {
            from_directory,
            to_directory,
            inode,
            replaced,
            ..
        } => {
            let mut changed = vec![*from_directory, *to_directory, *inode];
            changed.extend(replaced);
            changed
        }
        Operation::SetAttributes { inode, .. }
        | Operation::Write { inode, .. }
        | Operation::SetXattr { inode, .. }
        | Operation::SetAcl { inode, .. }
        | Operation::FreeOrphan { inode } => vec![*inode],
        // An owner's: they are refused before anything is planned.
        Operation::CreateSnapshot { .. }
        | Operation::DeleteSnapshot { .. }
        | Operation::ProtectSnapshot { .. } => Vec::new(),
    }
}
