//! A new generation of a group: who joins is added to its parities, who leaves is subtracted.
//!
//! ```text
//! per column with a change:   old rows (read, or computed) ⊕ new rows ─▶ encoded, added to the parities; hashes of the new rows
//! then:                       parity-0, parity-1, parity-2, group      created in this order; the last makes it the group
//! ```
//!
//! Read are the three parities, who joins, and the rows in which something changes; of the rest nothing. What is read is checked by the hashes of the
//! generation before, so no damage is taken over into the next. Columns are encoded together, as many as [`TOGETHER_BYTES`] has room for: one by itself
//! costs as much time as all. Memory: the parities (48 MiB at most), and that.

use super::{Known, Parity, rows::RowError};
use bytes::Bytes;
use firn_format::{SegmentId, decode_segment};
use firn_parity::{
    COLUMNS, Coder, Group, GroupHead, Layout, MEMBERS_MAX, Member, PARITIES, Part, ROW_BYTES, RowHash,
    row_hash,
};
use firn_store::{PutMode, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Changes that are encoded together: half of a usual batch.
const TOGETHER_BYTES: usize = 32 << 20;

/// What is to be different in a group.
pub(super) struct Change {
    pub group: u64,
    /// `None`: it is new.
    pub old: Option<Arc<GroupHead>>,
    /// Of the new one; above all that were seen.
    pub generation: u64,
    pub leaving: BTreeSet<SegmentId>,
    /// With their lengths.
    pub joining: Vec<(SegmentId, u32)>,
}

/// What became of it.
pub(super) enum Rewritten {
    /// There is a new generation.
    Written(Known),
    /// Nobody is left.
    Empty,
    /// Somebody else writes this generation.
    Overtaken,
}

/// One column's changes, with all bytes that they need.
struct ColumnChange {
    column: usize,
    /// Rows with a change, as they were; `None` where the column had ended.
    rows: BTreeMap<usize, Option<Bytes>>,
    leaving: Vec<Member>,
    joining: Vec<(Member, Bytes)>,
}

type Parities = [Vec<u8>; PARITIES];

impl Parity {
    /// Writes the generation; what was put of one that does not end is left over for the next pass.
    pub(super) async fn rewrite(&self, mut change: Change) -> Result<Rewritten, RowError> {
        let old = match &change.old {
            Some(head) => Some(self.group(head).await?),
            None => None,
        };
        let before: &[Member] = old.as_deref().map_or(&[], |group| &group.head.members);
        let (leaving, kept): (Vec<Member>, Vec<Member>) = before
            .iter()
            .partition(|member| change.leaving.contains(&member.segment));
        let mut layout = Layout::of(&kept);
        // Large ones first, since they find no place later.
        change.joining.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut joining = Vec::new();
        for (segment, bytes) in change.joining {
            if kept.len() + joining.len() >= MEMBERS_MAX {
                break;
            }
            if let Some((column, offset)) = layout.place(bytes) {
                joining.push(Member {
                    segment,
                    column,
                    offset,
                    bytes,
                    hash: [0; 32],
                });
            }
        }
        let all = kept.iter().chain(&joining);
        let rows = all.map(|member| member.rows().end).max().unwrap_or(0);
        if rows == 0 {
            return Ok(Rewritten::Empty);
        }
        let mut parities = self.old_parities(old.as_deref(), rows).await?;
        let mut members = kept.clone();
        let mut hashes: Vec<BTreeMap<usize, RowHash>> = vec![BTreeMap::new(); COLUMNS];
        let mut together = Vec::new();
        for column in 0..COLUMNS {
            let of_column = |members: &[Member]| -> Vec<Member> {
                let of = members
                    .iter()
                    .filter(|member| usize::from(member.column) == column);
                of.copied().collect()
            };
            let (leaving, joining) = (of_column(&leaving), of_column(&joining));
            if !leaving.is_empty() || !joining.is_empty() {
                let joining = self.contents(joining).await;
                let changed = self
                    .column_change(old.as_deref(), column, leaving, joining)
                    .await?;
                members.extend(changed.joining.iter().map(|(member, _)| *member));
                together.push(changed);
            }
            let is_last = column + 1 == COLUMNS;
            if together.iter().map(ColumnChange::bytes).sum::<usize>() < TOGETHER_BYTES && !is_last {
                continue;
            }
            let changes = std::mem::take(&mut together);
            let applied = self
                .env()
                .compute(move || {
                    let hashes = apply(&changes, &mut parities, rows);
                    (parities, hashes)
                })
                .await;
            parities = applied.0;
            for (column, row, hash) in applied.1 {
                hashes[column].insert(row, hash);
            }
        }
        members.sort_unstable_by_key(|member| (member.column, member.offset));
        let head = GroupHead {
            family: self.family(),
            group: change.group,
            generation: change.generation,
            members,
        };
        if head.members.is_empty() {
            return Ok(Rewritten::Empty);
        }
        let zeros = row_hash(&[0; ROW_BYTES]);
        let of_column = |(column, changed): (usize, &BTreeMap<usize, RowHash>)| {
            let old = old.as_deref();
            let hash = |row| {
                let before = || old.and_then(|group| group.column_hash(column, row));
                *changed.get(&row).or_else(before).unwrap_or(&zeros)
            };
            (0..head.column_rows(column)).map(hash).collect()
        };
        let mut hashes: Vec<Vec<RowHash>> = hashes.iter().enumerate().map(of_column).collect();
        for parity in &mut parities {
            parity.truncate(head.rows() * ROW_BYTES);
            hashes.push(parity.chunks(ROW_BYTES).map(row_hash).collect());
        }
        let group = Group { head, hashes };
        match self.put_group(&group, parities).await {
            Ok(bytes) => Ok(Rewritten::Written(self.committed(group, bytes))),
            Err(StoreError::AlreadyExists { .. }) => Ok(Rewritten::Overtaken),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_group(&self, group: &Group, parities: Parities) -> Result<u64, StoreError> {
        let head = &group.head;
        let mut put_bytes = 0;
        let encoded = group.encode();
        let parts = parities.into_iter().enumerate();
        let parts = parts.map(|(at, parity)| (Part::Parity(at as u8), Bytes::from(parity)));
        for (part, bytes) in parts.chain([(Part::Group, encoded)]) {
            put_bytes += bytes.len() as u64;
            let key = self.group_key(head.group, head.generation, part);
            self.second().put(&key, vec![bytes], PutMode::Create).await?;
        }
        Ok(put_bytes)
    }

    fn committed(&self, group: Group, bytes: u64) -> Known {
        let known = Known {
            head: Arc::new(group.head.clone()),
            is_whole: true,
            bytes,
        };
        self.remember(Arc::new(group));
        let mut state = self.lock();
        state.status.generations_written += 1;
        state.index.insert(known.clone());
        known
    }

    /// The parities as they are, for `rows` rows; those that are lost are computed from the columns.
    async fn old_parities(&self, old: Option<&Group>, rows: usize) -> Result<Parities, RowError> {
        let mut parities = [(); PARITIES].map(|()| vec![0; rows * ROW_BYTES]);
        let Some(group) = old else {
            return Ok(parities);
        };
        let there = 0..rows.min(group.head.rows());
        let mut lost = BTreeSet::new();
        for (at, parity) in parities.iter_mut().enumerate() {
            let read = self.parity_rows(group, at, &there).await;
            for (row, piece) in read.into_iter().enumerate() {
                match piece {
                    Some(piece) => parity[row * ROW_BYTES..][..ROW_BYTES].copy_from_slice(&piece),
                    None => drop(lost.insert(row)),
                }
            }
        }
        for row in lost {
            let mut columns = Vec::with_capacity(COLUMNS);
            for column in 0..COLUMNS {
                columns.extend(self.rows(group, column, row..row + 1).await?);
            }
            let sums = self.env().compute(move || {
                let mut sums = [(); PARITIES].map(|()| vec![0; ROW_BYTES]);
                let columns: Vec<_> = columns.iter().map(|piece| &piece[..]).enumerate().collect();
                Coder::new(ROW_BYTES).add(&columns, sums.each_mut().map(Vec::as_mut_slice));
                sums
            });
            for (parity, sum) in parities.iter_mut().zip(sums.await) {
                parity[row * ROW_BYTES..][..ROW_BYTES].copy_from_slice(&sum);
            }
        }
        Ok(parities)
    }

    /// The bytes of who joins; who is no whole segment does not.
    async fn contents(&self, joining: Vec<Member>) -> Vec<(Member, Bytes)> {
        let mut contents = Vec::with_capacity(joining.len());
        for member in joining {
            let key = self.segment_key(member.segment);
            let is_whole = |bytes: &Bytes| {
                bytes.len() == member.bytes as usize
                    && decode_segment(bytes.clone())
                        .is_ok_and(|found| found.id == member.segment && found.family == self.family())
            };
            match self.second().get(&key).await {
                Ok(bytes) if is_whole(&bytes) => {
                    let hash = row_hash(&bytes);
                    contents.push((Member { hash, ..member }, bytes));
                }
                Ok(_) => {
                    tracing::warn!(%key, "the second store's copy is no whole segment; it joins no parity group");
                }
                Err(error) => {
                    tracing::debug!(%error, %key, "a segment cannot be read and joins no parity group for now");
                }
            }
        }
        contents
    }

    async fn column_change(
        &self,
        old: Option<&Group>,
        column: usize,
        leaving: Vec<Member>,
        joining: Vec<(Member, Bytes)>,
    ) -> Result<ColumnChange, RowError> {
        let changed = leaving.iter().chain(joining.iter().map(|(member, _)| member));
        let touched: BTreeSet<usize> = changed.flat_map(Member::rows).collect();
        let had = old.map_or(0, |group| group.head.column_rows(column));
        let mut rows: BTreeMap<usize, Option<Bytes>> = touched.iter().map(|row| (*row, None)).collect();
        let mut there = touched.range(..had).copied().peekable();
        while let (Some(group), Some(start)) = (old, there.next()) {
            let mut end = start + 1;
            while there.next_if_eq(&end).is_some() {
                end += 1;
            }
            let read = self.rows(group, column, start..end).await?;
            rows.extend((start..end).zip(read.into_iter().map(Some)));
        }
        Ok(ColumnChange {
            column,
            rows,
            leaving,
            joining,
        })
    }
}

impl ColumnChange {
    /// Of memory.
    fn bytes(&self) -> usize {
        let joining = self.joining.iter().map(|(_, bytes)| bytes.len());
        joining.sum::<usize>() + self.rows.values().flatten().map(Bytes::len).sum::<usize>()
    }

    /// A row as it is to be; the one before is zeros if the column had ended.
    fn new_row(&self, row: usize, old: Option<&Bytes>) -> Vec<u8> {
        let from = row * ROW_BYTES;
        let within = |member: &Member| {
            let start = (member.offset as usize).max(from);
            let end = (member.end() as usize).min(from + ROW_BYTES);
            (start < end).then(|| (start - from..end - from, start - member.offset as usize))
        };
        let mut new = old.map_or_else(|| vec![0; ROW_BYTES], |old| old.to_vec());
        for (range, _) in self.leaving.iter().filter_map(within) {
            new[range].fill(0);
        }
        for (member, bytes) in &self.joining {
            if let Some((range, offset)) = within(member) {
                let length = range.len();
                new[range].copy_from_slice(&bytes[offset..offset + length]);
            }
        }
        new
    }
}

/// Adds changes to the parities of the first `rows` rows. Gives the hashes of the changed rows as they are now, with their columns.
fn apply(changes: &[ColumnChange], parities: &mut Parities, rows: usize) -> Vec<(usize, usize, RowHash)> {
    let mut coder = Coder::new(ROW_BYTES);
    let mut hashes = Vec::new();
    let touched: BTreeSet<usize> = changes
        .iter()
        .flat_map(|change| change.rows.keys().copied())
        .collect();
    for row in touched {
        let mut differences = Vec::with_capacity(changes.len());
        for change in changes {
            let Some(old) = change.rows.get(&row) else {
                continue;
            };
            let mut new = change.new_row(row, old.as_ref());
            hashes.push((change.column, row, row_hash(&new)));
            if let Some(old) = old {
                new.iter_mut().zip(old.iter()).for_each(|(new, old)| *new ^= old);
            }
            differences.push((change.column, new));
        }
        if row < rows {
            let from = row * ROW_BYTES;
            let sums = parities
                .each_mut()
                .map(|parity| &mut parity[from..from + ROW_BYTES]);
            let given: Vec<_> = differences
                .iter()
                .map(|(column, piece)| (*column, piece.as_slice()))
                .collect();
            coder.add(&given, sums);
        }
    }
    hashes
}
