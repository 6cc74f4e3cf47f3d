//! Rows of a group: read from the stores and checked by their hashes, or computed from the other columns.
//!
//! ```text
//! a column's row ─ parts of its members from the second store ─ right hash ─────────────▶ there
//!                ├ the same from the first ──────────────────── right hash ─────────────▶ there
//!                └ 31 other columns and parities, each checked alike ─ 32 of them right ▶ computed, and checked
//! ```
//!
//! A read costs one GET, one more for each boundary between members, and where something is lost as many of each other column.

use super::{GROUPS_REMEMBERED, Parity};
use bytes::{Bytes, BytesMut};
use firn_format::SegmentId;
use firn_parity::{
    COLUMNS, Group, GroupHead, MAX_GROUP_BYTES, PARITIES, Part, Piece, ROW_BYTES, restore, row_hash,
};
use firn_store::{Store, StoreError};
use futures::future::{join, join_all};
use std::{ops::Range, sync::Arc};

/// Rows computed at a time: a MiB of each column, 35 MiB of memory.
const WINDOW_ROWS: usize = 16;

/// Why a row cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    /// Too few of its pieces are right.
    #[error("row {row} of group {group:016x} has more losses than it has parities")]
    Lost { group: u64, row: usize },
    /// The group object cannot be read.
    #[error("group {group:016x}: {detail}")]
    Group { group: u64, detail: String },
    /// What would be computed may yet be there.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Parity {
    /// The group with its hashes.
    pub(super) async fn group(&self, head: &GroupHead) -> Result<Arc<Group>, RowError> {
        let is_it =
            |group: &&Arc<Group>| (group.head.group, group.head.generation) == (head.group, head.generation);
        let remembered = self.lock().remembered.iter().find(is_it).cloned();
        if let Some(group) = remembered {
            return Ok(group);
        }
        let key = self.group_key(head.group, head.generation, Part::Group);
        let bytes = self.second().get_range(&key, 0, MAX_GROUP_BYTES as u64).await?;
        let failed = |detail: String| RowError::Group {
            group: head.group,
            detail,
        };
        let group = Group::decode(&bytes).map_err(|error| failed(error.to_string()))?;
        if group.head != *head {
            return Err(failed("its object is another than it was".into()));
        }
        let group = Arc::new(group);
        self.remember(group.clone());
        Ok(group)
    }

    pub(super) fn remember(&self, group: Arc<Group>) {
        let mut state = self.lock();
        state.remembered.retain(|old| old.head.group != group.head.group);
        if state.remembered.len() >= GROUPS_REMEMBERED {
            state.remembered.pop_front();
        }
        state.remembered.push_back(group);
    }

    /// Rows of a column, those that are right in one store or other. Zeros behind its end.
    async fn stored_rows(&self, group: &Group, column: usize, rows: &Range<usize>) -> Vec<Option<Bytes>> {
        let mut found = vec![None; rows.len()];
        for store in self.sources() {
            let (bytes, is_all_there) = self.assemble(store, &group.head, column, rows).await;
            for (at, row) in rows.clone().enumerate() {
                if found[at].is_some() {
                    continue;
                }
                let piece = bytes.slice(at * ROW_BYTES..(at + 1) * ROW_BYTES);
                let is_right = match group.column_hash(column, row) {
                    Some(hash) => {
                        row_hash(&piece) == *hash
                            || (is_all_there && firn_env::planted!("mirror.parity_helper_trusted"))
                    }
                    None => true,
                };
                found[at] = is_right.then_some(piece);
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        found
    }

    /// What one store has of some rows of a column, with zeros where it has nothing, and whether it has all.
    async fn assemble(
        &self,
        store: &dyn Store,
        head: &GroupHead,
        column: usize,
        rows: &Range<usize>,
    ) -> (Bytes, bool) {
        let mut bytes = BytesMut::zeroed(rows.len() * ROW_BYTES);
        let pieces = head.pieces(column, rows);
        let parts = join_all(pieces.iter().map(|piece| self.part_of(store, piece))).await;
        let is_all_there = parts.iter().all(Option::is_some);
        for (piece, part) in pieces.iter().zip(parts) {
            if let Some(part) = part {
                bytes[piece.range_offset..piece.range_offset + part.len()].copy_from_slice(&part);
            }
        }
        (bytes.freeze(), is_all_there)
    }

    async fn part_of(&self, store: &dyn Store, piece: &Piece) -> Option<Bytes> {
        let key = self.segment_key(piece.segment);
        Self::part(
            store,
            &key,
            u64::from(piece.segment_offset),
            u64::from(piece.bytes),
        )
        .await
    }

    /// Rows of a parity that are right.
    pub(super) async fn parity_rows(
        &self,
        group: &Group,
        parity: usize,
        rows: &Range<usize>,
    ) -> Vec<Option<Bytes>> {
        let head = &group.head;
        let key = self.group_key(head.group, head.generation, Part::Parity(parity as u8));
        let (offset, bytes) = (rows.start * ROW_BYTES, rows.len() * ROW_BYTES);
        let Some(bytes) = Self::part(self.second(), &key, offset as u64, bytes as u64).await else {
            return vec![None; rows.len()];
        };
        let checked = rows.clone().enumerate().map(|(at, row)| {
            let piece = bytes.slice(at * ROW_BYTES..(at + 1) * ROW_BYTES);
            (Some(&row_hash(&piece)) == group.parity_hash(parity, row)).then_some(piece)
        });
        checked.collect()
    }

    /// Rows of a column, from the stores or computed, all of them right.
    pub(super) async fn rows(
        &self,
        group: &Group,
        column: usize,
        rows: Range<usize>,
    ) -> Result<Vec<Bytes>, RowError> {
        let mut found = Vec::with_capacity(rows.len());
        let mut start = rows.start;
        while start < rows.end {
            let window = start..rows.end.min(start + WINDOW_ROWS);
            start = window.end;
            let stored = self.stored_rows(group, column, &window).await;
            if stored.iter().all(Option::is_some) {
                found.extend(stored.into_iter().flatten());
                continue;
            }
            let at_first = stored.iter().position(Option::is_none).unwrap_or(0);
            let at_last = stored.iter().rposition(Option::is_none).unwrap_or(0);
            let lost = window.start + at_first..window.start + at_last + 1;
            let computed = self.compute(group, column, &lost).await?;
            for (at, stored) in stored.into_iter().enumerate() {
                let row = window.start + at;
                match stored {
                    Some(piece) => found.push(piece),
                    None => found.push(computed[row - lost.start].clone()),
                }
            }
        }
        Ok(found)
    }

    /// Computes rows of a column from the others.
    async fn compute(
        &self,
        group: &Group,
        column: usize,
        rows: &Range<usize>,
    ) -> Result<Vec<Bytes>, RowError> {
        let others = (0..COLUMNS)
            .filter(|other| *other != column)
            .map(|other| async move { (other, self.stored_rows(group, other, rows).await) });
        let parities =
            (0..PARITIES).map(|parity| async move { (parity, self.parity_rows(group, parity, rows).await) });
        let (others, parities) = join(join_all(others), join_all(parities)).await;
        let (number, first) = (group.head.group, rows.start);
        let hashes: Vec<_> = rows
            .clone()
            .map(|row| group.column_hash(column, row).copied())
            .collect();
        let computed = self
            .env()
            .compute(move || {
                let of_row = |(at, hash): (usize, Option<_>)| {
                    let pieces = others
                        .iter()
                        .filter_map(|(other, rows)| Some((*other, rows[at].as_deref()?)));
                    let sums = parities
                        .iter()
                        .filter_map(|(parity, rows)| Some((*parity, rows[at].as_deref()?)));
                    let restored = restore(&pieces.collect::<Vec<_>>(), &sums.collect::<Vec<_>>());
                    let of_column = restored
                        .into_iter()
                        .flatten()
                        .find_map(|(of, piece)| (of == column).then(|| Bytes::from(piece)));
                    let is_right = |piece: &Bytes| hash == Some(row_hash(piece));
                    of_column.filter(is_right).ok_or(first + at)
                };
                hashes
                    .into_iter()
                    .enumerate()
                    .map(of_row)
                    .collect::<Result<Vec<_>, usize>>()
            })
            .await;
        let mut state = self.lock();
        match computed {
            Ok(computed) => {
                state.status.rows_restored += computed.len() as u64;
                Ok(computed)
            }
            Err(row) => {
                state.status.rows_failed += 1;
                Err(RowError::Lost { group: number, row })
            }
        }
    }

    /// The group that a segment is a member of, as far as groups were listed.
    pub(super) fn group_of(&self, segment: SegmentId) -> Option<Arc<GroupHead>> {
        let state = self.lock();
        let group = state.index.members.get(&segment)?;
        Some(state.index.groups.get(group)?.head.clone())
    }
}
