//! The leases that a planned change needs: every inode that it changes, and the shape lease for a directory that goes to another parent.
//!
//! A new inode needs none: its number is of the own home, and nobody else knows it before it is published.

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
    Ok(match operation {
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
            let mut needs = vec![*from_directory, *to_directory, *inode];
            needs.extend(replaced);
            let is_directory = state.inode(*inode)?.is_some_and(|inode| inode.is_directory());
            if is_directory
                && from_directory != to_directory
                && !firn_env::planted!("volume.directories_move_without_shape")
            {
                needs.push(SHAPE_LEASE);
            }
            needs
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
    })
}
