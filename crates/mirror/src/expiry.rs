//! Expiry: what the first store retired is deleted from the second `keep_deleted` later, so that a cleaner that judged wrongly can be undone
//! until then.
//!
//! ```text
//! <family>/tombstone/<the rest of the member's name>     a tombstone, empty: the store's clock says since when
//! ```
//!
//! A tombstone is put when the table is seen to say that a segment was retired, or a repair found that no root needs anything of it; never because
//! the first store does not have it: that is what the mirror is for. Of records, those go that lead nowhere in the table any more. Key rings,
//! ownership statements and reports of audits stay for good. Before anything is deleted its reason is looked at once more.

use firn_anchor::{Anchor, AnchorError};
use firn_format::{FamilyId, ForwardingRecord, SegmentId};
use firn_store::{ObjectKey, PutMode, Store, StoreError, erase};

/// Where tombstones of a family lie.
pub(crate) fn tombstones_prefix(family: &FamilyId) -> String {
    format!("{family}/tombstone/")
}

/// The tombstone of a member; `None` if it is of another family.
pub fn tombstone_key(family: &FamilyId, member: &ObjectKey) -> Option<ObjectKey> {
    let rest = member.as_str().strip_prefix(&format!("{family}/"))?;
    Some(ObjectKey::new(&format!("{}{rest}", tombstones_prefix(family))))
}

/// The member that a tombstone is of.
pub(crate) fn member_of(family: &FamilyId, tombstone: &ObjectKey) -> Option<ObjectKey> {
    let rest = tombstone.as_str().strip_prefix(&tombstones_prefix(family))?;
    Some(ObjectKey::new(&format!("{family}/{rest}")))
}

/// Marks a member as not needed any more, from now on.
pub(crate) async fn put_tombstone(
    second: &dyn Store,
    family: &FamilyId,
    member: &ObjectKey,
) -> Result<(), StoreError> {
    let Some(tombstone) = tombstone_key(family, member) else {
        return Ok(());
    };
    match second.put(&tombstone, Vec::new(), PutMode::Create).await {
        Ok(()) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What the table says of a member that the first store does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was retired, or replaced.
    Unneeded,
    /// A segment that nobody retired.
    Lost(SegmentId),
    /// Something else that nobody may have deleted: a record in force, a key ring, a statement, a report.
    LostOther,
    /// No name of this family's.
    Foreign,
}

/// Judges by the table alone.
pub(crate) async fn judge(
    anchor: &Anchor,
    family: &FamilyId,
    member: &ObjectKey,
) -> Result<Verdict, AnchorError> {
    let key = member.as_str();
    if let Some((of, segment)) = SegmentId::parse_key(key) {
        if of != *family {
            return Ok(Verdict::Foreign);
        }
        let is_retired =
            firn_env::planted!("mirror.absent_is_unneeded") || anchor.retired(segment).await?.is_some();
        return Ok(match is_retired {
            true => Verdict::Unneeded,
            false => Verdict::Lost(segment),
        });
    }
    if let Some((of, old, mover)) = ForwardingRecord::parse_key(key) {
        if of != *family {
            return Ok(Verdict::Foreign);
        }
        let retired = anchor.retired(old).await?;
        // Of a chain that was shortened, or of a mover that was overtaken.
        return Ok(match retired.is_some_and(|(retired, _)| retired.mover == mover) {
            true => Verdict::LostOther,
            false => Verdict::Unneeded,
        });
    }
    Ok(match key.starts_with(&format!("{family}/")) {
        true => Verdict::LostOther,
        false => Verdict::Foreign,
    })
}

/// Deletes for good, whatever the store keeps of what is deleted; `false` if it refuses.
pub(crate) async fn remove(
    second: &dyn Store,
    keeps_versions: bool,
    key: &ObjectKey,
) -> Result<bool, StoreError> {
    let removed = match keeps_versions {
        true => erase(second, key).await,
        false => second.delete(key).await,
    };
    match removed {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(true),
        Err(StoreError::Denied { .. } | StoreError::Invalid { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
