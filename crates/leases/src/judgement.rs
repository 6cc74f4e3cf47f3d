//! The judgement of a broken member's journal, by taint.
//!
//! **Lost** is an inode that another holds now, or that the newest root has otherwise than the retained one: somebody may have taken it, changed it and given it
//! home. A record that touches something lost, or anything that such a record touched, stays in the salvage clone; all others go on, on the newest root. So
//! what goes on never stands on what is only in the clone. The clone has *all* of the journal, on the retained root: what stays there may stand on what goes on.

use std::collections::BTreeSet;

/// A judgement under way: what is tainted by the records so far. As large as the inodes that they touch; the same records and the same losses make the same
/// of it, however often it is made.
pub struct Judgement<L> {
    is_lost: L,
    tainted: BTreeSet<u64>,
}

impl<L: Fn(u64) -> bool> Judgement<L> {
    /// Of no record yet.
    pub fn new(is_lost: L) -> Self {
        Self {
            is_lost,
            tainted: BTreeSet::new(),
        }
    }

    /// Whether the next record goes on, given by the inodes that it touches (the shape lease among them, for a rename of a directory into another parent).
    pub fn goes_on(&mut self, touched: &[u64]) -> bool {
        let stands_on_lost = touched.iter().any(|inode| {
            let is_tainted = self.tainted.contains(inode) && !firn_env::planted!("leases.tainted_goes_on");
            is_tainted || (self.is_lost)(*inode)
        });
        if stands_on_lost {
            self.tainted.extend(touched.iter().copied());
        }
        !stands_on_lost
    }
}

/// Of records in their order, which go on.
pub fn judge<'a>(records: impl IntoIterator<Item = &'a [u64]>, is_lost: impl Fn(u64) -> bool) -> Vec<bool> {
    let mut judgement = Judgement::new(is_lost);
    records
        .into_iter()
        .map(|touched| judgement.goes_on(touched))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_a_salvaged_record_is_salvaged_and_nothing_else() {
        let records: [&[u64]; 5] = [&[1], &[1, 2], &[3], &[2, 4], &[4, 5]];
        assert_eq!(
            judge(records, |inode| inode == 2),
            [true, false, true, false, false]
        );
        assert_eq!(judge(records, |_| false), [true; 5]);
        let planted = firn_env::mutants::planting(Some("leases.tainted_goes_on"), || {
            judge(records, |inode| inode == 2)
        });
        assert_eq!(planted, [true, false, true, false, true]);
    }
}
