//! Deleting for good where a store keeps versions.
//!
//! A versioned bucket answers a plain delete by hiding the object; its bytes stay, and stay on the bill. Whoever deletes to get
//! space back deletes each version by its name.

use crate::{ObjectKey, Store, StoreError, VersionPage};

/// Pages of versions removed by one call. Firn writes an object once, so one page is the rule.
const PAGES_MAX: usize = 64;

/// Removes every version of an object from a store that keeps them ([`Store::keeps_versions`]): one list and a delete for each.
/// An absent object is fine, and so is one that was hidden before. A call that fails has removed some or none; the next goes on.
///
/// # Errors
/// The first refusal: `Denied` where a version is locked or the permission to delete versions is missing.
pub async fn erase(store: &dyn Store, key: &ObjectKey) -> Result<(), StoreError> {
    for _ in 0..PAGES_MAX {
        let VersionPage { versions, more } = store.versions(key).await?;
        if more && versions.is_empty() {
            break;
        }
        // The oldest first: a mark of deletion goes after what it hides, so that nothing comes back in between.
        for version in versions.iter().rev() {
            store.delete_version(key, version).await?;
        }
        if !more {
            return Ok(());
        }
    }
    Err(StoreError::unavailable(
        "delete version",
        key,
        "the list of its versions has no end",
    ))
}
