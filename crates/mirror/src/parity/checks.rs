//! Challenges of parity groups, for audits of the second store: a row is read and held against the hash that its group object has.
//!
//! | challenged | read | right, if |
//! |---|---|---|
//! | a parity | one row of it | it has its hash |
//! | a member without a copy | the row that has the byte, from whichever store has it, and the same row of one parity | both have their hashes, and the group says the length and the hash that the member must have |
//!
//! A group object is signed by nobody. That its hashes are those of the members is seen at the members: a group that was made up has a row that no
//! store has.

use super::{Parity, rows::RowError};
use bytes::BytesMut;
use firn_format::SegmentId;
use firn_parity::{COLUMNS, Group, GroupHead, PARITIES, Part, ROW_BYTES, RowHash, row_hash};
use firn_store::{ObjectKey, StoreError};
use std::sync::Arc;

/// What a challenge of a group found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowCheck {
    /// What was read is as its group says.
    Right,
    /// This object of the second store is not as it should be, and why.
    Wrong {
        /// Its name.
        key: ObjectKey,
        /// What is wrong with it.
        detail: String,
    },
    /// There is no such group, or it has no such member.
    NoGroup,
}

/// A member that has no copy in the second store, as it must be.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedMember {
    /// Which.
    pub segment: SegmentId,
    /// Its length, if that is known.
    pub bytes: Option<u32>,
    /// BLAKE3 of it, if that is known.
    pub hash: Option<RowHash>,
    /// The byte that is asked for; one beyond its end stands for the last.
    pub byte: u32,
}

impl Parity {
    /// Groups as they were listed last, with the bytes of their parities.
    pub fn parity_bytes(&self) -> Vec<(u64, u64)> {
        let state = self.lock();
        let groups = state.index.groups.iter();
        groups
            .map(|(group, known)| (*group, (known.head.rows() * ROW_BYTES * PARITIES) as u64))
            .collect()
    }

    /// Groups whose object could not be read when they were listed last.
    pub fn unreadable_groups(&self) -> u64 {
        self.lock().index.unreadable
    }

    /// Whether a segment is in a group, as far as the groups were listed.
    pub fn has_member(&self, segment: SegmentId) -> bool {
        self.holds(segment)
    }

    /// Reads a row of a group's parities, at a fraction of 2^64 of their bytes.
    ///
    /// # Errors
    /// The store's; what is absent is wrong.
    pub async fn check_parity(&self, group: u64, position: u64) -> Result<RowCheck, StoreError> {
        let head = self
            .lock()
            .index
            .groups
            .get(&group)
            .map(|known| known.head.clone());
        let Some(head) = head else {
            return Ok(RowCheck::NoGroup);
        };
        let rows = head.rows();
        let all = (rows * PARITIES) as u128;
        let row = ((u128::from(position) * all) >> 64) as usize;
        match self.group_checked(&head).await? {
            Ok(group) => self.check_parity_row(&group, row / rows, row % rows).await,
            Err(wrong) => Ok(wrong),
        }
    }

    /// Reads what protects a member that has no copy: its own row, and that of the parity that `draw` chooses.
    ///
    /// # Errors
    /// Those of the stores; what is absent is wrong.
    pub async fn check_member(&self, member: &ExpectedMember, draw: u64) -> Result<RowCheck, StoreError> {
        let ExpectedMember { segment, byte, .. } = *member;
        let Some(head) = self.group_of(segment) else {
            return Ok(RowCheck::NoGroup);
        };
        let Some(found) = head.find(segment).copied() else {
            return Ok(RowCheck::NoGroup);
        };
        let wrong = |detail: String| RowCheck::Wrong {
            key: self.group_key(head.group, head.generation, Part::Group),
            detail,
        };
        if member.bytes.is_some_and(|bytes| bytes != found.bytes)
            || member.hash.is_some_and(|hash| hash != found.hash)
        {
            let detail = format!("it has another length or hash of segment {segment} than that was put with");
            return Ok(wrong(detail));
        }
        let group = match self.group_checked(&head).await? {
            Ok(group) => group,
            Err(wrong) => return Ok(wrong),
        };
        let byte = byte.min(found.bytes.saturating_sub(1));
        let row = (found.offset + byte) as usize / ROW_BYTES;
        if !self.has_row(&group, usize::from(found.column), row).await? {
            let detail =
                format!("neither store has row {row} of segment {segment} with the hash that it says");
            return Ok(wrong(detail));
        }
        let parity = (draw % PARITIES as u64) as usize;
        self.check_parity_row(&group, parity, row).await
    }

    /// The group with its hashes, or what is wrong with its object.
    async fn group_checked(&self, head: &GroupHead) -> Result<Result<Arc<Group>, RowCheck>, StoreError> {
        let wrong = |detail: String| RowCheck::Wrong {
            key: self.group_key(head.group, head.generation, Part::Group),
            detail,
        };
        Ok(match self.group(head).await {
            Ok(group) => Ok(group),
            Err(RowError::Store(StoreError::NotFound { .. })) => Err(wrong("it is not there".into())),
            Err(RowError::Store(error)) => return Err(error),
            Err(error @ (RowError::Group { .. } | RowError::Lost { .. })) => Err(wrong(error.to_string())),
        })
    }

    async fn check_parity_row(
        &self,
        group: &Group,
        parity: usize,
        row: usize,
    ) -> Result<RowCheck, StoreError> {
        assert!(parity < PARITIES, "a parity");
        let head = &group.head;
        let key = self.group_key(head.group, head.generation, Part::Parity(parity as u8));
        let wrong = |detail: String| RowCheck::Wrong {
            key: key.clone(),
            detail,
        };
        let read = self
            .second()
            .get_range(&key, (row * ROW_BYTES) as u64, ROW_BYTES as u64)
            .await;
        Ok(match read {
            Ok(bytes) if Some(&row_hash(&bytes)) == group.parity_hash(parity, row) => RowCheck::Right,
            Ok(_) if firn_env::planted!("mirror.parity_row_believed") => RowCheck::Right,
            Ok(_) => wrong(format!("row {row} is not as it was put")),
            Err(StoreError::NotFound { .. }) => wrong("it is not there".into()),
            Err(error) => return Err(error),
        })
    }

    /// Whether a store has a row of a column with its hash.
    async fn has_row(&self, group: &Group, column: usize, row: usize) -> Result<bool, StoreError> {
        assert!(column < COLUMNS, "a column");
        let pieces = group.head.pieces(column, &(row..row + 1));
        for store in [&self.inner.first, &self.inner.second] {
            let mut bytes = BytesMut::zeroed(ROW_BYTES);
            for piece in &pieces {
                let key = self.segment_key(piece.segment);
                let (offset, length) = (u64::from(piece.segment_offset), u64::from(piece.bytes));
                match store.get_range(&key, offset, length).await {
                    Ok(found) if found.len() == piece.bytes as usize => {
                        bytes[piece.range_offset..piece.range_offset + found.len()].copy_from_slice(&found);
                    }
                    Ok(_) | Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if Some(&row_hash(&bytes)) == group.column_hash(column, row) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
