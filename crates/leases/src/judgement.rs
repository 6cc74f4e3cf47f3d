//! The judgement of a broken member's journal, by taint.
//!
//! **Lost** is an inode that another holds now, or that the newest root has otherwise than the retained one: somebody may have taken it, changed it and given it
//! home. A record that touches something lost, or anything that such a record touched, goes into the salvage clone *whole*; all others go on, on the
//! newest root. So what goes on never stands on what is only in the clone.

use std::collections::BTreeSet;

/// Of records in their order, each given by the inodes that it touches (the shape lease among them, for a rename of a directory into another parent):
/// which go on.
pub fn judge<'a>(records: impl IntoIterator<Item = &'a [u64]>, is_lost: impl Fn(u64) -> bool) -> Vec<bool> {
    let mut tainted: BTreeSet<u64> = BTreeSet::new();
    let mut verdicts = Vec::new();
    for touched in records {
        let stands_on_lost = touched.iter().any(|inode| {
            let is_tainted = tainted.contains(inode) && !firn_env::planted!("leases.tainted_goes_on");
            is_tainted || is_lost(*inode)
        });
        if stands_on_lost {
            tainted.extend(touched.iter().copied());
        }
        verdicts.push(!stands_on_lost);
    }
    verdicts
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
