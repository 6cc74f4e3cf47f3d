//! The layout: where in a group a segment that joins is put.
//!
//! At the lowest place that it fits, over all columns: what others left is used again, and columns stay about as long as each other, which keeps
//! the parities, as long as the longest, short. Larger segments are best placed first.

use crate::{COLUMNS, Member, ROW_BYTES, ROWS_MAX};

/// The spans that are taken in each column.
#[derive(Clone, Debug)]
pub struct Layout {
    columns: Vec<Vec<(u32, u32)>>,
}

impl Layout {
    /// That of a group with these members.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        let mut columns = vec![Vec::new(); COLUMNS];
        for member in members {
            columns[usize::from(member.column)].push((member.offset, member.end()));
        }
        columns.iter_mut().for_each(|spans| spans.sort_unstable());
        Self { columns }
    }

    /// Takes a place for a segment of this many bytes: its column and offset. `None` if no column has room.
    pub fn place(&mut self, bytes: u32) -> Option<(u8, u32)> {
        let lowest = |(column, spans): (usize, &Vec<(u32, u32)>)| {
            let mut offset = 0_u32;
            let mut at = 0;
            for (start, end) in spans {
                if start - offset >= bytes {
                    break;
                }
                offset = *end;
                at += 1;
            }
            let end = offset as usize + bytes as usize;
            (end <= ROWS_MAX * ROW_BYTES).then_some((offset, column, at))
        };
        let (offset, column, at) = self.columns.iter().enumerate().filter_map(lowest).min()?;
        self.columns[column].insert(at, (offset, offset + bytes));
        Some((column as u8, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_makes_room_and_columns_stay_even() {
        let mut layout = Layout::of(&[]);
        for column in 0..COLUMNS {
            assert_eq!(layout.place(100), Some((column as u8, 0)));
        }
        assert_eq!(layout.place(50), Some((0, 100)));
        layout.columns[7].clear();
        assert_eq!(layout.place(101), Some((7, 0)), "the lowest place");
        layout.columns[9] = vec![(0, 10), (60, 100)];
        assert_eq!(layout.place(50), Some((9, 10)), "between two others");
        let whole = (ROWS_MAX * ROW_BYTES) as u32;
        assert_eq!(layout.place(whole), None);
        assert_eq!(Layout::of(&[]).place(whole), Some((0, 0)));
        assert_eq!(Layout::of(&[]).place(whole + 1), None);
    }
}
